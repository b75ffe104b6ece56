"""Messages and state to bytes and back, and checks of what was decoded."""
