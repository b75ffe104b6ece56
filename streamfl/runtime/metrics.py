"""The worker's and its role's figures in Prometheus' text format, computed at each scrape."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from streamfl.contract.measurement import (
    PREFIX,
    Counts,
    Histogram,
    Measurement,
    counter,
    declared,
    gauge,
    histogram,
)
from streamfl.contract.refusals import IGNORED, REFUSALS, Reason
from streamfl.runtime.bus import Moved
from streamfl.runtime.health import HealthMetrics
from streamfl.runtime.lag import SessionMetrics

__all__ = ["CONTENT_TYPE", "EVERY_WORKER", "Metrics", "ProcessMetrics", "WorkerMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Buckets from one record on a fast machine to a batch that would miss every deadline.
SECONDS = (
    50e-6,
    100e-6,
    250e-6,
    500e-6,
    1e-3,
    2.5e-3,
    5e-3,
    10e-3,
    25e-3,
    50e-3,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
)
# Buckets from an empty changelog to one of gigabytes.
RESTORE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class WorkerMetrics(Counts):
    """What the loop of every worker counts and times."""

    start_time_seconds = gauge("When this worker started, in seconds since 1970.")
    batch_seconds = histogram("Seconds a role takes for a batch.", SECONDS)
    step_seconds = histogram("Seconds from the end of a poll to the end of its commit.", SECONDS)
    commit_seconds = histogram("Seconds that the commit of a step takes, including refused ones.", SECONDS)
    restore_seconds = histogram(
        "Seconds to restore a partition's state, at the start and whenever partitions move.", RESTORE_SECONDS
    )
    work_seconds = histogram(
        "Seconds that a piece of a role's long work takes, by function.", SECONDS, work=None
    )
    records = counter("Input records received.", headline=True)
    repeated_records = counter("Input records skipped because their effect is already in the state.")
    dead_letters = counter("Input records refused, by reason.", reason=None, headline=True)
    records_passed_over = counter(
        "Input records skipped because they carry no message, such as deletions, by reason.",
        reason=tuple(IGNORED),
    )
    table_rejections = counter("Table records refused, by reason.", reason=None, headline=True)
    deleted_unread_records = counter(
        "Offsets of records that were deleted before they were read, by input topic; Kafka's control records "
        "count too.",
        topic=None,
    )
    lost_records = counter(
        "Offsets of records that were read and that the cluster has lost since, by input topic; new ones may "
        "be in their place.",
        topic=None,
    )
    commits = counter("Steps committed.")
    commits_refused = counter("Steps refused because the partitions had moved.", headline=True)
    bus_failures = counter("Times the cluster did not answer.", headline=True)
    output_bytes = counter("Bytes of keys and values published.")
    changelog_bytes = counter("Bytes of keys and values written to the changelog.")


class ProcessMetrics:
    """What Prometheus' client library measures of the process. Without /proc there is nothing."""

    prefix = "process_"

    resident_memory_bytes = gauge("Resident memory of the process, in bytes.")
    virtual_memory_bytes = gauge("Virtual memory of the process, in bytes.")
    cpu_seconds = counter("Seconds of processor time of the process.")
    start_time_seconds = gauge("When the process started, in seconds since 1970.")
    open_fds = gauge("Files that the process has open.")
    max_fds = gauge("Most files that the process may have open.")


EVERY_WORKER = (HealthMetrics, SessionMetrics, WorkerMetrics, ProcessMetrics)
"""The classes that declare the metrics of every worker, whatever its role."""


class Metrics(WorkerMetrics):
    """A worker's own counts and times, and the figures that ``measure`` returns at a scrape.

    labels: the labels of every series: whose worker it is. Without them, sums over workers would mix
    federations.
    refusals: the reasons for refusing records. Their counters exist from the start, because Prometheus sees
    no increase in a counter that first appears with a value of 22.
    inputs: the topics that are read, whose counters exist from the start too.

    >>> class Means:
    ...     samples = counter("Samples taken.")
    >>> metrics = Metrics(lambda: [Means.samples(3)], {"system": "means"})
    >>> 'streamfl_samples_total{system="means"} 3.0' in metrics.render().decode()
    True
    """

    def __init__(
        self,
        measure: Callable[[], Iterable[Measurement]] = list,
        labels: Mapping[str, str] | None = None,
        refusals: Mapping[str, Reason] = REFUSALS,
        inputs: Iterable[str] = (),
    ) -> None:
        self.measure = measure
        self.refusals = refusals
        self._labels = dict(labels or {})
        self.dead_letters, self.table_rejections = dict.fromkeys(refusals, 0), dict.fromkeys(refusals, 0)
        topics = tuple(inputs)
        self.deleted_unread_records, self.lost_records = dict.fromkeys(topics, 0), dict.fromkeys(topics, 0)
        self._begun = time.time()
        self._registry = registry = prometheus.CollectorRegistry()
        self._timed = {
            one: prometheus.Histogram(
                str(one), one.help, tuple(one.labels), registry=registry, buckets=one.buckets
            )
            for one in declared(WorkerMetrics)
            if isinstance(one, Histogram)
        }
        registry.register(_Measurements(self._own))
        prometheus.ProcessCollector(registry=registry)
        registry.register(_Measurements(lambda: self.measure()))

    def _own(self) -> Iterator[Measurement]:
        yield WorkerMetrics.start_time_seconds(self._begun)
        yield from self.measure_counts()

    def seconds(self, metric: Histogram, *labels: str) -> prometheus.Histogram:
        """What observes a histogram of :class:`WorkerMetrics`, for the values of its labels."""
        timed = self._timed[metric]
        return timed.labels(*labels) if labels else timed

    def taken(self, records: int, repeated: int, passed_over: Mapping[str, int]) -> None:
        """Count input records: read for the first time, repeated, and, among the first, those that are no
        messages, by reason."""
        self.records += records
        self.repeated_records += repeated
        for reason, count in passed_over.items():
            self.records_passed_over = _added(self.records_passed_over, reason, count)

    def refused(self, reason: str, *, of_table: bool) -> None:
        """Count a refused record of an input, or of a table."""
        if of_table:
            self.table_rejections = _added(self.table_rejections, reason, 1)
        else:
            self.dead_letters = _added(self.dead_letters, reason, 1)

    def moved(self, moved: Moved) -> None:
        """Count records that were gone when they were to be read, or that the cluster lost after they had
        been read."""
        distance = moved.following - moved.position
        if distance > 0:
            self.deleted_unread_records = _added(self.deleted_unread_records, moved.topic, distance)
        else:
            self.lost_records = _added(self.lost_records, moved.topic, -distance)

    def committed(self, output_bytes: int, changelog_bytes: int) -> None:
        """Count a committed step, and the bytes that it published and remembered."""
        self.commits += 1
        self.output_bytes += output_bytes
        self.changelog_bytes += changelog_bytes

    def render(self) -> bytes:
        """All figures in the text format, version 0.0.4."""
        return prometheus.generate_latest(_Labelled(self._registry, self._labels))


def _added(counts: Mapping[str, int], label: str, count: int) -> dict[str, int]:
    # A new dictionary, because another thread may be reading the one before.
    return {**counts, label: counts.get(label, 0) + count}


class _Labelled(prometheus.CollectorRegistry):
    """The metrics of another registry, with more labels and without the creation times of counters."""

    def __init__(self, registry: prometheus.CollectorRegistry, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._all = registry
        self._labels = labels

    def collect(self) -> Iterator[Family]:
        for family in self._all.collect():
            family.samples = [
                sample._replace(labels={**self._labels, **sample.labels})
                for sample in family.samples
                if not sample.name.endswith("_created")
            ]
            yield family


class _Measurements(Collector):
    def __init__(self, measure: Callable[[], Iterable[Measurement]]) -> None:
        self._measure = measure

    def describe(self) -> list[Family]:
        # Nothing is known before the first scrape; without this method the registry would collect at
        # registration.
        return []

    def collect(self) -> Iterator[Family]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for measurement in self._measure():
            name = PREFIX + measurement.name
            if name not in families:
                labels = [label for label, _ in measurement.labels]
                family = CounterMetricFamily if measurement.kind == "counter" else GaugeMetricFamily
                families[name] = family(name, measurement.help, labels=labels)
            value = measurement.value if measurement.known else math.nan
            families[name].add_metric([value for _, value in measurement.labels], value)
        yield from families.values()
