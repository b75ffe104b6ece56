"""Running means that replace values missing from samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfl.contract.role import BadRecord
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.direct import federated
from streamfl.records.imputation import RunningMeans

NUMBERS = st.lists(st.one_of(st.just(math.nan), st.floats(-1e6, 1e6)), min_size=1, max_size=30)


@given(NUMBERS, st.integers(0, 30))
def test_a_missing_number_is_the_mean_of_those_before_it(numbers: list[float], restart: int) -> None:
    """Protects the prediction of a sample with a gap, before and after a restart. The expected value is
    NumPy's mean so far."""
    means = RunningMeans((1,))
    for place, number in enumerate(numbers):
        if place == restart:
            state = [value for _, _, value in means.changed_state()]
            means = RunningMeans((1,))
            if state:
                means.restore((0, "a"), state[-1])
        came = [one for one in numbers[:place] if one == one]
        expected = number if number == number else float(np.mean(came)) if came else 0.0
        assert means.fill((0, "a"), (7.0, number, 1.0)) == (
            7.0,
            pytest.approx(expected, rel=1e-9, abs=1e-6),
            1.0,
        )


def test_told_from_the_first_value_nothing_is_out_of_scale() -> None:
    """Protects the scales of the default learner: a sensor at 1013 that is missing from the first samples
    must not count as 0."""
    means = RunningMeans((0,), relative=True)
    assert [means.fill((0, "a"), (number,))[0] for number in (math.nan, 1013.0, 1015.0, math.nan)] == [
        0.0,
        0.0,
        2.0,
        1.0,
    ]


def test_the_last_value_stands_where_it_is_asked_for() -> None:
    """Protects slow sensors: their last value is a better guess than the mean. Each column has its own
    method."""
    means = RunningMeans((0, 1), (1,))
    for number in (1.0, 5.0):
        means.fill((0, "a"), (number, number))
    assert means.fill((0, "a"), (math.nan, math.nan)) == (3.0, 5.0)


def test_clients_and_partitions_are_apart() -> None:
    """Protects a client from another's mean, and a partition from the state of one that moved away."""
    means = RunningMeans((0,))
    for key, number in (((0, "a"), 1.0), ((0, "b"), 3.0), ((1, "a"), 5.0)):
        means.fill(key, (number,))
    assert [means.fill(key, (math.nan,)) for key in ((0, "a"), (0, "b"), (1, "a"))] == [
        (1.0,),
        (3.0,),
        (5.0,),
    ]
    means.close(0)
    assert [(partition, name) for partition, name, _ in means.changed_state()] == [(1, b"a")]
    assert means.forget((1, "a")) == [b"a"]
    assert means.forget((1, "a")) == []
    assert means.fill((1, "a"), (math.nan,)) == (0.0,)


@pytest.mark.parametrize(
    "numbers",
    [[1.0, 2.0], [-1.0, 2.0, 2.0], [1.5, 2.0, 2.0], [1.0, math.nan, 0.0], [1.0, 1e19, 0.0], [0.0, 1.0, 0.0]],
)
def test_what_it_cannot_have_written_is_refused(numbers: list[float]) -> None:
    """Protects all later predictions of a client from a damaged changelog record."""
    with pytest.raises(BadRecord):
        RunningMeans((0,)).restore((0, "a"), np.array(numbers, "<f8").tobytes())
    with pytest.raises(BadRecord):
        RunningMeans().restore((0, "a"), b"")


def test_the_default_learner_looks_at_differences_only() -> None:
    """Protects the reason why means are relative to a client's first value: a shift changes nothing."""
    generator = np.random.default_rng(1)
    inputs, labels = generator.standard_normal((40, 2, 3)), generator.random((40, 2))
    settings = PofmklSettings(
        federation={"name": "f", "clients": 2},
        role={"kind": "pofmkl-client"},
        learning={"features_per_kernel": 8, "precision": "float64"},
    )
    shifts = (0.0, np.array([[-7.0], [512.0]]))
    plain, shifted = (federated(settings, inputs + shift, labels, ["a", "b"]) for shift in shifts)
    assert shifted == pytest.approx(plain, abs=1e-5)
