"""Quasi-Newton: accuracy against the paper, attacks on its privacy, and what its encryption costs."""
