"""Quasi-Newton: what its encryption costs."""
