"""What the active party measures."""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.contract.measurement import Measurement
from streamfl.fdskl.learning.losses import MarginLoss
from streamfl.fdskl.metrics import ActiveCounts, ActiveMetrics
from streamfl.fdskl.predicting.prequential_totals import PrequentialTotals, measure_totals
from streamfl.roles.recent import Recent

__all__ = ["ActiveFigures"]


class ActiveFigures(ActiveCounts):
    """What only the active party counts and measures.

    what: the loss; None at any other party.
    label_unit: with numbers for labels, the width of the labels' range in the label's own unit.
    loss, squared_error, right: sums over scored predictions, each made before its label was learnt from.
    """

    def __init__(self, what: MarginLoss | None, label_unit: float = 1.0) -> None:
        self._what = what
        self._label_unit = label_unit
        self.loss = self.squared_error = 0.0
        self.right = 0
        self._scored: list[float] = []
        self._recent: Recent[float] = Recent()

    def score(self, output: float, label: float) -> float:
        """Count a prediction whose label came. Returns its loss."""
        assert self._what is not None
        loss = float(self._what.value(output, label))
        self.scored += 1
        self.loss += loss
        self._scored.append(loss)
        self.squared_error += (output - label) ** 2
        self.right += (output >= 0) == (label > 0)
        return loss

    def note(self, now: float) -> None:
        """Date what was scored since the last call."""
        self._recent.extend(self._scored, now)
        self._scored = []

    def measure(
        self,
        totals: Iterable[PrequentialTotals],
        awaited: int,
        labelled: int,
        features: int,
        version: int,
        dropped: int,
    ) -> Iterable[Measurement]:
        """The counters, and gauges of all partitions together.

        totals: of the partitions.
        awaited: predictions to be made.
        labelled: entities that are learnt from.
        features: kept.
        version: the largest.
        dropped: features that were dropped.
        """
        assert self._what is not None
        yield from self.measure_counts()
        yield ActiveMetrics.loss_sum(self.loss)
        losses = self._recent.items
        mean = sum(losses) / max(len(losses), 1)
        yield ActiveMetrics.loss_windowed(mean, known=bool(losses), until=self._recent.until)
        yield from measure_totals(totals, self._what)
        if self._what.classifies:
            yield ActiveMetrics.right_predictions(self.right)
        else:
            yield ActiveMetrics.squared_error_sum(self._label_unit * (self._label_unit * self.squared_error))
        yield ActiveMetrics.awaited_predictions(awaited)
        yield ActiveMetrics.labelled_entities(labelled)
        yield ActiveMetrics.features(features)
        yield ActiveMetrics.features_dropped(dropped)
        yield ActiveMetrics.model_version(version)
