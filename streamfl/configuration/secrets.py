"""Files with secrets: read once, refused if other users could have read them, never shown."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from streamfl.contract.role import ConfigurationError

__all__ = ["read_private", "read_secret"]

SHORTEST = 32
# Bounds what is read; no secret is longer.
LARGEST = 1_000_000
# 32 bytes drawn at random have fewer than 16 different values once in 10^10 files; 64 digits of a hexadecimal
# number have 16.
LEAST_VALUES = 8
HOW = "make one with: (umask 077; head -c 32 /dev/urandom > FILE)"


def read_private(path: str | Path, name: str) -> bytes:
    """The content of a file that no other user may read, or its first megabyte.

    name: the file's name in errors. Raises ConfigurationError if the file cannot be read, or other users may
    read or write it."""
    try:
        with Path(path).open("rb") as file:
            # The status of the open file: another file may have its name by now.
            status = os.fstat(file.fileno())
            content = file.read(LARGEST)
    except OSError as error:
        raise ConfigurationError(f"{name}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        # A zero byte in the path.
        raise ConfigurationError(f"{name}: cannot be read: {error}") from None
    # A file that a supervisor mounted belongs to another user, and this process may read it through the
    # file's group.
    own, mode = status.st_uid == os.geteuid(), stat.S_IMODE(status.st_mode)
    if mode & (0o077 if own else 0o007):
        raise ConfigurationError(
            f"{name}: other users may read or write it (mode {mode:04o}): run chmod 600 {path}; if somebody "
            "else may have read it, make a new one"
        )
    return content


def read_secret(path: str, key: str) -> bytes:
    """The content of a file of secret bytes.

    key: the setting that names the file. Raises ConfigurationError as :func:`read_private`, and if the file
    is too short or too regular to be a secret. No error shows any of its content.
    """
    name = f"{key} = {path!r}"
    content = read_private(path, name)
    if len(content) < SHORTEST:
        raise ConfigurationError(f"{name}: has {len(content)} bytes, at least {SHORTEST} are needed; {HOW}")
    if len(set(content)) < LEAST_VALUES:
        raise ConfigurationError(f"{name}: {len(set(content))} different bytes are not a secret; {HOW}")
    # A text that occurs within two copies of itself, other than at the ends, repeats one part several times.
    if (text := content.strip()) in (text + text)[1:-1]:
        raise ConfigurationError(f"{name}: a repeated pattern is not a secret; {HOW}")
    return content
