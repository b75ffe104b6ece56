"""Entities and their columns: alignment, preprocessing, batches."""
