"""What an entity's epsilon allows, and what it has spent."""
