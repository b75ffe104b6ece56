"""The default learner's journal of a client: an entry for each sample and each late label since the last
snapshot.

A snapshot holds all running numbers of a client. It is large, so it is written every 64 entries. An entry
holds what the client learnt from, in a slot that is overwritten 64 entries later. After a restart the entries
since the snapshot are learnt again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.pofmkl.learning.changelog_checks import check_entry, check_size
from streamfl.pofmkl.learning.views import LAGS

__all__ = [
    "LATE_LABEL",
    "SAMPLE",
    "SNAPSHOT",
    "ChangedClientParts",
    "ClientJournal",
    "Forecast",
    "UnappliedState",
    "cut",
    "part_key",
]

SNAPSHOT_EVERY = 64
SNAPSHOT = b"s"
# The kinds of entries: a sample without a label, a sample with its label, and the label of an earlier sample.
SAMPLE, LABELLED_SAMPLE, LATE_LABEL = b"i", b"j", b"l"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """Predictions of some samples, none of which has used its own label.

    predictions (samples,): what the user reads.
    experts (samples, experts): what each expert predicts, kernels first.
    pivot (samples,): all experts mixed.
    known (samples,): how many labels of the client were known.
    inputs (samples, d): of the samples.
    lags (samples, 2): the two labels before each sample.
    layout: the record that stores a sample until its label comes.
    """

    predictions: Floats
    experts: Floats
    pivot: Floats
    known: NDArray[np.int64]
    inputs: Floats
    lags: Floats
    layout: np.dtype[Any]

    def encoded(self) -> list[bytes]:
        """The bytes to keep of each sample until its label comes."""
        content = np.empty(len(self.predictions), self.layout)
        for name in content.dtype.names or ():
            content[name] = getattr(self, name)
        return cut(content, content.itemsize)

    def where(self, index: NDArray[np.intp]) -> Forecast:
        """Some of the samples."""
        parts = {name: value[index] for name, value in vars(self).items() if name != "layout"}
        return Forecast(**parts, layout=self.layout)

    @staticmethod
    def decoded(content: NDArray[Any], layout: np.dtype[Any]) -> Forecast:
        """The samples of an array whose fields are those of ``layout``, and perhaps more."""
        parts = {name: content[name].copy() for name in layout.names or ()}
        return Forecast(**{**parts, "experts": parts["experts"].astype(np.float64)}, layout=layout)


class ChangedClientParts:
    """The keyed parts of clients' state that have changed, in the order in which they changed first."""

    def __init__(self) -> None:
        self._by_row: dict[int, dict[bytes, bytes]] = {}

    def put(self, row: int, key: bytes, content: bytes) -> None:
        self._by_row.setdefault(row, {})[key] = content

    def collect(self, row: int) -> Iterable[tuple[bytes, bytes]]:
        """A client's changed parts since the last call."""
        return self._by_row.pop(row, {}).items()


@dataclass
class UnappliedState:
    """Restored state of a client that is not applied yet."""

    snapshot: bytes | None = None
    entries: dict[bytes, bytes] = field(default_factory=dict)


class ClientJournal:
    """The journal of every client, in slots.

    dimension: d of the inputs.
    experts: how many experts a sample is predicted by.
    dtype: of the experts' predictions in an entry.
    logistic: labels are classes, and predictions probabilities.
    changed: collects the entries and snapshots.
    """

    def __init__(
        self, dimension: int, experts: int, dtype: Any, logistic: bool, changed: ChangedClientParts
    ) -> None:
        self._dimension = dimension
        self._logistic = logistic
        self._changed = changed
        self._unread: dict[int, UnappliedState] = {}
        number = np.dtype("<f8")
        seen: list[Any] = [("inputs", number, (dimension,))]
        asked: list[Any] = [*seen, ("experts", np.dtype(dtype).newbyteorder("<"), (experts,))]
        said: list[Any] = [
            *asked,
            ("predictions", number),
            ("pivot", number),
            ("known", "<i8"),
            ("lags", number, (LAGS,)),
        ]
        self.forecast_layout = np.dtype(said)
        self._layouts = {
            SAMPLE: np.dtype([("number", "<i8"), *seen]),
            LABELLED_SAMPLE: np.dtype([("number", "<i8"), ("label", number), *asked]),
            LATE_LABEL: np.dtype([("number", "<i8"), ("label", number), *said]),
        }

    @property
    def entry_bytes(self) -> int:
        """The length of the longest entry."""
        return max(layout.itemsize for layout in self._layouts.values())

    def forget(self, row: int) -> None:
        self._changed.collect(row)
        self._unread.pop(row, None)

    def samples(
        self,
        rows: NDArray[np.intp],
        numbers: NDArray[np.int64],
        labels: Floats,
        labelled: NDArray[np.bool_],
        forecast: Forecast,
    ) -> None:
        """Write an entry for a sample of each of these clients, some with labels. numbers (rows,): of the
        entries, from 1."""
        with_label, without = np.flatnonzero(labelled), np.flatnonzero(~labelled)
        inputs, experts = forecast.inputs, forecast.experts
        self._write(
            LABELLED_SAMPLE,
            rows[with_label],
            numbers[with_label],
            label=labels[with_label],
            inputs=inputs[with_label],
            experts=experts[with_label],
        )
        self._write(SAMPLE, rows[without], numbers[without], inputs=inputs[without])

    def late_labels(
        self, rows: NDArray[np.intp], numbers: NDArray[np.int64], labels: Floats, forecast: Forecast
    ) -> None:
        """Write an entry for the label of an earlier sample of each of these clients, with that sample's
        forecast."""
        content = {name: getattr(forecast, name) for name in self.forecast_layout.names or ()}
        self._write(LATE_LABEL, rows, numbers, label=labels, **content)

    def _write(
        self, kind: bytes, rows: NDArray[np.intp], numbers: NDArray[np.int64], **columns: NDArray[Any]
    ) -> None:
        entries = np.empty(len(rows), self._layouts[kind])
        entries["number"] = numbers
        for name, column in columns.items():
            entries[name] = column
        slots = entries["number"] % SNAPSHOT_EVERY
        for row, slot, content in zip(
            rows.tolist(), slots.tolist(), cut(entries, entries.itemsize), strict=True
        ):
            self._changed.put(row, part_key(kind, slot), content)

    @staticmethod
    def due(rows: NDArray[np.intp], numbers: NDArray[np.int64]) -> list[tuple[int, int]]:
        """The clients whose snapshot is due after their entry of this number: rows and numbers."""
        due = numbers % SNAPSHOT_EVERY == 0
        return list(zip(rows[due].tolist(), numbers[due].tolist(), strict=True))

    def snapshot(self, row: int, content: bytes) -> None:
        """Write all running numbers of a client. They replace the entries up to now."""
        self._changed.put(row, SNAPSHOT, content)

    def part_keys(self) -> Iterable[bytes]:
        """Every key that the journal of a client may use."""
        yield SNAPSHOT
        yield from (part_key(kind, slot) for kind in self._layouts for slot in range(SNAPSHOT_EVERY))

    def restore_snapshot(self, row: int, content: bytes) -> None:
        """Take back a snapshot that was checked."""
        self._unread.setdefault(row, UnappliedState()).snapshot = content

    def restore_entry(self, row: int, key: bytes, value: bytes) -> bool:
        """Take back an entry; False if the key is no entry's. BadRecord if the value is malformed."""
        kind, slot = key[:1], int.from_bytes(key[1:], "big")
        if kind not in self._layouts or slot >= SNAPSHOT_EVERY:
            return False
        check_size(value, self._layouts[kind].itemsize)
        entry = np.frombuffer(value, self._layouts[kind])[0]
        check_entry(entry, self._dimension, self._logistic)
        if key != part_key(kind, int(entry["number"]) % SNAPSHOT_EVERY):
            raise BadRecord("malformed", f"entry {entry['number']} of a client's journal lies under {key!r}")
        self._unread.setdefault(row, UnappliedState()).entries[key] = value
        return True

    def unread(self, rows: Iterable[int]) -> Iterator[tuple[int, UnappliedState]]:
        """The restored state of these clients that is not applied yet; each is returned once."""
        for row in [row for row in rows if row in self._unread]:
            yield row, self._unread.pop(row)

    def in_order(self, unread: UnappliedState) -> list[tuple[bytes, NDArray[Any]]]:
        """Kind and content (1,) of the restored entries, by number."""
        entries = [
            (key[:1], np.frombuffer(value, self._layouts[key[:1]])) for key, value in unread.entries.items()
        ]
        return sorted(entries, key=lambda one: int(one[1]["number"][0]))


def cut(array: NDArray[Any], size: int) -> list[bytes]:
    """The bytes of an array in pieces of ``size``."""
    content = array.tobytes()
    return [content[start : start + size] for start in range(0, len(content), size)]


def part_key(kind: bytes, slot: int) -> bytes:
    return kind + slot.to_bytes(2, "big")
