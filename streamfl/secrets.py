"""Files with secrets: read once, refused where others could have read them too, never shown."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from streamfl.role import ConfigurationError

__all__ = ["read_secret"]

SHORTEST = 32
# 32 bytes drawn at random have fewer than 16 different values once in 10^10 files; 64 digits of a hexadecimal number have 16.
LEAST_VALUES = 8


def read_secret(path: str, key: str) -> bytes:
    """The content of a secret file.

    key: the setting that names the file, for errors. Raises ConfigurationError where the file cannot be read, is too short or too
    regular to be a secret, or where other users may read it. No error shows any of its content.
    """
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read()
    except OSError as error:
        raise ConfigurationError(f"{key} = {path!r}: cannot be read: {error.strerror or error}") from None
    # A file that a supervisor mounted belongs to somebody else, and the group is how it is read then.
    own = status.st_uid == os.geteuid()
    if stat.S_IMODE(status.st_mode) & (0o077 if own else 0o007):
        raise ConfigurationError(f"{key} = {path!r}: other users may read or write it; do: chmod 600 {path}")
    if len(content) < SHORTEST:
        raise ConfigurationError(f"{key} = {path!r}: has {len(content)} bytes, at least {SHORTEST} are needed; {_HOW}")
    if len(set(content)) < LEAST_VALUES:
        raise ConfigurationError(f"{key} = {path!r}: {len(set(content))} different bytes are no secret; {_HOW}")
    return content


_HOW = "make one with: (umask 077; head -c 32 /dev/urandom > FILE)"
