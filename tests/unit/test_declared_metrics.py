"""Metrics that a class declares."""

from __future__ import annotations

from collections import Counter

import pytest

from streamfl.contract.measurement import Counts, counter, declared, gauge, histogram
from streamfl.contract.system import installed_systems
from streamfl.monitoring.alerts import increased
from streamfl.monitoring.dashboard import rate
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.metrics import EVERY_WORKER, Metrics


class Means(Counts):
    samples = counter("Samples predicted", headline=True)
    refused = counter("Labels refused", reason=("late", "twice"))
    clients = gauge("Clients that are known")


class MoreMeans(Means):
    models = gauge("Models by name", model=None)
    seconds = histogram("Seconds of a step", (0.5, 1.0), step=("first", "last"))


class Elsewhere:
    prefix = "python_"
    threads = gauge("Threads of the process")


def test_each_object_has_its_own_counts() -> None:
    """Protects two roles in one process, as in the simulator: neither counts what the other did."""
    one, other = Means(), Means()
    one.samples += 2
    one.refused["late"] += 1
    assert [found.value for found in one.measure_counts()] == [2, 1, 0]
    assert [found.value for found in other.measure_counts()] == [0, 0, 0]


def test_a_measurement_is_as_declared() -> None:
    """Protects /metrics: name, kind, help, headline and labels are those of the declaration."""
    found = MoreMeans.models(2.0, "ridge", known=False, until=5.0)
    assert (found.name, found.kind, found.help, found.labels) == (
        "models",
        "gauge",
        "Models by name",
        (("model", "ridge"),),
    )
    assert (found.headline, found.known, found.until) == (False, False, 5.0)
    assert Means.samples(1).headline
    assert [one.name for one in declared(MoreMeans)] == ["samples", "refused", "clients", "models", "seconds"]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        MoreMeans.models(2.0)


def test_a_board_or_alert_of_what_no_metric_has_is_an_error() -> None:
    """Protects an operator from a panel that stays empty and an alert that never fires: Python finds the
    mistake at import."""
    assert 'streamfl_refused_total{reason="late"}[5m]' in increased(Means.refused, 5, reason="late")
    assert ',reason=~"late|twice"}[' in rate(Means.refused, reason=("late", "twice"))
    assert '{model="any"}' in MoreMeans.models.where(model="any")
    with pytest.raises(ValueError, match="streamfl_refused_total has no label reason with the value 'early'"):
        increased(Means.refused, 5, reason="early")
    with pytest.raises(ValueError, match="streamfl_refused_total has no label reason"):
        rate(Means.refused, reason=("late", "early"))
    with pytest.raises(ValueError, match="streamfl_refused_total has no label cause"):
        rate(Means.refused, cause="late")
    with pytest.raises(AttributeError):
        rate("refused_total")


def test_a_histogram_and_a_metric_of_another_library_are_found_under_their_names() -> None:
    """Protects panels of durations and of the process: a histogram has three series, and not every name
    begins with streamfl."""
    assert MoreMeans.seconds.part("bucket").where(step="last") == 'streamfl_seconds_bucket{step="last"}'
    assert [str(MoreMeans.seconds.part(name)) for name in ("sum", "count")] == [
        "streamfl_seconds_sum",
        "streamfl_seconds_count",
    ]
    with pytest.raises(ValueError, match="streamfl_seconds_sum has no label step with the value 'middle'"):
        MoreMeans.seconds.part("sum").where(step="middle")
    assert str(Elsewhere.threads) == "python_threads"


@pytest.mark.parametrize("kind", [kind for system in installed_systems() for kind in system.kinds])
def test_no_two_metrics_of_a_worker_have_one_name(kind: str) -> None:
    """Protects a figure from another one under its name: Prometheus keeps one of the two."""
    names = Counter(str(one) for one in declared(*EVERY_WORKER, *find_kind(kind).metrics))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_reason_that_nobody_declared_is_counted_and_changes_nothing_that_is_being_read() -> None:
    """Protects a scrape, which reads from another thread, from a dictionary that grows meanwhile."""
    metrics = Metrics(refusals={})
    before = metrics.dead_letters
    metrics.refused("odd", of_table=False)
    metrics.refused("odd", of_table=False)
    metrics.refused("odd", of_table=True)
    assert (before, metrics.dead_letters, metrics.table_rejections) == ({}, {"odd": 2}, {"odd": 1})
    assert 'streamfl_dead_letters_total{reason="odd"} 2.0' in metrics.render().decode()
