"""The dashboard of client workers: their clients, what waits, errors, updates that are left out, and late
labels."""

from streamfl.contract.measurement import Metric
from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, rate, series
from streamfl.monitoring.worker_panels import (
    lag_tile,
    refused_tile,
    samples_tile,
    worker_panels,
    workers_tile,
)
from streamfl.pofmkl.metrics import (
    ChallengerMetrics,
    ClassificationMetrics,
    ClientMetrics,
    ErrorMetrics,
    UplinkMetrics,
)
from streamfl.records.imputation import ImputationMetrics
from streamfl.records.input_watch import InputMetrics
from streamfl.records.join import JoinMetrics

__all__ = ["CLIENTS"]

CLIENT = "pofmkl-client"


def by_worker(expression: str, what: str = "") -> Query:
    """One line for each worker."""
    return Query(f"sum by (instance) ({expression})", f"{what}, {{{{instance}}}}" if what else "{{instance}}")


def of_all(counter: Metric, what: str) -> Query:
    """One line for all workers together, a second."""
    return Query(f"sum({rate(counter, CLIENT)})", what)


def by_reason(counter: Metric, what: str) -> Query:
    """One line for each reason, a second."""
    return Query(f"sum by (reason) ({rate(counter, CLIENT)})", f"{what}, {{{{reason}}}}")


TILES = (
    workers_tile(),
    Panel(
        "Clients",
        "Clients whose models the workers have.",
        "none",
        (Query(f"sum({series(ClientMetrics.clients, CLIENT)})", "clients"),),
        kind="stat",
        width=4,
        remedy="If there are more than you know: samples.client names a field that is not the client. If "
        "fewer: a worker without partitions has none, so check whether all partitions are read.",
        nothing="none",
    ),
    samples_tile(CLIENT),
    Panel(
        "Clients that wait",
        "Clients whose samples or labels wait for the model.",
        "none",
        (Query(f"sum({series(ClientMetrics.waiting_clients, CLIENT)})", "clients"),),
        kind="stat",
        width=4,
        remedy="If it stays above 0: the server publishes no new version. Look at its dashboard. Their "
        "samples are kept.",
        bad_from=1,
        nothing="none",
    ),
    refused_tile(),
    lag_tile(),
)

WORK = (
    Panel(
        "Samples by worker",
        "Samples a second that each worker predicted.",
        "ops",
        (by_worker(rate(ClientMetrics.samples, CLIENT)),),
        remedy="If one worker does much more than the others: its partitions have the busy clients. More "
        "partitions spread them.",
    ),
    Panel(
        "Clients by worker",
        "Clients that each worker has, and those of them that wait for the model.",
        "short",
        (
            by_worker(series(ClientMetrics.clients, CLIENT), "clients"),
            by_worker(series(ClientMetrics.waiting_clients, CLIENT), "wait"),
        ),
        remedy="If clients of one worker wait: it cannot read the model's topic. If clients of all workers "
        "wait: the server publishes no new version.",
    ),
    Panel(
        "Samples that wait",
        "Samples, or labels of [labels], that wait for the model. They are kept in the worker's state.",
        "short",
        (by_worker(series(ClientMetrics.waiting_samples, CLIENT)),),
        remedy="If it grows: the server is slower than the samples come. At its limit the worker stops "
        "reading, and lag grows instead.",
    ),
)

BACKLOG = (
    Panel(
        "Behind",
        "Partitions of each worker with a backlog, which is learnt in step with the model; and labels a "
        "second that clients learnt while they were behind.",
        "short",
        (
            by_worker(series(UplinkMetrics.behind_partitions, CLIENT), "partitions"),
            by_worker(rate(UplinkMetrics.catch_up_labels, CLIENT), "labels"),
        ),
        remedy="If partitions stay behind and no labels are learnt: no new version of the model comes. Look "
        "at the server. If labels are learnt slowly: raise learning.catch_up_samples.",
    ),
    Panel(
        "Alone",
        "1 for each worker whose clients learn alone, because no server answered for "
        "learning.catch_up_patience_seconds.",
        "short",
        (by_worker(series(UplinkMetrics.alone, CLIENT)),),
        remedy="If it is 1: start the pofmkl-server, or check what its log says about these clients' "
        "updates. It ends with the next version.",
    ),
    Panel(
        "Predictions without a model",
        "Share of predictions made with version 0 of the model: of the latest ones, and of all that these "
        "clients ever had.",
        "percentunit",
        (
            Query(
                f"sum({rate(ClientMetrics.version_zero_predictions, CLIENT)})"
                f" / (sum({rate(ClientMetrics.predictions, CLIENT)}) > 0)",
                "latest",
            ),
            Query(
                f"sum({series(ErrorMetrics.lifetime_version_zero_predictions, CLIENT)})"
                f" / (sum({series(ErrorMetrics.lifetime_predictions, CLIENT)}) > 0)",
                "ever",
            ),
        ),
        maximum=1,
        remedy="If the latest stay above 0: no server has published a model. If only the first predictions "
        "were without one, nothing is wrong.",
    ),
)

ERRORS = (
    Panel(
        "RMSE by worker, in the label's unit",
        "RMSE of each worker's predictions over the latest interval, in the label's own unit.",
        "short",
        (
            Query(
                f"sqrt(sum by (instance) ({rate(ErrorMetrics.squared_error_sum, CLIENT)})"
                f" / (sum by (instance) ({rate(ClientMetrics.labels, CLIENT)}) > 0))",
                "{{instance}}",
            ),
        ),
        remedy="If one worker is far above the others: its clients differ from the rest, or their data are "
        "wrong.",
    ),
    Panel(
        "Challengers",
        "RMSE of each challenger over the latest interval, in the label's own unit, and failures a second.",
        "short",
        (
            Query(
                f"sqrt(sum by (model) ({rate(ChallengerMetrics.challenger_squared_error_sum, CLIENT)})"
                f" / (sum by (model) ({rate(ChallengerMetrics.challenger_labels, CLIENT)}) > 0))",
                "{{model}}",
            ),
            Query(
                f"sum by (model) ({rate(ChallengerMetrics.challenger_failures, CLIENT)})",
                "failures of {{model}}",
            ),
        ),
        remedy="If one fails: the log says why. It is left out for the next 256 labels of that client.",
    ),
    Panel(
        "Drifts",
        "Rises a second of a client's error that drift.detector found. The client then forgets its earlier "
        "samples.",
        "ops",
        (of_all(ClientMetrics.drifts, "drifts"),),
        remedy="If all clients drift at once: something common has changed, such as a sensor or a unit. If "
        "it never stops: the stream changes all the time, and frequent forgetting may cost more than "
        "it helps: see drift.detector.",
    ),
)

CLASSES = (
    Panel(
        "Accuracy of yes and no",
        'The last 1000 predictions of each worker, with learning.loss = "logistic": the share that was '
        "correct, and the area under "
        "the ROC curve. Empty with another loss.",
        "percentunit",
        (
            Query(series(ClassificationMetrics.accuracy, CLIENT), "right, {{instance}}"),
            Query(series(ClassificationMetrics.auc, CLIENT), "area under the curve, {{instance}}"),
        ),
        maximum=1,
        remedy="If the area is near one half: the inputs say nothing about the label, or the wrong field is "
        "predicted.",
    ),
    Panel(
        "Log loss",
        'Mean of the last 1000 predictions of each worker, in nats, with learning.loss = "logistic". Empty '
        "with another loss.",
        "short",
        (Query(series(ClassificationMetrics.log_loss, CLIENT), "{{instance}}"),),
        remedy="If it is above 0.69: a coin is better. Look at the share of labels of either kind, and at "
        "drifts.",
    ),
    Panel(
        "Inputs and labels at the edge",
        "Missing inputs a second that were filled in, labels outside samples.label_range, and predictions "
        "that were limited to its neighbourhood.",
        "ops",
        (
            of_all(ImputationMetrics.filled_inputs, "filled in"),
            of_all(InputMetrics.labels_outside_range, "labels outside"),
            of_all(ErrorMetrics.bounded_predictions, "predictions limited"),
        ),
        remedy="If labels are outside: set samples.label_range to their real range. If many inputs are "
        "missing: check why samples come without them.",
    ),
)

UPLOADED = (
    Panel(
        "Updates by worker",
        "Updates a second that each worker sent.",
        "ops",
        (by_worker(rate(UplinkMetrics.updates, CLIENT)),),
        remedy="If it is 0 while labels come: the budget is too small for a single update, or no model has "
        "come yet.",
    ),
    Panel(
        "Bytes of updates by worker",
        "Bytes a second of each worker's updates, and the bytes that its budget allowed.",
        "Bps",
        (
            by_worker(rate(UplinkMetrics.update_bytes, CLIENT), "sent"),
            by_worker(rate(UplinkMetrics.update_budget_bytes, CLIENT), "budget"),
        ),
        remedy="If sent is at the budget: see which updates are left out on the overview.",
    ),
    Panel(
        "Parameters without a signature",
        "Kernels' parameters in the model's topic, in the time range, that belong to no version signed by "
        "the server.",
        "none",
        (Query(f"sum({growth(UplinkMetrics.unsigned_parameters, CLIENT)})", "unsigned"),),
        kind="stat",
        remedy="If it is above 0: somebody else writes to the model's topic. Check who may, and remove that "
        "right.",
        bad_from=0.5,
        nothing="0",
    ),
)

LATE_LABELS = (
    Panel(
        "Labels that wait for samples",
        "With labels on a topic of their own: samples whose label has not come, and labels whose sample has "
        "not.",
        "short",
        (
            by_worker(series(JoinMetrics.samples_without_label, CLIENT), "samples"),
            by_worker(series(JoinMetrics.labels_without_sample, CLIENT), "labels"),
        ),
        remedy="If labels without a sample only grow: keys or ids of the two topics differ.",
    ),
    Panel(
        "Never learnt from",
        "Samples a second that were forgotten without a label, labels forgotten without a sample, by reason, "
        "and labels that came twice.",
        "ops",
        (
            by_reason(JoinMetrics.unlearnt_samples, "samples"),
            by_reason(JoinMetrics.unused_labels, "labels"),
            of_all(JoinMetrics.duplicate_labels, "labels again"),
        ),
        remedy="If expired: labels come later than labels.expiry_seconds. If displaced: labels.limit is too "
        "small for the number that waits.",
    ),
    Panel(
        "Repeated samples, and forgotten clients",
        "Samples a second that were repeated under the same name, samples without a label, and clients that "
        "were forgotten for new ones.",
        "ops",
        (
            of_all(JoinMetrics.repeated_samples, "again"),
            of_all(ClientMetrics.unlabelled_samples, "without a label"),
            of_all(ClientMetrics.expired_clients, "clients forgotten"),
        ),
        remedy="If clients are forgotten: there are more than the limit allows, and what they learnt is "
        "lost. Raise the limit.",
    ),
)

CLIENTS = Dashboard(
    name="federation-clients",
    uid="streamfl-federation-clients",
    title="streamfl: federation, client workers",
    system="pofmkl",
    rows=(TILES, WORK, BACKLOG, ERRORS, CLASSES, UPLOADED, LATE_LABELS, worker_panels()),
    description="The workers of POF-MKL's clients: their clients, waiting work, and what is left out.",
)
