"""Compression of Kafka's batches: each codec is tried at the start, and decompression is bounded."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import lz4.frame
import pytest
import snappy
import zstandard
from command_line import Command
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.codec import snappy_encode
from streamfl_connectors import codecs
from streamfl_connectors.codecs import CODECS, decompress, try_codecs

CONFIG = """
[federation]
name = "plant"
clients = 5
[bus]
url = "kafka://127.0.0.1:1"
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "device"
features = ["x"]
"""


@pytest.mark.parametrize(
    ("module", "package", "name"),
    [
        ("snappy", "python-snappy", "check"),
        ("lz4.frame", "lz4", "run"),
        ("zstandard", "zstandard", "topics"),
    ],
)
def test_a_missing_codec_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, module: str, package: str, name: str
) -> None:
    """Protects against a worker that is green until a producer uses another compression."""
    config = tmp_path / "client.toml"
    config.write_text(CONFIG)
    monkeypatch.setitem(sys.modules, module, None)
    code, out, error = command(name, config)
    assert code == 2, error
    # A narrow terminal breaks lines.
    assert f"pip install --force-reinstall {package}" in " ".join((out + error).split())


def test_every_codec_is_tried() -> None:
    """Protects the trial: it decompresses data of every codec that Kafka has, compressed elsewhere."""
    assert try_codecs() == ["gzip", "snappy", "lz4", "zstd"]
    assert sorted(CODECS) == [1, 2, 3, 4]


@given(content=st.binary(max_size=3000))
@settings(max_examples=50, deadline=None)
def test_what_was_compressed_comes_back(content: bytes) -> None:
    """Protects every record, as compressed by the codecs' own packages, with and without the frame of Java's
    snappy."""
    compressed = {
        1: [gzip.compress(content), gzip.compress(content[:9]) + gzip.compress(content[9:])],
        2: [snappy.compress(content), snappy_encode(content)],
        3: [lz4.frame.compress(content, block_linked=False)],
        4: [zstandard.ZstdCompressor().compress(content)],
    }
    for codec, forms in compressed.items():
        for form in forms:
            assert decompress(codec, form) == content


def test_nothing_expands_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects memory: one byte above the bound is refused before it is allocated, with every codec."""
    monkeypatch.setattr(codecs, "LARGEST_CONTENT", 1 << 20)
    for size in (1 << 20, (1 << 20) + 1):
        content = bytes(size)
        compressed = {
            1: gzip.compress(content),
            2: snappy_encode(content),
            3: lz4.frame.compress(content, block_linked=False),
            4: zstandard.ZstdCompressor().compress(content),
        }
        for codec, form in compressed.items():
            if size == 1 << 20:
                assert decompress(codec, form) == content
            else:
                with pytest.raises(ValueError, match="expands to more than 1 MiB"):
                    decompress(codec, form)


@given(content=st.binary(max_size=200), codec=st.sampled_from(sorted(CODECS)), framed=st.booleans())
@settings(max_examples=100, deadline=None)
def test_garbage_ends_in_an_error_or_in_bytes(content: bytes, codec: int, framed: bool) -> None:
    """Protects against a decoder that hangs: garbage is refused or read."""
    try:
        found = decompress(codec, (codecs.XERIAL + bytes(8) if framed else b"") + content)
    except MemoryError:
        raise
    except Exception:
        return
    assert isinstance(found, bytes)
