"""Over how many partitions a role's state is dealt, and where a client's records belong once it was dealt
anew.

The record of settings in every changelog has the number. A worker whose inputs have another number opens no
partition: otherwise a client would begin anew in the partition where its records come now, while its state is
in another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from streamfl.contract.channels import Channels, Input
from streamfl.contract.role import ConfigurationError, Headers, Record
from streamfl.roles.fragment_encoding import Fragment
from streamfl.runtime import assignment
from streamfl.runtime.bus import Bus, Session
from streamfl.runtime.co_partitions import strict_inputs
from streamfl.runtime.remembered_settings import is_settings, stream_option

__all__ = ["Dealing", "added", "dealt_over", "next_multiple", "partitioner_in", "partitioners"]

PARTITIONS_HEADER = "partitions"
PARTITIONER_HEADER = "partitioner"

Partitioner = Callable[[bytes, int], int]


def partitioners(bus: Bus) -> Mapping[str, Partitioner]:
    """The ways in which producers choose a partition by key, by name: the bus's own, or the default of
    librdkafka."""
    return {"own": bus.partition_of, "crc32": assignment.partition_of}


def added(topic: str, before: int, now: int, channels: Channels, group: str) -> str:
    """The error text for an input with another number of partitions than the state was made for, with the
    remedy."""
    text = (
        f"topic {topic!r} has {now} partitions, and this role's state is spread over {before}. Nothing was "
        "changed. "
    )
    if channels.dealt is None:
        return text + (
            "This role's state cannot be moved by key. To go on, use another federation.name at every "
            "member, with topics of as many partitions as are needed; docs/changing.md says how a topic of "
            "yours may grow without that"
        )
    topics = ", ".join(channels.own_changelogs.values())
    return text + (
        f"Stop the workers of the group {group!r}, give {topics} and every input "
        f"{next_multiple(before, now)} partitions, and run streamfl repartition CONFIG{stream_option(group)}"
        ": it moves each client's state to where its records come now"
    )


def next_multiple(before: int, now: int) -> int:
    """The least number of partitions, not below ``now``, over which state can be dealt anew: a multiple of
    ``before``."""
    return -(-now // before) * before


class Dealing:
    """Compares the number of partitions of a worker's inputs with the number that its state was made for.

    partitions: how many of each input were read when the worker joined the group; 0 before that.
    partitioner: the name of the partitioner by which records are sent on to the partition of their client's
    state; empty: records already come there.
    """

    def __init__(self, channels: Channels, bus: Bus, group: str) -> None:
        self._channels = channels
        self._bus = bus
        self._group = group
        # Of other inputs the role may read fewer partitions than there are.
        inputs = [*strict_inputs(channels), *(source.topic for source in channels.inputs.values())]
        self._input = next(iter(inputs), "")
        self._fixed = None if strict_inputs(channels) else channels.partitions
        self._known = False
        self.partitions = 0
        self.partitioner = ""

    def join(self) -> None:
        """Ask the cluster for the number of partitions."""
        states = self._bus.describe([self._input]) if self._input else {}
        present = states[self._input].partitions if self._input in states else 0
        self.partitions = present if self._fixed is None else min(present, self._fixed)
        self._known = False

    def headers(self) -> Headers:
        """The headers of a record of settings with the number and the partitioner."""
        if not self.partitions:
            return ()
        own = (PARTITIONS_HEADER, b"%d" % self.partitions)
        return (own, (PARTITIONER_HEADER, self.partitioner.encode())) if self.partitioner else (own,)

    def check(self, partition: int) -> None:
        """ConfigurationError for a partition that was added since the worker joined the group."""
        if self.partitions and partition >= self.partitions:
            # The group may assign a new partition before describe returns it.
            now = max(partition + 1, self._bus.describe([self._input])[self._input].partitions)
            raise ConfigurationError(added(self._input, self.partitions, now, self._channels, self._group))

    def found(self, record: Record) -> None:
        """Take number and partitioner from a record of settings. ConfigurationError if the state was dealt
        over another number."""
        before = dealt_over(record)
        if before and self.partitions and before != self.partitions:
            raise ConfigurationError(added(self._input, before, self.partitions, self._channels, self._group))
        self._known = True
        self.partitioner = partitioner_in(record) or self.partitioner

    def look_elsewhere(self, session: Session, partition: int) -> None:
        """For a partition without state: take the record of another one, so that no client begins anew beside
        its state."""
        topic = next(iter(self._channels.own_changelogs.values()), None)
        if self._known or topic is None:
            return
        for other, end in sorted(self._bus.offsets(topic, math.inf).items()):
            if end > 0 and other != partition and (record := _settings(session, topic, other)) is not None:
                self.found(record)
                return
        self._known = True

    def elsewhere(self, source: Input, message: Any, partition: int) -> int | None:
        """The partition where a message that came in ``partition`` belongs; None: it came where it
        belongs."""
        dealt = self._channels.dealt
        if not self.partitioner or dealt is None or source.client is None or isinstance(message, Fragment):
            return None
        try:
            key = dealt.key_of(source.client(message))
        except ValueError:
            return None
        home = partitioners(self._bus)[self.partitioner](key, self.partitions)
        return None if home == partition else home


def dealt_over(record: Record) -> int:
    """Over how many partitions the state was dealt when this record of settings was written; 0: its release
    did not record it."""
    number = dict(record.headers).get(PARTITIONS_HEADER, b"0")
    return int(number) if number.isdigit() and len(number) < 10 else 0


def partitioner_in(record: Record) -> str:
    """The partitioner by which the state was dealt anew, from this record of settings; empty: it never
    was."""
    return dict(record.headers).get(PARTITIONER_HEADER, b"").decode(errors="replace")


def _settings(session: Session, topic: str, partition: int) -> Record | None:
    latest = None
    for record in session.restore(topic, partition):
        if is_settings(record):
            latest = record
    return latest
