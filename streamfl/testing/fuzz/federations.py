"""Federations whose members get wrong messages: who takes part, what users write, and real messages, which a
short run records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import Rejection, Role, Send, receive_at_once
from streamfl.records.formats import FormatKeys, format_named
from streamfl.testing.fuzz.member import NOW, PARTITIONS, FuzzedMember, build_role
from streamfl.testing.fuzz.mutations import FuzzedRecord

__all__ = ["FuzzedFederation", "partition_of", "some_of_each", "users_record"]

KEPT = 12


@dataclass(frozen=True, eq=False)
class FuzzedFederation:
    """A federation, and a short run of it, whose messages are recorded once in each process. They are always
    the same.

    settings: by member.
    written: returns what users write in a round: each record, and the member that reads it.
    rounds, moments, seconds: rounds of the run, how often each member has its turn in a round, and seconds
    between two turns.
    build: makes a role. It replaces what a real role draws at random, such as secrets.
    """

    settings: Mapping[str, RoleSettings]
    written: Callable[[int], Iterable[tuple[str, FuzzedRecord]]]
    rounds: int = 12
    moments: int = 1
    seconds: float = 1.0
    build: Callable[[RoleSettings], Role] = build_role

    def member(self, name: str) -> FuzzedMember:
        """A new member without state."""
        return FuzzedMember.of(self.settings[name], self.build)

    def heard(self, member: str, *channels: str) -> list[FuzzedRecord]:
        """The recorded messages that a member received, in order; only on these channels, if any is named."""
        return [one for one in self._run.heard[member] if not channels or one.channel in channels]

    def remembered(self, member: str, *channels: str) -> list[FuzzedRecord]:
        """Some records of each kind that a member wrote to its changelogs; only to these, if any is named."""
        return some_of_each(
            one for one in self._run.remembered[member] if not channels or one.channel in channels
        )

    @cached_property
    def _run(self) -> _Run:
        run = _Run({name: self.member(name) for name in self.settings})
        for number in range(self.rounds):
            for name, record in self.written(number):
                run.waiting[name].append(record)
            for moment in range(self.moments):
                run.turns(NOW + self.seconds * (self.moments * number + moment))
        return run


@dataclass
class _Run:
    """Members that pass messages to one another, without a bus."""

    members: Mapping[str, FuzzedMember]
    heard: dict[str, list[FuzzedRecord]] = field(default_factory=lambda: defaultdict(list))
    remembered: dict[str, list[FuzzedRecord]] = field(default_factory=lambda: defaultdict(list))
    waiting: dict[str, list[FuzzedRecord]] = field(default_factory=lambda: defaultdict(list))
    readers: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for name, one in self.members.items():
            for channel, source in one.channels.sources.items():
                self.readers[source.topic].append((name, channel))

    def turns(self, now: float) -> None:
        """Every member receives what waits for it, and time passes for it."""
        for name, one in self.members.items():
            told = self.waiting.pop(name, [])
            self.heard[name] += told
            received = [one.decode(record, timestamp=now) for record in told]
            replies = receive_at_once(one.role, received, now) if told else []
            replies += receive_at_once(one.role, [], now)
            refused = [reply.error for reply in replies if isinstance(reply, Rejection)]
            assert not refused, f"{name} refuses a good message: {refused[0]}"
            for send in (reply for reply in replies if isinstance(reply, Send)):
                self._deliver(one.channels.outputs[send.channel], send.key, send.value, send.partition or 0)
            for change in one.role.changed_state():
                if change.value:
                    self.remembered[name].append(
                        FuzzedRecord(change.channel, change.key, change.value, change.partition)
                    )
                self._deliver(
                    one.channels.changelogs[change.channel], change.key, change.value, change.partition
                )

    def _deliver(self, topic: str, key: bytes | None, value: bytes | None, partition: int) -> None:
        for reader, channel in self.readers[topic]:
            self.waiting[reader].append(FuzzedRecord(channel, key, value, partition))


class _Named(FormatKeys, Protocol):
    """A section with the field that names the client or the entity; None: the record's key does."""

    @property
    def client(self) -> str | None: ...


def partition_of(name: str) -> int:
    """The partition of all records of a client or an entity."""
    return sum(name.encode()) % len(PARTITIONS)


def users_record(
    channel: str, section: _Named, name: str, content: Mapping[str, Any], partition: int | None = None
) -> FuzzedRecord:
    """A user's record about a client or an entity, keyed by its name.

    section: the settings of its topic.
    partition: None takes the one of all records of this name.
    """
    named = dict(content) if section.client is None else {section.client: name, **content}
    where = partition_of(name) if partition is None else partition
    return FuzzedRecord(channel, name.encode(), format_named(section.format).encode(named), where)


def some_of_each(found: Iterable[FuzzedRecord]) -> list[FuzzedRecord]:
    """The last few messages of each channel and kind of key, in their order."""
    messages = list(found)
    return [
        message
        for channel in dict.fromkeys(one.channel for one in messages)
        for message in _some(messages, channel)
    ]


def _some(found: Iterable[FuzzedRecord], channel: str) -> Iterator[FuzzedRecord]:
    """The last few messages of each kind of key, in their order."""
    kinds: dict[bytes, list[FuzzedRecord]] = {}
    for message in found:
        if message.channel == channel:
            kinds.setdefault((message.key or b"").partition(b"/")[0][:8], []).append(message)
    for messages in kinds.values():
        yield from messages[-KEPT // len(kinds) - 1 :]
