"""Secrets that follow from a file's name: what a simulation uses has to be the same in every run, and lies on no disk."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import streamfl.secrets
from streamfl.quasi_newton import key_file
from streamfl.quasi_newton.keys import PrivateKey, generate_key

__all__ = ["KEY_BITS", "fingerprint", "key", "key_path", "made_up_files", "path", "secret"]

FOLDER = "made-up"
KEY_BITS = 512


def path(*names: str) -> str:
    """The name of a file with a secret of its own."""
    return f"{FOLDER}/{'-'.join(names)}"


def key_path() -> str:
    """The name of the coordinator's file of keys."""
    return path("keys")


def secret(file: str) -> bytes:
    """What stands in a file of :func:`path`."""
    return hashlib.sha256(file.encode()).digest()


@functools.cache
def key() -> PrivateKey:
    """The coordinator's: as short as a key may be."""
    calls = iter(range(10**6))
    return generate_key(KEY_BITS, lambda size: hashlib.shake_256(b"%d" % next(calls)).digest(size))


def fingerprint() -> str:
    """Of the coordinator's key."""
    return key().public.fingerprint


def _content(file: str) -> bytes:
    if file != key_path():
        return secret(file)
    one = {"bits": KEY_BITS, "fingerprint": fingerprint(), "p": f"{int(key().p):x}", "q": f"{int(key().q):x}"}
    return msgspec.json.encode({"format": key_file.FORMAT, "version": 1, "warning": "", "keys": [one]})


@contextmanager
def made_up_files() -> Iterator[None]:
    """Meanwhile files of these names can be read, and all others as ever."""
    read = streamfl.secrets.read_private

    def readable(file: str | Path, name: str) -> bytes:
        return _content(str(file)) if str(file).startswith(f"{FOLDER}/") else read(file, name)

    # What a module imports from another stands in it by name, and is replaced there.
    places: list[Any] = [streamfl.secrets, key_file]
    before = [place.read_private for place in places]
    for place in places:
        place.read_private = readable
    try:
        yield
    finally:
        for place, function in zip(places, before, strict=True):
            place.read_private = function
