"""Arithmetic on encrypted numbers: under Paillier's scheme, or for study on the whole numbers themselves.

Vectors go in and out as the bytes of messages. Both schemes have the same methods, so that a role is the same
for both."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.bignum import from_bytes
from streamfl.quasi_newton.encryption.ciphertexts import decode_ciphertexts, encode_ciphertexts
from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint
from streamfl.quasi_newton.encryption.keys import PaillierPublicKey
from streamfl.quasi_newton.encryption.masks import Masks
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.products import add, add_plain, transposed_product
from streamfl.quasi_newton.encryption.randomness import RandomnessContext
from streamfl.quasi_newton.learning.own_columns import column_sums

__all__ = ["NUMBER_BYTES", "Paillier", "Plain", "Scheme", "numbers_to_bytes", "scheme_of", "to_numbers"]

NUMBER_BYTES = 16
"""Bytes of a signed whole number that is not encrypted: more than any kind needs."""


class Scheme(Protocol):
    """In all methods: place: of the vector that is returned. kind: fixed-point kind of its numbers."""

    @property
    def unit_bytes(self) -> int:
        """Bytes of a ciphertext, or of the number in its place."""

    def check(self, content: bytes, count: int, kind: FixedPoint) -> None:
        """BadRecord if ``content`` is no vector of ``count`` units that an honest member could have sent."""

    def units(self, count: int, kind: FixedPoint) -> int:
        """How many units ``count`` packed numbers take."""

    def encrypt(self, numbers: Sequence[int], place: RandomnessContext) -> bytes:
        """Encrypts each number by itself."""

    def encrypt_packed(self, numbers: Sequence[int], kind: FixedPoint, place: RandomnessContext) -> bytes:
        """Encrypts the numbers, packed."""

    def add(self, vectors: Sequence[bytes], own: Sequence[int]) -> bytes:
        """The sum of peers' vectors and own numbers. It has to be blinded with :meth:`hide` before it is
        sent."""

    def add_packed(self, vectors: Sequence[bytes], own: Sequence[int], kind: FixedPoint) -> bytes:
        """The same with packed numbers."""

    def hide(self, vector: bytes, place: RandomnessContext) -> bytes:
        """The vector, blinded again."""

    def product(self, vector: bytes, matrix: NDArray[Any], kind: FixedPoint) -> bytes:
        """X'v, packed. It has to be blinded before it is sent. matrix: X, whole numbers, (rows, columns)."""

    def mask(self, vector: bytes, place: RandomnessContext) -> tuple[bytes, bytes]:
        """The vector with a mask added, and the digest by which :meth:`opened` finds the mask again."""

    def opened(
        self, residues: bytes, count: int, kind: FixedPoint, place: RandomnessContext, digest: bytes
    ) -> list[int]:
        """The numbers of a vector that the coordinator decrypted. BadRecord if they cannot be such numbers.

        digest: from :meth:`mask`; empty without a mask.
        """


class Paillier:
    """Paillier's scheme under the coordinator's key.

    key: checked.
    secret: of the party alone; empty for a member that hides nothing.
    """

    def __init__(self, key: PaillierPublicKey, secret: bytes) -> None:
        self._key = key
        self._secret = secret

    @property
    def unit_bytes(self) -> int:
        return self._key.ciphertext_bytes

    @functools.cached_property
    def _encryptor(self) -> Encryptor:
        # It takes a second and megabytes, so only a process that encrypts makes one.
        return Encryptor(self._key, self._secret)

    @functools.cached_property
    def _masks(self) -> Masks:
        return Masks(self._key, self._secret)

    def check(self, content: bytes, count: int, kind: FixedPoint) -> None:
        decode_ciphertexts(self._key, content, count)

    def units(self, count: int, kind: FixedPoint) -> int:
        return Packing(self._key, kind).plaintexts(count)

    def encrypt(self, numbers: Sequence[int], place: RandomnessContext) -> bytes:
        return encode_ciphertexts(self._key, self._encryptor.encrypt(numbers, place))

    def encrypt_packed(self, numbers: Sequence[int], kind: FixedPoint, place: RandomnessContext) -> bytes:
        return self.encrypt(Packing(self._key, kind).pack(numbers), place)

    def add(self, vectors: Sequence[bytes], own: Sequence[int]) -> bytes:
        total = add(self._key, *(self._read(vector) for vector in vectors))
        return encode_ciphertexts(self._key, add_plain(self._key, total, own))

    def add_packed(self, vectors: Sequence[bytes], own: Sequence[int], kind: FixedPoint) -> bytes:
        return self.add(vectors, Packing(self._key, kind).pack(own))

    def hide(self, vector: bytes, place: RandomnessContext) -> bytes:
        return encode_ciphertexts(self._key, self._encryptor.rerandomise(self._read(vector), place))

    def product(self, vector: bytes, matrix: NDArray[Any], kind: FixedPoint) -> bytes:
        columns = transposed_product(self._key, self._read(vector), matrix)
        return encode_ciphertexts(self._key, Packing(self._key, kind).pack_ciphertexts(columns))

    def mask(self, vector: bytes, place: RandomnessContext) -> tuple[bytes, bytes]:
        masked, digest = self._masks.mask(self._read(vector), place)
        return encode_ciphertexts(self._key, masked), digest

    def opened(
        self, residues: bytes, count: int, kind: FixedPoint, place: RandomnessContext, digest: bytes
    ) -> list[int]:
        packing, size = Packing(self._key, kind), self._key.bits // 8
        if len(residues) != (expected := packing.plaintexts(count) * size):
            raise BadRecord("shape", f"{len(residues)} bytes of plaintexts, {count} numbers have {expected}")
        plaintexts = [int.from_bytes(residues[at : at + size], "big") for at in range(0, len(residues), size)]
        if digest:
            plaintexts = self._masks.unmask(plaintexts, place, digest)
        return packing.unpack(plaintexts, count)

    def _read(self, vector: bytes) -> list[int]:
        # Vectors from peers were checked when they came. Intermediate results need not be blinded.
        size = self._key.ciphertext_bytes
        return [from_bytes(vector[at : at + size]) for at in range(0, len(vector), size)]


class Plain:
    """Hides nothing: each number takes the place of its ciphertext, and packing and masks leave it
    unchanged."""

    unit_bytes = NUMBER_BYTES

    def check(self, content: bytes, count: int, kind: FixedPoint) -> None:
        if len(content) != count * NUMBER_BYTES:
            raise BadRecord("shape", f"{len(content)} bytes of numbers, {count} have {count * NUMBER_BYTES}")
        if any(abs(number) > kind.largest for number in to_numbers(content)):
            raise BadRecord("out_of_bounds", f"a number is beyond {kind.largest}")

    def units(self, count: int, kind: FixedPoint) -> int:
        return count

    def encrypt(self, numbers: Sequence[int], place: RandomnessContext) -> bytes:
        return numbers_to_bytes(numbers)

    def encrypt_packed(self, numbers: Sequence[int], kind: FixedPoint, place: RandomnessContext) -> bytes:
        return numbers_to_bytes(numbers)

    def add(self, vectors: Sequence[bytes], own: Sequence[int]) -> bytes:
        columns = zip(*(to_numbers(vector) for vector in vectors), own, strict=True)
        return numbers_to_bytes([sum(int(number) for number in column) for column in columns])

    def add_packed(self, vectors: Sequence[bytes], own: Sequence[int], kind: FixedPoint) -> bytes:
        return self.add(vectors, own)

    def hide(self, vector: bytes, place: RandomnessContext) -> bytes:
        return vector

    def product(self, vector: bytes, matrix: NDArray[Any], kind: FixedPoint) -> bytes:
        return numbers_to_bytes(column_sums(matrix, np.array(to_numbers(vector)), kind).tolist())

    def mask(self, vector: bytes, place: RandomnessContext) -> tuple[bytes, bytes]:
        return vector, b""

    def opened(
        self, residues: bytes, count: int, kind: FixedPoint, place: RandomnessContext, digest: bytes
    ) -> list[int]:
        self.check(residues, count, kind)
        return to_numbers(residues)


@functools.lru_cache(maxsize=4)
def scheme_of(modulus: bytes, secret: bytes) -> Scheme:
    """The scheme of a key, cached in the process.

    modulus: of the coordinator's key, checked; empty: nothing is encrypted.
    """
    return Paillier(PaillierPublicKey(from_bytes(modulus)), secret) if modulus else Plain()


def numbers_to_bytes(numbers: Sequence[int]) -> bytes:
    """Signed whole numbers, 16 bytes each."""
    return b"".join(int(number).to_bytes(NUMBER_BYTES, "big", signed=True) for number in numbers)


def to_numbers(content: bytes) -> list[int]:
    """Decodes what :func:`numbers_to_bytes` encoded."""
    pieces = (content[at : at + NUMBER_BYTES] for at in range(0, len(content), NUMBER_BYTES))
    return [int.from_bytes(piece, "big", signed=True) for piece in pieces]
