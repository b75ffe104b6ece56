"""Notices that a client library brings nothing from a partition although records are there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import BusUnavailable, TopicPartition

__all__ = ["END_SECONDS", "Silence"]

# A caller that asks for a member's lag should not wait for a cluster that is away.
END_SECONDS = 2.0


class ReadableCluster(Protocol):
    """The part of a bus that is needed here."""

    connect_timeout: float

    def ends(self, places: Iterable[TopicPartition], patience: float, /) -> dict[TopicPartition, int]:
        """Offset after the last committed record of each partition; BusUnavailable after ``patience``
        seconds."""

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records from ``offset`` to the present end; Unreadable even where the library reports
        nothing."""


class Silence:
    """Notices that nothing comes from a partition although records are there.

    After an outage of the whole cluster the library may never fetch a partition again, without an error. It
    also reports nothing about a record that it cannot read.
    """

    def __init__(self, cluster: ReadableCluster) -> None:
        self._cluster = cluster
        self._behind: dict[TopicPartition, int] = {}
        self._next = 0.0
        self.begin()

    def begin(self, delay: float = 0.0) -> None:
        """Begin to watch anew in ``delay`` seconds. Call it while nothing is read for a good reason: during a
        join, or while brokers delay the library's requests because of a quota."""
        self._behind = {}
        # Another broker may not delay anything.
        self._next = max(self._next, time.monotonic() + delay + self._cluster.connect_timeout)

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Nothing is expected of these partitions for now, because the caller pauses them."""
        for place in places:
            self._behind.pop(place, None)

    def check(self, positions: Mapping[TopicPartition, int]) -> None:
        """Check whether a partition does not move although records are there. Call it when the library has no
        more records.

        BusUnavailable if a partition was behind its end ``connect_timeout`` seconds ago and has not moved
        since; Unreadable if that is because of the record there.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._cluster.connect_timeout
        before, self._behind = self._behind, {}
        with suppress(BusUnavailable, ConfigurationError):
            ends = self._cluster.ends(positions, END_SECONDS)
            self._behind = {
                place: position for place, position in positions.items() if position < ends[place]
            }
        for (topic, partition), position in self._behind.items():
            if before.get((topic, partition)) == position:
                next(self._cluster.read_from(topic, partition, position), None)
                raise BusUnavailable(
                    f"nothing came from {topic!r} partition {partition} after offset {position} for "
                    f"{self._cluster.connect_timeout:g} s, although there are records"
                )
