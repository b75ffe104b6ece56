"""Masked sums over parties: parts, masks, rounds, and the way that sums take."""
