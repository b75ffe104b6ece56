"""The dashboard of all workers: whether they run, how long steps take, which resources they use, and which errors occur."""

from __future__ import annotations

from streamfl.monitoring.dashboard import CHOSEN, Dashboard, Panel, Query, growth, rate, series
from streamfl.monitoring.worker_panels import BY_WORKER, lag_tile, refused_tile, worker_panels, workers_tile

__all__ = ["DASHBOARD"]

STARTED = series("start_time_seconds")


def process(metric: str) -> str:
    """One of the process metrics of Prometheus' client."""
    return f"process_{metric}{{{CHOSEN}}}"


def by_worker(expression: str, of: str = "sum") -> Query:
    """A line for each worker. of: the aggregation of a worker's series."""
    return Query(f"{of} by (group, instance) ({expression})", BY_WORKER)


def took(histogram: str, share: float, legend: str) -> Query:
    """A quantile of a histogram. share: the quantile, 0 to 1."""
    return Query(f"histogram_quantile({share}, sum by (le) ({rate(f'{histogram}_bucket')}))", legend)


TILES = (
    workers_tile(),
    Panel(
        "Workers not serving",
        "Workers that run and do not serve.",
        "none",
        (Query(f"count({series('ready')} == 0) or vector(0)", "not serving"),),
        kind="stat",
        width=4,
        remedy="If it stays above 0 for minutes: the panel of reasons says why, and /readyz of the worker says it in a sentence. "
        "Workers that start are counted until they serve.",
        bad_from=1,
    ),
    Panel(
        "Restarts",
        "Times that workers started again under the same address, over the time that is shown.",
        "none",
        (Query(f"sum(changes({STARTED}[$__range]))", "restarts"),),
        kind="stat",
        width=4,
        remedy="If it grows by itself: a worker ends and is started again. Its exit code and the last line of its log say why.",
        bad_from=4,
        nothing="none",
    ),
    Panel(
        "Commits refused",
        "Share of the steps that were refused because partitions had moved, over the time that is shown. They are done again.",
        "percentunit",
        (Query(f"sum({growth('commits_refused_total')}) / (sum({growth('commits_total')}) > 0)", "refused"),),
        kind="stat",
        width=4,
        remedy="If it is more than a few per cent: workers come and go, or take longer than the broker's session timeout "
        "allows. Look at restarts, and at how long a step takes.",
        bad_from=0.2,
        nothing="no commits",
    ),
    refused_tile(),
    lag_tile(),
)

RUNNING = (
    Panel(
        "Not serving, by reason",
        "Workers that do not serve, by the reason that they give.",
        "short",
        (Query(f"sum by (reason) ({series('not_ready')})", "{{reason}}"),),
        remedy="If one stays above 0: the page of metrics explains the reasons, and /readyz of the worker says what to do.",
    ),
    Panel(
        "Restarts by worker",
        "How often each worker started again within the last half hour.",
        "short",
        (by_worker(f"changes({STARTED}[30m])", "max"),),
        remedy="If a worker starts more than three times in half an hour: it fails for the same reason each time. Look at its exit "
        "code and the last line of its log.",
    ),
    Panel(
        "Seconds since the start",
        "How long each worker has run.",
        "s",
        (by_worker(f"time() - {STARTED}", "min"),),
        remedy="If a line falls to 0 and nobody restarted the worker: it ended by itself. Its log says why.",
    ),
)

STEPS = (
    Panel(
        "Seconds of a step",
        "From the end of a poll to the end of its commit: half of the steps, and 99 of 100, took less. And the same of the commit "
        "and of the role's own computation in it.",
        "s",
        (
            took("step_seconds", 0.5, "step, half"),
            took("step_seconds", 0.99, "step, 99 of 100"),
            took("commit_seconds", 0.5, "commit, half"),
            took("commit_seconds", 0.99, "commit, 99 of 100"),
            took("batch_seconds", 0.5, "computation, half"),
            took("batch_seconds", 0.99, "computation, 99 of 100"),
        ),
        remedy="If commits are most of it: the brokers are slow. If the computation is: start more workers, or look whether "
        "another process takes the processor.",
    ),
    Panel(
        "Commits a second",
        "Steps that were committed, and steps that were refused because partitions had moved. Those are done again.",
        "ops",
        (
            Query(f"sum by (group) ({rate('commits_total')})", "committed, {{group}}"),
            Query(f"sum by (group) ({rate('commits_refused_total')})", "refused, {{group}}"),
        ),
        remedy="If many are refused: workers come and go. Look at restarts. If none are committed while records wait: ask /readyz.",
    ),
    Panel(
        "Cluster did not answer",
        "Times a second that a worker found no broker that answers.",
        "ops",
        (by_worker(rate("bus_failures_total")),),
        remedy="If it is above 0 at all workers: look at the brokers. If at one: look at the network between it and them.",
    ),
)

WAITED = (
    Panel(
        "Seconds to take state back",
        "How long it took to take a partition's state back from the changelog, on average within the last hour. The partition "
        "stands still meanwhile.",
        "s",
        (
            Query(
                f"sum by (group) (increase({series('restore_seconds_sum')}[1h]))"
                f" / (sum by (group) (increase({series('restore_seconds_count')}[1h])) > 0)",
                "{{group}}",
            ),
        ),
        remedy="If it is minutes: the changelog topic is not compacted, or holds the state of very many clients. See the page "
        "on scaling.",
        width=12,
    ),
    Panel(
        "Rounds that timed out",
        "Rounds a second that were not complete in time, at those members that wait for others.",
        "ops",
        (Query(f"sum by (group) ({rate('timed_out_rounds_total')})", "{{group}}"),),
        remedy="If it goes on: a member is away or too slow. Look which one has no commits, or a lag that grows.",
        width=12,
    ),
)

RESOURCES = (
    Panel(
        "Memory",
        "Memory that the process of each worker has, as the operating system counts it. Not known on macOS and Windows.",
        "bytes",
        (by_worker(process("resident_memory_bytes"), "max"),),
        remedy="If it grows without end: what waits has limits, so compare with the limits in the settings. If it comes near the "
        "container's limit: raise that, or give each worker fewer partitions.",
    ),
    Panel(
        "Processors",
        "How many processors each worker keeps busy. Not known on macOS and Windows.",
        "short",
        (by_worker(f"rate({process('cpu_seconds_total')}[$__rate_interval])"),),
        remedy="If it stays near 1 and records wait: the worker is at its limit. Start more workers, up to the number of "
        "partitions.",
    ),
    Panel(
        "Bytes written a second",
        "Keys and values that were published, and those that were remembered in the changelog.",
        "Bps",
        (
            Query(f"sum by (group) ({rate('output_bytes_total')})", "published, {{group}}"),
            Query(f"sum by (group) ({rate('changelog_bytes_total')})", "remembered, {{group}}"),
        ),
        remedy="If what is remembered is many times what is published: a longer commit interval writes it less often.",
    ),
)

RECORDS = (
    Panel(
        "Records a second",
        "Input records that were taken, those that came again, and those that are no messages, such as deletions.",
        "ops",
        (
            Query(f"sum by (group) ({rate('records_total')})", "taken, {{group}}"),
            Query(f"sum by (group) ({rate('repeated_records_total')})", "again, {{group}}"),
            Query(f"sum by (group) ({rate('records_passed_over_total')})", "no messages, {{group}}"),
        ),
        remedy="If none are taken while records wait: ask /readyz of the workers. Records come again after a worker was "
        "killed; that is well.",
        width=12,
    ),
    Panel(
        "Model records refused",
        "Records of the model's topic, or of another table, that could not be used, a second, by reason.",
        "ops",
        (Query(f"sum by (group, reason) ({rate('table_rejections_total')}) > 0", "{{group}} {{reason}}"),),
        nothing="none was refused",
        remedy="If there are some: somebody writes to the topic who should not, or members run different versions or settings.",
        width=12,
    ),
)

DASHBOARD = Dashboard(
    name="health",
    uid="streamfl-health",
    title="streamfl: service health",
    system="",
    rows=(TILES, RUNNING, STEPS, WAITED, RESOURCES, RECORDS, worker_panels()),
    description="Whether the workers of every system run, how long their steps take, and what goes wrong around them.",
)
