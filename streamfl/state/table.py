"""The table of what a role remembers: a row for each key of its changelog, or for all keys that have one prefix.

Owners of state register the rows (:class:`streamfl.state.changelog.ChangedParts`), so a changelog can hold no key without a row.
The page of the system shows the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["StateRow", "StateTable"]


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

    @property
    def prefix(self) -> bytes:
        """The key, or what comes before the name, with its slash.

        >>> StateRow("entity/NAME", "", "", "").prefix, StateRow("model", "", "", "").prefix
        (b'entity/', b'model')
        """
        kind, slash, _ = self.key.partition("/")
        return (kind + slash).encode()


class StateTable:
    """The rows of a role, in the order of their declaration. Without rows: the role does not declare what it remembers.

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
        return not self.rows or key in self._prefixes or key[: key.find(b"/") + 1] in self._prefixes
