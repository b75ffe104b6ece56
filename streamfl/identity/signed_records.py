"""Signed records for everybody, such as a model that users apply: a reader with the members' file can tell
who wrote one.

A seal has one receiver. A signature has none. It costs more, so it is for topics with few records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from streamfl.contract.channels import Seal
from streamfl.contract.role import BadRecord, Headers, Record
from streamfl.identity.authentication import SEAL, Identity
from streamfl.identity.members import Member

__all__ = ["SIGNATURE", "is_sealed", "signatures", "signer_of_record"]

SIGNATURE = "signature"


def signatures(identity: Identity, topic: str) -> Seal:
    """Makes the header of each record of a topic that everybody reads. It leaves out the partition, which the
    bus chooses."""

    def make(key: bytes | None, value: bytes | None, _partition: int | None) -> Headers:
        return ((SIGNATURE, identity.sign(_statement(identity.federation, topic, key, value))),)

    return make


def signer_of_record(identity: Identity, kind: str) -> Callable[[Record], Member]:
    """A function that returns the member that signed a record and may be ``kind``; it raises BadRecord if
    none did."""

    def check(record: Record) -> Member:
        found = [content for name, content in record.headers if name == SIGNATURE]
        if not found:
            raise BadRecord("unsigned", "without a signature: its writer has no [identity]")
        if len(found) > 1:
            raise BadRecord("forged", f"it has {len(found)} signatures, one is expected")
        return identity.signer_of(
            kind, _statement(identity.federation, record.topic, record.key, record.value), found[0]
        )

    return check


def is_sealed(record: Record) -> bool:
    """Whether a record has a seal or a signature, good or not: its writer has keys, if it is a member."""
    return any(name in (SEAL, SIGNATURE) for name, _ in record.headers)


def _statement(federation: str, topic: str, key: bytes | None, value: bytes | None) -> bytes:
    """The bytes to sign: where the record belongs, and all of it. A missing key differs from an empty one."""
    lengths = struct.pack(">qq", *(-1 if part is None else len(part) for part in (key, value)))
    parts = (b"streamfl/1 record", federation.encode(), topic.encode(), lengths, key or b"", value or b"")
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)
