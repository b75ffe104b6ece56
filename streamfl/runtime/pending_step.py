"""A step as it is being made: what is to be committed, and what is to be counted once it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamfl.role import Headers, PeerError, Record
from streamfl.runtime.bus import Moved, Outgoing, Step
from streamfl.wire import MAXIMUM_BYTES, encoded_size, record_size

__all__ = ["LARGEST_LETTER", "OTHERS_NAMES", "PendingStep", "dead_letter"]

LARGEST_LETTER = MAXIMUM_BYTES
LONGEST_TEXT = 1_000
# Kafka Connect's are those of KIP-298, Kafka Streams' those of KIP-1034. A stack trace there is none of: nothing crashed.
CONNECT_NAMES = ("topic", "partition", "offset", "exception.class.name", "exception.message")
STREAMS_NAMES = ("topic", "partition", "offset", "exception", "message")
OTHERS_NAMES = (*("__connect.errors." + name for name in CONNECT_NAMES), *("__streams.errors." + name for name in STREAMS_NAMES))
"""The headers of a letter that say its cause once more, as other systems name it; they come before our own."""

Refused = tuple[Record, PeerError]


@dataclass
class PendingStep:
    """A step and what is to be counted.

    step: what will be committed. records: of the inputs, for the first time. repeated: that came before and are passed over.
    dead_letters, table_rejections: what was refused, of inputs and of tables. passed_over: how many records were no messages, by
    reason. moved: where what was to be read next was gone.
    """

    step: Step = field(default_factory=Step)
    records: int = 0
    repeated: int = 0
    dead_letters: list[Refused] = field(default_factory=list)
    table_rejections: list[Refused] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)
    moved: list[Moved] = field(default_factory=list)

    def refuse(self, record: Record, error: PeerError, dead_letter_topic: str) -> None:
        """A record of an input that is wrong: it becomes a dead letter."""
        self.dead_letters.append((record, error))
        self.step.outputs.append(dead_letter(dead_letter_topic, record, error))

    def send_on(self, record: Record, partition: int) -> None:
        """A record belongs to another partition of its topic: it goes there as it came."""
        self.step.outputs.append(Outgoing(record.topic, record.key, record.value, partition, record.headers, record.timestamp))

    @property
    def output_bytes(self) -> int:
        return _size(self.step.outputs)

    @property
    def changelog_bytes(self) -> int:
        return _size(self.step.changelog)


def dead_letter(topic: str, record: Record, error: PeerError) -> Outgoing:
    """The record as it came, with its cause in headers; its value cut short, or key and headers left out, if it is too large so."""
    place = (
        ("topic", record.topic.encode()),
        ("partition", str(record.partition).encode()),
        ("offset", str(record.offset).encode()),
    )
    text = error.text.encode(errors="replace")[:LONGEST_TEXT]
    cause: tuple[tuple[str, bytes], ...] = (*place, ("error", error.reason.encode()), ("text", text))
    # Kafka's clients write no record without key and value; refusing to would stop the stream at somebody's mistake.
    value = b"" if record.key is None and record.value is None else record.value
    for also in (_as_others_name_it(place, error, text), ()):
        letter = Outgoing(topic, record.key, value, headers=(*record.headers, *also, *cause))
        if encoded_size(letter.key, letter.value, letter.headers) <= LARGEST_LETTER:
            return letter
    cause = (*cause, ("truncated_from", str(record_size(record)).encode()))
    for key, headers in ((record.key, (*record.headers, *cause)), (None, cause)):
        room = LARGEST_LETTER - encoded_size(key, None, headers)
        if room >= 0:
            break
    return Outgoing(topic, key, (value or b"")[:room], headers=headers)


def _as_others_name_it(place: Headers, error: PeerError, text: bytes) -> Headers:
    """The same cause under the names of Kafka Connect and of Kafka Streams, which consoles and other tools look for."""
    named = b"streamfl.role.PeerError", error.reason.encode() + b": " + text
    found = [
        (prefix + name, content)
        for prefix, names in (("__connect.errors.", CONNECT_NAMES), ("__streams.errors.", STREAMS_NAMES))
        for name, content in zip(names, (*(content for _, content in place), *named), strict=True)
    ]
    return tuple(found)


def _size(records: Sequence[Outgoing]) -> int:
    return sum(len(record.key or b"") + len(record.value or b"") for record in records)
