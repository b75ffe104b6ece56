"""The fragments of a message that is too long for a record: how they are cut, and how they are written."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from streamfl.contract.channels import Decode
from streamfl.contract.role import Record
from streamfl.encoding.wire import ROOM, VERSION, Codec, Count, Name, Version

__all__ = ["DIGEST_BYTES", "FRAGMENT_BYTES", "MARK", "Fragment", "decoded_in_fragments", "digest_of", "split"]

FRAGMENT_BYTES = ROOM
# No MessagePack value begins with this byte, so no message of a codec does.
MARK = b"\xc1"
DIGEST_BYTES = 16


class Fragment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Fragment number ``place`` of a message of ``size`` bytes. epoch, sequence: the message's numbers.
    digest: of the whole."""

    version: Version
    sender: Name
    epoch: Count
    sequence: Count
    digest: bytes
    size: Count
    place: Count
    content: bytes


_codec = Codec(Fragment)


def split(
    sender: str, epoch: int, sequence: int, value: bytes, fragment_bytes: int = FRAGMENT_BYTES
) -> list[bytes]:
    """The values of the records that carry a message, in the order of sending; the message itself if it fits
    into one.

    sender, epoch, sequence: the sender and the message's numbers; no other message has these.
    fragment_bytes: bytes of content in each fragment; the reader's limits need the same value if it is not
    the default.

    >>> [len(fragment) for fragment in split("pump", 1, 1, bytes(2_000_000))]
    [995943, 995943, 8229]
    """
    if fragment_bytes < 1:
        raise ValueError(f"fragment_bytes = {fragment_bytes}: at least 1 is expected")
    if len(value) <= fragment_bytes:
        return [value]
    digest = digest_of(value)
    contents = [value[begin : begin + fragment_bytes] for begin in range(0, len(value), fragment_bytes)]
    return [
        MARK + _codec.encode(Fragment(VERSION, sender, epoch, sequence, digest, len(value), place, content))
        for place, content in enumerate(contents)
    ]


def decoded_in_fragments(decode: Decode) -> Decode:
    """``decode`` for an input that may bring fragments: these become :class:`Fragment`."""

    def decode_one(record: Record) -> Any:
        value = record.value
        return _codec.decode(value[1:]) if value is not None and value[:1] == MARK else decode(record)

    return decode_one


def digest_of(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=DIGEST_BYTES, person=b"streamfl parts").digest()
