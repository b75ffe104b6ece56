"""The metrics of FDSKL: of every party, and of the active party."""

from __future__ import annotations

from streamfl.contract.measurement import Counts, counter, gauge
from streamfl.roles.recent import WINDOW

__all__ = ["ActiveCounts", "ActiveMetrics", "PartyMetrics"]

LIFE = "over the partitions' whole lifetime, whichever worker had them"


class PartyMetrics(Counts):
    """Metrics of every party, of all its partitions."""

    samples = counter("Samples taken", headline=True)
    rounds = counter("Rounds in which this party took part", headline=True)
    sums_sent = counter("Partial sums sent")
    sums_sent_bytes = counter("Bytes of partial sums sent")
    sums_opened = counter("Sums over all parties opened, by the active party")
    sums_received = counter("Partial sums received from the parties below")
    revisions_sent = counter("Entities whose new columns were reported to the active party")
    implausible_bandwidths = counter("Rounds with a bandwidth far from the first one that was requested")
    spent_entities = counter(
        "Requested entities that had released privacy.features_per_entity features, so that their mean was "
        "used"
    )
    imputed = counter("Requested columns of an entity that are missing here, so that their mean was used")
    abandoned_rounds = counter(
        "Rounds given up: too slow, a party restarted, masks did not cancel, too many at once, or an old "
        "model",
        reason=("timeout", "incarnation", "masks", "displaced", "version"),
        headline=True,
    )
    timed_out_rounds = counter("Rounds that were not complete in time, at each member that took part")
    ignored_messages = counter(
        "Messages of others without effect: repeated, too late, or from before a restart",
        reason=(
            "incarnation_again",
            "round_again",
            "old_incarnation",
            "late_sum",
            "sum_again",
            "wrong_early_sum",
            "revision_again",
            "turn_again",
        ),
    )
    forgotten_entities = counter(
        "Entities forgotten: by age, or to make room", reason=("expired", "displaced")
    )
    entities = gauge("Entities whose columns are stored")
    pending_rounds = gauge("Open rounds")
    # Of the active party.
    missing_entities = gauge(
        "Labelled entities that the first iteration still waits for, of all partitions", headline=True
    )


class ActiveCounts(Counts):
    """What the active party counts."""

    labels = counter("Labels taken", headline=True)
    predictions = counter("Predictions made", headline=True)
    rounds_announced = counter("Rounds announced")
    iterations = counter("Iterations of learning", headline=True)
    rows_dropped = counter("Labelled entities left out because a party forgot their columns")
    scored = counter("Labels of entities that had been predicted")
    forgotten_forecasts = counter(
        "Entities forgotten: no label came, a label came without columns, or to make room",
        reason=("no_label", "no_columns", "displaced"),
    )


class ActiveMetrics(ActiveCounts):
    """What ``ActiveFigures.measure`` yields. Metrics that count themselves are in :class:`ActiveCounts`."""

    loss_sum = counter("Loss of all scored predictions, each made before its label was learnt from")
    loss_windowed = gauge(
        f"Mean loss of the last {WINDOW} scored predictions since the worker's start", headline=True
    )
    lifetime_labels = gauge(
        f"Labels of entities that had been predicted by a model, not by version 0, {LIFE}"
    )
    lifetime_loss = gauge(f"Sum of the loss of these predictions, {LIFE}")
    lifetime_best_constant_loss = gauge(
        f"Sum of the loss of each partition's best constant in hindsight, for the same labels, {LIFE}"
    )
    regret = gauge(
        f"Loss of these predictions minus that of each partition's best constant, {LIFE}; below 0 the model "
        "is better than a constant"
    )
    right_predictions = counter("Scored predictions that were correct")
    awaited_predictions = gauge("Predictions that have to be made", headline=True)
    labelled_entities = gauge("Labelled entities that are learnt from")
    features = gauge("Random features that are kept")
    features_dropped = gauge("Random features dropped for newer ones since the model began")
    model_version = gauge("Version of the newest model", headline=True)
    squared_error_sum = counter("Squared error of all scored predictions, in the label's own unit squared")
