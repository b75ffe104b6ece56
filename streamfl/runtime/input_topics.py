"""Facts that are remembered about the input topics beside the positions: which topics they were, and what of
them was never read.

A position alone does not identify a record. A topic that was deleted and made again has other records at the
same offsets. So has the log of a replica that was behind when it became the leader. The epoch of the leader
that wrote the last record that was read shows this (KIP-320).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

from streamfl.runtime.bus import Moved, TopicPartition

__all__ = ["FACT", "InputTopics", "Unread", "is_fact", "unread_of"]

# Prefixes that make a fact's name from a topic's. A fact is remembered like a position: a number, under this
# name in place of a topic's. So releases that do not know a fact skip it. No topic's name begins with a zero
# byte.
FACT = "\0"
IDENTITY = f"{FACT}topic/"
COUNT = f"{FACT}unread/"
END = f"{FACT}unread-end/"
EPOCH = f"{FACT}epoch/"


class Unread(NamedTuple):
    """Records that were deleted before they were read.

    offsets: how many offsets; some may have held Kafka's control records, which do not count.
    end: the offset after the last one.
    """

    offsets: int
    end: int

    def __str__(self) -> str:
        return (
            f"{self.offsets} records were deleted before they were read, the last of them at offset "
            f"{self.end - 1}"
        )


def is_fact(name: str) -> bool:
    """Whether this name, in place of a topic's, is the name of a fact."""
    return name.startswith(FACT)


def unread_of(facts: Mapping[TopicPartition, int]) -> dict[TopicPartition, Unread]:
    """The records that were deleted unread. facts: by name and partition."""
    found = {}
    for (name, partition), offsets in facts.items():
        if name.startswith(COUNT):
            topic = name.removeprefix(COUNT)
            found[topic, partition] = Unread(offsets, facts.get((END + topic, partition), 0))
    return found


class InputTopics:
    """The facts about each input topic, by partition."""

    def __init__(self) -> None:
        self._identities: dict[str, int] = {}
        self._facts: dict[TopicPartition, int] = {}
        self._forgotten: set[TopicPartition] = set()
        self._written: dict[TopicPartition, int] = {}

    def are(self, identities: Mapping[str, str]) -> None:
        """Set the present topics. identities: the cluster's identity of each topic; topics without one are
        left out."""
        self._identities = {
            topic: _fingerprint(identity) for topic, identity in identities.items() if identity
        }

    def restored(self, partition: int, name: str, value: int) -> None:
        """Restore a fact."""
        self._facts[name, partition] = self._written[name, partition] = value

    def close(self, partition: int) -> None:
        """Forget a partition."""
        self._facts = {place: value for place, value in self._facts.items() if place[1] != partition}
        self._written = {place: value for place, value in self._written.items() if place[1] != partition}
        self._forgotten = {place for place in self._forgotten if place[1] != partition}

    def remade(self, partition: int, topics: Collection[str]) -> Iterator[tuple[str, str]]:
        """Those of ``topics`` that were deleted and made again since they were read: the topic's name, and
        the fact's."""
        for topic, identity in self._identities.items():
            fact = IDENTITY + topic
            if (fact, partition) not in self._facts:
                # A copy in another cluster, whose leaders are others.
                self._forget_epoch(topic, partition)
            if self._facts.setdefault((fact, partition), identity) != identity and topic in topics:
                yield topic, fact

    def begin_anew(self, partition: int) -> None:
        """Forget all facts of a partition but the identities of the present topics: it will be read anew."""
        self.close(partition)
        self._facts |= {
            (IDENTITY + topic, partition): identity for topic, identity in self._identities.items()
        }

    def is_same(self, topic: str, partition: int) -> bool:
        """Whether the topic is certainly the one that was read: its identity is the remembered one."""
        return (
            topic in self._identities
            and self._written.get((IDENTITY + topic, partition)) == self._identities[topic]
        )

    def written_by(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Set the epochs of the leaders that wrote the last records that were read."""
        self._facts |= {(EPOCH + topic, partition): epoch for (topic, partition), epoch in epochs.items()}

    def epoch(self, topic: str, partition: int) -> int:
        """The epoch of the leader that wrote the last record that was read; -1: not known."""
        return self._facts.get((EPOCH + topic, partition), -1)

    def lose(self, moved: Moved) -> None:
        """Count records that were deleted before they were read."""
        place = COUNT + moved.topic, moved.partition
        self._facts[place] = self._facts.get(place, 0) + moved.following - moved.position
        self._facts[END + moved.topic, moved.partition] = moved.following
        # Another leader may have written the record before the new position.
        self._forget_epoch(moved.topic, moved.partition)

    @property
    def unread(self) -> dict[TopicPartition, Unread]:
        """The records that were deleted unread, by partition."""
        return unread_of(self._facts)

    def to_write(self, partitions: Collection[int]) -> Iterator[tuple[TopicPartition, int | None]]:
        """The facts of these partitions that are not in the changelog yet; None: one that holds no more."""
        for place in [place for place in self._forgotten if place[1] in partitions]:
            self._forgotten.remove(place)
            yield place, None
        for place, value in self._facts.items():
            if place[1] in partitions and self._written.get(place) != value:
                self._written[place] = value
                yield place, value

    def _forget_epoch(self, topic: str, partition: int) -> None:
        place = EPOCH + topic, partition
        if self._facts.pop(place, None) is not None:
            self._written.pop(place, None)
            self._forgotten.add(place)


def _fingerprint(identity: str) -> int:
    """A hash of 63 bits, which fits where a position is stored."""
    return int.from_bytes(blake2b(identity.encode(), digest_size=8).digest(), "big") >> 1
