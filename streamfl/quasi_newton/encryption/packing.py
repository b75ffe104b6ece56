"""Packs several signed numbers into one plaintext, each in its own slot, for results that are only added and
decrypted."""

from __future__ import annotations

from collections.abc import Sequence

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.bignum import long, power
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint, OutOfBounds
from streamfl.quasi_newton.encryption.keys import PaillierPublicKey

__all__ = ["Packing"]


class Packing:
    """Slots for numbers of one kind: sum_i v_i 2^(i width), the first number in the lowest slot.

    A slot that is too narrow gives wrong numbers and no error. So the width follows from the kind, and cannot
    be chosen.

    key: the public key.
    kind: that includes every number a slot ever holds, sums too.
    """

    __slots__ = ("_key", "_kind", "slots", "width")

    def __init__(self, key: PaillierPublicKey, kind: FixedPoint) -> None:
        self._key = key
        self._kind = kind
        self.width = kind.slot_bits
        self.slots = (key.bits - 2) // self.width
        if self.slots < 1:
            raise ValueError(f"numbers of {self.width} bits do not fit a key of {key.bits}")
        # A packed number is below 2^(slots width) in size, and has to be below n / 2 on either side of 0.
        assert self.slots * self.width < key.bits - 1

    def plaintexts(self, count: int) -> int:
        """How many plaintexts, or ciphertexts, ``count`` numbers take."""
        return -(-count // self.slots)

    def pack(self, numbers: Sequence[int]) -> list[int]:
        """The plaintexts of a member's own numbers, each in 0 .. n - 1. OutOfBounds if a number does not fit
        its slot."""
        packed = []
        for start in range(0, len(numbers), self.slots):
            total = 0
            for number in reversed(numbers[start : start + self.slots]):
                if abs(int(number)) > self._kind.largest:
                    raise OutOfBounds(f"a number is beyond {self._kind.largest}")
                total = (total << self.width) + int(number)
            packed.append(long(total) % self._key.n)
        return packed

    def pack_ciphertexts(self, ciphertexts: Sequence[int]) -> list[int]:
        """prod_i c_i^(2^(i width)): ciphertexts of the packed plaintexts. They are not blinded again.

        ciphertexts: of numbers of the kind.
        """
        modulus, shift = self._key.n_squared, long(1) << self.width
        packed = []
        for start in range(0, len(ciphertexts), self.slots):
            part = ciphertexts[start : start + self.slots]
            total = long(part[-1])
            for ciphertext in reversed(part[:-1]):
                total = power(total, shift, modulus) * ciphertext % modulus
            packed.append(total)
        return packed

    def unpack(self, plaintexts: Sequence[int], count: int) -> list[int]:
        """The numbers of packed plaintexts. BadRecord with reason out_of_bounds if they cannot be numbers of
        the kind.

        plaintexts: in 0 .. n - 1, as many as ``count`` numbers take.
        """
        if len(plaintexts) != self.plaintexts(count):
            raise BadRecord(
                "shape", f"{len(plaintexts)} plaintexts, {count} numbers take {self.plaintexts(count)}"
            )
        half, mask = 1 << (self.width - 1), (1 << self.width) - 1
        numbers: list[int] = []
        for plaintext in plaintexts:
            rest = int(plaintext)
            if not 0 <= rest < self._key.n:
                raise BadRecord("out_of_bounds", "a plaintext is not below n")
            if rest > self._key.n // 2:
                rest -= int(self._key.n)
            for _ in range(min(self.slots, count - len(numbers))):
                number = ((rest + half) & mask) - half
                rest = (rest - number) >> self.width
                if abs(number) > self._kind.largest:
                    raise BadRecord(
                        "out_of_bounds", f"a slot of {self.width} bits holds more than {self._kind.largest}"
                    )
                numbers.append(number)
            if rest:
                raise BadRecord("out_of_bounds", "something is left above the slots")
        return numbers
