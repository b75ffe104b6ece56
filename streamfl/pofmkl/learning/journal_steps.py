"""The steps of a client's learning that its journal records, its snapshots, and their replay."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.pofmkl.learning.changelog_checks import check_size, check_snapshot
from streamfl.pofmkl.learning.client_journal import LATE_LABEL, SAMPLE, ClientJournal, Forecast
from streamfl.pofmkl.learning.client_mixtures import RIDGE, ClientMixtures
from streamfl.pofmkl.learning.client_scales import ClientScales, Scale

__all__ = ["JournalSteps"]

Floats = NDArray[np.float64]
# Clients whose entries are replayed together. More need more memory, and are no faster.
ROWS_AT_ONCE = 1_000


class JournalSteps:
    """Changes scales and mixtures in the same way when a record comes and when the journal is replayed.

    logistic: labels are classes, and predictions probabilities.
    """

    def __init__(
        self, scales: ClientScales, mixtures: ClientMixtures, journal: ClientJournal, logistic: bool
    ) -> None:
        self._scales = scales
        self._mixtures = mixtures
        self._journal = journal
        self._logistic = logistic

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of a client's snapshot."""
        return self._scales.layout.itemsize + self._mixtures.layout.itemsize

    def mixed(self, rows: NDArray[np.intp], inputs: Floats, scale: Scale, experts: Floats) -> Forecast:
        """The experts' predictions with those of their mixtures."""
        predictions, pivot = self._mixtures.mix(rows, experts, scale)
        return Forecast(
            predictions, experts, pivot, scale.known, inputs, scale.lags, self._journal.forecast_layout
        )

    def count(
        self, rows: NDArray[np.intp], labels: Floats, labelled: NDArray[np.bool_], forecast: Forecast
    ) -> None:
        """Count samples, and judge the experts where a label came."""
        self._mixtures.count_samples(rows)
        self._mixtures.judge(rows, labels, labelled, forecast)

    def learn_late(
        self, rows: NDArray[np.intp], forecast: Forecast, scale: Scale, labels: Floats, bounded: Floats
    ) -> None:
        """Learn the labels of earlier samples."""
        self._mixtures.count_late_labels(rows, labels, forecast)
        self._mixtures.learn(rows, forecast, scale.deviation, bounded)
        self._scales.learn(rows, bounded, late=True)

    def snapshot(self, row: int, moments: bytes) -> None:
        """Write a client's snapshot. moments: of its scale."""
        self._journal.snapshot(row, moments + self._mixtures.content(row))

    def snapshot_due(self, rows: NDArray[np.intp]) -> None:
        """Write the snapshots of clients whose journal is full."""
        for row, _ in self._journal.due(rows, self._mixtures.entries(rows)):
            self.snapshot(row, self._scales.content(row))

    def restore_snapshot(self, row: int, content: bytes) -> None:
        """Take a stored snapshot, which :meth:`put_together` loads; BadRecord if it is damaged."""
        check_size(content, self.snapshot_bytes)
        check_snapshot(*self._of_snapshot(content), RIDGE, self._logistic)
        self._journal.restore_snapshot(row, content)

    def put_together(self, rows: Iterable[int]) -> None:
        """Finish restoring: load the snapshots, then replay the entries since, those of many clients at a
        time."""
        unread = self._journal.unread(rows)
        while some := list(islice(unread, ROWS_AT_ONCE)):
            # By place in the order of a client's entries, and by kind.
            waves: dict[tuple[int, bytes], list[tuple[int, NDArray[Any]]]] = {}
            for row, one in some:
                if one.snapshot is not None:
                    moments, mixture = self._of_snapshot(one.snapshot)
                    self._scales.restore(row, moments)
                    self._mixtures.restore(row, mixture)
                (done,) = self._mixtures.entries(np.array([row])).tolist()
                # A slot of another kind may still hold an entry that the snapshot already contains.
                later = [entry for entry in self._journal.in_order(one) if entry[1]["number"][0] > done]
                for place, (kind, entry) in enumerate(later):
                    waves.setdefault((place, kind), []).append((row, entry))
            for (_, kind), entries in sorted(waves.items(), key=lambda wave: wave[0]):
                own = np.array([row for row, _ in entries])
                self._replay(kind, own, np.concatenate([entry for _, entry in entries]))

    def _replay(self, kind: bytes, rows: NDArray[np.intp], entry: NDArray[Any]) -> None:
        inputs = entry["inputs"]
        if kind == LATE_LABEL:
            forecast = Forecast.decoded(entry, self._journal.forecast_layout)
            scale = self._scales.scale(rows, inputs, forecast.lags)
            self.learn_late(rows, forecast, scale, entry["label"], scale.bounded(entry["label"]))
            return
        inputs = self._scales.see(rows, inputs)
        if kind == SAMPLE:
            self._mixtures.count_samples(rows)
            return
        labels, labelled = entry["label"], np.ones(len(rows), np.bool_)
        scale = self._scales.scale(rows, inputs)
        forecast = self.mixed(rows, inputs, scale, entry["experts"].astype(np.float64))
        self.count(rows, labels, labelled, forecast)
        bounded = scale.bounded(labels)
        self._mixtures.learn(rows, forecast, scale.deviation, bounded)
        self._scales.learn(rows, bounded)

    def _of_snapshot(self, content: bytes) -> tuple[Any, Any]:
        size = self._scales.layout.itemsize
        moments = np.frombuffer(content[:size], self._scales.layout)
        mixture = np.frombuffer(content[size:], self._mixtures.layout)
        return moments[0], mixture[0]
