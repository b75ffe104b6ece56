"""What moves messages between a bus and the roles."""
