"""What is remembered of the input topics beside the positions in them: which topics they were, and what of them was never read.

A position says nothing of the topic that it is in. A topic that was deleted and made again has other records at the same offsets.
So has a log that a replica was behind in when it became the leader: the epoch of the leader that wrote the last record that was
read tells (KIP-320).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

from streamfl.runtime.bus import Moved, TopicPartition

__all__ = ["InputTopics", "Unread", "is_fact", "unread_of"]

# Names of facts, before the topic's. Each fact is remembered as a position is, a number under the name in a topic's place: so
# releases that do not know a fact pass over it. No topic's name begins so.
IDENTITY = "\0topic/"
COUNT = "\0unread/"
END = "\0unread-end/"
EPOCH = "\0epoch/"


class Unread(NamedTuple):
    """Records that were deleted before they were read.

    offsets: how many; some may never have held a record that counts, such as Kafka's control records. end: the offset after the
    last of them.
    """

    offsets: int
    end: int

    def __str__(self) -> str:
        return f"{self.offsets} records were deleted before they were read, the last of them at offset {self.end - 1}"


def is_fact(name: str) -> bool:
    """Whether this, in the place of a topic's name, is the name of a fact."""
    return name.startswith("\0")


def unread_of(facts: Mapping[TopicPartition, int]) -> dict[TopicPartition, Unread]:
    """What was deleted unread. facts: by name and partition."""
    found = {}
    for (name, partition), offsets in facts.items():
        if name.startswith(COUNT):
            topic = name.removeprefix(COUNT)
            found[topic, partition] = Unread(offsets, facts.get((END + topic, partition), 0))
    return found


class InputTopics:
    """What is remembered of each input topic, by partition."""

    def __init__(self) -> None:
        self._identities: dict[str, int] = {}
        self._facts: dict[TopicPartition, int] = {}
        self._written: dict[TopicPartition, int] = {}

    def are(self, identities: Mapping[str, str]) -> None:
        """The topics that are there now, and what the cluster knows each by. One of which it does not say that is left out."""
        self._identities = {topic: _fingerprint(identity) for topic, identity in identities.items() if identity}

    def restored(self, partition: int, name: str, value: int) -> None:
        """Take back a fact."""
        self._facts[name, partition] = self._written[name, partition] = value

    def close(self, partition: int) -> None:
        """Forget a partition."""
        self._facts = {place: value for place, value in self._facts.items() if place[1] != partition}
        self._written = {place: value for place, value in self._written.items() if place[1] != partition}

    def remade(self, partition: int, topics: Collection[str]) -> Iterator[tuple[str, str]]:
        """Those of the topics that are other ones than were read, though of the same name: its name, and that of the fact."""
        for topic, identity in self._identities.items():
            fact = IDENTITY + topic
            if self._facts.setdefault((fact, partition), identity) != identity and topic in topics:
                yield topic, fact

    def begin_anew(self, partition: int) -> None:
        """The partition is read anew, of the topics that are there now."""
        self.close(partition)
        self._facts |= {(IDENTITY + topic, partition): identity for topic, identity in self._identities.items()}

    def is_same(self, topic: str, partition: int) -> bool:
        """Whether the topic is certainly the one that was read: the cluster knows it by what is remembered."""
        return topic in self._identities and self._written.get((IDENTITY + topic, partition)) == self._identities[topic]

    def written_by(self, epochs: Mapping[TopicPartition, int]) -> None:
        """Which leaders wrote the last records that were read, by their epochs."""
        self._facts |= {(EPOCH + topic, partition): epoch for (topic, partition), epoch in epochs.items()}

    def epoch(self, topic: str, partition: int) -> int:
        """The epoch of the leader that wrote the last record that was read; -1: not known."""
        return self._facts.get((EPOCH + topic, partition), -1)

    def lose(self, moved: Moved) -> None:
        """Records were deleted before they were read."""
        place = COUNT + moved.topic, moved.partition
        self._facts[place] = self._facts.get(place, 0) + moved.following - moved.position
        self._facts[END + moved.topic, moved.partition] = moved.following

    @property
    def unread(self) -> dict[TopicPartition, Unread]:
        """What was deleted unread of each partition."""
        return unread_of(self._facts)

    def to_write(self, partitions: Collection[int]) -> Iterator[tuple[TopicPartition, int]]:
        """The facts of these partitions that are not remembered yet."""
        for place, value in self._facts.items():
            if place[1] in partitions and self._written.get(place) != value:
                self._written[place] = value
                yield place, value


def _fingerprint(identity: str) -> int:
    """A number of 63 bits, as large as a position may be."""
    return int.from_bytes(blake2b(identity.encode(), digest_size=8).digest(), "big") >> 1
