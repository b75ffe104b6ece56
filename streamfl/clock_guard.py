"""Times that a role remembers: at no tick is one of them ahead of the clock.

A role notes each time as it was given it. So one can be ahead only after the clock was set back, or where another clock wrote what
was restored. Waited for as it stands it would hold things up for as long as the clock was ahead. It becomes the time of the tick
that a worker gives in both cases, and is remembered so: every remembered time is the earlier of then and now.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Protocol, TypeVar

__all__ = ["Aged", "ClockGuard", "overdue", "set_back", "time_written", "time_written_by"]

Key = TypeVar("Key")


class Aged(Protocol):
    """``since``: in seconds, when it came."""

    since: float


Entry = TypeVar("Entry", bound=Aged)


class ClockGuard:
    """Whether a time that is remembered may be ahead, so that a role looks at all of them only then.

    >>> guard = ClockGuard()
    >>> guard.pass_to(4600.0, tick=False), guard.pass_to(1000.0, tick=True), guard.pass_to(1000.0, tick=True)
    (False, True, False)
    """

    def __init__(self) -> None:
        self._latest = -math.inf

    def opened(self) -> None:
        """A partition was opened: what will be restored may have been written by another clock."""
        self._latest = math.inf

    def pass_to(self, now: float, *, tick: bool) -> bool:
        """To be said at every ``receive``. True at a tick at which every remembered time above ``now`` has to be set to it."""
        ahead = tick and now < self._latest
        self._latest = now if tick else max(self._latest, now)
        return ahead


def set_back(entries: MutableMapping[Key, Entry], now: float) -> list[Key]:
    """Let what came after ``now`` have come now; returns the keys of it, to be remembered anew in this order.

    entries: oldest first, and so they are left.
    """
    ahead = [key for key, entry in entries.items() if entry.since > now]
    for key in ahead:
        entry = entries.pop(key)
        entry.since = now
        entries[key] = entry
    return ahead


def overdue(entries: Mapping[Key, Aged], expiry: float, now: float) -> Iterator[Key]:
    """The keys of those that came ``expiry`` seconds ago, oldest first; each has to be removed before the next is asked for.

    entries: oldest first.
    """
    while entries:
        key, oldest = next(iter(entries.items()))
        if oldest.since + expiry > now:
            return
        yield key


def time_written(timestamp: float, now: float) -> float:
    """When a record was written to its topic, in seconds. A record without a timestamp counts as written now.

    Whoever wrote the timestamp may have a clock that is ahead of ``now``.

    >>> time_written(5.0, now=7.0), time_written(0.0, now=7.0)
    (5.0, 7.0)
    """
    return timestamp if timestamp > 0 else now


def time_written_by(now: float, timestamp: float) -> float:
    """The same, but not after ``now``: for what is compared with times of the clock here.

    >>> time_written_by(7.0, 5.0), time_written_by(7.0, 9.0)
    (5.0, 7.0)
    """
    return min(time_written(timestamp, now), now)
