"""Messages between members: one header for all kinds, and a content for each kind.

Between host and guest the content is sealed (:mod:`streamfl.quasi_newton.encryption.end_to_end`), and the
seal authenticates the header too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import VERSION, Codec, Count, Name, Version
from streamfl.quasi_newton.encryption.end_to_end import EncryptedLink
from streamfl.roles.fragment_encoding import FRAGMENT_BYTES, split
from streamfl.roles.message_contents import content_of, message_codec, read_content

__all__ = [
    "ANOTHER",
    "COORDINATOR_NAME",
    "FRAGMENT_BYTES",
    "KINDS",
    "Aligned",
    "Answer",
    "Begin",
    "Blinded",
    "FirstAnswer",
    "Joined",
    "Message",
    "Opened",
    "Ready",
    "StepDecision",
    "codec",
    "content_of",
    "numbers_of",
    "place_of",
    "read_content",
    "records_of",
    "seal",
    "unseal",
]

# Text of the refusal if another member's settings differ.
ANOTHER = "another federation name, seed, list of parties, key, learning, alignment or bounds were used"
COORDINATOR_NAME: Final = "(coordinator)"
"""No party can have this name, because parties' names have no brackets."""

KINDS: Mapping[str, int] = {
    kind: number
    for number, kind in enumerate(
        (
            *("ready", "begin", "blinded", "answer", "aligned", "joined", "outputs", "residuals"),
            *("gradient", "opened", "dots", "sums", "step", "failed"),
            *("question", "found", "chosen", "points", "closed"),
        )
    )
}
"""A message's number within its round: no member sends two of one kind to the same member."""
NUMBER_BYTES = 4


class Message(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True):
    """run: counts trainings from 1; 0 before the first. round: twice the iteration, and one more in a round
    for curvature. In messages about scores, run is the model's version, and round the number of the session
    under it.

    alignment: digest of the entities in common, empty before they are known.
    """

    version: Version
    fingerprint: Count
    sender: Name
    run: Count
    round: Count
    kind: Annotated[str, msgspec.Meta(max_length=16)]
    # The coordinator stores it in the one record of a run, which a longer value than a digest might not fit.
    alignment: Annotated[bytes, msgspec.Meta(max_length=32)]
    content: bytes


class Ready(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A party has enough entities.

    entities: how many.
    key: SHA-256 and length in bits of the modulus that it accepts; empty if nothing is encrypted.
    """

    entities: Count
    key: Annotated[bytes, msgspec.Meta(max_length=34)]


class Begin(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The coordinator begins a run. key: its modulus; empty if nothing is encrypted."""

    key: bytes


class Blinded(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The guest's side of the alignment. points: its own, blinded."""

    points: bytes


class Answer(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A host's side of the alignment. own: its points, blinded. twice: the guest's, blinded by both, in the
    guest's order."""

    own: bytes
    twice: bytes


class FirstAnswer(Answer, frozen=True):
    """A host's answer before batches have their size. least: fewest rows of a batch that is not whole; 0:
    only whole batches."""

    least: Count = 0


class Aligned(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Which of a host's points fill new batches, in the order of the batches. places: 32-bit places in the
    host's points.

    No places: the batches of the training before are learnt from again.
    """

    places: bytes


class Joined(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A party has its rows. columns: how many numbers each of its uploads has. batches: how many batches
    there are."""

    columns: Count
    batches: Count


class Opened(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What the coordinator decrypted. residues: numbers below n, each as long as the key."""

    residues: bytes


class StepDecision(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What the coordinator decided at the end of a round.

    coefficients: of the basis, 64-bit floats; empty after a round for curvature.
    loss: 0. An earlier release sent the batch's loss before the step.
    pair: whether a round for curvature follows.
    kept: whether the parties keep the pair of a round for curvature.
    epoch_ends, over: whether the epoch, and the training, end after this round.
    """

    coefficients: bytes
    loss: float
    pair: bool
    kept: bool
    epoch_ends: bool
    over: bool


def codec(content_bytes: int) -> Codec[Message]:
    """The codec of messages with at most ``content_bytes`` of content."""
    return message_codec(Message, content_bytes)


def numbers_of(content: bytes, kind: str) -> NDArray[np.int64]:
    """Decodes 32-bit numbers. kind: "<u4" or "<i4"."""
    if len(content) % NUMBER_BYTES:
        raise BadRecord("shape", f"{len(content)} bytes are no numbers of {NUMBER_BYTES} bytes")
    return np.frombuffer(content, kind).astype(np.int64)


def place_of(message: Message) -> bytes:
    """The header as bytes: what a seal authenticates beside its content."""
    return content_of(
        (
            VERSION,
            message.fingerprint,
            message.sender,
            message.run,
            message.round,
            message.kind,
            message.alignment,
        )
    )


def seal(message: Message, content: bytes, link: EncryptedLink, topic: str) -> Message:
    """The message with its content sealed: only the other end of the link can read it, and only on this
    topic."""
    return replace(message, content=link.seal(content, topic, place_of(message)))


def unseal(message: Message, sender: str, link: EncryptedLink, topic: str) -> bytes:
    """The content that was sealed. BadRecord if this sender did not seal it for this topic."""
    if message.sender != sender:
        raise BadRecord("forged", f"{message.sender!r} speaks where {sender!r} is heard")
    return link.open(message.content, topic, place_of(message))


def records_of(own: Codec[Message], message: Message) -> list[bytes]:
    """The values of the records that carry a message. The same message gives the same bytes."""
    sequence = message.round * len(KINDS) + KINDS[message.kind]
    return split(message.sender, message.run, sequence, own.encode(message), FRAGMENT_BYTES)
