"""Systems of roles whose messages are made wrong, and their corpus: real messages, recorded once and kept as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from fuzz.mutations import Message

from streamfl.role import Channels, Received, Record, Role
from streamfl.runtime.kinds import find_kind
from streamfl.settings import RoleSettings

if TYPE_CHECKING:
    from fuzz.targets import Target

__all__ = ["CORPUS", "NOW", "PARTITIONS", "Member", "System", "corpus", "some_of_each", "write_corpus"]

CORPUS = Path(__file__).parent / "corpus"
PARTITIONS = (0, 1)
KEPT = 12
NOW = 1_700_000_000.0


@dataclass(frozen=True)
class System:
    """What a system of roles gives to be made wrong.

    federations: their names, each with a file of the corpus. record: real messages of one of them. targets: by name, what makes
    one.
    """

    federations: Sequence[str]
    record: Callable[[str], Sequence[Message]]
    targets: Callable[[Random], Mapping[str, Callable[[str], Target]]]


@dataclass
class Member:
    """A role with its partitions open, and the topics behind its names."""

    role: Role
    channels: Channels

    @classmethod
    def of(cls, settings: RoleSettings) -> Member:
        kind = find_kind(settings.role.kind)
        role = kind.build(settings)
        for partition in PARTITIONS:
            role.open(partition)
        return cls(role, kind.channels(settings))

    def decode(self, message: Message, offset: int = 0, timestamp: float = NOW) -> Received:
        """PeerError where the message cannot be decoded."""
        source = self.channels.inputs.get(message.channel) or self.channels.tables[message.channel]
        record = Record(source.topic, message.partition, offset, message.key, message.value, (), timestamp)
        return Received(message.channel, source.decode(record), record)


def some_of_each(found: Iterable[Message]) -> list[Message]:
    """A few of each channel and kind of key, the last ones, in their order."""
    messages = list(found)
    return [message for channel in dict.fromkeys(one.channel for one in messages) for message in _some(messages, channel)]


def _some(found: Iterable[Message], channel: str) -> Iterator[Message]:
    """A few of each kind of key, the last ones, in their order."""
    kinds: dict[bytes, list[Message]] = {}
    for message in found:
        if message.channel == channel:
            kinds.setdefault((message.key or b"").partition(b"/")[0][:8], []).append(message)
    for messages in kinds.values():
        yield from messages[-KEPT // len(kinds) - 1 :]


def write_corpus(system: System) -> None:
    """Record every federation of a system anew."""
    for federation in system.federations:
        lines = [
            json.dumps({"channel": one.channel, "partition": one.partition, "key": _hex(one.key), "value": _hex(one.value)})
            for one in system.record(federation)
        ]
        (CORPUS / f"{federation}.jsonl").write_text("\n".join(lines) + "\n")


@cache
def corpus(federation: str, *channels: str) -> tuple[Message, ...]:
    """The recorded messages of these channels."""
    found = []
    for line in (CORPUS / f"{federation}.jsonl").read_text().splitlines():
        content = json.loads(line)
        key, value = (None if text is None else bytes.fromhex(text) for text in (content["key"], content["value"]))
        found.append(Message(content["channel"], key, value, content["partition"]))
    return tuple(message for message in found if message.channel in channels)


def _hex(content: bytes | None) -> str | None:
    return None if content is None else content.hex()
