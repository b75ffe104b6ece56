"""FDSKL: attacks on its privacy."""
