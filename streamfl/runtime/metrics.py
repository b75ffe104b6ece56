"""The worker's and its role's figures in Prometheus' text format, computed at each scrape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamfl.contract.refusals import IGNORED, REFUSALS, Reason
from streamfl.contract.role import Measurement
from streamfl.runtime.bus import Moved

__all__ = ["CONTENT_TYPE", "SECONDS", "Described", "Metrics", "describe"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "streamfl_"

# Buckets from one record on a fast machine to a batch that would miss every deadline.
SECONDS = (50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# Buckets from an empty changelog to one of gigabytes.
RESTORE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Described(NamedTuple):
    """A metric without its value: its name as in ``/metrics``, and its description."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


PROCESS = (
    Described("process_resident_memory_bytes", "gauge", (), "Resident memory of the process, in bytes."),
    Described("process_virtual_memory_bytes", "gauge", (), "Virtual memory of the process, in bytes."),
    Described("process_cpu_seconds_total", "counter", (), "Seconds of processor time of the process."),
    Described("process_start_time_seconds", "gauge", (), "When the process started, in seconds since 1970."),
    Described("process_open_fds", "gauge", (), "Files that the process has open."),
    Described("process_max_fds", "gauge", (), "Most files that the process may have open."),
)


def describe(one: Measurement) -> Described:
    """The metric that a measurement becomes."""
    name = f"{PREFIX}{one.name.removeprefix(PREFIX)}{'_total' if one.kind == 'counter' else ''}"
    return Described(name, one.kind, tuple(label for label, _ in one.labels), one.help)


class Metrics:
    """A worker's own counters, and the figures that ``measure`` returns at a scrape.

    labels: the labels of every series: whose worker it is. Without them, sums over workers would mix federations.
    refusals: the reasons for refusing records. Their counters exist from the start, because Prometheus sees no increase in a
    counter that first appears with a value of 22.
    inputs: the topics that are read, whose counters exist from the start too.
    counted: the descriptions of the worker's own counters.

    >>> metrics = Metrics(lambda: [Measurement("samples", "counter", "Samples taken.", 3.0)], {"system": "means"})
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
        registry = CollectorRegistry()
        self.measure = measure
        self.counted: list[Described] = []
        self._labels = dict(labels or {})
        self.refusals = refusals

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            self.counted.append(Described(f"{PREFIX}{name}_total", "counter", labels, text))
            return Counter(PREFIX + name, text, labels, registry=registry)

        def histogram(name: str, text: str, labels: tuple[str, ...] = (), buckets: Sequence[float] = SECONDS) -> Histogram:
            self.counted.append(Described(PREFIX + name, "histogram", labels, text))
            return Histogram(PREFIX + name, text, labels, registry=registry, buckets=buckets)

        text = "When this worker started, in seconds since 1970."
        self.counted.append(Described(f"{PREFIX}start_time_seconds", "gauge", (), text))
        Gauge(f"{PREFIX}start_time_seconds", text, registry=registry).set_to_current_time()
        self.batch_seconds = histogram("batch_seconds", "Seconds a role takes for a batch.")
        self.step_seconds = histogram("step_seconds", "Seconds from the end of a poll to the end of its commit.")
        self.commit_seconds = histogram("commit_seconds", "Seconds that the commit of a step takes, including refused ones.")
        text = "Seconds to restore a partition's state, at the start and whenever partitions move."
        self.restore_seconds = histogram("restore_seconds", text, (), RESTORE_SECONDS)
        self.work_seconds = histogram(
            "work_seconds", "Seconds that a piece of a role's long work takes, by function.", ("work",)
        )
        self.records = counter("records", "Input records received.")
        self.repeated = counter("repeated_records", "Input records skipped because their effect is already in the state.")
        self.dead_letters = counter("dead_letters", "Input records refused, by reason.", ("reason",))
        text = "Input records skipped because they carry no message, such as deletions, by reason."
        self.passed_over = counter("records_passed_over", text, ("reason",))
        self.table_rejections = counter("table_rejections", "Table records refused, by reason.", ("reason",))
        text = "Offsets of records that were deleted before they were read, by input topic; Kafka's control records count too."
        self._unread = counter("deleted_unread_records", text, ("topic",))
        text = (
            "Offsets of records that were read and that the cluster has lost since, by input topic; new ones may be in their place."
        )
        self._lost = counter("lost_records", text, ("topic",))
        for topic in inputs:
            self._unread.labels(topic)
            self._lost.labels(topic)
        for refused in (self.dead_letters, self.table_rejections):
            for reason in refusals:
                refused.labels(reason)
        for reason in IGNORED:
            self.passed_over.labels(reason)
        self.commits = counter("commits", "Steps committed.")
        self.commits_refused = counter("commits_refused", "Steps refused because the partitions had moved.")
        self.bus_failures = counter("bus_failures", "Times the cluster did not answer.")
        self.output_bytes = counter("output_bytes", "Bytes of keys and values published.")
        self.changelog_bytes = counter("changelog_bytes", "Bytes of keys and values written to the changelog.")
        # Process metrics of Prometheus' client. Without /proc there are none.
        self.counted += PROCESS
        ProcessCollector(registry=registry)
        self._registry = registry
        registry.register(_Measurements(lambda: self.measure()))

    def taken(self, records: int, repeated: int, passed_over: Mapping[str, int]) -> None:
        """Count input records: read for the first time, repeated, and, among the first, those that are no messages, by reason."""
        self.records.inc(records)
        self.repeated.inc(repeated)
        for reason, count in passed_over.items():
            self.passed_over.labels(reason).inc(count)

    def moved(self, moved: Moved) -> None:
        """Count records that were gone when they were to be read, or that the cluster lost after they had been read."""
        distance = moved.following - moved.position
        (self._unread if distance > 0 else self._lost).labels(moved.topic).inc(abs(distance))

    def committed(self, output_bytes: int, changelog_bytes: int) -> None:
        """Count a committed step, and the bytes that it published and remembered."""
        self.commits.inc()
        self.output_bytes.inc(output_bytes)
        self.changelog_bytes.inc(changelog_bytes)

    def headlines(self) -> Iterator[Measurement]:
        """Those of the worker's own counters that belong in the log's line of progress."""
        for counter in (self.records, self.dead_letters, self.table_rejections, self.commits_refused, self.bus_failures):
            for family in counter.collect():
                name = family.name.removeprefix(PREFIX)
                counted = [sample for sample in family.samples if sample.name.endswith("_total")]
                if not counted:
                    # A counter with labels has no sample before its first count.
                    yield Measurement(name, "counter", "", 0.0, (), True)
                for sample in counted:
                    yield Measurement(name, "counter", "", sample.value, tuple(sample.labels.items()), True)

    def render(self) -> bytes:
        """All figures in the text format, version 0.0.4."""
        return generate_latest(_Labelled(self._registry, self._labels))


class _Labelled(CollectorRegistry):
    """The metrics of another registry, with more labels and without the creation times of counters."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._all = registry
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
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

    def describe(self) -> list[Metric]:
        # Nothing is known before the first scrape; without this method the registry would collect at registration.
        return []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for measurement in self._measure():
            name = measurement.name if measurement.name.startswith(PREFIX) else PREFIX + measurement.name
            if name not in families:
                labels = [label for label, _ in measurement.labels]
                family = CounterMetricFamily if measurement.kind == "counter" else GaugeMetricFamily
                families[name] = family(name, measurement.help, labels=labels)
            value = measurement.value if measurement.known else math.nan
            families[name].add_metric([value for _, value in measurement.labels], value)
        yield from families.values()
