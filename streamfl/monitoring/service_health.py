"""The dashboard of all workers: whether they run, how long steps take, which resources they use, and which
errors occur."""

from __future__ import annotations

from streamfl.contract.measurement import Histogram
from streamfl.monitoring.dashboard import Dashboard, Panel, Query, growth, rate, series
from streamfl.monitoring.shared_metrics import SharedMetrics
from streamfl.monitoring.worker_panels import by_worker, lag_tile, refused_tile, worker_panels, workers_tile
from streamfl.runtime.health import HealthMetrics
from streamfl.runtime.metrics import ProcessMetrics, WorkerMetrics

__all__ = ["DASHBOARD"]

STARTED = series(WorkerMetrics.start_time_seconds)


def took(histogram: Histogram, share: float, legend: str) -> Query:
    """A quantile of a histogram. share: the quantile, 0 to 1."""
    return Query(f"histogram_quantile({share}, sum by (le) ({rate(histogram.part('bucket'))}))", legend)


TILES = (
    workers_tile(),
    Panel(
        "Workers not serving",
        "Workers that run but do not serve.",
        "none",
        (Query(f"count({series(HealthMetrics.ready)} == 0) or vector(0)", "not serving"),),
        kind="stat",
        width=4,
        remedy="If it stays above 0 for minutes: the panel of reasons says why, and so does /readyz of the "
        "worker. Starting workers count until they serve.",
        bad_from=1,
    ),
    Panel(
        "Restarts",
        "Restarts of workers under the same address, in the time range.",
        "none",
        (Query(f"sum(changes({STARTED}[$__range]))", "restarts"),),
        kind="stat",
        width=4,
        remedy="If it grows by itself: a worker ends and is restarted. Its exit code and the last line of "
        "its log say why.",
        bad_from=4,
        nothing="none",
    ),
    Panel(
        "Commits refused",
        "Share of the steps that were refused because partitions had moved, in the time range. They are "
        "repeated.",
        "percentunit",
        (
            Query(
                f"sum({growth(WorkerMetrics.commits_refused)}) / (sum({growth(WorkerMetrics.commits)}) > 0)",
                "refused",
            ),
        ),
        kind="stat",
        width=4,
        remedy="If it is more than a few per cent: workers come and go, or take longer than the broker's "
        "session timeout allows. Look at restarts, and at how long a step takes.",
        bad_from=0.2,
        nothing="no commits",
    ),
    refused_tile(),
    lag_tile(),
)

RUNNING = (
    Panel(
        "Not serving, by reason",
        "Workers that do not serve, by reason.",
        "short",
        (Query(f"sum by (reason) ({series(HealthMetrics.not_ready)})", "{{reason}}"),),
        remedy="If one stays above 0: the page on metrics explains the reasons, and /readyz of the worker "
        "says what to do.",
    ),
    Panel(
        "Restarts by worker",
        "Number of restarts of each worker within the last half hour.",
        "short",
        (by_worker(f"changes({STARTED}[30m])", of="max"),),
        remedy="If a worker starts more than three times in half an hour: it fails for the same reason each "
        "time. Look at its exit code and the last line of its log.",
    ),
    Panel(
        "Seconds since the start",
        "How long each worker has run.",
        "s",
        (by_worker(f"time() - {STARTED}", of="min"),),
        remedy="If a line falls to 0 although nobody restarted the worker: it ended by itself. Its log says "
        "why.",
    ),
)

STEPS = (
    Panel(
        "Seconds of a step",
        "Time from the end of a poll to the end of its commit: median and 99th percentile. The same for the "
        "commit, and for the role's own computation in the step.",
        "s",
        (
            took(WorkerMetrics.step_seconds, 0.5, "step, half"),
            took(WorkerMetrics.step_seconds, 0.99, "step, 99 of 100"),
            took(WorkerMetrics.commit_seconds, 0.5, "commit, half"),
            took(WorkerMetrics.commit_seconds, 0.99, "commit, 99 of 100"),
            took(WorkerMetrics.batch_seconds, 0.5, "computation, half"),
            took(WorkerMetrics.batch_seconds, 0.99, "computation, 99 of 100"),
        ),
        remedy="If commits are most of it: the brokers are slow. If the computation is: start more workers, "
        "or check whether another process uses the processor.",
    ),
    Panel(
        "Commits a second",
        "Committed steps, and steps that were refused because partitions had moved. Refused steps are "
        "repeated.",
        "ops",
        (
            Query(f"sum by (group) ({rate(WorkerMetrics.commits)})", "committed, {{group}}"),
            Query(f"sum by (group) ({rate(WorkerMetrics.commits_refused)})", "refused, {{group}}"),
        ),
        remedy="If many are refused: workers come and go, so look at restarts. If none are committed while "
        "records wait: /readyz says why.",
    ),
    Panel(
        "Cluster did not answer",
        "Calls a second that no broker answered.",
        "ops",
        (by_worker(rate(WorkerMetrics.bus_failures)),),
        remedy="If it is above 0 at all workers: check the brokers. If only at one: check the network "
        "between it and the brokers.",
    ),
)

WAITED = (
    Panel(
        "Seconds to restore state",
        "Average time to restore a partition's state from the changelog, within the last hour. The partition "
        "does no work meanwhile.",
        "s",
        (
            Query(
                f"sum by (group) (increase({series(WorkerMetrics.restore_seconds.part('sum'))}[1h])) / (sum "
                f"by (group) (increase({series(WorkerMetrics.restore_seconds.part('count'))}[1h])) > 0)",
                "{{group}}",
            ),
        ),
        remedy="If it takes minutes: the changelog topic is not compacted, or has the state of very many "
        "clients. See the page on scaling.",
        width=12,
    ),
    Panel(
        "Rounds that timed out",
        "Rounds a second that were not complete in time, at members that wait for others.",
        "ops",
        (Query(f"sum by (group) ({rate(SharedMetrics.timed_out_rounds)})", "{{group}}"),),
        remedy="If it continues: a member is absent or too slow. Look for one without commits, or with a "
        "growing lag.",
        width=12,
    ),
)

RESOURCES = (
    Panel(
        "Memory",
        "Memory of each worker's process, as the operating system counts it. Not available on macOS and "
        "Windows.",
        "bytes",
        (by_worker(series(ProcessMetrics.resident_memory_bytes), of="max"),),
        remedy="If it keeps growing: compare it with the limits on waiting records in the settings. If it "
        "comes near the container's limit: raise that limit, or give each worker fewer partitions.",
    ),
    Panel(
        "Processors",
        "Number of processors that each worker keeps busy. Not available on macOS and Windows.",
        "short",
        (by_worker(rate(ProcessMetrics.cpu_seconds)),),
        remedy="If it stays near 1 while records wait: the worker is at its limit. Start more workers, up to "
        "the number of partitions.",
    ),
    Panel(
        "Bytes written a second",
        "Keys and values that were published, and those that were written to the changelog.",
        "Bps",
        (
            Query(f"sum by (group) ({rate(WorkerMetrics.output_bytes)})", "published, {{group}}"),
            Query(f"sum by (group) ({rate(WorkerMetrics.changelog_bytes)})", "remembered, {{group}}"),
        ),
        remedy="If the changelog gets many times more than is published: a longer commit interval writes "
        "state less often.",
    ),
)

RECORDS = (
    Panel(
        "Records a second",
        "Input records that were read, repeated ones, and those without a message, such as deletions.",
        "ops",
        (
            Query(f"sum by (group) ({rate(WorkerMetrics.records)})", "taken, {{group}}"),
            Query(f"sum by (group) ({rate(WorkerMetrics.repeated_records)})", "again, {{group}}"),
            Query(
                f"sum by (group) ({rate(WorkerMetrics.records_passed_over)})", "without a message, {{group}}"
            ),
        ),
        remedy="If none are read while records wait: /readyz of the workers says why. Records are repeated "
        "after a worker was killed; that is normal.",
        width=12,
    ),
    Panel(
        "Model records refused",
        "Records a second of the model's topic, or of another table, that could not be used, by reason.",
        "ops",
        (
            Query(
                f"sum by (group, reason) ({rate(WorkerMetrics.table_rejections)}) > 0", "{{group}} {{reason}}"
            ),
        ),
        nothing="none was refused",
        remedy="If there are some: somebody without the right writes to the topic, or members run different "
        "versions or settings.",
        width=12,
    ),
)

DASHBOARD = Dashboard(
    name="health",
    uid="streamfl-health",
    title="streamfl: service health",
    system="",
    rows=(TILES, RUNNING, STEPS, WAITED, RESOURCES, RECORDS, worker_panels()),
    description="Whether the workers of every system run, how long their steps take, and which errors occur.",
)
