"""What to watch of running means."""

from running_mean.metrics import MeanMetrics
from streamfl.monitoring.dashboard import Dashboard, Panel, Query, rate, series
from streamfl.monitoring.worker_panels import (
    lag_tile,
    refused_tile,
    samples_tile,
    worker_panels,
    workers_tile,
)

__all__ = ["DASHBOARDS"]

OVERVIEW = Dashboard(
    name="running-mean",
    uid="running-mean",
    title="Running means",
    system="running-mean",
    rows=(
        (workers_tile(), samples_tile(), refused_tile(), lag_tile()),
        (
            Panel(
                "RMSE, in the label's unit",
                "RMSE before the label, in the label's own unit.",
                "short",
                (Query(series(MeanMetrics.rmse), "{{instance}}"),),
                width=12,
                remedy="If it rises: the labels' mean moves faster than this follows.",
            ),
            Panel(
                "Predictions",
                "Samples that were predicted, a second.",
                "ops",
                (Query(rate(MeanMetrics.predictions), "{{instance}}"),),
                width=12,
                remedy="If it is 0 while samples are written: ask /readyz of the workers.",
            ),
        ),
        worker_panels(),
    ),
    description="Whether running means are up, and how well they predict.",
)
DASHBOARDS = (OVERVIEW,)
