"""A checksum on every changelog record, so that a record that was damaged or moved since it was written is
not restored.

Kafka's own checksum covers a batch, and every tool that copies a batch makes it anew: a mirror, a backup, a
repair tool. This one covers key, value and partition. The writer of the state makes it, and the worker that
restores checks it. It is a header, so that earlier releases can read the records. Records that they wrote
have no checksum and are accepted. Where such a record follows one with a checksum, the log names it: a tool
may have written it, or somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from zlib import crc32

from streamfl.contract.role import Record
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.log import logger
from streamfl.terminal.printable import LONGEST_TEXT

__all__ = ["HEADER", "is_damaged", "tell_of_unprotected", "with_checksum"]

HEADER = "crc"

log = logger(__name__)


def with_checksum(topic: str, partition: int, key: bytes, value: bytes | None) -> Outgoing:
    """The changelog record for this key; the value None forgets it."""
    if value is None:
        return Outgoing(topic, key, None, partition)
    checksum = crc32(value, crc32(key, _begun(partition, len(key)))).to_bytes(4, "big")
    return Outgoing(topic, key, value, partition, ((HEADER, checksum),))


def is_damaged(record: Record) -> bool:
    """Whether a record has a checksum that does not fit its content."""
    found = tuple(header for header in record.headers if header[0] == HEADER)
    whole = with_checksum(record.topic, record.partition, record.key or b"", record.value or b"")
    return bool(found) and found != whole.headers


def tell_of_unprotected(records: Iterable[Record]) -> None:
    """Log the first record of a partition without a checksum that was written after one with a checksum.

    records: with the last of each key, in the order of their writing. A tombstone never has a checksum."""
    protected = False
    for record in records:
        if any(name == HEADER for name, _ in record.headers):
            protected = True
        elif protected and record.value is not None:
            log.warning(
                "a record of the state has no checksum, and others before it have: an earlier release wrote "
                "it, or a tool or somebody else; it is used unless the role refuses it",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                key=repr((record.key or b"")[:LONGEST_TEXT]),
            )
            return


@lru_cache
def _begun(partition: int, key_length: int) -> int:
    # With the length of the key, because otherwise bytes moved from the end of the key to the value would not
    # show.
    return crc32(b"%d/%d" % (partition, key_length))
