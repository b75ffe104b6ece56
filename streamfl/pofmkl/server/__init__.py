"""The server: shards of the model, their rounds, and their publication."""
