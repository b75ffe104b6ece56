"""The coordinator's file of private keys: JSON, read with bounds, and refused if others may read it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from streamfl.configuration.secrets import read_private
from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.quasi_newton.encryption.bignum import long
from streamfl.quasi_newton.encryption.keys import (
    LARGEST_BITS,
    SMALLEST_BITS,
    PaillierPrivateKey,
    generate_key,
)

__all__ = ["MOST_KEYS", "OTHER_KEY", "add_key", "make_key_file", "read_key_file", "remove_key"]

FORMAT: Final = "streamfl paillier private keys"
WARNING = "Keep it to yourself: whoever can read it can decrypt what the parties encrypt."
MOST_KEYS = 16
LARGEST_FILE = 65_536
# Why a training ends if the key changes meanwhile.
OTHER_KEY = (
    "encryption.key_fingerprint has changed; the next training begins under the new key once every member "
    "has it"
)

_Prime = Annotated[
    str, msgspec.Meta(pattern="^[0-9a-f]+$", min_length=SMALLEST_BITS // 8, max_length=LARGEST_BITS // 8)
]


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    """bits, fingerprint: of n, to detect damage. p, q: in hexadecimal digits."""

    bits: Annotated[int, msgspec.Meta(ge=SMALLEST_BITS, le=LARGEST_BITS)]
    fingerprint: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
    p: _Prime
    q: _Prime


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """warning: for people who open the file. keys: newest first."""

    format: Literal["streamfl paillier private keys"]
    version: Literal[1]
    warning: Annotated[str, msgspec.Meta(max_length=256)]
    keys: Annotated[list[_Key], msgspec.Meta(min_length=1, max_length=MOST_KEYS)]


def make_key_file(
    path: Path, bits: int = 2048, entropy: Callable[[int], bytes] = os.urandom
) -> PaillierPrivateKey:
    """Makes a new key in a new file that only its owner can read. ConfigurationError if there is a file
    already.

    bits, entropy: as for :func:`~streamfl.quasi_newton.encryption.keys.generate_key`.
    """
    key = generate_key(bits, entropy)
    beside = _write_beside(path, [key])
    try:
        # Unlike a rename, a link fails if the file exists.
        os.link(beside, path)
        _sync_folder(path)
    except FileExistsError:
        raise ConfigurationError(
            f"{path}: exists already and is not overwritten, because a lost key cannot be recovered"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be made: {error.strerror or error}") from None
    finally:
        beside.unlink(missing_ok=True)
    return key


def add_key(path: Path, bits: int = 2048, entropy: Callable[[int], bytes] = os.urandom) -> PaillierPrivateKey:
    """Adds a new key at the head of an existing file. The old keys stay, so that messages under them can
    still be decrypted.

    bits, entropy: as for :func:`make_key_file`.
    """
    keys = read_key_file(path)
    if len(keys) == MOST_KEYS:
        raise ConfigurationError(
            f"{path}: holds {MOST_KEYS} keys already: remove old ones first, with streamfl keys remove"
        )
    key = generate_key(bits, entropy)
    try:
        key.public.check(bits, [old.public for old in keys])
    except BadRecord as error:
        raise ConfigurationError(f"{path}: the new key is not kept: {error.text}") from None
    _replace(path, [key, *keys])
    return key


def remove_key(path: Path, fingerprint: str) -> None:
    """Removes an old key. ConfigurationError if the key is not there, or is the newest."""
    keys = read_key_file(path)
    if keys[0].public.fingerprint == fingerprint:
        raise ConfigurationError(f"{path}: {fingerprint} is its newest key: only older ones are removed")
    rest = [key for key in keys if key.public.fingerprint != fingerprint]
    if len(rest) == len(keys):
        known = ", ".join(key.public.fingerprint for key in keys)
        raise ConfigurationError(f"{path}: has no key with fingerprint {fingerprint}; it has {known}")
    _replace(path, rest)


def read_key_file(path: Path) -> tuple[PaillierPrivateKey, ...]:
    """The keys of a file, newest first. ConfigurationError if others may read it, or it holds anything but
    good keys.

    No error shows any of the file's content.
    """
    content = read_private(path, str(path))
    if len(content) > LARGEST_FILE:
        raise ConfigurationError(f"{path}: is too long to be a file of keys")
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The decoder's own message could quote a secret.
        raise ConfigurationError(f"{path}: is no file of private Paillier keys, or is damaged") from None
    keys: list[PaillierPrivateKey] = []
    for number, stored in enumerate(file.keys, start=1):
        try:
            key = PaillierPrivateKey(long(int(stored.p, 16)), long(int(stored.q, 16)))
            key.public.check(stored.bits, [other.public for other in keys])
        except ValueError:
            raise ConfigurationError(
                f"{path}, key {number}: its primes are none; the file is damaged"
            ) from None
        except BadRecord as error:
            raise ConfigurationError(f"{path}, key {number}: {error.text}") from None
        if key.public.fingerprint != stored.fingerprint:
            raise ConfigurationError(
                f"{path}, key {number}: does not fit its own fingerprint; the file is damaged"
            )
        if any(other.public == key.public for other in keys):
            raise ConfigurationError(f"{path}, key {number}: stands there twice")
        keys.append(key)
    return tuple(keys)


def _write_beside(path: Path, keys: Sequence[PaillierPrivateKey]) -> Path:
    """Writes the keys to a new file in the same folder, and syncs it to the disk."""
    stored = [
        _Key(key.public.bits, key.public.fingerprint, f"{int(key.p):x}", f"{int(key.q):x}") for key in keys
    ]
    content = msgspec.json.format(msgspec.json.encode(_File(FORMAT, 1, WARNING, stored)), indent=2) + b"\n"
    beside = path.with_name(path.name + ".new")
    try:
        # A file of an interrupted attempt may be left. Nobody has received its key.
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise ConfigurationError(f"{beside}: cannot be made: {error.strerror or error}") from None
    return beside


def _replace(path: Path, keys: Sequence[PaillierPrivateKey]) -> None:
    """Atomically replaces the file with one of these keys."""
    beside = _write_beside(path, keys)
    try:
        os.replace(beside, path)
        _sync_folder(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigurationError(f"{path}: cannot be replaced: {error.strerror or error}") from None


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
