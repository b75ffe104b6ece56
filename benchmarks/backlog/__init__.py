"""What the members of a vertical federation predict and learn while a peer has not caught up, measured on
worker processes."""
