"""The secret that a party's frequencies are drawn from in a partition: the same for the whole life of its
features."""

from __future__ import annotations

import hashlib

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.fdskl.state import SECRET
from streamfl.state.changelog import ChangedParts

__all__ = ["Secret"]

SECRET_BYTES = 32


class _Record(msgspec.Struct, array_like=True):
    """secret: empty if a file has it. digest: of the secret, so that another one is noticed."""

    secret: bytes
    digest: bytes


class Secret:
    """32 bytes. If a file has them, only their digest is remembered.

    parts: where it is remembered.
    value: from the file, or new.
    is_given: whether it is from a file.
    """

    def __init__(self, parts: ChangedParts, value: bytes, is_given: bool) -> None:
        self._remember = parts.single(SECRET, _Record, self.restore)
        self.value = value
        self._is_given = is_given
        self._remembered = False

    @property
    def is_remembered(self) -> bool:
        """Whether features of the partition may have been drawn from it."""
        return self._remembered

    def remember(self) -> None:
        """Remember the secret: from now on features of the partition are drawn from it."""
        if not self._remembered:
            self._remembered = True
            self._remember(_Record(b"" if self._is_given else self.value, _digest(self.value)))

    def restore(self, record: _Record) -> None:
        """Restore the secret. BadRecord if the features were drawn from another one than the file has."""
        self._remembered = True
        if record.secret and not self._is_given:
            if len(record.secret) != SECRET_BYTES or _digest(record.secret) != record.digest:
                raise BadRecord("malformed", "the stored secret does not match its own digest")
            self.value = record.secret
        elif _digest(self.value) != record.digest:
            raise BadRecord(
                "configuration",
                "the features of this partition were drawn from another secret than aggregation.secret_file "
                "has, or none is given: give the old file, or start over with another federation.name at all "
                "members",
            )


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=16, person=b"fdskl secret").digest()
