"""What sessions have in common on the buses that keep groups and offsets themselves: in memory and in a
file."""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Subscription, TopicPartition

__all__ = ["OwnSession"]


class OwnSession:
    """Positions in inputs and tables. A subclass is a :class:`streamfl.runtime.bus.Session`."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._positions: dict[TopicPartition, int] = {}
        self._origins: dict[TopicPartition, int] = {}
        self._paused: frozenset[TopicPartition] = frozenset()
        self._table_positions: dict[TopicPartition, int] = {}
        self._refused = False
        self._closed = False
        self._turn = 0

    def seek(self, topic: str, partition: int, offset: int, epoch: int = -1) -> None:
        """Go on reading an assigned input partition at ``offset``."""
        if (topic, partition) not in self._positions:
            raise ValueError(f"partition {partition} of {topic!r} is not assigned to this session")
        self._positions[topic, partition] = offset

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Bring no more records of exactly these input partitions until told otherwise."""
        self._paused = frozenset(places)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the session is closed")

    def _places_in_turn(self) -> list[TopicPartition]:
        """The partitions to read from. Another one goes first each time, so that a busy one cannot starve the
        rest."""
        places = [place for place in self._positions if place not in self._paused]
        self._turn += 1
        start = self._turn % len(places) if places else 0
        return places[start:] + places[:start]

    def _without_offset(self, place: TopicPartition, begin: int, end: int) -> int:
        """Where to read a partition of which the group has committed no offset. begin, end: of its log."""
        reset = self._subscription.auto_offset_reset
        if reset == "error":
            raise ConfigurationError(
                f"bus.auto_offset_reset = 'error': group {self._subscription.group!r} has no committed "
                f"offset for partition {place[1]} of {place[0]!r}; set 'earliest' or 'latest' to say where "
                "to begin"
            )
        # Kept, because after a refused step a second 'latest' would skip records that were read and not
        # committed.
        return self._origins.setdefault(place, end if reset == "latest" else begin)
