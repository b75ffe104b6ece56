"""Metrics that a class declares."""

from __future__ import annotations

import pytest

from streamfl.contract.measurement import Counts, counter, declared, gauge
from streamfl.monitoring.alerts import increased
from streamfl.monitoring.dashboard import rate


class Means(Counts):
    samples = counter("Samples predicted", headline=True)
    refused = counter("Labels refused", reason=("late", "twice"))
    clients = gauge("Clients that are known")


class MoreMeans(Means):
    models = gauge("Models by name", model=None)


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
    assert (found.name, found.kind, found.help, found.labels) == ("models", "gauge", "Models by name", (("model", "ridge"),))
    assert (found.headline, found.known, found.until) == (False, False, 5.0)
    assert Means.samples(1).headline
    assert [one.name for one in declared(MoreMeans)] == ["samples", "refused", "clients", "models"]
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        MoreMeans.models(2.0)


def test_a_board_or_alert_of_what_no_metric_has_is_an_error() -> None:
    """Protects an operator from a panel that stays empty and an alert that never fires: Python finds the mistake at import."""
    assert 'streamfl_refused_total{reason="late"}[5m]' in increased(Means.refused, 5, reason="late")
    assert ',reason=~"late|twice"}[' in rate(Means.refused, reason=("late", "twice"))
    assert '{model="any"}' in MoreMeans.models.where(model="any")
    with pytest.raises(ValueError, match="streamfl_refused_total has no label reason with the value 'early'"):
        increased(Means.refused, 5, reason="early")
    with pytest.raises(ValueError, match="streamfl_refused_total has no label reason"):
        rate(Means.refused, reason=("late", "early"))
    with pytest.raises(ValueError, match="streamfl_refused_total has no label cause"):
        rate(Means.refused, cause="late")
