"""Scores of entities by a model that was trained."""
