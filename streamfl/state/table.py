"""The table of what a role remembers: a row for each key of its changelog, or for all keys that have one
prefix.

Owners of state register the rows (:class:`streamfl.state.changelog.ChangedParts`), so a changelog can hold no
key without a row. The page of the system shows the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from streamfl.encoding.changelog_checks import check_name

__all__ = ["StateRow", "StateTable", "first_name", "named_key", "prefix_of", "split_name"]


@dataclass(frozen=True)
class StateRow:
    """A key of the changelog, or all keys with one prefix.

    key: the key, or the prefix and what follows it: ``entity/NAME``.
    meaning: what the value holds.
    written: when it is written.
    limit: how many keys there are at most in a partition, and which of them is forgotten.
    client: finds the client in what follows the prefix; None: what is remembered is of no client.
    """

    key: str
    meaning: str
    written: str
    limit: str
    client: Callable[[bytes], str] | None = None

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
        self._by_prefix = {row.prefix: row for row in self.rows}

    def row(
        self,
        key: str,
        meaning: str,
        written: str,
        limit: str = "1",
        client: Callable[[bytes], str] | None = None,
    ) -> StateRow:
        """Declare a row: see :class:`StateRow`."""
        return self.add(StateRow(key, meaning, written, limit, client))

    def add(self, row: StateRow) -> StateRow:
        """Add a row that other roles have too."""
        self.rows.append(row)
        self._by_prefix[row.prefix] = row
        return row

    def has(self, key: bytes) -> bool:
        """Whether a row has this key. A table without rows has all keys."""
        return not self.rows or self.row_of(key) is not None

    def row_of(self, key: bytes) -> StateRow | None:
        """The row that has this key."""
        return self._by_prefix.get(prefix_of(key))

    @property
    def of_clients(self) -> bool:
        """Whether something is remembered of clients."""
        return any(row.client is not None for row in self.rows)

    def client_of(self, key: bytes) -> str | None:
        """The client that a key belongs to; None: it belongs to the partition, or to no row.

        >>> table = StateTable([StateRow("client/NAME", "", "", "", check_name)])
        >>> table.client_of(b"client/press-4"), table.client_of(b"silence")
        ('press-4', None)
        """
        row = self.row_of(key)
        return None if row is None or row.client is None else row.client(key[len(row.prefix) :])


def prefix_of(key: bytes) -> bytes:
    """A key, or what comes before the name in it, with its slash."""
    return key[: key.find(b"/") + 1] or key


def named_key(prefix: bytes, client: bytes, rest: bytes) -> bytes:
    """A key with a client's name, whose length comes first in two bytes, and the rest behind it."""
    return prefix + len(client).to_bytes(2, "big") + client + rest


def split_name(key: bytes) -> tuple[str, bytes]:
    """The client's name and the rest of a key that :func:`named_key` made, without its prefix. BadRecord if
    there is no name."""
    end = 2 + int.from_bytes(key[:2], "big")
    return check_name(key[2:end]), key[end:]


def first_name(rest: bytes) -> str:
    """The client's name in what :func:`named_key` put behind the prefix."""
    return split_name(rest)[0]
