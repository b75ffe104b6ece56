"""A role with long work: it makes ordered blocks in pieces, and sends each block in parts to a reader of
blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any

import msgspec
from blocks import PART

from streamfl.contract.channels import Channels, Input
from streamfl.contract.role import (
    BadRecord,
    Measurement,
    OperatorNotice,
    Received,
    Record,
    Rejection,
    Send,
    StateChange,
    Work,
)
from streamfl.encoding.wire import LONGEST_NAME
from streamfl.roles.fragment_encoding import split

__all__ = ["MAKER_CHANNELS", "BlockMaker", "decode_order", "make_block", "make_piece", "order"]

SECRET = b"only this member knows it"
PIECES = 3
LARGEST = 2**53


class Order(msgspec.Struct):
    """An order for a block. id: higher than all earlier ones of its key."""

    id: int


def order(number: int) -> bytes:
    return msgspec.msgpack.encode(Order(number))


def decode_order(record: Record) -> int:
    try:
        number = msgspec.msgpack.decode(record.value or b"", type=Order).id
    except msgspec.DecodeError as error:
        raise BadRecord("malformed", str(error)) from None
    if not 0 < number <= LARGEST or len(record.key or b"") > LONGEST_NAME:
        raise BadRecord("malformed", "no order that anybody could have written")
    return number


def make_piece(content: bytes) -> bytes:
    """Stands for slow encryption. Anything random in it is derived from the secret and the content."""
    return hashlib.blake2b(content, key=SECRET, digest_size=PART).digest()


def make_block(key: bytes, number: int) -> bytes:
    """The block for an order, computed directly."""
    return b"B" + b"".join(make_piece(b"%b %d %d" % (key, number, piece)) for piece in range(PIECES))


def make_slowly(content: bytes) -> bytes:
    """Waits until the file that the content names exists."""
    while not Path(content.decode()).exists():
        sleep(0.01)
    return b"made"


def fail(content: bytes) -> bytes:
    """Work that always fails."""
    raise ValueError("no such thing")


def no_bytes(content: bytes) -> bytes:
    """Work that returns no bytes, although its type says so."""
    found: Any = {"sum": 1}
    return found  # type: ignore[no-any-return]


def end_the_process(content: bytes) -> bytes:
    """Ends its process, as if the system killed it for using too much memory."""
    raise SystemExit(7)


MAKER_CHANNELS = Channels(
    inputs={"orders": Input("orders", decode_order)},
    outputs={"blocks": "blocks"},
    changelogs={"made": "made"},
)


class BlockMaker:
    """Makes one block for each order of a key, in the order of their numbers. Its state is the last number of
    each key."""

    full: Collection[int] = ()
    prompt = True
    trouble: str | None = None
    wake_at: float | None = None
    waiting: Mapping[str, int] = {}

    def __init__(self) -> None:
        self.last: dict[int, dict[bytes, int]] = {}
        self.under_way: dict[tuple[int, bytes, int], list[bytes]] = {}
        self._changed: dict[tuple[int, bytes], None] = {}

    def notices(self) -> Iterable[OperatorNotice]:
        return ()

    def forget(self, name: str) -> bool:
        return False

    def open(self, partition: int) -> None:
        self.last[partition] = {}

    def close(self, partition: int) -> None:
        del self.last[partition]
        self._changed = {place: None for place in self._changed if place[0] != partition}
        # Work that was given up returns no results.
        self.under_way = {place: pieces for place, pieces in self.under_way.items() if place[0] != partition}

    def restore(self, change: StateChange) -> None:
        self.last[change.partition][change.key] = int(change.value or b"")

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
        replies: list[Send | Rejection | Work] = []
        for received in batch:
            replies += (
                self._take_piece(received) if received.channel == "piece" else self._take_order(received)
            )
        return replies

    def changed_state(self) -> Iterable[StateChange]:
        assert not self.under_way, "work is under way in what is to be remembered"
        changed, self._changed = self._changed, {}
        return [
            StateChange("made", partition, key, b"%d" % self.last[partition][key])
            for partition, key in changed
        ]

    def measure(self) -> Iterable[Measurement]:
        yield Measurement("orders", "counter", "Orders heard of.", float(sum(map(len, self.last.values()))))

    def _take_order(self, received: Received) -> list[Work]:
        partition, key, number = received.partition, received.record.key or b"", received.message
        if number <= self.last[partition].get(key, 0):
            return []
        self.last[partition][key] = number
        self._changed[partition, key] = None
        self.under_way[partition, key, number] = []
        name = b"%d %b" % (number, key)
        return [
            Work("piece", partition, name, make_piece, b"%b %d %d" % (key, number, piece))
            for piece in range(PIECES)
        ]

    def _take_piece(self, received: Received) -> list[Send]:
        number, _, key = (received.record.key or b"").partition(b" ")
        pieces = self.under_way[received.partition, key, int(number)]
        pieces.append(received.message)
        if len(pieces) < PIECES:
            return []
        del self.under_way[received.partition, key, int(number)]
        sender = f"maker of {hashlib.blake2b(key, digest_size=16).hexdigest()}"
        parts = split(sender, 1, int(number), b"B" + b"".join(pieces), PART)
        return [Send("blocks", key, part, received.partition) for part in parts]
