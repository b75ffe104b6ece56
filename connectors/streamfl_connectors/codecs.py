"""The compression codecs of record batches, each read with a bound: a stranger's batch may expand a
thousandfold.

The batch's attributes have the codec's number. Its package is imported when it is first needed, so that a
missing package is a clear error at the start and not a failing import.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Callable

from streamfl.contract.role import ConfigurationError

__all__ = ["CODECS", "decompress", "try_codecs"]

# Most bytes of a batch. By default a topic takes 1 MiB compressed, and real content is a few times as large.
# Memory holds three copies for a moment.
LARGEST_CONTENT = 64 * 1024 * 1024

XERIAL = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES = 16


def _gzip(content: bytes, limit: int) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        return file.read(limit + 1)


def _snappy(content: bytes, limit: int) -> bytes:
    import snappy

    blocks = _xerial_blocks(content) if content.startswith(XERIAL) else [content]
    # Each block begins with its size when decompressed.
    if sum(map(_snappy_size, blocks)) > limit:
        return bytes(limit + 1)
    return b"".join(snappy.decompress(block) for block in blocks)


def _xerial_blocks(content: bytes) -> list[bytes]:
    blocks, position = [], XERIAL_HEADER_BYTES
    while position < len(content):
        (size,) = struct.unpack_from(">i", content, position)
        position += 4
        if not 0 < size <= len(content) - position:
            raise ValueError(f"a block of {size} bytes, where {len(content) - position} are left")
        blocks.append(content[position : position + size])
        position += size
    return blocks


def _snappy_size(block: bytes) -> int:
    size = 0
    for number, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return size
    raise ValueError("no length at the beginning of a block")


def _lz4(content: bytes, limit: int) -> bytes:
    import lz4.frame

    frame = lz4.frame.LZ4FrameDecompressor()
    found = bytes(frame.decompress(content, max_length=limit + 1))
    if not frame.eof and len(found) <= limit:
        raise ValueError("the frame is not complete")
    return found


def _zstd(content: bytes, limit: int) -> bytes:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content), read_across_frames=True) as reader:
        return bytes(reader.read(limit + 1))


Decompress = Callable[[bytes, int], bytes]

# By number: the name, the package that reads it, and how. Gzip comes with Python.
CODECS: dict[int, tuple[str, str, Decompress]] = {
    1: ("gzip", "", _gzip),
    2: ("snappy", "python-snappy", _snappy),
    3: ("lz4", "lz4", _lz4),
    4: ("zstd", "zstandard", _zstd),
}

TRIED = b"streamfl streamfl streamfl"
COMPRESSED = {
    "gzip": "1f8b08000000000002032b2e294a4dcc4dcb5128466700006f49c8821a000000",
    "snappy": "82534e415050590000000001000000010000000e1a2073747265616d666c20420900",
    "lz4": "04224d18604082120000009873747265616d666c2009005065616d666c00000000",
    "zstd": "28b52ffd201a7d00004873747265616d666c2001009ccb11",
}


def decompress(codec: int, content: bytes) -> bytes:
    """The decompressed content. ValueError above 64 MiB or for an unknown codec; or any error of the codec's
    package."""
    if codec not in CODECS:
        raise ValueError(f"its compression has the number {codec}, which is unknown")
    found = CODECS[codec][2](content, LARGEST_CONTENT)
    if len(found) > LARGEST_CONTENT:
        raise ValueError(f"it expands to more than {LARGEST_CONTENT >> 20} MiB")
    return found


def try_codecs() -> list[str]:
    """The names of the codecs, after reading something compressed by each; ConfigurationError names those
    that do not work."""
    wrong = {}
    for name, package, read in CODECS.values():
        try:
            if read(bytes.fromhex(COMPRESSED[name]), LARGEST_CONTENT) != TRIED:
                wrong[name] = package
        except Exception:
            wrong[name] = package
    if wrong:
        raise ConfigurationError(
            f"the Kafka connector cannot read records that are compressed with {', '.join(wrong)}, and any "
            "producer may choose that: pip install --force-reinstall "
            f"{' '.join(package for package in wrong.values() if package)}"
        )
    return [name for name, _, _ in CODECS.values()]
