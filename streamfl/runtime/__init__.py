"""The runtime: moves messages between a bus and the roles."""
