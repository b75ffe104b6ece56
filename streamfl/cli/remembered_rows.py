"""What a role's changelog holds, by row of the role's table, for ``streamfl inspect``."""

from __future__ import annotations

from typing import Any, cast

from streamfl.contract.role import Role, StateChange
from streamfl.state.table import StateRow, StateTable

__all__ = ["CountedState"]


class CountedState:
    """Counts what a role restores.

    table: of what the role remembers.
    client: count only what belongs to this client; None: everything.
    """

    columns = ("key", "records", "bytes", "most in a partition")

    def __init__(self, table: StateTable, client: str | None) -> None:
        self._table = table
        self._client = client
        self._sizes: dict[StateRow, list[int]] = {row: [] for row in table.rows}

    def of(self, role: Role) -> Role:
        """The role in a form that counts."""
        return cast(Role, _Counting(role, self))

    def count(self, change: StateChange) -> None:
        row = self._table.row_of(change.key)
        if row is None or change.value is None:
            return
        if self._client is None or self._table.client_of(change.key) == self._client:
            self._sizes[row].append(len(change.value))

    @property
    def found(self) -> bool:
        """Whether anything was counted."""
        return any(self._sizes.values())

    @property
    def figures(self) -> list[dict[str, Any]]:
        """Each row's key, and how many records and bytes there are in all partitions."""
        return [
            {"key": row.key, "records": len(sizes), "bytes": sum(sizes)} for row, sizes in self._sizes.items()
        ]

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """The same for people, with the bound."""
        return [
            (row.key, f"{len(sizes):,}", f"{sum(sizes):,}", row.limit) for row, sizes in self._sizes.items()
        ]


class _Counting:
    """A role that has everything restored to another one, and counted."""

    def __init__(self, role: Role, counted: CountedState) -> None:
        self._role = role
        self._counted = counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    def restore(self, change: StateChange) -> None:
        self._role.restore(change)
        self._counted.count(change)
