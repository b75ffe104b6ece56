"""A role that reads long messages and publishes the checksum of each block. Its changelog is written in
parts."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from streamfl.contract.channels import Channels, Input, TopicSpec
from streamfl.contract.role import (
    BadRecord,
    Measurement,
    OperatorNotice,
    Received,
    Record,
    Rejection,
    Send,
    StateChange,
)
from streamfl.roles.fragment_encoding import decoded_in_fragments
from streamfl.roles.message_fragments import Limits, LongMessages

__all__ = [
    "BLOCK_CHANNELS",
    "BLOCK_TOPICS",
    "LIMITS",
    "PART",
    "BlockReader",
    "checksum",
    "claimed_sender_of_block",
    "decode_block",
]

# Bytes of content in a part. It is small, so that short traffic has many parts.
PART = 8
LIMITS = Limits(message_bytes=100, messages=3, senders=4, seconds=60.0, fragment_bytes=PART)

BLOCK_TOPICS = [
    TopicSpec("blocks", 2, compacted=False),
    TopicSpec("checksums", 2, compacted=False),
    TopicSpec("state", 2, compacted=True),
    TopicSpec("dead-letters", 1, compacted=False),
]


def decode_block(record: Record) -> bytes:
    """A block is some bytes. Bytes that begin with zero are invalid."""
    if not record.value or record.value.startswith(b"\0"):
        raise BadRecord("malformed", "a block begins with no zero")
    return record.value


def claimed_sender_of_block(block: bytes) -> str | None:
    """A block that begins with @ contains the name of its sender."""
    return block[1:].split(b" ")[0].decode(errors="replace") if block.startswith(b"@") else None


def checksum(block: bytes) -> bytes:
    return b"%08x" % zlib.crc32(block)


BLOCK_CHANNELS = Channels(
    inputs={"blocks": Input("blocks", decoded_in_fragments(decode_block))},
    outputs={"checksums": "checksums"},
    changelogs={"state": "state"},
)


class BlockReader:
    """Publishes each block's checksum, and remembers how many blocks each partition had."""

    full: Collection[int] = ()
    prompt = True
    trouble: str | None = None

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.long = LongMessages({"blocks": decode_block}, claimed_sender_of_block, "state", b"long/", limits)
        self.counts: dict[int, int] = {}
        self._changed: set[int] = set()

    @property
    def wake_at(self) -> float | None:
        return self.long.wake_at

    @property
    def waiting(self) -> Mapping[str, int]:
        return self.long.waiting

    def notices(self) -> Iterable[OperatorNotice]:
        return ()

    def forget(self, name: str) -> bool:
        return False

    def open(self, partition: int) -> None:
        self.counts[partition] = 0
        self.long.open(partition)

    def close(self, partition: int) -> None:
        del self.counts[partition]
        self._changed.discard(partition)
        self.long.close(partition)

    def restore(self, change: StateChange) -> None:
        if not self.long.restore(change):
            self.counts[change.partition] = int(change.value or b"")

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        whole, refused = self.long.receive(batch, now)
        sends = []
        for received in whole:
            self.counts[received.partition] += 1
            self._changed.add(received.partition)
            sends.append(
                Send("checksums", received.record.key, checksum(received.message), received.partition)
            )
        return [*sends, *refused]

    def changed_state(self) -> Iterable[StateChange]:
        changed, self._changed = sorted(self._changed), set()
        counts = [
            StateChange("state", partition, b"blocks", b"%d" % self.counts[partition])
            for partition in changed
        ]
        return [*self.long.changed_state(), *counts]

    def measure(self) -> Iterable[Measurement]:
        return self.long.measure()
