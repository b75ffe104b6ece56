"""Quasi-Newton: what is measured of its speed."""

from __future__ import annotations

from benchmarks.quasi_newton.encryption import measure

__all__ = ["measure"]
