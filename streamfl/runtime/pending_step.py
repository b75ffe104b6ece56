"""A step in the making: what will be committed, and what will be counted after the commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamfl.contract.role import BadRecord, Headers, Record
from streamfl.encoding.wire import MAXIMUM_BYTES, encoded_size, record_size
from streamfl.runtime.bus import Moved, Outgoing, Step
from streamfl.terminal.printable import LONGEST_TEXT

__all__ = ["LARGEST_LETTER", "OTHERS_NAMES", "PendingStep", "dead_letter"]

LARGEST_LETTER = MAXIMUM_BYTES
# The names of Kafka Connect (KIP-298) and of Kafka Streams (KIP-1034), without those of the stack trace:
# nothing crashed.
CONNECT_NAMES = ("topic", "partition", "offset", "exception.class.name", "exception.message")
STREAMS_NAMES = ("topic", "partition", "offset", "exception", "message")
OTHERS_NAMES = (
    *("__connect.errors." + name for name in CONNECT_NAMES),
    *("__streams.errors." + name for name in STREAMS_NAMES),
)
"""The headers of a dead letter that repeat its cause under the names of other systems. They come before our
own."""

Refused = tuple[Record, BadRecord]


@dataclass
class PendingStep:
    """A step and its counts.

    step: what will be committed.
    records: the number of input records that were read for the first time.
    repeated: the number of those that came before and are skipped.
    dead_letters, table_rejections: refused records of inputs and of tables.
    passed_over: the number of ignored records, by reason.
    moved: the places where the records to be read next were gone.
    """

    step: Step = field(default_factory=Step)
    records: int = 0
    repeated: int = 0
    dead_letters: list[Refused] = field(default_factory=list)
    table_rejections: list[Refused] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)
    moved: list[Moved] = field(default_factory=list)

    def refuse(self, record: Record, error: BadRecord, dead_letter_topic: str) -> None:
        """Write a refused record of an input as a dead letter."""
        self.dead_letters.append((record, error))
        self.step.outputs.append(dead_letter(dead_letter_topic, record, error))

    def send_on(self, record: Record, partition: int) -> None:
        """Write the record unchanged to another partition of its topic, where it belongs."""
        self.step.outputs.append(
            Outgoing(record.topic, record.key, record.value, partition, record.headers, record.timestamp)
        )

    @property
    def output_bytes(self) -> int:
        return _size(self.step.outputs)

    @property
    def changelog_bytes(self) -> int:
        return _size(self.step.changelog)


def dead_letter(topic: str, record: Record, error: BadRecord) -> Outgoing:
    """The record as it came, with the cause in headers. If that is too large, the value is cut, or key and
    headers are left out."""
    place = (
        ("topic", record.topic.encode()),
        ("partition", str(record.partition).encode()),
        ("offset", str(record.offset).encode()),
    )
    text = error.text.encode(errors="replace")[:LONGEST_TEXT]
    cause: tuple[tuple[str, bytes], ...] = (*place, ("error", error.reason.encode()), ("text", text))
    # Kafka's clients cannot write a record that has neither key nor value, and a sender's mistake must not
    # stop the stream.
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


def _as_others_name_it(place: Headers, error: BadRecord, text: bytes) -> Headers:
    """The same cause under the names of Kafka Connect and of Kafka Streams, which consoles and other tools
    look for."""
    named = b"streamfl.contract.role.BadRecord", error.reason.encode() + b": " + text
    found = [
        (prefix + name, content)
        for prefix, names in (("__connect.errors.", CONNECT_NAMES), ("__streams.errors.", STREAMS_NAMES))
        for name, content in zip(names, (*(content for _, content in place), *named), strict=True)
    ]
    return tuple(found)


def _size(records: Sequence[Outgoing]) -> int:
    return sum([len(record.key or b"") + len(record.value or b"") for record in records])
