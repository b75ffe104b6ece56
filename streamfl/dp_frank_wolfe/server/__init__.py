"""The server: announced entities, fits under way, and parties that are away."""
