"""What takes long, as functions of bytes: a worker computes it beside its loop, in any process (:class:`~streamfl.role.Work`).

A request holds secrets. It is never remembered and leaves the machine by no way.

What computes under a key takes ``made``: how a scheme is made. Who measures its parts gives another one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.quasi_newton.alignment import POINT_BYTES, Alignment, KeyedHashes
from streamfl.quasi_newton.bignum import from_bytes, to_bytes
from streamfl.quasi_newton.fixed_point import FixedPoint
from streamfl.quasi_newton.keys import PrivateKey
from streamfl.quasi_newton.randomness import Place
from streamfl.quasi_newton.scheme import Scheme, scheme_of, to_numbers
from streamfl.role import PeerError

__all__ = [
    "Adding",
    "Aligning",
    "Encrypting",
    "Kind",
    "Maker",
    "Multiplying",
    "Opening",
    "Own",
    "Product",
    "added",
    "aligned",
    "blinded",
    "encrypted",
    "matched",
    "multiplied",
    "opened",
    "read_alignment",
    "read_product",
    "request",
]


class Own(msgspec.Struct, array_like=True, frozen=True):
    """modulus: of the coordinator's key; empty: nothing is encrypted. secret: of the party."""

    modulus: bytes
    secret: bytes


class Kind(msgspec.Struct, array_like=True, frozen=True):
    """A :class:`FixedPoint`: MessagePack has no whole numbers of so many bits."""

    fraction_bits: int
    largest: bytes

    @classmethod
    def of(cls, kind: FixedPoint) -> Kind:
        return cls(kind.fraction_bits, kind.largest.to_bytes(32, "big"))

    @property
    def fixed_point(self) -> FixedPoint:
        return FixedPoint(self.fraction_bits, int.from_bytes(self.largest, "big"))


class Encrypting(msgspec.Struct, array_like=True, frozen=True):
    """numbers: as :func:`numbers_to_bytes` has them. kind: to pack them; None: each by itself."""

    own: Own
    place: Place
    numbers: bytes
    kind: Kind | None = None


class Multiplying(msgspec.Struct, array_like=True, frozen=True):
    """The sum of vectors and of own numbers, hidden for the peers, and its product with a matrix, for the coordinator.

    numbers: own ones; empty: the one vector is taken as it is, and only multiplied.
    matrix: 64-bit whole numbers, row by row. kind: of the product's numbers. masked: whether the coordinator may not see them.
    """

    own: Own
    vectors: list[bytes]
    numbers: bytes
    matrix: bytes
    columns: int
    kind: Kind
    place: Place
    upload_place: Place
    masked: bool


class Product(msgspec.Struct, array_like=True, frozen=True):
    """hidden: the sum; empty where nothing was added. upload: the product. digest: by which its mask is found again."""

    hidden: bytes
    upload: bytes
    digest: bytes


class Adding(msgspec.Struct, array_like=True, frozen=True):
    """The sum of peers' packed vectors and of own numbers."""

    own: Own
    vectors: list[bytes]
    numbers: bytes
    kind: Kind
    place: Place


class Opening(msgspec.Struct, array_like=True, frozen=True):
    """Ciphertexts to decrypt. p, q: the coordinator's primes; empty: nothing is encrypted."""

    p: bytes
    q: bytes
    content: bytes


class Aligning(msgspec.Struct, array_like=True, frozen=True):
    """One side of an alignment. theirs, twice: the other's messages, as far as they have come. key: of hashes; none: points."""

    secret: bytes
    session: bytes
    names: list[str]
    most: int
    theirs: bytes = b""
    twice: bytes = b""
    key: bytes = b""

    @property
    def alignment(self) -> Alignment | KeyedHashes:
        if self.key:
            return KeyedHashes(self.key, self.session, self.names, self.most)
        return Alignment(self.secret, self.session, self.names, self.most)


request = msgspec.msgpack.Encoder().encode
Maker = Callable[[bytes, bytes], Scheme]


def _read(content: bytes, of: type[Any]) -> Any:
    return msgspec.msgpack.decode(content, type=of)


def encrypted(content: bytes, made: Maker = scheme_of) -> bytes:
    """Of :class:`Encrypting`, the vector."""
    asked: Encrypting = _read(content, Encrypting)
    scheme, numbers = made(asked.own.modulus, asked.own.secret), to_numbers(asked.numbers)
    if asked.kind is None:
        return scheme.encrypt(numbers, asked.place)
    return scheme.encrypt_packed(numbers, asked.kind.fixed_point, asked.place)


def multiplied(content: bytes, made: Maker = scheme_of) -> bytes:
    """Of :class:`Multiplying`, a :class:`Product`."""
    asked: Multiplying = _read(content, Multiplying)
    scheme = made(asked.own.modulus, asked.own.secret)
    total, hidden = asked.vectors[0], b""
    if asked.numbers:
        total = scheme.add(asked.vectors, to_numbers(asked.numbers))
        hidden = scheme.hide(total, asked.place)
    matrix: NDArray[np.int64] = np.frombuffer(asked.matrix, "<i8").reshape(-1, asked.columns).astype(np.int64)
    upload, digest = scheme.product(total, matrix, asked.kind.fixed_point), b""
    if asked.masked:
        upload, digest = scheme.mask(upload, asked.upload_place)
    return request(Product(hidden, scheme.hide(upload, asked.upload_place), digest))


def read_product(result: bytes) -> Product:
    """What :func:`multiplied` gave."""
    product: Product = _read(result, Product)
    return product


def added(content: bytes, made: Maker = scheme_of) -> bytes:
    """Of :class:`Adding`, the vector."""
    asked: Adding = _read(content, Adding)
    scheme = made(asked.own.modulus, asked.own.secret)
    total = scheme.add_packed(asked.vectors, to_numbers(asked.numbers), asked.kind.fixed_point)
    return scheme.hide(total, asked.place)


@functools.lru_cache(maxsize=2)
def _private(p: bytes, q: bytes) -> PrivateKey:
    return PrivateKey(from_bytes(p), from_bytes(q))


def opened(content: bytes) -> bytes:
    """Of :class:`Opening`, the plaintexts, each as long as the key."""
    asked: Opening = _read(content, Opening)
    if not asked.p:
        return asked.content
    private = _private(asked.p, asked.q)
    size = private.public.ciphertext_bytes
    ciphertexts = [from_bytes(asked.content[at : at + size]) for at in range(0, len(asked.content), size)]
    return b"".join(to_bytes(plaintext, private.public.bits // 8) for plaintext in private.decrypt(ciphertexts))


def blinded(content: bytes) -> bytes:
    """Of :class:`Aligning`, the party's own points."""
    asked: Aligning = _read(content, Aligning)
    return b"".join(asked.alignment.blind_own())


def aligned(content: bytes) -> bytes:
    """Of :class:`Aligning` with their points: own points, theirs twice, names in the order of the own points; or an error."""
    asked: Aligning = _read(content, Aligning)
    alignment = asked.alignment
    try:
        twice = alignment.blind_theirs(_points(asked.theirs))
    except PeerError as error:
        return request((error.reason, error.text))
    return request(("", b"".join(alignment.blind_own()), b"".join(twice), alignment.names_in_order))


def matched(content: bytes) -> bytes:
    """Of :class:`Aligning` with their points and the own ones twice: names in common with their places in theirs; or an error."""
    asked: Aligning = _read(content, Aligning)
    alignment = asked.alignment
    try:
        return request(("", alignment.places(_points(asked.twice), alignment.blind_theirs(_points(asked.theirs)))))
    except PeerError as error:
        return request((error.reason, error.text))


def read_alignment(result: bytes) -> tuple[Any, ...]:
    """What :func:`aligned` or :func:`matched` gave. PeerError where the other's points are refused."""
    found: tuple[Any, ...] = _read(result, tuple)
    if found[0]:
        raise PeerError(found[0], found[1])
    return found[1:]


def _points(content: bytes) -> list[bytes]:
    return [content[at : at + POINT_BYTES] for at in range(0, len(content), POINT_BYTES)]
