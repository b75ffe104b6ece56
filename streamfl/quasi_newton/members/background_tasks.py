"""Long computations as functions of bytes. A worker runs them beside its loop, in any process
(``role.Work``).

A request holds secrets. It is never stored, and never leaves the machine.

Functions that compute under a key take ``made``, which makes a scheme. To measure the parts of a computation,
pass another one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.bignum import from_bytes, to_bytes
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey
from streamfl.quasi_newton.encryption.randomness import RandomnessContext
from streamfl.quasi_newton.encryption.scheme import Scheme, scheme_of, to_numbers
from streamfl.quasi_newton.rows.alignment import POINT_BYTES, Alignment, KeyedHashes

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
    """A :class:`FixedPoint`. ``largest`` is bytes, because MessagePack's whole numbers are too short for
    it."""

    fraction_bits: int
    largest: bytes

    @classmethod
    def of(cls, kind: FixedPoint) -> Kind:
        return cls(kind.fraction_bits, kind.largest.to_bytes(32, "big"))

    @property
    def fixed_point(self) -> FixedPoint:
        return FixedPoint(self.fraction_bits, int.from_bytes(self.largest, "big"))


class Encrypting(msgspec.Struct, array_like=True, frozen=True):
    """numbers: from :func:`numbers_to_bytes`. kind: for packing; None: each number is encrypted by itself."""

    own: Own
    place: RandomnessContext
    numbers: bytes
    kind: Kind | None = None


class Multiplying(msgspec.Struct, array_like=True, frozen=True):
    """Asks for the sum of vectors and own numbers, blinded for the peers, and for its product with a matrix,
    for the coordinator.

    numbers: own ones; empty: the one vector is taken as it is, and only multiplied.
    matrix: 64-bit whole numbers, row by row.
    kind: of the product's numbers.
    masked: whether to hide them from the coordinator.
    """

    own: Own
    vectors: list[bytes]
    numbers: bytes
    matrix: bytes
    columns: int
    kind: Kind
    place: RandomnessContext
    upload_place: RandomnessContext
    masked: bool


class Product(msgspec.Struct, array_like=True, frozen=True):
    """hidden: the sum; empty if nothing was added. upload: the product. digest: finds the product's mask
    again."""

    hidden: bytes
    upload: bytes
    digest: bytes


class Adding(msgspec.Struct, array_like=True, frozen=True):
    """Asks for the sum of peers' packed vectors and own numbers."""

    own: Own
    vectors: list[bytes]
    numbers: bytes
    kind: Kind
    place: RandomnessContext


class Opening(msgspec.Struct, array_like=True, frozen=True):
    """content: ciphertexts to decrypt. p, q: the coordinator's primes; empty: nothing is encrypted."""

    p: bytes
    q: bytes
    content: bytes


class Aligning(msgspec.Struct, array_like=True, frozen=True):
    """One side of an alignment. theirs, twice: the other's messages so far. key: for keyed hashes; empty:
    points are used."""

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
    """Computes the vector of :class:`Encrypting`."""
    asked: Encrypting = _read(content, Encrypting)
    scheme, numbers = made(asked.own.modulus, asked.own.secret), to_numbers(asked.numbers)
    if asked.kind is None:
        return scheme.encrypt(numbers, asked.place)
    return scheme.encrypt_packed(numbers, asked.kind.fixed_point, asked.place)


def multiplied(content: bytes, made: Maker = scheme_of) -> bytes:
    """Computes the :class:`Product` of :class:`Multiplying`."""
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
    """Decodes the result of :func:`multiplied`."""
    product: Product = _read(result, Product)
    return product


def added(content: bytes, made: Maker = scheme_of) -> bytes:
    """Computes the vector of :class:`Adding`."""
    asked: Adding = _read(content, Adding)
    scheme = made(asked.own.modulus, asked.own.secret)
    total = scheme.add_packed(asked.vectors, to_numbers(asked.numbers), asked.kind.fixed_point)
    return scheme.hide(total, asked.place)


@functools.lru_cache(maxsize=2)
def _private(p: bytes, q: bytes) -> PaillierPrivateKey:
    return PaillierPrivateKey(from_bytes(p), from_bytes(q))


def opened(content: bytes) -> bytes:
    """Decrypts :class:`Opening`. Returns the plaintexts, each as long as the key."""
    asked: Opening = _read(content, Opening)
    if not asked.p:
        return asked.content
    private = _private(asked.p, asked.q)
    size = private.public.ciphertext_bytes
    ciphertexts = [from_bytes(asked.content[at : at + size]) for at in range(0, len(asked.content), size)]
    return b"".join(
        to_bytes(plaintext, private.public.bits // 8) for plaintext in private.decrypt(ciphertexts)
    )


def blinded(content: bytes) -> bytes:
    """Computes the party's own points for :class:`Aligning`."""
    asked: Aligning = _read(content, Aligning)
    return b"".join(asked.alignment.blind_own())


def aligned(content: bytes) -> bytes:
    """Answers the other's points in :class:`Aligning`: own points, theirs blinded by both, own names in
    order; or an error."""
    asked: Aligning = _read(content, Aligning)
    alignment = asked.alignment
    try:
        twice = alignment.blind_theirs(_points(asked.theirs))
    except BadRecord as error:
        return request((error.reason, error.text))
    return request(("", b"".join(alignment.blind_own()), b"".join(twice), alignment.names_in_order))


def matched(content: bytes) -> bytes:
    """Compares the points in :class:`Aligning`: names in common, with their places in the other's points; or
    an error."""
    asked: Aligning = _read(content, Aligning)
    alignment = asked.alignment
    try:
        return request(
            ("", alignment.places(_points(asked.twice), alignment.blind_theirs(_points(asked.theirs))))
        )
    except BadRecord as error:
        return request((error.reason, error.text))


def read_alignment(result: bytes) -> tuple[Any, ...]:
    """Decodes the result of :func:`aligned` or :func:`matched`. BadRecord if the other's points are
    refused."""
    found: tuple[Any, ...] = _read(result, tuple)
    if found[0]:
        raise BadRecord(*found)
    return found[1:]


def _points(content: bytes) -> list[bytes]:
    return [content[at : at + POINT_BYTES] for at in range(0, len(content), POINT_BYTES)]
