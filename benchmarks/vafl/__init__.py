"""VAFL: speed, accuracy, virtual time, and attacks on its privacy."""
