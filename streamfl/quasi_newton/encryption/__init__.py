"""Paillier's scheme, its keys, and arithmetic on encrypted numbers."""
