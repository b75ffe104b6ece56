"""Finds the entities that two parties have in common without revealing the others: private set intersection
on P-256.

Each entity's name becomes a point P: numbers are tried until one is the abscissa of a point. A party with the
secret scalar a sends the abscissas of all a P, sorted, so that their order says nothing about the names. The
other party multiplies them by its own scalar b, and b (a P) is compared with a (b P'). They are equal for
equal names (Meadows 1986; Huberman, Franklin and Hogg 1999). An abscissa stands for P and -P, which have the
same abscissa after any multiplication. Only the guest compares. It learns which of its own entities the host
has, and tells the host only which of the host's entities join batches. Both learn how many entities the other
has in all. Neither learns the other's names: to test a name that is not common, it would need both scalars.

Keyed hashes are the other option. They hide names from everybody but the other party, which can try out all
possible names."""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.identity.keys import derive

__all__ = ["Alignment", "KeyedHashes", "check_answer", "check_points", "names_at", "set_digest"]

POINT_BYTES = 32
CURVE = ec.SECP256R1()
# Order of the group (SEC 2, 2.4.2). It is a prime, so there is no small subgroup that a point could be in.
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# Each try fails with probability 1/2.
TRIES = 256
SHORTEST = 32


@dataclass(frozen=True)
class CommonEntities:
    """names: in common, sorted. digest: of these names, by :func:`set_digest`."""

    names: tuple[str, ...]
    digest: bytes


class Comparison:
    """Shared by both methods: each entity has a value, and the parties compare values.

    session, names, most: as for :class:`Alignment`.
    """

    def __init__(self, session: bytes, names: Sequence[str], most: int) -> None:
        if len(names) > most:
            raise ValueError(f"{len(names)} entities are more than the {most} that an alignment may have")
        if len(set(names)) != len(names):
            raise ValueError("an entity is there twice")
        self._session = session
        self._most = most
        self._names = names

    def _own(self, name: str) -> bytes:
        raise NotImplementedError

    def _of_theirs(self, value: bytes) -> bytes:
        raise NotImplementedError

    @functools.cached_property
    def _blinded(self) -> list[tuple[bytes, str]]:
        """The value and name of each own entity, sorted by value."""
        return sorted((self._own(name), name) for name in self._names)

    def blind_own(self) -> list[bytes]:
        """The first message: the value of each own entity, 32 bytes each, sorted, so that their order reveals
        nothing."""
        return [value for value, _ in self._blinded]

    def blind_theirs(self, points: Sequence[bytes]) -> list[bytes]:
        """The second message: the other party's points, blinded by this party too, in the order in which they
        came.

        points: the other's first message. BadRecord with reason oversized, malformed or repeated.
        """
        return [self._of_theirs(value) for value in self._checked(points)]

    @property
    def names_in_order(self) -> list[str]:
        """The own entities in the order of :meth:`blind_own`."""
        return [name for _, name in self._blinded]

    def places(self, own: Sequence[bytes], theirs: Sequence[bytes]) -> dict[str, int]:
        """The entities in common, each with the place of its value in the other's first message.

        own, theirs, errors: as for :meth:`intersect`.
        """
        found = self.intersect(own, theirs)
        place = {point: number for number, point in enumerate(theirs)}
        twice = dict(zip(self.names_in_order, own, strict=True))
        return {name: place[twice[name]] for name in found.names}

    def intersect(self, own: Sequence[bytes], theirs: Sequence[bytes]) -> CommonEntities:
        """The entities in common. BadRecord if the answer does not fit the question.

        own: the other's second message, the answer to :meth:`blind_own`.
        theirs: what :meth:`blind_theirs` returned.
        """
        if len(own) != len(self._names):
            raise BadRecord("shape", f"{len(own)} points answer {len(self._names)}")
        known = set(theirs)
        pairs = zip(self._blinded, self._checked(own), strict=True)
        names = tuple(sorted(name for (_, name), point in pairs if point in known))
        return CommonEntities(names, set_digest(names, self._session))

    def _checked(self, points: Sequence[bytes]) -> Sequence[bytes]:
        if len(points) > self._most:
            raise BadRecord("oversized", f"{len(points)} points, at most {self._most} are accepted")
        if any(len(point) != POINT_BYTES for point in points):
            raise BadRecord("malformed", f"a point is not {POINT_BYTES} bytes")
        if len(set(points)) != len(points):
            raise BadRecord("repeated", "a point is there twice")
        return points


class Alignment(Comparison):
    """One party's side of an alignment with one other party.

    The scalar is drawn from the secret, the session and the party's own set. So the same alignment made again
    sends the same points. Another set in the same session gets another scalar, and cannot be compared with
    the first.

    secret: of the party alone, 32 bytes or more.
    session: name of the alignment, the same at both and used once.
    names: of the party's own entities. ValueError if one is there twice or there are more than ``most``.
    most: entities of either party. Without a limit the other could ask for every possible name.
    """

    def __init__(self, secret: bytes, session: bytes, names: Sequence[str], most: int) -> None:
        super().__init__(session, names, most)
        if len(secret) < SHORTEST:
            raise ValueError(f"{len(secret)} bytes are too few for a secret")
        own = derive(secret, b"quasi-newton alignment " + _digest_of((session, set_digest(names, session))))
        wide = hashlib.shake_256(own + b"scalar").digest(48)
        self._scalar = ec.derive_private_key(1 + int.from_bytes(wide, "big") % (ORDER - 1), CURVE)

    def _own(self, name: str) -> bytes:
        """The abscissa of a P."""
        return self._multiplied(_point_of(name, self._session))

    def _of_theirs(self, value: bytes) -> bytes:
        point = _point_with(value)
        if point is None:
            raise BadRecord("malformed", "no point of P-256 has this abscissa")
        return self._multiplied(point)

    def _multiplied(self, point: ec.EllipticCurvePublicKey) -> bytes:
        """The abscissa of the scalar times the point."""
        return self._scalar.exchange(ec.ECDH(), point)


class KeyedHashes(Comparison):
    """The same by HMAC-SHA-256 of each name: the other's values are comparable as they come.

    Whoever has the key can hash every possible name, and the other party has it: some 600,000 names a second
    and core. Use it only if the other party may know all of this party's names.

    key: shared by the two parties, 32 bytes or more.
    session, names, most: as for :class:`Alignment`.
    """

    def __init__(self, key: bytes, session: bytes, names: Sequence[str], most: int) -> None:
        super().__init__(session, names, most)
        if len(key) < SHORTEST:
            raise ValueError(f"{len(key)} bytes are too few for a key")
        self._key = key

    def _own(self, name: str) -> bytes:
        return hmac.digest(self._key, _digest_of((self._session, name.encode())), "sha256")

    def _of_theirs(self, value: bytes) -> bytes:
        return value


def check_points(content: bytes, most: int) -> None:
    """BadRecord if ``content`` is not a whole number of points, or has more than ``most``."""
    if len(content) % POINT_BYTES or len(content) > most * POINT_BYTES:
        raise BadRecord("shape", f"{len(content)} bytes are no points, or too many")


def check_answer(own: bytes, twice: bytes, asked: int, most: int) -> None:
    """BadRecord if an answer to ``asked`` points has another number of points in ``twice``, or more than
    ``most`` in ``own``."""
    check_points(own, most)
    if len(twice) != asked * POINT_BYTES:
        raise BadRecord("shape", f"{len(twice)} bytes answer {asked} points")


def names_at(places: NDArray[np.int64], order: Sequence[str]) -> list[str]:
    """The names at these places of ``order``. BadRecord if a place is there twice, or does not exist."""
    if len(set(places.tolist())) != len(places) or int(places.max(initial=-1)) >= len(order):
        raise BadRecord("alignment", "a place is there twice, or is none")
    return [order[place] for place in places]


def set_digest(names: Sequence[str], session: bytes) -> bytes:
    """A 32-byte digest of a set of names in a session. It does not depend on the names' order.

    Message headers contain it. It confirms a guess of the whole set, and reveals nothing else.
    """
    return _digest_of((session, *(name.encode() for name in sorted(names))))


def _digest_of(parts: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256(b"streamfl alignment/1")
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _point_of(name: str, session: bytes) -> ec.EllipticCurvePublicKey:
    """The point for a name. Nobody knows its discrete logarithm to any base."""
    content = _digest_of((session, name.encode()))
    for attempt in range(TRIES):
        point = _point_with(hashlib.sha256(content + attempt.to_bytes(4, "big")).digest())
        if point is not None:
            return point
    raise AssertionError("a coin has fallen on the same side 256 times")


def _point_with(abscissa: bytes) -> ec.EllipticCurvePublicKey | None:
    """One of the two points with this abscissa; either will do. None if there is none."""
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, b"\x02" + abscissa)
    except ValueError:
        return None
