"""Predictions of an active party, and their errors."""
