"""Numbers that look random to everybody without the key: the keystream of AES-256 in counter mode, with
random access."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from streamfl.fdskl.sums.circle import number_type

__all__ = ["Keystream", "keystream"]

BLOCK_BYTES = 16
# Encrypting zeros gives the keystream itself.
ZEROS = memoryview(bytes(262_144))


class Keystream:
    """The numbers of a key's stream in their order, each uniform on 0 .. 2^bits - 1.

    Block n of the stream is AES(key, n), n as 16 bytes, big-endian; a number is the next 4 or 8 bytes,
    little-endian.

    key: 32 secret bytes. A stream of 32-bit and one of 64-bit numbers under one key are the same bytes.
    bits: 32 or 64.
    first: absolute position of the number to begin with.
    """

    __slots__ = ("_encryptor",)

    def __init__(self, key: bytes, bits: int, first: int = 0) -> None:
        block, skipped = divmod(first * number_type(bits).itemsize, BLOCK_BYTES)
        self._encryptor = Cipher(
            algorithms.AES(key), modes.CTR(block.to_bytes(BLOCK_BYTES, "big"))
        ).encryptor()
        self._encryptor.update(ZEROS[:skipped])

    def fill(self, numbers: NDArray[Any]) -> None:
        """Write the next numbers of the stream into ``numbers``, (n,) uint32 or uint64, contiguous."""
        content = numbers.view(np.uint8).data
        for start in range(0, len(content), len(ZEROS)):
            part = content[start : start + len(ZEROS)]
            self._encryptor.update_into(ZEROS[: len(part)], part)
        if sys.byteorder == "big":
            numbers.byteswap(inplace=True)


def keystream(key: bytes, count: int, bits: int, first: int = 0) -> NDArray[Any]:
    """Numbers first .. first + count - 1 of the key's stream: (count,) uint32 or uint64.

    key, bits, first: as for :class:`Keystream`.
    """
    numbers = np.empty(count, number_type(bits))
    Keystream(key, bits, first).fill(numbers)
    return numbers
