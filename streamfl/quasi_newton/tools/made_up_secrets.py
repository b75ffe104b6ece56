"""Keys and secrets for a federation in one process, where members need not hide anything from each other. They repeat in every run.

Those of :class:`MadeUp` follow from the federation's seed and are files in a folder. The others follow from a file's name, and are
not on disk.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import streamfl.configuration.secrets
from streamfl.contract.seeding import rng_for
from streamfl.quasi_newton.config import COORDINATOR, GUEST, EncryptionSection, QuasiNewtonSettings
from streamfl.quasi_newton.encryption import bignum, key_file
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, generate_key

__all__ = ["KEY_BITS", "MadeUp", "fingerprint", "key", "key_path", "made_up_files", "path", "secret"]

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


class MadeUp:
    """Secret files in a folder that nobody else may read. Each run of ``streamfl simulate`` has its own, derived from the seed.

    settings: of any member. Its settings of files are ignored. ConfigurationError if encryption needs the extra.
    """

    def __init__(self, settings: QuasiNewtonSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._keys: tuple[str, str] | None = None

    def encryption(self, kind: str, party: str) -> EncryptionSection:
        """The section ``[encryption]`` of a member. party: its name; empty for the coordinator."""
        settings = self._settings
        update: dict[str, object] = dict.fromkeys(("key_file", "key_fingerprint", "secret_file", "link_secret_file"))
        if settings.encryption.precision == "paillier":
            if self._keys is None:
                bignum.require()
                file = self._folder / "keys.json"
                private = key_file.make_key_file(file, settings.encryption.key_bits, self._draws("key"))
                self._keys = str(file), private.public.fingerprint
            update["key_fingerprint"] = self._keys[1]
            if kind == COORDINATOR:
                update["key_file"] = self._keys[0]
        if kind != COORDINATOR:
            links = {host: self._secret("link", host) for host in settings.federation.hosts}
            update |= {"secret_file": self._secret("party", party), "link_secret_file": links if kind == GUEST else links[party]}
        return settings.encryption.model_copy(update=update)

    def _secret(self, of: str, name: str) -> str:
        file = self._folder / f"{of}-{name}.secret"
        if not file.exists():
            file.touch(mode=0o600)
            file.write_bytes(self._draws(of, name)(32))
        return str(file)

    def _draws(self, *of: str) -> Callable[[int], bytes]:
        federation = self._settings.federation
        return rng_for(federation.seed, "quasi-newton", "simulation", federation.name, *of).bytes
