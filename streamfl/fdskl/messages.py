"""The messages between parties, and the prediction that a user reads."""

from __future__ import annotations

import hashlib

import msgspec

from streamfl.encoding.wire import ROOM, Codec, Count, Name, Version

__all__ = [
    "ANOTHER",
    "CARRIED_BYTES",
    "DISTANCES",
    "INCARNATION",
    "KNOWN",
    "LARGEST_BANDWIDTH",
    "MOST_DISTANCES",
    "MOST_ENTITIES",
    "MOST_RANGES",
    "NAMES_BYTES",
    "OUTPUTS",
    "PARTIAL_SUM",
    "PHASES",
    "REVISION",
    "ROUND",
    "SMALLEST_BANDWIDTH",
    "TURN",
    "FeatureRange",
    "Incarnation",
    "PartialSum",
    "Prediction",
    "Revision",
    "Round",
    "Turn",
    "identity_of",
]

# Why a message of another member is refused.
ANOTHER = "another federation name, seed, list of parties, kernel or aggregation was used"

# What a round asks of each party: phases of features, squared distances of pairs of entities, with several
# active parties f_l' of entities, or only who knows the entities.
PHASES, DISTANCES, OUTPUTS, KNOWN = 0, 1, 2, 3

# Most bytes of the numbers of a partial sum, and of the names of a round's entities. Each is one record.
CARRIED_BYTES = ROOM - 16_384
NAMES_BYTES = ROOM // 2
# Most entities of a round, which also bounds its memory at every party, and most ranges of features.
MOST_ENTITIES, MOST_RANGES = 4096, 1024
# Most pairs of entities in a round of distances.
MOST_DISTANCES = 256
SMALLEST_BANDWIDTH, LARGEST_BANDWIDTH = 1e-12, 1e12


class Incarnation(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """One life of a party in a partition begins. Masks are agreed on with its key, which is never written
    down.

    number: names the life; a digest of ``public``.
    public: X25519 public key, 32 bytes.
    telling: another number for each announcement, which nobody can foretell. A copy is recognised by it.
    known: the receiver's life as the sender knows it, 0: none. A receiver with another life announces it
    again.
    """

    version: Version
    fingerprint: Count
    sender: Name
    number: Count
    public: bytes
    telling: Count
    known: Count


class FeatureRange(msgspec.Struct, array_like=True, gc=False, frozen=True, forbid_unknown_fields=True):
    """Random features ``first`` to ``first + count - 1``."""

    first: Count
    count: Count


class Round(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """An active party asks all others for one masked sum.

    incarnations: of every party, in the order of federation.parties; a party that has another by now does not
    answer.
    number: grows by one with each round of the active party's incarnation.
    purpose: phases (0), distances (1) or, with several active parties, outputs (2): each one's part of f of
        an entity. Known (3) asks for no numbers: only how many parties have columns of each entity.
    bandwidth: of the kernel.
    ranges: of the features; with outputs the range of all kept features, which identifies the version of the
    model.
    entities: whose columns; with distances each two in order are a pair.
    """

    version: Version
    fingerprint: Count
    sender: Name
    incarnations: list[Count]
    number: Count
    purpose: Count
    bandwidth: float
    ranges: list[FeatureRange]
    entities: list[Name]


class PartialSum(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """The masked sum of a party's own part and of all sums from the parties below it.

    incarnation, number: of the round.
    round: digest of its whole announcement, :func:`identity_of`.
    stage: 1, or 2 + p for the sum that takes the masks off features that party p owns (mask = "paper"); and
        128 more for rounds of each further active party.
    contributors: numbers of the parties in the sum, in order.
    known: for each entity, how many of them had its columns; raw bytes.
    values: raw whole numbers, with check words at the end.
    """

    version: Version
    fingerprint: Count
    sender: Name
    incarnation: Count
    number: Count
    round: bytes
    stage: Count
    contributors: list[Count]
    known: bytes
    values: bytes


class Revision(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """A party has new columns of an entity that it was asked for before.

    epoch, sequence: numbers by which a copy is recognised.
    """

    version: Version
    fingerprint: Count
    sender: Name
    epoch: Count
    sequence: Count
    entity: Name


class Turn(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """One of several active parties asks to learn, or has learnt. The order of these messages in the log
    orders the iterations.

    fingerprint: of the settings that active parties have to agree on.
    number: counts the sender's turns from 1.
    learnt: False: it asks for a turn, and model to decay are 0 or 1. True: its iteration is complete, and
    they describe it.
    model: version that the iteration began with.
    first: the first feature that is kept after it.
    bandwidth: of the kernel.
    decay: factor of all coefficients before it, 1 - gamma lambda.
    signature: where members have keys; otherwise empty.
    """

    version: Version
    fingerprint: Count
    sender: Name
    number: Count
    learnt: bool
    model: Count
    first: Count
    bandwidth: float
    decay: float
    signature: bytes = b""


class Prediction(msgspec.Struct, gc=False):
    """A prediction as the user's consumers read it.

    prediction: in the label's own unit, or the probability of label 1.
    score: f(x), the model's own output.
    model: version of the model, 0 before anything was learnt.
    parties: how many parties had columns of the entity; for the others their mean stands in.
    revision: counts an entity's predictions from 0.
    """

    entity: str
    prediction: float
    score: float
    model: int
    parties: int
    revision: int


INCARNATION = Codec(Incarnation)
ROUND = Codec(Round)
PARTIAL_SUM = Codec(PartialSum)
REVISION = Codec(Revision)
TURN = Codec(Turn)


def identity_of(content: bytes, federation: str, partition: int) -> bytes:
    """16 bytes that name a round: a digest of its federation, its partition and its whole announcement."""
    head = msgspec.msgpack.encode((federation, partition))
    return hashlib.blake2b(head + content, digest_size=16, person=b"fdskl round").digest()
