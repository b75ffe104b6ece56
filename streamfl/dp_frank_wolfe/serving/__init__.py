"""Predictions with a published model, as a sum of the parties' parts."""
