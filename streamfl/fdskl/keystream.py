"""Numbers that nobody without the key can tell from chance: the keystream of AES-256 in counter mode, with random access."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from streamfl.fdskl.circle import number_type

__all__ = ["keystream"]

BLOCK_BYTES = 16
# What is encrypted: zeros, so that the keystream comes out. As many as one message has.
ZEROS = memoryview(bytes(1_048_576))


def keystream(key: bytes, count: int, bits: int, first: int = 0) -> NDArray[Any]:
    """Numbers first .. first + count - 1 of the key's stream, each uniform on 0 .. 2^bits - 1: (count,) uint32 or uint64.

    Block n of the stream is AES(key, n), n as 16 bytes, big-endian; a number is the next bytes, little-endian.

    key: 32 secret bytes. A stream of 32-bit and one of 64-bit numbers under one key are the same bytes.
    count: how many.
    bits: 32 or 64.
    first: absolute position of the first number.
    """
    size = number_type(bits).itemsize
    block, skipped = divmod(first * size, BLOCK_BYTES)
    needed = skipped + count * size
    stream = np.empty(needed, np.uint8)
    encryptor = Cipher(algorithms.AES(key), modes.CTR(block.to_bytes(BLOCK_BYTES, "big"))).encryptor()
    for start in range(0, needed, len(ZEROS)):
        part = stream[start : start + len(ZEROS)]
        encryptor.update_into(ZEROS[: len(part)], part.data)
    return stream[skipped:].view(f"<u{size}").astype(number_type(bits), copy=False)
