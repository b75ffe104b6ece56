"""Quasi-Newton: what is measured of its speed."""

from __future__ import annotations
