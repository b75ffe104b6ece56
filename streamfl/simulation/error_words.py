"""Errors of predictions as text, the same wherever people read them."""

from __future__ import annotations

import math

__all__ = ["in_words"]

LARGE = 1e9


def in_words(error: float, digits: int = 4) -> str:
    """An error as text with ``digits`` digits, and without an exponent up to a billion.

    >>> in_words(0.12), in_words(10850.4), in_words(float("inf"))
    ('0.1200', '10,850', 'diverged')
    >>> in_words(999.96), in_words(9.96, digits=2)
    ('1000', '10')
    """
    if not math.isfinite(error):
        return "diverged"
    if error >= LARGE:
        return f"{error:.{digits}g}"
    return f"{error:,.0f}" if error >= 10 ** (digits - 1) else f"{error:#.{digits}g}".rstrip(".")
