"""Tables in the order of age, of which what is too old goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar

__all__ = ["Aged", "overdue"]

Key = TypeVar("Key")


class Aged(Protocol):
    """``since``: in seconds, when it came."""

    since: float


def overdue(entries: Mapping[Key, Aged], expiry: float, now: float) -> Iterator[Key]:
    """The keys of those that came ``expiry`` seconds ago, oldest first; each has to be removed before the next is asked for.

    entries: oldest first.
    """
    while entries:
        key, oldest = next(iter(entries.items()))
        if oldest.since > now:
            # Written by a clock that was ahead: nothing behind it may wait for that time to come.
            for entry in entries.values():
                entry.since = min(entry.since, now)
        if oldest.since + expiry > now:
            return
        yield key
