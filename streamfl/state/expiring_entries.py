"""Entries by name, such as entities whose records come in several streams: bounded by number and by age."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Generic, TypeVar

from streamfl.encoding.changelog_checks import check_name
from streamfl.state.changelog import ChangedParts
from streamfl.state.clock_guard import Aged, overdue, set_back
from streamfl.state.table import StateRow

__all__ = ["ExpiringEntries"]

Entry = TypeVar("Entry", bound=Aged)


class ExpiringEntries(Generic[Entry]):
    """The entries of a partition, the one with the earliest ``since`` first. An owner inherits from it.

    parts, row: where they are remembered.
    content: the type of an entry.
    expiry: seconds after ``since`` until an entry is forgotten.
    limit: most entries. When it is exceeded the oldest is forgotten.
    forgotten: counts of entries that were forgotten so, by reason.
    """

    def __init__(
        self,
        parts: ChangedParts,
        row: StateRow,
        content: type[Entry],
        expiry: float,
        limit: int,
        forgotten: MutableMapping[str, int],
    ) -> None:
        self._entries: dict[str, Entry] = {}
        self._remembered = parts.named(row, check_name, content, self.restore)
        self._expiry = expiry
        self._limit = limit
        self._forgotten = forgotten
        self._in_order = True

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> Entry | None:
        return self._entries.get(name)

    @property
    def wake_at(self) -> float | None:
        """When the oldest expires."""
        self._sort()
        return next(iter(self._entries.values())).since + self._expiry if self._entries else None

    def _put(self, name: str, entry: Entry) -> None:
        """Remember an entry as the youngest."""
        self._sort()
        self._entries.pop(name, None)
        self._entries[name] = entry
        self._remembered.remember(name, entry)
        self._make_room()

    def forget(self, name: str) -> None:
        del self._entries[name]
        self._remembered.forget(name)

    def expire(self, now: float) -> None:
        self._sort()
        for name in overdue(self._entries, self._expiry, now):
            self._give_up(name, "expired")

    def set_back(self, now: float) -> None:
        """The clock was ahead: set later times back to ``now``."""
        self._sort()
        for name in set_back(self._entries, now):
            self._remembered.remember(name, self._entries[name])

    def restore(self, name: str, entry: Entry) -> None:
        """Restore an entry. An owner that overrides this raises BadRecord for one that it cannot have
        written."""
        self._entries[name] = entry
        self._in_order = False

    def reason(self, entry: Entry, why: str) -> str:
        """The reason under which a forgotten entry is counted. why: ``expired`` or ``displaced``."""
        return why

    def _make_room(self) -> None:
        if len(self._entries) > self._limit:
            self._sort()
            self._give_up(next(iter(self._entries)), "displaced")

    def _give_up(self, name: str, why: str) -> None:
        reason = self.reason(self._entries[name], why)
        self.forget(name)
        self._forgotten[reason] += 1

    def _sort(self) -> None:
        """Restored entries come in the order in which they were last written, which need not be that of their
        age."""
        if not self._in_order:
            self._entries = dict(sorted(self._entries.items(), key=lambda item: item[1].since))
            self._in_order = True
