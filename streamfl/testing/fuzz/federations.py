"""What a system provides for fuzzing, and its corpus: real messages, recorded once and kept as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from streamfl.records.formats import format_named
from streamfl.testing.fuzz.member import PARTITIONS
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.targets import Target

__all__ = ["Corpus", "Fuzzed", "partition_of", "some_of_each", "users_message"]

KEPT = 12


class Corpus:
    """Recorded messages. ``folder`` has a file of JSON lines for each federation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cache  # noqa: B019 - there are as many as systems
    def __call__(self, federation: str, *channels: str) -> tuple[FuzzedRecord, ...]:
        found = []
        for line in self._file(federation).read_text().splitlines():
            content = json.loads(line)
            key, value = (None if text is None else bytes.fromhex(text) for text in (content["key"], content["value"]))
            found.append(FuzzedRecord(content["channel"], key, value, content["partition"]))
        return tuple(message for message in found if message.channel in channels)

    def write(self, federation: str, messages: Iterable[FuzzedRecord]) -> None:
        """Record a federation again."""
        lines = [
            json.dumps({"channel": one.channel, "partition": one.partition, "key": _hex(one.key), "value": _hex(one.value)})
            for one in messages
        ]
        self._file(federation).write_text("\n".join(lines) + "\n")

    def _file(self, federation: str) -> Path:
        return self.folder / f"{federation}.jsonl"


@dataclass(frozen=True)
class Fuzzed:
    """What a system provides for fuzzing.

    corpus: recorded messages.
    federations: the names of those in the corpus.
    record: returns real messages of one federation.
    targets: returns, by name, the functions that make a target.
    """

    corpus: Corpus
    federations: Sequence[str]
    record: Callable[[str], Sequence[FuzzedRecord]]
    targets: Callable[[Random], Mapping[str, Callable[[str], Target]]]


def partition_of(name: str) -> int:
    """The partition of all records of a client or an entity."""
    return sum(name.encode()) % len(PARTITIONS)


def users_message(channel: str, format: str, name: str, content: Mapping[str, Any]) -> FuzzedRecord:
    """A user's record about a client or an entity, keyed by its name."""
    return FuzzedRecord(channel, name.encode(), format_named(format).encode(dict(content)), partition_of(name))


def some_of_each(found: Iterable[FuzzedRecord]) -> list[FuzzedRecord]:
    """The last few messages of each channel and kind of key, in their order."""
    messages = list(found)
    return [message for channel in dict.fromkeys(one.channel for one in messages) for message in _some(messages, channel)]


def _some(found: Iterable[FuzzedRecord], channel: str) -> Iterator[FuzzedRecord]:
    """The last few messages of each kind of key, in their order."""
    kinds: dict[bytes, list[FuzzedRecord]] = {}
    for message in found:
        if message.channel == channel:
            kinds.setdefault((message.key or b"").partition(b"/")[0][:8], []).append(message)
    for messages in kinds.values():
        yield from messages[-KEPT // len(kinds) - 1 :]


def _hex(content: bytes | None) -> str | None:
    return None if content is None else content.hex()
