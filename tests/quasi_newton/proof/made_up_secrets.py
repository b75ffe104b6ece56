"""Keys and secrets that follow from a file's name, and are not on disk."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import streamfl.configuration.secrets
from streamfl.quasi_newton.encryption import key_file
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, generate_key

__all__ = ["KEY_BITS", "fingerprint", "key", "key_path", "made_up_files", "path", "secret"]

FOLDER = "made-up"
KEY_BITS = 512


def path(*names: str) -> str:
    """The name of a made-up file. Each name has a different secret."""
    return f"{FOLDER}/{'-'.join(names)}"


def key_path() -> str:
    """The name of the coordinator's file of keys."""
    return path("keys")


def secret(file: str) -> bytes:
    """The content of a file of :func:`path`."""
    return hashlib.sha256(file.encode()).digest()


@functools.cache
def key() -> PaillierPrivateKey:
    """The coordinator's key, as short as a key may be."""
    calls = iter(range(10**6))
    return generate_key(KEY_BITS, lambda size: hashlib.shake_256(b"%d" % next(calls)).digest(size))


def fingerprint() -> str:
    """The fingerprint of the coordinator's key."""
    return key().public.fingerprint


def _content(file: str) -> bytes:
    if file != key_path():
        return secret(file)
    one = {"bits": KEY_BITS, "fingerprint": fingerprint(), "p": f"{int(key().p):x}", "q": f"{int(key().q):x}"}
    return msgspec.json.encode({"format": key_file.FORMAT, "version": 1, "warning": "", "keys": [one]})


@contextmanager
def made_up_files() -> Iterator[None]:
    """In the context the made-up files can be read. All other files are read as usual."""
    read = streamfl.configuration.secrets.read_private

    def readable(file: str | Path, name: str) -> bytes:
        return _content(str(file)) if str(file).startswith(f"{FOLDER}/") else read(file, name)

    # A module that imports the function by name has its own reference, which has to be replaced there.
    places: list[Any] = [streamfl.configuration.secrets, key_file]
    before = [place.read_private for place in places]
    for place in places:
        place.read_private = readable
    try:
        yield
    finally:
        for place, function in zip(places, before, strict=True):
            place.read_private = function
