"""What a role and a learning system are, and what every role has to keep to."""
