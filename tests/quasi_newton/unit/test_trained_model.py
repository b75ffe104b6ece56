"""A party's part of a trained model: it scores as it was trained, and comes back from bytes that somebody may
have spoilt."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.learning.own_columns import PartyArithmetic
from streamfl.quasi_newton.rows.preparation import Preparation
from streamfl.quasi_newton.rows.preprocessing import EVIDENCE, METHODS, Method, fit_preprocessing
from streamfl.quasi_newton.rows.weight_of_evidence import fit_weight_of_evidence
from streamfl.quasi_newton.training.trained_model import LatestModel, TrainedModel
from streamfl.state.changelog import ChangedParts

Floats = NDArray[np.float64]
KINDS = kinds(2, 100, 100, input_bound=3.0)


@pytest.fixture(name="rows")
def _rows() -> Floats:
    random = np.random.default_rng(4)
    columns = [random.lognormal(0, 2, 400), random.integers(0, 4, 400), random.normal(5, 3, 400)]
    return np.column_stack(columns)


def model_of(rows: Floats, method: Method, intercept: bool = False) -> TrainedModel:
    labels = np.where(rows[:, 1] + rows[:, 2] > 6, 1.0, -1.0)
    preprocessing = (
        fit_weight_of_evidence(rows, labels, least=5)
        if method == EVIDENCE
        else fit_preprocessing(method, rows)
    )
    kept = list(range(preprocessing.apply(rows).shape[1]))[1:]
    weights = np.random.default_rng(5).normal(size=len(kept) + intercept)
    return TrainedModel(7, weights, Preparation(preprocessing, kept), KINDS.inputs, intercept)


@pytest.mark.parametrize("method", [*METHODS, EVIDENCE])
def test_it_scores_a_row_as_training_did(method: Method, rows: Floats) -> None:
    """Protects scores: clipping, rounding and the intercept are those of training, after a way through bytes
    too."""
    intercept = method == EVIDENCE
    model = model_of(rows, method, intercept)
    inputs, kept = model.preparation.apply(rows), model.preparation.kept
    trained = PartyArithmetic(inputs, DescentSettings(), KINDS, model.weights, intercept=intercept)
    expected = KINDS.inner_products.decode(trained.outputs(np.arange(len(rows))))
    for one in (model, TrainedModel.decode(model.encode())):
        np.testing.assert_allclose(one.outputs(rows), expected, atol=2.0**-24)
        np.testing.assert_array_equal(one.outputs(rows[5:6]), one.outputs(rows)[5:6])
        assert (one.version, one.intercept, one.preparation.raw_columns) == (7, intercept, 3)
    if method == "standardise":
        # The bound of 3 cuts: without it the score would be another.
        assert not np.allclose(inputs @ model.weights[: len(kept)], expected, atol=0.1)


@pytest.mark.parametrize("method", ["rank", "quantile-bins", EVIDENCE])
def test_spoilt_bytes_are_refused(method: Method, rows: Floats) -> None:
    """Protects the process that takes state back: BadRecord, or another model of sound shape, whatever the
    bytes are."""
    content = model_of(rows, method, True).encode()
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(300):
        spoilt = bytearray(content)
        # Most bytes are of numbers, any of which may be; heads stand in front.
        for at in (*random.integers(0, len(spoilt), 2), random.integers(0, 40)):
            spoilt[at] = random.integers(0, 256)
        try:
            found = TrainedModel.decode(bytes(spoilt))
        except BadRecord:
            refused += 1
            continue
        with np.errstate(all="ignore"):
            found.preparation.apply(rows)
        assert len(found.weights) == len(found.preparation.kept) + found.intercept
    assert refused
    for end in range(0, len(content), 1 + len(content) // 50):
        with pytest.raises(BadRecord):
            TrainedModel.decode(content[:end])


def test_what_does_not_fit_together_is_refused(rows: Floats) -> None:
    """Protects scores: columns that are not there, weights too many, a deviation of 0, a number that is
    none."""

    def parts_of(method: Method) -> tuple[list[Any], list[Any]]:
        whole = msgspec.msgpack.decode(model_of(rows, method).encode())
        return whole, msgspec.msgpack.decode(whole[2])

    def with_preparation(at: int, value: object, method: Method = "standardise") -> bytes:
        whole, within = parts_of(method)
        changed = [*within[:at], value, *within[at + 1 :]]
        return msgspec.msgpack.encode([*whole[:2], msgspec.msgpack.encode(changed), *whole[3:]])

    whole, _ = parts_of("standardise")
    # Each bin has one weight of evidence, and a number.
    evidence = parts_of(EVIDENCE)[1][9]

    for wrong in (
        msgspec.msgpack.encode([*whole[:1], whole[1] + bytes(8), *whole[2:]]),
        msgspec.msgpack.encode([*whole[:1], b"\xff" * len(whole[1]), *whole[2:]]),
        with_preparation(8, [1, 3]),
        with_preparation(8, [2, 1]),
        with_preparation(8, [-1, 1]),
        with_preparation(3, bytes(24)),
        with_preparation(1, bytes(16)),
        with_preparation(5, [bytes(16)] * 3),
        with_preparation(0, "clip"),
        with_preparation(0, "quantile-bins"),
        with_preparation(0, EVIDENCE),
        with_preparation(9, [bytes(16)] * 3),
        with_preparation(9, [], EVIDENCE),
        with_preparation(9, evidence[:2], EVIDENCE),
        with_preparation(9, [evidence[0] + bytes(8), *evidence[1:]], EVIDENCE),
        with_preparation(9, [b"\xff" * len(one) for one in evidence], EVIDENCE),
    ):
        with pytest.raises(BadRecord):
            TrainedModel.decode(wrong)


def test_a_model_of_an_earlier_release_is_taken_back(rows: Floats) -> None:
    """Protects federations that run: their changelogs know no weights of bins."""
    model = model_of(rows, "quantile-bins")
    whole = msgspec.msgpack.decode(model.encode())
    within = msgspec.msgpack.decode(whole[2])
    assert within[9:] == [[]]
    earlier = msgspec.msgpack.encode([*whole[:2], msgspec.msgpack.encode(within[:9]), *whole[3:]])
    np.testing.assert_array_equal(TrainedModel.decode(earlier).outputs(rows), model.outputs(rows))


def test_the_latest_model_is_remembered(rows: Floats) -> None:
    """Protects scoring after a restart: the newer model takes the older one's place, in what is restored
    too."""
    parts = ChangedParts()
    owner = LatestModel(parts)
    assert owner.model is None
    longer = model_of(np.repeat(rows, 3, axis=0) * np.random.default_rng(0).normal(size=(1200, 3)), "rank")
    state: dict[bytes, bytes | None] = {}
    for model in (longer, model_of(rows, "clip")):
        owner.keep(model)
        state |= dict(parts.changed_state())
    restored = ChangedParts()
    again = LatestModel(restored)
    for key, value in state.items():
        if value is not None:
            restored.restore(key, value)
    assert again.model is not None
    assert again.model.encode() == model_of(rows, "clip").encode()
