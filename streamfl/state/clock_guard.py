"""Keeps the times that a role remembers from being ahead of the clock.

A role remembers each ``now`` as it got it. So a remembered time can be ahead only after the clock was set
back, or if another clock wrote the state that was restored. The role would then wait for as long as the clock
was ahead. In both cases the worker gives a tick, and at this tick the role replaces every remembered time by
the earlier of it and now, in the changelog too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Protocol, TypeVar

__all__ = [
    "Aged",
    "ClockGuard",
    "earliest",
    "overdue",
    "set_back",
    "time_written",
    "time_written_by",
    "times_written_by",
]

Key = TypeVar("Key")


class Aged(Protocol):
    """An entry with ``since``: when it came, in seconds."""

    since: float


Entry = TypeVar("Entry", bound=Aged)


def earliest(*times: float | None) -> float | None:
    """The first of these times; None: there is none.

    >>> earliest(7.0, None, 5.0), earliest(None)
    (5.0, None)
    """
    return min([at for at in times if at is not None], default=None)


class ClockGuard:
    """Tells whether a remembered time may be ahead, so that a role has to check all of them only then.

    >>> guard = ClockGuard()
    >>> guard.pass_to(4600.0, tick=False), guard.pass_to(1000.0, tick=True), guard.pass_to(1000.0, tick=True)
    (False, True, False)
    """

    def __init__(self) -> None:
        self._latest = -math.inf

    def opened(self) -> None:
        """A partition was opened: another clock may have written the state that will be restored."""
        self._latest = math.inf

    def pass_to(self, now: float, *, tick: bool) -> bool:
        """Call it at every ``receive``. True at a tick at which every remembered time above ``now`` has to be
        set to ``now``."""
        ahead = tick and now < self._latest
        self._latest = now if tick else max(self._latest, now)
        return ahead


def set_back(entries: MutableMapping[Key, Entry], now: float) -> list[Key]:
    """Set ``since`` of entries that came after ``now`` to ``now``. Returns their keys, to be remembered anew
    in this order.

    entries: oldest first; they stay in this order.
    """
    ahead = [key for key, entry in entries.items() if entry.since > now]
    for key in ahead:
        entry = entries.pop(key)
        entry.since = now
        entries[key] = entry
    return ahead


def overdue(entries: Mapping[Key, Aged], expiry: float, now: float) -> Iterator[Key]:
    """The keys of entries that came ``expiry`` seconds ago or earlier, oldest first. Remove each before
    asking for the next.

    entries: oldest first.
    """
    while entries:
        key, oldest = next(iter(entries.items()))
        if oldest.since + expiry > now:
            return
        yield key


def time_written(timestamp: float, now: float) -> float:
    """When a record was written to its topic, in seconds. A record without a timestamp counts as written now.

    The result may be ahead of ``now``: the writer's clock may be.

    >>> time_written(5.0, now=7.0), time_written(0.0, now=7.0)
    (5.0, 7.0)
    """
    return timestamp if timestamp > 0 else now


def time_written_by(now: float, timestamp: float) -> float:
    """The same, but never after ``now``: for comparison with times of the local clock.

    >>> time_written_by(7.0, 5.0), time_written_by(7.0, 9.0)
    (5.0, 7.0)
    """
    return timestamp if 0 < timestamp < now else now


def times_written_by(now: float, timestamps: list[float]) -> list[float]:
    """The same for several records.

    >>> times_written_by(7.0, [5.0, 9.0])
    [5.0, 7.0]
    """
    if timestamps and min(timestamps) > 0 and max(timestamps) < now:
        return timestamps
    return [time_written_by(now, timestamp) for timestamp in timestamps]
