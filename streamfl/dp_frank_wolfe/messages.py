"""Messages between parties and server: one header for all, and a content for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from streamfl.encoding.wire import VERSION, Codec, Count, Name, Version
from streamfl.roles.fragment_encoding import FRAGMENT_BYTES, split
from streamfl.roles.message_contents import content_of, message_codec, read_content

__all__ = [
    "ANOTHER",
    "FRAGMENT_BYTES",
    "KINDS",
    "LONGEST_ENTITY",
    "SERVER_NAME",
    "VERSION",
    "Answers",
    "Ask",
    "Chosen",
    "Entities",
    "FittedModel",
    "Frozen",
    "Manifest",
    "Message",
    "OtherRows",
    "Partial",
    "Prediction",
    "Products",
    "VertexAnswer",
    "codec",
    "content_of",
    "read_content",
    "records_of",
]

# Why a message of a member with other settings is refused.
ANOTHER = (
    "another federation name, seed, list of parties, number of columns, window, budget, learning or serving "
    "was used"
)
SERVER_NAME: Final = "(server)"
"""No party can have it: parties' names have no brackets."""
LONGEST_ENTITY = 256
"""Bytes of an entity's name: a manifest has room for as many of these as a window has rows."""

KINDS: Mapping[str, int] = {
    kind: number
    for number, kind in enumerate(
        (
            "entities",
            "manifest",
            "frozen",
            "ask",
            "answers",
            "choose",
            "chosen",
            "rows",
            "products",
            "model",
            "partial",
        )
    )
}
"""A message's number within its window and iteration. No member sends the same member two of one kind
there."""

Digest = Annotated[bytes, msgspec.Meta(max_length=32)]


class Message(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True):
    """window: counts fits from 1. For "entities" and "partial": 0.

    iteration: of the fit, from 0. For "entities" and "partial": their running number from the same party.
    link, head: for a party's release, how many releases its ledger's chain has with this one, and the chain's
    hash. Otherwise 0 and empty.
    """

    version: Version
    fingerprint: Count
    sender: Name
    window: Count
    iteration: Count
    kind: Annotated[str, msgspec.Meta(max_length=16)]
    link: Count
    head: Digest
    content: bytes


class Entities(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Entities that a party has a record of columns, one of the label, and budget for. What is in the records
    plays no part.

    first: number of the first name; the others follow. A manifest refers to names by number. 0: a party of
    0.1, without numbers."""

    names: list[Name]
    first: Count = 0


class Manifest(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The rows of a window, as many as ``window.rows``, none twice.

    names: entities that were announced without a number, ascending.
    runs: for the others, in turn: how many numbers are skipped before a run of consecutive ones, and the
    run's length.
    digest: SHA-256 of the content that lists all of them by name. A manifest without numbers has neither runs
    nor digest.
    """

    names: list[Name]
    runs: list[Count] = []
    digest: Digest = b""


class Frozen(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A party has frozen the window, and charged every entity in it.

    manifest: SHA-256 of the content of a manifest that lists all by name.
    means: sums of the party's columns and of the label, 64-bit whole numbers in units of the noise; empty
    where nothing is centred.
    weight: w, which the label's sum is multiplied by.
    """

    manifest: Digest
    means: bytes = b""
    weight: Count = 1


class Ask(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """An iteration begins. columns, weights: x of the party's columns that have a weight, 32-bit numbers and
    64-bit floats.

    others: the sum of x_j times the sketch of column j over the other parties' columns, 64-bit floats.
    """

    columns: bytes
    weights: bytes
    others: bytes


class VertexAnswer(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A block's vertex. sums: of its column, 64-bit whole numbers in units of the noise; empty if they were
    shown before."""

    block: Count
    column: Count
    positive: bool
    sums: bytes


class Answers(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Answers of the party's blocks that took part. gap: the party's part of the duality gap, only where
    nothing is private."""

    answers: list[VertexAnswer]
    gap: float | None


class Chosen(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Columns that a party chose at once: 32-bit numbers. values, norms, rows: 64-bit floats, empty where not
    asked for."""

    columns: bytes
    values: bytes
    norms: bytes
    rows: bytes


class OtherRows(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The other parties' rows as they were released: 64-bit floats, (rows, columns)."""

    rows: bytes


class Products(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Products of a party's chosen columns with the others' rows, and among themselves: 64-bit floats."""

    products: bytes
    gram: bytes


class FittedModel(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A fit has ended. columns, weights: as in :class:`Ask`, of the receiver's columns."""

    columns: bytes
    weights: bytes


class Partial(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A party's part of a prediction. model: its version, the window it was fitted on. value: in label
    bounds.

    before: the same with the version before, where parts have no noise and the party had that version.
    Parties change to another model at different moments, and a prediction needs one model.
    """

    entity: Name
    model: Count
    value: float
    before: float | None = None


class Prediction(msgspec.Struct, frozen=True):
    """A prediction for users, under the entity's name. prediction: in the label's scale. private: whether
    epsilon covers it."""

    entity: str
    prediction: float
    model: int
    private: bool


def codec(content_bytes: int) -> Codec[Message]:
    """The codec of messages with at most ``content_bytes`` of content."""
    return message_codec(Message, content_bytes)


def records_of(own: Codec[Message], message: Message) -> list[bytes]:
    """The values of the records that carry a message. The same message is the same bytes."""
    sequence = message.iteration * len(KINDS) + KINDS[message.kind]
    return split(message.sender, message.window, sequence, own.encode(message), FRAGMENT_BYTES)
