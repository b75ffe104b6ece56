"""The metrics of POF-MKL: of a client worker, of its challengers, and of the server."""

from __future__ import annotations

from streamfl.contract.measurement import counter, gauge
from streamfl.records.imputation import ImputationMetrics
from streamfl.records.input_watch import InputMetrics
from streamfl.records.join import JoinMetrics

__all__ = [
    "CLIENT_METRICS",
    "OFF_LABELS",
    "ChallengerClassification",
    "ChallengerMetrics",
    "ClassificationMetrics",
    "ClientMetrics",
    "ErrorMetrics",
    "OwnModelMetrics",
    "ServerMetrics",
    "UplinkMetrics",
]

OFF_LABELS = 256
"""Labels for which a failed challenger is off. It is then tried again: no failure is final."""

LIFE = "over the whole lifetime of this worker's clients, restarts included"
SCALED = "with labels scaled to 0..1 by samples.label_range"
UNIT = "in the label's own unit"
SINCE = (
    "since this worker's start; a client's challenger starts over when the worker starts or the client's "
    "partition moves, unless it has a state of its own"
)


class ClientMetrics:
    """Samples, labels and clients of a client worker."""

    samples = counter("Samples predicted", headline=True)
    predictions = counter("Predictions published", headline=True)
    version_zero_predictions = counter("Predictions made with version 0, before a server published a model")
    labels = counter("Labels learnt from", headline=True)
    unlabelled_samples = counter("Samples that came without a label")
    drifts = counter("Rises of a client's error that were detected and handled")
    clients = gauge("Clients on this worker", headline=True)
    expired_clients = counter("Clients forgotten to make room for others")
    silent_clients = gauge("Clients without a sample for longer than usual")
    unlabelled_clients = gauge("Clients with samples but without a label for longer than usual")
    waiting_clients = gauge("Clients whose samples or labels wait for the model", headline=True)
    waiting_samples = gauge("Samples, or labels of [labels], that wait for the model")


class ErrorMetrics:
    """Errors, losses and regret of a client worker."""

    bounded_predictions = counter(
        "With the preset `paper`: predictions limited to one label range beyond samples.label_range"
    )
    squared_error_sum = counter(
        f"Sum of the predictions' squared error over the labels of {ClientMetrics.labels}, in the label's "
        "own unit squared"
    )
    loss_sum = counter(f"Sum of the predictions' loss over the same labels, {SCALED}")
    lifetime_predictions = gauge(f"Predictions, {LIFE}")
    lifetime_version_zero_predictions = gauge(f"Predictions made with version 0 of the model, {LIFE}")
    lifetime_labels = gauge(f"Labels learnt from, {LIFE}")
    lifetime_squared_error = gauge(
        f"Sum of the predictions' squared error, in the label's own unit squared, {LIFE}"
    )
    lifetime_loss = gauge(f"Sum of the predictions' loss, {SCALED}, {LIFE}")
    lifetime_best_kernel_loss = gauge(f"Sum of the loss of each client's best kernel alone, {SCALED}, {LIFE}")
    regret = gauge(
        f"Loss of the predictions minus loss of each client's best kernel, {SCALED}, summed over clients"
    )
    regret_per_sample = gauge(f"Regret divided by streamfl_lifetime_labels, {SCALED}")
    rmse = gauge(
        "Root of the mean squared error of all predictions of these clients, restarts included, in the "
        "label's own unit"
    )
    rmse_windowed = gauge(
        "Root of the mean squared error of the last 1000 predictions since the worker's start, in the "
        "label's own unit",
        headline=True,
    )
    mae_windowed = gauge(
        "Mean absolute error of the last 1000 predictions since the worker's start, in the label's own unit",
        headline=True,
    )
    best_kernel = gauge("Number of the kernel with the smallest loss over all clients")


class UplinkMetrics:
    """The model in use, and the uploads, of a client worker."""

    model_version = gauge("Version of the model in use; NaN before there is one", headline=True)
    unsigned_parameters = counter(
        "Kernels' parameters in the model topic that belong to no version signed by the server"
    )
    update_bytes = counter("Encoded bytes of updates, including key and framing")
    update_budget_bytes = counter("Bytes that the budget has allowed so far; 0: no budget")
    updates = counter("Uploads sent", headline=True)
    skipped_updates = counter("Uploads left out for good", reason=("budget",))
    behind_partitions = gauge("Partitions with a backlog, which is learnt in step with the model")
    catch_up_labels = counter("Labels learnt by clients that were behind")
    catch_up_extra_labels = counter(
        "Labels learnt beyond learning.catch_up_samples on one version, because more came meanwhile"
    )
    alone = gauge(
        "1 while clients learn without the server, which did not answer for "
        "learning.catch_up_patience_seconds"
    )
    patience_spent = counter(
        "Times that no new version of the model came within learning.catch_up_patience_seconds"
    )


class ClassificationMetrics:
    """With the logistic loss, in the order of :func:`streamfl.learning.accuracy.classification_figures`."""

    log_loss = gauge("Mean log loss of the last 1000 predictions, in nats")
    accuracy = gauge("Share of the last 1000 predictions whose label was the likelier one")
    auc = gauge(
        "Area under the ROC curve of the last 1000 predictions, clients together; NaN while there is only "
        "one label"
    )


class ChallengerMetrics:
    """Each challenger's errors, over all clients of a worker."""

    challenger_rmse = gauge(f"Root of the mean squared error of the challenger, {UNIT}, {SINCE}", model=None)
    challenger_squared_error_sum = counter(
        "Sum of the challenger's squared error over the labels of streamfl_challenger_labels_total, in the "
        "label's own unit squared",
        model=None,
    )
    challenger_rmse_windowed = gauge(
        f"Root of the mean squared error of the challenger over the last 1000 labels, {UNIT}, of those "
        f"{SINCE}",
        model=None,
    )
    challenger_mae_windowed = gauge(
        f"Mean absolute error of the challenger over the last 1000 labels, {UNIT}, of those {SINCE}",
        model=None,
    )
    challenger_labels = counter(f"Labels that the challenger was scored on, {SINCE}", model=None)
    challenger_failures = counter(
        f"Times that the challenger failed for a client, which then continues for {OFF_LABELS} labels "
        "without it",
        model=None,
    )


class ChallengerClassification:
    """As :class:`ClassificationMetrics`, of each challenger."""

    challenger_log_loss = gauge(ClassificationMetrics.log_loss.help, model=None)
    challenger_accuracy = gauge(ClassificationMetrics.accuracy.help, model=None)
    challenger_auc = gauge(ClassificationMetrics.auc.help, model=None)


class OwnModelMetrics:
    """Metrics of users' own models."""

    challenger_state_failures = counter(
        "States of challengers that were not stored or not restored", model=None, reason=None
    )
    expert_failures = counter(
        "Failures of a model among the experts; the running mean replaced it, or it started over with the "
        "latest samples",
        model=None,
        reason=None,
    )


CLIENT_METRICS = (
    ClientMetrics,
    ErrorMetrics,
    InputMetrics,
    ImputationMetrics,
    UplinkMetrics,
    ClassificationMetrics,
    ChallengerMetrics,
    ChallengerClassification,
    OwnModelMetrics,
    JoinMetrics,
)
"""All classes that declare what a client measures."""


class ServerMetrics:
    """Metrics of the server."""

    updates_applied = counter("Uploads added to the model", headline=True)
    model_version = gauge(
        "Newest version of the model; NaN while the worker has no part of it", headline=True
    )
    clients = gauge("Known clients", headline=True)
    silent_clients = gauge("Clients without an update for longer than usual")
    round_waiting = gauge("Clients with an update in the open round", headline=True)
    staleness = gauge("Versions between an update's model and the newest, last update")
    ignored_updates = counter("Updates without effect", reason=("late", "duplicate", "empty"), headline=True)
    superseded_updates = counter(
        "Updates with a number below one that came just before: two processes send for one client"
    )
    bounded_parameters = counter(
        "Times that parameters grew beyond what clients accept, or a kernel's updates beyond a client's "
        "maximum, and were shortened"
    )
    model_repairs = counter(
        "Times that the model topic held records that the server had not published, and was repaired"
    )
    timed_out_rounds = counter("Rounds closed without every client", headline=True)
    expired_clients = counter("Clients forgotten to make room")
