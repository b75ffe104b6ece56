"""A member's keys: one secret of 32 bytes, from which a signing key (Ed25519) and a key-agreement key
(X25519) are derived.

A private key never leaves its file: nothing here prints it, and no error quotes it.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from streamfl.configuration.secrets import read_private
from streamfl.contract.role import ConfigurationError

__all__ = [
    "IDENTIFIER_BYTES",
    "SIGNATURE_BYTES",
    "PrivateKey",
    "PublicKey",
    "add_key",
    "derive",
    "make_key_file",
    "read_key_file",
]

FIRST_LINE = "streamfl private key file, version 1"
WARNING = "Keep it to yourself: whoever can read it can speak in your name."
PUBLIC, PRIVATE = "streamfl-public-1:", "streamfl-private-1:"
CHECKSUM_BYTES, IDENTIFIER_BYTES, SIGNATURE_BYTES = 4, 8, 64
LARGEST_FILE = 65_536


def derive(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes that only the owner of the secret can make, different for each purpose (HKDF with SHA-256)."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"streamfl/1 " + purpose).derive(secret)


@dataclass(frozen=True)
class PublicKey:
    """The public part of a member's key. signing, agreement: 32 bytes each."""

    signing: bytes
    agreement: bytes

    @functools.cached_property
    def identifier(self) -> bytes:
        """8 bytes by which messages name the key."""
        return hashlib.blake2b(
            self.signing + self.agreement, digest_size=IDENTIFIER_BYTES, person=b"streamfl key"
        ).digest()

    @functools.cached_property
    def text(self) -> str:
        """The key on one line, with a checksum against typing errors."""
        return PUBLIC + _encode(self.signing + self.agreement)

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """The key that :attr:`text` wrote; ConfigurationError if the text is no key, or one that no member
        could have made."""
        if text.strip().startswith(PRIVATE):
            # Not quoted, because it is a secret.
            raise ConfigurationError(
                "a private key where a public key is expected: keep it to yourself, and make a new one"
            )
        content = _decode(text.strip(), PUBLIC, 64)
        if content is None:
            raise ConfigurationError(
                f"{text!r} is no public key: copy the whole text that begins with {PUBLIC!r}"
            )
        key = cls(content[:32], content[32:])
        try:
            # With a few points, key agreement gives zero for every key.
            PrivateKey(bytes(32)).agree(key)
        except ValueError:
            raise ConfigurationError(f"{text!r} is no public key that anybody could have made") from None
        return key

    def verifies(self, signature: bytes, statement: bytes) -> bool:
        """Whether the signature is this key's under the statement."""
        try:
            Ed25519PublicKey.from_public_bytes(self.signing).verify(signature, statement)
        except (InvalidSignature, ValueError):
            return False
        return True


class PrivateKey:
    """A member's own key, made of 32 secret bytes."""

    __slots__ = ("_agreement", "_secret", "_signing", "public")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._signing = Ed25519PrivateKey.from_private_bytes(derive(secret, b"signing key"))
        self._agreement = X25519PrivateKey.from_private_bytes(derive(secret, b"agreement key"))
        self.public = PublicKey(
            self._signing.public_key().public_bytes_raw(), self._agreement.public_key().public_bytes_raw()
        )

    @classmethod
    def generate(cls) -> PrivateKey:
        """A new key, from the operating system's randomness."""
        return cls(os.urandom(32))

    def sign(self, statement: bytes) -> bytes:
        """64 bytes, the same for the same statement (Ed25519)."""
        return self._signing.sign(statement)

    def agree(self, other: PublicKey) -> bytes:
        """32 bytes that only this key and the other can make (X25519); ValueError if the other is no
        member's."""
        return self._agreement.exchange(X25519PublicKey.from_public_bytes(other.agreement))

    def line(self) -> str:
        """The private key as its file has it."""
        return PRIVATE + _encode(self._secret)

    def __repr__(self) -> str:
        return f"PrivateKey(of {self.public.text})"


def make_key_file(path: Path) -> PrivateKey:
    """A new key in a new file that only its owner can read; ConfigurationError if there is a file already."""
    key = PrivateKey.generate()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigurationError(
            f"{path}: exists already and is not overwritten, because a lost key cannot be recovered"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be made: {error.strerror or error}") from None
    _write(descriptor, [key])
    return key


def add_key(path: Path) -> PrivateKey:
    """Put a new key first in an existing key file. The old keys stay, so that records on their way to them
    can be opened."""
    keys = read_key_file(path)
    key = PrivateKey.generate()
    beside = path.with_name(path.name + ".new")
    try:
        # Left by a rotation that was interrupted: nobody knows that key.
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _write(descriptor, [key, *keys])
        os.replace(beside, path)
    except OSError as error:
        text = f"{beside}: cannot be made, or cannot take the place of {path}: {error.strerror or error}"
        raise ConfigurationError(text) from None
    return key


def read_key_file(path: Path) -> tuple[PrivateKey, ...]:
    """The keys of a file, newest first; ConfigurationError if others may read it, or if it is no key file."""
    content = read_private(path, str(path))
    lines = content.decode("utf-8", errors="replace").splitlines()
    if len(content) > LARGEST_FILE or not lines or not lines[0].startswith(FIRST_LINE):
        raise ConfigurationError(f"{path}: is not a key file: its first line would begin with {FIRST_LINE!r}")
    keys = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip() or line.startswith("#"):
            continue
        secret = _decode(line.strip(), PRIVATE, 32)
        if secret is None:
            raise ConfigurationError(f"{path}, line {number}: is not a private key; the file is damaged")
        keys.append(PrivateKey(secret))
    if not keys:
        raise ConfigurationError(f"{path}: holds no private key; the file is damaged")
    return tuple(keys)


def _write(descriptor: int, keys: Sequence[PrivateKey]) -> None:
    lines = [f"{FIRST_LINE}. {WARNING}"]
    for key in keys:
        lines += [f"# public key: {key.public.text}", key.line()]
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(descriptor)


def _encode(content: bytes) -> str:
    return base64.b64encode(content + _checksum(content)).decode()


def _decode(text: str, prefix: str, size: int) -> bytes | None:
    """The bytes of a key; None if it is not one, or was typed wrong."""
    if not text.startswith(prefix):
        return None
    try:
        content = base64.b64decode(text.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        return None
    key, checksum = content[:size], content[size:]
    return key if len(key) == size and checksum == _checksum(key) else None


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECKSUM_BYTES, person=b"streamfl typing").digest()
