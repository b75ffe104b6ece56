"""A party's rows as they come: own columns and a label, already whole numbers within their bounds.

Nothing here depends on values. A row that cannot be read is zeros from the beginning, and takes as many bytes
as any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, Measurement
from streamfl.dp_frank_wolfe.metrics import MemberCounts, PartyMetrics
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Window, assemble
from streamfl.dp_frank_wolfe.state import ENTITY, NUMBERED
from streamfl.encoding.changelog_checks import check_name
from streamfl.encoding.wire import Count
from streamfl.state.changelog import ChangedParts

__all__ = ["PartyTable"]

LABEL_BYTES = 8


class _Row(msgspec.Struct, array_like=True, gc=False):
    """columns: int16, empty until they come. label: int64, likewise. announced: to the server.

    number: the one it was announced under; 0 if a release before layout 3 announced it.
    """

    columns: bytes = b""
    label: bytes = b""
    announced: bool = False
    number: Count = 0

    @property
    def complete(self) -> bool:
        return bool(self.columns and self.label)


class PartyTable:
    """Entities that wait for a window. An entity's first record of columns and its first label count.

    columns: of an entity.
    limit: most entities. When it is reached, the oldest incomplete one is forgotten. Complete ones wait for a
    window.
    counts: of the member, for the operator.
    """

    def __init__(self, parts: ChangedParts, columns: int, limit: int, counts: MemberCounts) -> None:
        self._kept = parts.named(ENTITY, check_name, _Row, self._restore)
        self._remember_numbered = parts.single(NUMBERED, int, self._restore_numbered)
        self._columns = columns
        self._limit = limit
        self._counts = counts
        # Each in the order of the last change.
        self._lacking: dict[str, _Row] = {}
        self._complete: dict[str, _Row] = {}
        self._announced: dict[str, _Row] = {}
        self._latest = 0
        self.numbered: dict[int, str] = {}
        """Names of announced entities, by number."""
        # How many incomplete entities have columns. The others have a label.
        self._with_columns = 0

    def __len__(self) -> int:
        return len(self._lacking) + len(self._complete) + len(self._announced)

    def __contains__(self, name: str) -> bool:
        return name in self._lacking or name in self._complete or name in self._announced

    @property
    def new(self) -> Sequence[str]:
        """Names of complete entities that were not announced, oldest first."""
        return list(self._complete)

    @property
    def has_new(self) -> bool:
        return bool(self._complete)

    def put_columns(self, entity: str, columns: NDArray[np.int16]) -> None:
        """Takes an entity's columns, (columns,)."""
        self._put(entity, "columns", columns.astype("<i2").tobytes())

    def put_label(self, entity: str, label: int) -> None:
        """Takes an entity's label."""
        self._put(entity, "label", label.to_bytes(LABEL_BYTES, "little", signed=True))

    def announce(self, names: Sequence[str]) -> int:
        """Numbers new names that the party announces. Returns the first one's number; the others' follow."""
        first = self._latest + 1
        for number, name in enumerate(names, first):
            row = self._complete.pop(name)
            row.announced, row.number = True, number
            self._announced[name] = row
            self.numbered[number] = name
            self._kept.remember(name, row)
        self._latest += len(names)
        self._remember_numbered(self._latest)
        return first

    @property
    def latest(self) -> int:
        """The largest number of an announced entity."""
        return self._latest

    def announced_between(self, after: int, last: int) -> list[tuple[int, str]]:
        """Numbers and names of announced entities with a number after the one, up to the other,
        ascending."""
        return sorted(
            (row.number, name) for name, row in self._announced.items() if after < row.number <= last
        )

    def was_announced(self, name: str) -> bool:
        return name in self._announced

    def window(self, names: Sequence[str]) -> Window:
        """The rows of announced entities, in the order of ``names``."""
        rows = [self._announced[name] for name in names]
        columns = np.frombuffer(b"".join([row.columns for row in rows]), "<i2").reshape(
            len(rows), self._columns
        )
        labels = np.frombuffer(b"".join([row.label for row in rows]), "<i8")
        return assemble(columns.astype(np.int16), labels.astype(np.int64))

    def forget(self, names: Sequence[str]) -> None:
        """Forgets entities that a window has, that have no budget left, or that make room."""
        for name in names:
            if (row := self._lacking.pop(name, None)) is not None and row.columns:
                self._with_columns -= 1
            self._complete.pop(name, None)
            if (row := self._announced.pop(name, None)) is not None:
                self.numbered.pop(row.number, None)
            self._kept.forget(name)

    def _restore_numbered(self, latest: int) -> None:
        self._latest = max(self._latest, msgspec.convert(latest, Count))

    def _restore(self, name: str, row: _Row) -> None:
        self._check(row)
        self._rows_of(row)[name] = row
        if row.number:
            self.numbered[row.number] = name
            self._latest = max(self._latest, row.number)
        self._with_columns += bool(row.columns and not row.complete)

    def _put(self, entity: str, field: str, content: bytes) -> None:
        row = self._lacking.get(entity)
        if row is None:
            if entity in self._complete or entity in self._announced:
                self._counts.duplicate_records += 1
                return
            self._make_room()
            row = _Row()
        elif getattr(row, field):
            self._counts.duplicate_records += 1
            return
        setattr(row, field, content)
        self._lacking.pop(entity, None)
        self._rows_of(row)[entity] = row
        if not row.complete:
            self._with_columns += field == "columns"
        elif field == "label":
            self._with_columns -= 1
        self._kept.remember(entity, row)

    def _make_room(self) -> None:
        if len(self) - len(self._lacking) >= self._limit:
            raise BadRecord(
                "full", f"{len(self)} entities wait for a window already, window.limit is {self._limit}"
            )
        while len(self) >= self._limit:
            self.forget([next(iter(self._lacking))])
            self._counts.displaced_entities += 1

    def _rows_of(self, row: _Row) -> dict[str, _Row]:
        return self._announced if row.announced else self._complete if row.complete else self._lacking

    def _check(self, row: _Row) -> None:
        sizes = (len(row.columns) in (0, 2 * self._columns), len(row.label) in (0, LABEL_BYTES))
        within = (
            np.abs(np.frombuffer(row.columns, "<i2").astype(np.int32)) <= FEATURE_ONE
            if sizes[0]
            else np.zeros(1, bool)
        )
        label = abs(int.from_bytes(row.label, "little", signed=True)) <= RESIDUAL_ONE
        told = (
            (row.complete or not row.announced)
            and (row.announced or not row.number)
            and row.number not in self.numbered
        )
        if not (all(sizes) and within.all() and label and told):
            raise BadRecord("malformed", "a row in state that no record can have led to")

    def measure(self) -> Iterator[Measurement]:
        """How many entities wait for a record, and how many for a window."""
        yield PartyMetrics.lacking_entities(len(self._lacking) - self._with_columns, "columns")
        yield PartyMetrics.lacking_entities(self._with_columns, "label")
        yield PartyMetrics.waiting_entities(len(self._complete) + len(self._announced))
