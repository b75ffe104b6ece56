"""Batches that cannot be read, made on a real broker. The broker checks what it receives, but not what lies
on its disk."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from broker import Broker
from crc32c import crc32c

__all__ = ["DAMAGES", "damage"]

# KIP-98's batch: base offset, length, leader epoch, magic, checksum of everything after it; the records begin
# after 61 bytes.
MAGIC, CHECKSUM, CHECKED, RECORDS = 16, 17, 21, 61


def _flip(batch: bytearray) -> None:
    batch[-1] ^= 0xFF


def _garbage_inside(batch: bytearray) -> None:
    batch[RECORDS:] = bytes((7 * number + 3) % 256 for number in range(len(batch) - RECORDS))
    _seal(batch)


def _cut_inside(batch: bytearray) -> None:
    batch[RECORDS + (len(batch) - RECORDS) // 2 :] = bytes(len(batch) - RECORDS - (len(batch) - RECORDS) // 2)
    _seal(batch)


def _unknown_codec(batch: bytearray) -> None:
    batch[CHECKED + 1] = batch[CHECKED + 1] & ~0x07 | 0x05
    _seal(batch)


def _unknown_magic(batch: bytearray) -> None:
    batch[MAGIC] = 3


def _wild_offset(batch: bytearray) -> None:
    struct.pack_into(">q", batch, 0, 2**40)


def _wild_length(batch: bytearray) -> None:
    struct.pack_into(">i", batch, 8, 10**6)


def _seal(batch: bytearray) -> None:
    struct.pack_into(">I", batch, CHECKSUM, crc32c(bytes(batch[CHECKED:])))


DAMAGES: dict[str, Callable[[bytearray], None]] = {
    "bad checksum": _flip,
    "garbage inside": _garbage_inside,
    "cut inside": _cut_inside,
    "unknown codec": _unknown_codec,
    "unknown magic": _unknown_magic,
    "wild offset": _wild_offset,
    "wild length": _wild_length,
}


def damage(broker: Broker, topic: str, partition: int, offset: int, kind: str) -> bytes:
    """Damage the batch with ``offset`` in its file while the broker runs. Returns the damaged bytes."""
    for path in sorted(broker.folder(topic, partition).glob("*.log")):
        content = bytearray(path.read_bytes())
        position = 0
        while position + RECORDS <= len(content):
            base, length = struct.unpack_from(">qi", content, position)
            if length <= 0:
                break
            end = position + 12 + length
            (last,) = struct.unpack_from(">i", content, position + 23)
            if base <= offset <= base + last:
                batch = content[position:end]
                DAMAGES[kind](batch)
                _write(path, position, batch)
                return bytes(batch)
            position = end
    raise LookupError(f"{topic}-{partition}-{offset} lies in no segment")


def _write(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)
