"""A checksum on every record of a changelog, so that what was damaged or moved since it was written is not taken back.

Kafka's own checksum is of a batch and made anew by whatever copies one: a mirror, a backup, a tool that mends. This one is made by
who remembers and checked by who restores, of the key, the value and the partition. It is a header, so that earlier releases read
the records, and records without one, which they wrote, are read here.
"""

from __future__ import annotations

import zlib

from streamfl.role import Record
from streamfl.runtime.bus import Outgoing

__all__ = ["HEADER", "is_damaged", "with_checksum"]

HEADER = "crc"


def with_checksum(topic: str, partition: int, key: bytes, value: bytes | None) -> Outgoing:
    """The record of a changelog for this key; value None forgets it."""
    headers = () if value is None else ((HEADER, _checksum(partition, key, value)),)
    return Outgoing(topic, key, value, partition, headers)


def is_damaged(record: Record) -> bool:
    """Whether a record has a checksum and it is not of what the record says."""
    found = [content for name, content in record.headers if name == HEADER]
    return bool(found) and found != [_checksum(record.partition, record.key or b"", record.value or b"")]


def _checksum(partition: int, key: bytes, value: bytes) -> bytes:
    # The length of the key, or what is moved from the end of the key to the value would not show.
    return zlib.crc32(value, zlib.crc32(key, zlib.crc32(b"%d/%d" % (partition, len(key))))).to_bytes(4, "big")
