"""Signatures of turns, where members have keys. Every active party reads a turn, so it is signed for all and
not sealed for one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from streamfl.contract.role import BadRecord, Record
from streamfl.fdskl.config import WORKER
from streamfl.fdskl.messages import TURN, Turn
from streamfl.identity import Identity

__all__ = ["decode_signed", "signer"]


def signer(identity: Identity | None, topic: str) -> Callable[[Turn, int], Turn]:
    """Returns a function that signs a turn for a partition of the topic. Without keys it leaves the turn as
    it is."""
    if identity is None:
        return lambda message, partition: message
    sign = identity.sign
    return lambda message, partition: msgspec.structs.replace(
        message, signature=sign(_statement(topic, partition, message))
    )


def decode_signed(identity: Identity | None) -> Callable[[Record], Turn]:
    """Decodes turns. With keys: BadRecord unless a member that may write for the sender signed it for this
    topic and partition."""

    def decode(record: Record) -> Turn:
        message = TURN.read(record)
        if identity is not None:
            member = identity.signer_of(
                WORKER, _statement(record.topic, record.partition, message), message.signature
            )
            if not member.speaks_in_the_name_of(message.sender):
                raise BadRecord(
                    "not_its_client",
                    f"{member.name!r} may not speak for {message.sender!r}, says the members' file",
                )
        return message

    return decode


def _statement(topic: str, partition: int, message: Turn) -> bytes:
    content = msgspec.structs.replace(message, signature=b"")
    return b"fdskl turn" + msgspec.msgpack.encode((topic, partition, content))
