"""Panels for workers of any system: whether they are up, what they refuse, how large the lag is."""

from __future__ import annotations

from streamfl.monitoring.dashboard import SCRAPED, Panel, Query, growth, lag, rate, series
from streamfl.monitoring.shared_metrics import SharedMetrics
from streamfl.runtime.health import HealthMetrics
from streamfl.runtime.metrics import WorkerMetrics

__all__ = [
    "BY_WORKER",
    "SEEN",
    "UP",
    "by_worker",
    "lag_tile",
    "refused_tile",
    "samples_tile",
    "worker_panels",
    "workers_tile",
]

# Prometheus keeps trying to scrape a worker that is gone. For an hour such a worker counts as expected.
SEEN = f"last_over_time({series(HealthMetrics.ready)}[1h])"
UP = f"up{{{SCRAPED}}}"
# Legend of a worker's line.
BY_WORKER = "{{group}} {{instance}}"


def by_worker(expression: str, what: str = "", *, label: str = "", of: str = "sum") -> Query:
    """A line for each worker, and for each value of this label. what: begins the legend. of: how the series
    are aggregated."""
    legend = f"{what}, {BY_WORKER}" if what else BY_WORKER
    if label:
        return Query(f"{of} by (group, instance, {label}) ({expression})", f"{legend} {{{{{label}}}}}")
    return Query(f"{of} by (group, instance) ({expression})", legend)


def workers_tile(width: int = 4) -> Panel:
    """Number of workers that are up, out of those seen within the last hour."""
    return Panel(
        "Workers up",
        "Workers that Prometheus reaches now, out of those seen within the last hour.",
        "none",
        (
            Query(f"count({UP} == 1 and on (job, instance) {SEEN}) or vector(0)", "up"),
            Query(f"count(group by (job, instance) ({SEEN})) or vector(0)", "of"),
        ),
        kind="stat",
        width=width,
        remedy="If fewer are up than there were: the panel Workers, below, names the missing one. Its exit "
        "code and the last line of its log say why it ended. A worker that was stopped on purpose "
        "counts for an hour.",
        bad_below=1,
    )


def samples_tile(*roles: str, width: int = 4) -> Panel:
    """Samples a second at workers with these roles."""
    return Panel(
        "Samples a second now",
        "Samples a second that the workers read.",
        "ops",
        (Query(f"sum({rate(SharedMetrics.samples, *roles)})", "samples"),),
        kind="stat",
        width=width,
        remedy="If it is 0 although samples are written: look at the lag. If the lag grows, /readyz of the "
        "workers says what is wrong. If the lag is 0 too, the samples go to another topic.",
        nothing="none",
    )


def refused_tile(width: int = 4) -> Panel:
    """The number of refused records over the dashboard's time range."""
    refused = f"sum({growth(WorkerMetrics.dead_letters)}) + sum({growth(WorkerMetrics.table_rejections)})"
    return Panel(
        "Records refused",
        "Records of inputs and of the model that could not be used, in the time range. Those of inputs are "
        "in the dead-letter topic.",
        "none",
        (Query(refused, "refused"),),
        kind="stat",
        width=width,
        remedy="If it is above 0: `streamfl dead-letters` shows them and the reasons, and sends them again "
        "once the cause is fixed.",
        bad_from=0.5,
        nothing="0",
    )


def lag_tile(width: int = 4) -> Panel:
    """The number of unread records."""
    return Panel(
        "Records waiting",
        "Unread records of all inputs, in partitions with or without a worker.",
        "short",
        (Query(f"sum({lag()})", "waiting"),),
        kind="stat",
        width=width,
        remedy="If it grows for minutes: the workers are too slow or do not serve. Start more of them, up to "
        "the number of partitions, and look on the dashboard of service health for what takes long.",
        bad_from=1000,
        nothing="unknown",
    )


def worker_panels() -> tuple[Panel, ...]:
    """The row of panels for workers of any system: refused records, lag, and whether they are up."""
    return (
        Panel(
            "Dead letters",
            "Records a second that were refused and went to the dead-letter topics, by reason. It should be "
            "empty.",
            "ops",
            (
                Query(
                    f"sum by (group, reason) ({rate(WorkerMetrics.dead_letters)}) > 0", "{{group}} {{reason}}"
                ),
            ),
            nothing="none was refused",
            remedy="If there are some: `streamfl dead-letters` shows the records. The page on dead letters "
            "explains the reasons.",
        ),
        Panel(
            "Consumer lag",
            "Unread records by topic and partition, whether a worker has the partition or not. It should "
            "return to zero.",
            "short",
            (Query(lag(), "{{group}} {{topic}} {{partition}}"),),
            remedy="If only one partition grows: its worker is stuck, and its /readyz says why. If all grow: "
            "more records come than are processed, so start more workers.",
        ),
        Panel(
            "Workers",
            "1 while Prometheus reaches a worker seen within the last hour; and each worker's commits a "
            "second, which show that it works.",
            "short",
            (
                Query(f"min by (instance) ({UP} and on (job, instance) {SEEN})", "up, {{instance}}"),
                Query(
                    f"sum by (group, instance) ({rate(WorkerMetrics.commits)})",
                    "commits a second, {{group}} {{instance}}",
                ),
            ),
            remedy="If a worker is at 0: check its process and its log. If it is up but commits nothing "
            "while records wait: its /readyz says why.",
        ),
    )
