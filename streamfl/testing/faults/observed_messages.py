"""The records in the topics after a run, for a system's checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from streamfl.contract.role import Record
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.federation import CheckFailed

__all__ = ["Sent", "TopicReader", "latest", "require", "sent"]


def require(holds: bool, text: str) -> None:
    if not holds:
        raise CheckFailed(text)


class TopicReader(Protocol):
    """Anything that returns topics' records: a bus, or records read earlier."""

    def read(self, topic: str) -> Iterator[Record]: ...


class Sent(NamedTuple):
    """A record of a topic.

    at: when it was written, in seconds.
    message: its value, decoded.
    """

    partition: int
    at: float
    message: Any


def sent(bus: TopicReader, topic: str, decode: Callable[[Any], Any]) -> list[Sent]:
    """The records of a topic, without those that a producer wrote a second time."""
    repeated = bus.repeated if isinstance(bus, FaultyBus) else set()
    return [
        Sent(record.partition, record.timestamp, decode(record.value))
        for record in bus.read(topic)
        if (record.topic, record.partition, record.offset) not in repeated
    ]


def latest(bus: TopicReader, topic: str) -> dict[tuple[int, bytes], bytes]:
    latest: dict[tuple[int, bytes], bytes | None] = {}
    for record in bus.read(topic):
        latest[record.partition, record.key or b""] = record.value
    return {place: value for place, value in latest.items() if value is not None}
