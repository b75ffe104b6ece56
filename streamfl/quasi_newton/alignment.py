"""Which entities two parties have in common, without telling the others: private set intersection by P-256.

Each entity's name becomes a point P, by trying numbers until one is the abscissa of a point. A party with the secret scalar a sends
the abscissas of all a P, sorted, an order that has nothing to do with the names. The other multiplies them by its own b, and
b (a P) is compared with a (b P'): they are equal for equal names (Meadows 1986; Huberman, Franklin and Hogg 1999). An abscissa
stands for P and -P, which have the same abscissa after any multiplication. Only the guest compares: it learns which of its own
entities the host has, and tells the host which of the host's come into batches, no more. Both learn how many the other has in all.
Neither learns the other's names: one that is not common would have to be multiplied by both scalars.

Keyed hashes are the other option. They hide names from everybody but the other party, which can try out all names there are.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray

from streamfl.identity.keys import derive
from streamfl.role import PeerError

__all__ = ["Alignment", "KeyedHashes", "check_answer", "check_points", "names_at", "set_digest"]

POINT_BYTES = 32
CURVE = ec.SECP256R1()
# Of the group (SEC 2, 2.4.2). It is a prime: there is no small subgroup to fall into.
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# Each try fails with probability 1/2.
TRIES = 256
SHORTEST = 32


@dataclass(frozen=True)
class Found:
    """names: in common, sorted. digest: of them, as :func:`set_digest`."""

    names: tuple[str, ...]
    digest: bytes


class Comparison:
    """What both ways have in common: each entity has a value on its way, and values are compared.

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
        """Each own entity behind its value, in the order of the values."""
        return sorted((self._own(name), name) for name in self._names)

    def blind_own(self) -> list[bytes]:
        """The first message: the value of each own entity, 32 bytes each, sorted: their order tells nothing."""
        return [value for value, _ in self._blinded]

    def blind_theirs(self, points: Sequence[bytes]) -> list[bytes]:
        """The second message: the other's first one, made one's own as well, in the order in which it came.

        points: the other's first message. PeerError with reason oversized, malformed or repeated.
        """
        return [self._of_theirs(value) for value in self._checked(points)]

    @property
    def names_in_order(self) -> list[str]:
        """The own entities, each in the place of its value in :meth:`blind_own`."""
        return [name for _, name in self._blinded]

    def places(self, own: Sequence[bytes], theirs: Sequence[bytes]) -> dict[str, int]:
        """The entities in common, each with the place of its value in the other's first message.

        own, theirs: as for :meth:`intersect`, and so are the errors.
        """
        found = self.intersect(own, theirs)
        place = {point: number for number, point in enumerate(theirs)}
        twice = dict(zip(self.names_in_order, own, strict=True))
        return {name: place[twice[name]] for name in found.names}

    def intersect(self, own: Sequence[bytes], theirs: Sequence[bytes]) -> Found:
        """The entities in common. PeerError where the answer is not one to what was asked.

        own: the other's second message, the answer to :meth:`blind_own`.
        theirs: what :meth:`blind_theirs` returned.
        """
        if len(own) != len(self._names):
            raise PeerError("shape", f"{len(own)} points answer {len(self._names)}")
        known = set(theirs)
        pairs = zip(self._blinded, self._checked(own), strict=True)
        names = tuple(sorted(name for (_, name), point in pairs if point in known))
        return Found(names, set_digest(names, self._session))

    def _checked(self, points: Sequence[bytes]) -> Sequence[bytes]:
        if len(points) > self._most:
            raise PeerError("oversized", f"{len(points)} points, at most {self._most} are accepted")
        if any(len(point) != POINT_BYTES for point in points):
            raise PeerError("malformed", f"a point is not {POINT_BYTES} bytes")
        if len(set(points)) != len(points):
            raise PeerError("repeated", "a point is there twice")
        return points


class Alignment(Comparison):
    """One party's side of an alignment with one other party.

    The scalar is drawn from the secret, the session and the party's own set. So the same alignment made again sends the same
    points; another set in the same session gets another scalar, and cannot be compared with the first.

    secret: of the party alone, 32 bytes or more.
    session: name of the alignment, the same at both and used once.
    names: of the party's own entities. ValueError where one is there twice or there are more than ``most``.
    most: that either party may have: with as many as it likes the other could ask for every name there is.
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
            raise PeerError("malformed", "no point of P-256 has this abscissa")
        return self._multiplied(point)

    def _multiplied(self, point: ec.EllipticCurvePublicKey) -> bytes:
        """The abscissa of the scalar times the point."""
        return self._scalar.exchange(ec.ECDH(), point)


class KeyedHashes(Comparison):
    """The same by HMAC-SHA-256 of each name: the other's values are comparable as they come.

    Whoever has the key can hash every name there is: the other party does, some 600,000 a second and core. Only who lets the other
    know all of its names may use them.

    key: that the two parties share, 32 bytes or more. session, names, most: as for :class:`Alignment`.
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
    """PeerError where these are not whole points of a curve, or more than ``most``."""
    if len(content) % POINT_BYTES or len(content) > most * POINT_BYTES:
        raise PeerError("shape", f"{len(content)} bytes are no points, or too many")


def check_answer(own: bytes, twice: bytes, asked: int, most: int) -> None:
    """PeerError where an answer to ``asked`` points has others than these twice, or own ones that are not so many at most."""
    check_points(own, most)
    if len(twice) != asked * POINT_BYTES:
        raise PeerError("shape", f"{len(twice)} bytes answer {asked} points")


def names_at(places: NDArray[np.int64], order: Sequence[str]) -> list[str]:
    """The names at places of an order. PeerError where a place is there twice, or is none."""
    if len(set(places.tolist())) != len(places) or int(places.max(initial=-1)) >= len(order):
        raise PeerError("alignment", "a place is there twice, or is none")
    return [order[place] for place in places]


def set_digest(names: Sequence[str], session: bytes) -> bytes:
    """32 bytes that two parties have in common if their sets are equal, in any order.

    It stands in headers. Whoever guesses the whole set can make sure of it, and nobody else learns anything.
    """
    return _digest_of((session, *(name.encode() for name in sorted(names))))


def _digest_of(parts: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256(b"streamfl alignment/1")
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _point_of(name: str, session: bytes) -> ec.EllipticCurvePublicKey:
    """The point that a name stands for: nobody knows its logarithm, by any base."""
    content = _digest_of((session, name.encode()))
    for attempt in range(TRIES):
        point = _point_with(hashlib.sha256(content + attempt.to_bytes(4, "big")).digest())
        if point is not None:
            return point
    raise AssertionError("a coin has fallen on the same side 256 times")


def _point_with(abscissa: bytes) -> ec.EllipticCurvePublicKey | None:
    """One of the two points with this abscissa, either will do; None if there is none."""
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, b"\x02" + abscissa)
    except ValueError:
        return None
