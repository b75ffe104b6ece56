"""The messages of a step in runs, for roles that take many at once.

A role gets its messages as a sequence of :class:`Received`. A worker gives it a :class:`Batch`, which is one:
a role that takes messages one by one need not know of runs. A role that takes a run together asks
:func:`runs_of` for them, whoever gave the batch. What it answers, remembers and reports may not depend on how
a batch is cut into runs: the worker decodes records in runs of any length, and one by one where one of them
is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, repeat
from operator import attrgetter
from typing import Any, overload

from streamfl.contract.role import Received, Record

__all__ = ["Batch", "Run", "runs_of"]

PLACE = attrgetter("channel", "record.partition")


class _Rows(Sequence[Received]):
    """Rows that are made when somebody looks at one. They are the same objects at each look."""

    __slots__ = ("_rows",)

    _rows: Sequence[Received] | None

    def _made(self) -> Iterable[Received]:
        raise NotImplementedError

    @property
    def rows(self) -> Sequence[Received]:
        if self._rows is None:
            self._rows = list(self._made())
        return self._rows

    @overload
    def __getitem__(self, index: int) -> Received: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Received]: ...
    def __getitem__(self, index: int | slice) -> Received | Sequence[Received]:
        return self.rows[index]

    def __iter__(self) -> Iterator[Received]:
        return iter(self.rows)


class Run(_Rows):
    """Messages in a row of one channel and one partition.

    messages: as they were decoded, perhaps in columns.
    records: that of each message.
    """

    __slots__ = ("channel", "messages", "records")

    def __init__(
        self,
        channel: str,
        messages: Sequence[Any],
        records: Sequence[Record],
        rows: Sequence[Received] | None = None,
    ) -> None:
        self.channel, self.messages, self.records, self._rows = channel, messages, records, rows

    def __len__(self) -> int:
        return len(self.records)

    @property
    def partition(self) -> int:
        return self.records[0].partition

    def _made(self) -> Iterable[Received]:
        return map(Received, repeat(self.channel), self.messages, self.records)


class Batch(_Rows):
    """The messages of these parts, one part after another."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Sequence[Received]]) -> None:
        self.parts, self._rows = parts, None

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def _made(self) -> Iterable[Received]:
        return chain.from_iterable(self.parts)


def runs_of(batch: Sequence[Received]) -> list[Run]:
    """The messages of a batch, in order."""
    if isinstance(batch, Run):
        return [batch]
    if isinstance(batch, Batch):
        return list(chain.from_iterable(map(runs_of, batch.parts)))
    groups = [list(group) for _, group in groupby(batch, PLACE)]
    return [
        Run(rows[0].channel, [one.message for one in rows], [one.record for one in rows], rows)
        for rows in groups
    ]
