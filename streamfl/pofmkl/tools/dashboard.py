"""The dashboard of a POF-MKL federation: error, regret, speed, upload and lag."""

from streamfl.monitoring.dashboard import Dashboard, Panel, Query, mean_over_time, rate, series
from streamfl.monitoring.worker_panels import (
    lag_tile,
    refused_tile,
    samples_tile,
    worker_panels,
    workers_tile,
)
from streamfl.pofmkl.metrics import (
    ChallengerMetrics,
    ClientMetrics,
    ErrorMetrics,
    ServerMetrics,
    UplinkMetrics,
)
from streamfl.pofmkl.tools.client_dashboard import CLIENTS
from streamfl.pofmkl.tools.server_dashboard import SERVER

__all__ = ["DASHBOARD", "DASHBOARDS"]

LIFETIME_LABELS = series(ErrorMetrics.lifetime_labels)
ERROR = f"sqrt(sum({rate(ErrorMetrics.squared_error_sum)}) / (sum({rate(ClientMetrics.labels)}) > 0))"
REGRET = f"sum({series(ErrorMetrics.regret)}) / (sum({LIFETIME_LABELS}) > 0)"


def challengers_error(**model: str) -> str:
    """The query for each challenger's RMSE over the latest interval. model: only this one."""
    sums = rate(ChallengerMetrics.challenger_squared_error_sum, **model)
    counts = rate(ChallengerMetrics.challenger_labels, **model)
    return f"sqrt(sum by (model) ({sums}) / (sum by (model) ({counts}) > 0))"


TILES = (
    workers_tile(),
    samples_tile(width=3),
    Panel(
        "RMSE now, in the label's unit",
        "RMSE of the latest interval, in the label's own unit: of the federation, of each client's running "
        "mean, and of the best challenger. The latter two exist if [challengers] names models.",
        "short",
        (
            Query(ERROR, "federation"),
            Query(challengers_error(model="running-mean"), "running mean"),
            Query(f"min({challengers_error()})", "best challenger"),
        ),
        kind="stat",
        width=5,
        remedy="If the federation is above the running mean for an hour: the predictions are of no use. "
        "Check whether labels and inputs have changed, and whether the model still gets new versions "
        "(below).",
        nothing="no labels",
    ),
    Panel(
        "Regret now, scaled",
        "Loss of the predictions minus that of each client's best single kernel in hindsight, per label, "
        "over the clients' whole lifetime. With labels scaled to 0..1.",
        "short",
        (Query(REGRET, "regret"),),
        minimum=None,
        kind="stat",
        width=3,
        remedy="If it rises for a day: the mixture does not find the good kernels. Look at the error, and at "
        "drifts on the clients' dashboard.",
        nothing="no labels",
    ),
    refused_tile(width=3),
    lag_tile(width=3),
    Panel(
        "Upload budget used",
        "Bytes of updates as a share of what uplink.budget_bytes_per_second allowed in the same time.",
        "percentunit",
        (
            Query(
                f"sum({rate(UplinkMetrics.update_bytes)}) / (sum({rate(UplinkMetrics.update_budget_bytes)}) "
                "> 0)",
                "used",
            ),
        ),
        kind="stat",
        width=3,
        remedy="If it stays near 100 %: updates are left out because the budget is too small. Raise it.",
        bad_from=0.95,
        nothing="no budget",
    ),
)

LEARNING = (
    Panel(
        "RMSE, in the label's unit",
        "RMSE of the predictions against the labels, in the label's own unit. Now: over the latest interval. "
        "Whole life: over all clients' lifetime, restarts included.",
        "short",
        (
            Query(f"sqrt({mean_over_time(ErrorMetrics.squared_error_sum, ClientMetrics.labels)})", "now"),
            Query(
                f"sqrt(sum({series(ErrorMetrics.lifetime_squared_error)}) / sum({LIFETIME_LABELS}))",
                "whole life",
            ),
        ),
        remedy="If now is above whole life for long: the stream has changed. See drifts on the clients' "
        "dashboard, and whether labels lie outside samples.label_range.",
    ),
    Panel(
        "Regret per sample, labels scaled to 0..1",
        "Loss of the prediction minus the loss of the best single kernel in hindsight, per label, with "
        "labels scaled to 0..1. It should fall towards zero.",
        "short",
        (
            Query(f"sum({series(ErrorMetrics.regret)}) / sum({LIFETIME_LABELS})", "all workers"),
            Query(series(ErrorMetrics.regret_per_sample), "{{instance}}"),
        ),
        minimum=None,
        remedy="If it rises for a day: another kernel has become the best, or the model stands still. Look "
        "at the model's version, and at the best kernel of each worker.",
    ),
    Panel(
        "Samples a second",
        "Samples read, predictions sent and labels learnt from.",
        "ops",
        (
            Query(f"sum({rate(ClientMetrics.samples)})", "samples"),
            Query(f"sum({rate(ClientMetrics.predictions)})", "predictions"),
            Query(f"sum({rate(ClientMetrics.labels)})", "labels"),
        ),
        remedy="If predictions fall behind samples: clients wait for the model, so look at the server. If "
        "labels fall behind: they come late, or their keys or ids differ from the samples'.",
    ),
)

COMPARED = (
    Panel(
        "RMSE against challengers, in the label's unit",
        "RMSE over the labels of the latest interval, in the label's own unit. Challengers learn on each "
        "client's own samples, if [challengers] names some, and start over when a worker starts.",
        "short",
        (
            Query(
                f"sqrt({mean_over_time(ErrorMetrics.squared_error_sum, ClientMetrics.labels)})", "federation"
            ),
            Query(
                f"sqrt(sum by (model) ({rate(ChallengerMetrics.challenger_squared_error_sum)})"
                f" / sum by (model) ({rate(ChallengerMetrics.challenger_labels)}))",
                "{{model}}",
            ),
        ),
        width=16,
        remedy="If a challenger is below the federation for days: use that model, or give the federation "
        "equally rich inputs and kernels. Do not judge within an hour of a restart.",
    ),
    Panel(
        "Best kernel",
        "The kernel with the smallest total loss so far at each worker, by its number in the dictionary.",
        "short",
        (Query(series(ErrorMetrics.best_kernel), "{{instance}}"),),
        minimum=None,
        remedy="If it changes all the time: no kernel fits well, so widen the dictionary. If it is the first "
        "or the last: the best bandwidth may lie outside.",
    ),
)

EXCHANGED = (
    Panel(
        "Upload against budget",
        "Bytes of updates as encoded, keys, headers and framing included, and the bytes that the budget "
        "allowed in the same time.",
        "Bps",
        (
            Query(f"sum({rate(UplinkMetrics.update_bytes)})", "sent"),
            Query(f"sum({rate(UplinkMetrics.update_budget_bytes)})", "budget"),
        ),
        width=6,
        remedy="If sent stays at the budget: look at how many updates are not sent.",
    ),
    Panel(
        "Updates not sent",
        "Kernel updates that were computed but not sent, by reason. They are not sent later.",
        "ops",
        (Query(f"sum by (reason) ({rate(UplinkMetrics.skipped_updates)})", "{{reason}}"),),
        width=6,
        remedy="If many are left out because of the budget: raise uplink.budget_bytes_per_second. Until then "
        "clients learn from each other more slowly.",
    ),
    Panel(
        "Model version",
        "The newest model version that each worker holds.",
        "short",
        (Query(f"max by (instance) ({series(UplinkMetrics.model_version)})", "{{instance}}"),),
        width=6,
        remedy="If it does not change while updates are sent: the server does not work. If one client worker "
        "is far behind: it cannot read the model's topic.",
    ),
    Panel(
        "Staleness",
        "Number of model versions between the one that an update was made with and the current one, for the "
        "latest update that each worker of the server accepted.",
        "short",
        (Query(f"max by (instance) ({series(ServerMetrics.staleness)})", "{{instance}}"),),
        width=6,
        remedy="If it is in the thousands: clients learn from an old model. Look at their lag on the model's "
        "topic.",
    ),
)

DASHBOARD = Dashboard(
    name="federation",
    uid="streamfl-federation",
    title="streamfl: federation overview",
    system="pofmkl",
    rows=(TILES, LEARNING, COMPARED, EXCHANGED, worker_panels()),
    description="Whether a POF-MKL federation learns: error, regret, speed, upload and lag.",
)
DASHBOARDS = (DASHBOARD, CLIENTS, SERVER)
