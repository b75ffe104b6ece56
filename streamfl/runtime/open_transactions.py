"""Notices a transaction that nobody ends: readers of committed records get no record that was written after
its beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamfl.runtime.bus import Bus, TopicPartition

__all__ = ["OpenTransactions"]

# Twice the default timeout of transactions of Kafka's producers. The broker ends a transaction after its
# producer's timeout.
USUAL_SECONDS = 120.0
EXAMPLES = 3


class OpenTransactions:
    """How long the same transaction has held back records of partitions that are read.

    A broker ends a transaction after its producer's timeout. Only a hanging one (KIP-664) stays until an
    operator ends it.

    bus: the cluster.
    topics: the topics that are read.
    clock: seconds that never run backwards.
    """

    def __init__(self, bus: Bus, topics: Iterable[str], clock: Callable[[], float]) -> None:
        self._bus = bus
        self._topics = list(topics)
        self._clock = clock
        # The offset at which each transaction began, and when it was noticed.
        self._open: dict[TopicPartition, tuple[int, float]] = {}

    def look(self) -> str | None:
        """A text for the operator on records that are held back for unusually long. BusUnavailable if no
        broker answers."""
        now = self._clock()
        known, self._open, held = self._open, {}, []
        for topic in self._topics:
            for partition, (offset, end) in self._bus.undecided(topic).items():
                place = topic, partition
                before = known.get(place)
                self._open[place] = before if before is not None and before[0] == offset else (offset, now)
                seconds = now - self._open[place][1]
                if seconds > USUAL_SECONDS:
                    what = f"since offset {offset} for {seconds:.0f} s, {end - offset} records"
                    held.append(f"partition {partition} of {topic!r} {what}")
        if not held:
            return None
        more = f"; and {len(held) - EXAMPLES} more" if len(held) > EXAMPLES else ""
        return (
            f"an open transaction hides records: {'; '.join(held[:EXAMPLES])}{more}. Find it with "
            "kafka-transactions.sh find-hanging and end it with abort, or restart its producer"
        )
