"""Figures for the operator of what a worker has done."""

from __future__ import annotations

from collections.abc import Iterable

from streamfl.contract.role import Measurement
from streamfl.fdskl.learning.losses import MarginLoss
from streamfl.fdskl.predicting.prequential_totals import PrequentialTotals, measure_totals
from streamfl.roles.recent import WINDOW, Recent

__all__ = ["ActiveFigures", "WorkerFigures"]

COUNTS = {
    "samples": "Samples taken",
    "rounds": "Rounds in which this party took part",
    "sums_sent": "Partial sums sent",
    "sums_sent_bytes": "Bytes of partial sums sent",
    "sums_opened": "Sums over all parties opened, by the active party",
    "sums_received": "Partial sums received from the parties below",
    "revisions_sent": "Entities whose new columns were reported to the active party",
    "implausible_bandwidths": "Rounds with a bandwidth far from the first one that was requested",
    "spent_entities": "Requested entities that had released privacy.features_per_entity features, so that their mean was used",
    "imputed": "Requested columns of an entity that are missing here, so that their mean was used",
}
ACTIVE_COUNTS = {
    "labels": "Labels taken",
    "predictions": "Predictions made",
    "rounds_announced": "Rounds announced",
    "iterations": "Iterations of learning",
    "rows_dropped": "Labelled entities left out because a party forgot their columns",
    "scored": "Labels of entities that had been predicted",
}
IGNORED = (
    "incarnation_again",
    "round_again",
    "old_incarnation",
    "late_sum",
    "sum_again",
    "wrong_early_sum",
    "revision_again",
    "turn_again",
)
HEADLINES = {"samples", "rounds", "predictions", "iterations", "labels"}


class WorkerFigures:
    """Counters of all partitions since the process began.

    counts: by name. abandoned: rounds given up, by reason. ignored: messages that changed nothing, by reason. forgotten: entities,
    by reason.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.abandoned = dict.fromkeys(("timeout", "incarnation", "masks", "displaced", "version"), 0)
        self.ignored = dict.fromkeys(IGNORED, 0)
        self.forgotten = dict.fromkeys(("expired", "displaced"), 0)

    def measure(self, entities: int, pending: int) -> Iterable[Measurement]:
        """The counters, and two gauges. entities: that are remembered. pending: rounds under way."""
        for name, text in COUNTS.items():
            yield Measurement(name, "counter", text, self.counts[name], (), name in HEADLINES)
        for reason, count in self.abandoned.items():
            text = "Rounds given up: too slow, a party restarted, masks did not cancel, too many at once, or an old model"
            yield Measurement("abandoned_rounds", "counter", text, count, (("reason", reason),), True)
        text = "Rounds that were not complete in time, at each member that took part"
        yield Measurement("timed_out_rounds", "counter", text, self.abandoned["timeout"])
        for reason, count in self.ignored.items():
            text = "Messages of others without effect: repeated, too late, or from before a restart"
            yield Measurement("ignored_messages", "counter", text, count, (("reason", reason),))
        for reason, count in self.forgotten.items():
            text = "Entities forgotten: by age, or to make room"
            yield Measurement("forgotten_entities", "counter", text, count, (("reason", reason),))
        yield Measurement("entities", "gauge", "Entities whose columns are stored", entities)
        yield Measurement("pending_rounds", "gauge", "Open rounds", pending)


class ActiveFigures:
    """What only the active party counts.

    what: the loss; None at any other party.
    label_unit: with numbers for labels, the width of the labels' range in the label's own unit.
    loss, squared_error, right: sums over scored predictions, each made before its label was learnt from.
    forgotten: predictions and labels, by reason.
    """

    def __init__(self, what: MarginLoss | None, label_unit: float = 1.0) -> None:
        self._what = what
        self._label_unit = label_unit
        self.counts = dict.fromkeys(ACTIVE_COUNTS, 0)
        self.forgotten = dict.fromkeys(("no_label", "no_columns", "displaced"), 0)
        self.loss = self.squared_error = 0.0
        self.right = 0
        self._scored: list[float] = []
        self._recent: Recent[float] = Recent()

    def score(self, output: float, label: float) -> float:
        """Count a prediction whose label came. Returns its loss."""
        assert self._what is not None
        loss = float(self._what.value(output, label))
        self.counts["scored"] += 1
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
        self, totals: Iterable[PrequentialTotals], awaited: int, labelled: int, features: int, version: int, dropped: int
    ) -> Iterable[Measurement]:
        """The counters, and gauges of all partitions together.

        totals: of the partitions. awaited: predictions to be made. labelled: entities that are learnt from. features: kept.
        version: the largest. dropped: features that were dropped.
        """
        for name, text in ACTIVE_COUNTS.items():
            yield Measurement(name, "counter", text, self.counts[name], (), name in HEADLINES)
        for reason, count in self.forgotten.items():
            text = "Entities forgotten: no label came, a label came without columns, or to make room"
            yield Measurement("forgotten_forecasts", "counter", text, count, (("reason", reason),))
        text = "Loss of all scored predictions, each made before its label was learnt from"
        yield Measurement("loss_sum", "counter", text, self.loss)
        losses = self._recent.items
        text = f"Mean loss of the last {WINDOW} scored predictions since the worker's start"
        mean = sum(losses) / max(len(losses), 1)
        yield Measurement("loss_windowed", "gauge", text, mean, (), True, bool(losses), self._recent.until)
        assert self._what is not None
        yield from measure_totals(totals, self._what)
        if self._what.classifies:
            yield Measurement("right_predictions", "counter", "Scored predictions that were correct", self.right)
        else:
            text = "Squared error of all scored predictions, in the label's own unit squared"
            total = self._label_unit * (self._label_unit * self.squared_error)
            yield Measurement("squared_error_sum", "counter", text, total)
        yield Measurement("awaited_predictions", "gauge", "Predictions that have to be made", awaited, (), True)
        yield Measurement("labelled_entities", "gauge", "Labelled entities that are learnt from", labelled)
        yield Measurement("features", "gauge", "Random features that are kept", features)
        yield Measurement("features_dropped", "gauge", "Random features dropped for newer ones since the model began", dropped)
        yield Measurement("model_version", "gauge", "Version of the newest model", version, (), True)
