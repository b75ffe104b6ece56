"""A party: its model, its embeddings in flight, and its noise."""
