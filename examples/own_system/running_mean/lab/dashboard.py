"""What to watch of running means."""

from streamfl.dashboard import Dashboard, Panel, Query, rate, series

__all__ = ["DASHBOARDS"]

OVERVIEW = Dashboard(
    name="running-mean",
    uid="running-mean",
    title="Running means",
    system="running-mean",
    rows=(
        (
            Panel("Error", "Mean squared error before the label.", "short", (Query(series("mse"), "{{instance}}"),), width=12),
            Panel("Predictions", "Samples a second.", "ops", (Query(rate("predictions_total"), "{{instance}}"),), width=12),
        ),
    ),
)
DASHBOARDS = (OVERVIEW,)
