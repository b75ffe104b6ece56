"""A party's settings, and its progress in a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from streamfl.encoding.wire import Codec, Count
from streamfl.quasi_newton.encryption.end_to_end import EncryptedLink
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint, Kinds
from streamfl.quasi_newton.encryption.keys import agreed_key
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.learning.own_columns import PRODUCTS
from streamfl.quasi_newton.messages import Message
from streamfl.quasi_newton.rows.batches import least_batch
from streamfl.quasi_newton.rows.preprocessing import Method, most_columns
from streamfl.quasi_newton.scoring.settings import ScoringSettings

__all__ = [
    "ADDING",
    "ALIGNING",
    "DECIDING",
    "FAILED",
    "GATHERING",
    "OPENING",
    "OUTPUTS",
    "READY",
    "TRAINED",
    "PartySettings",
    "TrainingProgress",
]

# Phases. ALIGNING finds the common entities. In a round, OUTPUTS waits for peers' vectors, OPENING for what the coordinator
# decrypted, ADDING for hosts' inner products, DECIDING for the coordinator's decision.
GATHERING, READY, ALIGNING, OUTPUTS, OPENING, ADDING, DECIDING, TRAINED, FAILED = range(9)


class TrainingProgress(msgspec.Struct, array_like=True):
    """A party's place in a training; remembered as ``progress``.

    run, round, alignment: as in messages. modulus: of the run's key. batches: how many.
    digest: finds the mask of the round's upload again.
    gradient: g of the round's iteration. step, curvature: s and v, in a round for curvature.
    failure: the text for the operator. again: whether the party has reported that it is ready for another run after this one.
    told: digests of the keys for which it has reported ready since this run began, the latest last.
    """

    run: Count = 0
    phase: int = GATHERING
    round: Count = 0
    alignment: bytes = b""
    modulus: bytes = b""
    batches: Count = 0
    digest: bytes = b""
    gradient: bytes = b""
    step: bytes = b""
    curvature: bytes = b""
    failure: str = ""
    again: bool = False
    told: list[bytes] = msgspec.field(default_factory=list)

    @property
    def has_said(self) -> bool:
        """Whether the party has reported to the coordinator that it is ready for the next run."""
        return self.phase == READY or self.again

    def become(self, other: TrainingProgress) -> None:
        """Copy all fields of ``other`` in place, because other owners hold this object."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))


@dataclass(frozen=True)
class PartySettings:
    """own: the party's name. links: by the other's name. link_topics: by the other's name, the topics to send to and to read from.

    entities, settle: when the party is ready for the first training. every: seconds after which the guest is ready for another
    one; None: never. more: new entities that another one needs. hashed: whether names are compared by keyed hashes. held_out:
    share of the guest's entities that no batch has. most: most entities of any party.
    """

    federation: str
    own: str
    guest: str
    hosts: tuple[str, ...]
    fingerprint: int
    seed: int
    columns: int
    learning: DescentSettings
    kinds: Kinds
    encrypted: bool
    key_bits: int
    key_fingerprint: str
    masked: bool
    secret: bytes
    links: Mapping[str, EncryptedLink]
    link_topics: Mapping[str, tuple[str, str]]
    method: Method
    min_batch: int
    min_support: int
    largest_leverage: float
    entities: int
    settle: float
    every: float | None
    more: int
    hashed: bool
    held_out: float
    most: int
    expiry: float
    codec: Codec[Message]
    scoring: ScoringSettings

    @property
    def key(self) -> bytes:
        """The only key that the party accepts, as :func:`digest_of` returns it; empty if nothing is encrypted."""
        return agreed_key(self.key_fingerprint, self.key_bits) if self.encrypted else b""

    @property
    def is_guest(self) -> bool:
        return self.own == self.guest

    @property
    def least_batch(self) -> int:
        """Rows with which a batch is large enough for any columns that preprocessing may make: half of a whole batch, or more.

        At most half of the entities are held out, so as many entities as a whole batch has are enough.
        """
        columns, whole = most_columns(self.method, self.columns) + self.is_guest, self.learning.batch
        return min(whole, max((whole + 1) // 2, least_batch(columns, self.min_batch)))

    @property
    def products(self) -> FixedPoint:
        """The kind of inner products that are summed over the parties."""
        return PRODUCTS.sum_of(1 + len(self.hosts))
