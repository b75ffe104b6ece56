"""Quasi-Newton: accuracy against the paper, and attacks on its privacy."""
