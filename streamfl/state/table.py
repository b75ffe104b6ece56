"""The table of what a role remembers: a row for each key of its changelog, or for all keys that have one
prefix.

Owners of state register the rows (:class:`streamfl.state.changelog.ChangedParts`), so a changelog can hold no
key without a row. The page of the system shows the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from streamfl.encoding.changelog_checks import check_name

__all__ = ["StateRow", "StateTable", "named_key", "prefix_of", "split_name"]


@dataclass(frozen=True)
class StateRow:
    """A key of the changelog, or all keys with one prefix.

    key: the key, or the prefix and what follows it: ``entity/NAME``.
    meaning: what the value holds.
    written: when it is written.
    limit: how many keys there are at most in a partition, and which of them is forgotten.
    """

    key: str
    meaning: str
    written: str
    limit: str

    @cached_property
    def prefix(self) -> bytes:
        """The key, or what comes before the name, with its slash.

        >>> StateRow("entity/NAME", "", "", "").prefix, StateRow("model", "", "", "").prefix
        (b'entity/', b'model')
        """
        return prefix_of(self.key.encode())


class StateTable:
    """The rows of a role, in the order of their declaration. Without rows: the role does not declare what it
    remembers.

    rows: that other roles have too.
    """

    def __init__(self, rows: Iterable[StateRow] = ()) -> None:
        self.rows = list(rows)
        self._prefixes = {row.prefix for row in self.rows}

    def row(self, key: str, meaning: str, written: str, limit: str = "1") -> StateRow:
        """Declare a row: see :class:`StateRow`."""
        return self.add(StateRow(key, meaning, written, limit))

    def add(self, row: StateRow) -> StateRow:
        """Add a row that other roles have too."""
        self.rows.append(row)
        self._prefixes.add(row.prefix)
        return row

    def has(self, key: bytes) -> bool:
        """Whether a row has this key. A table without rows has all keys."""
        return not self.rows or prefix_of(key) in self._prefixes


def prefix_of(key: bytes) -> bytes:
    """A key, or what comes before the name in it, with its slash."""
    return key[: key.find(b"/") + 1] or key


def named_key(prefix: bytes, client: bytes, rest: bytes) -> bytes:
    """A key with a client's name, whose length comes first in two bytes, and the rest behind it."""
    return prefix + len(client).to_bytes(2, "big") + client + rest


def split_name(key: bytes) -> tuple[str, bytes]:
    """The client's name and the rest of a key that :func:`named_key` made, without its prefix. PeerError if
    there is no name."""
    end = 2 + int.from_bytes(key[:2], "big")
    return check_name(key[2:end]), key[end:]
