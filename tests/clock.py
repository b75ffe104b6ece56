"""A clock that tests set."""

from __future__ import annotations


class Clock:
    """now: the time that it returns; a test adds to it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
