"""What the last digits of noisy numbers tell: nothing, because values and noise lie on one grid."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grids import grid
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import norm
from vafl.makers import Steps, make_party

from streamfl.contract.role import Received, Record, Send
from streamfl.learning.accuracy import area_under_curve
from streamfl.privacy.keyed_noise import ROUNDING
from streamfl.records.samples import Sample
from streamfl.vafl.functions.heads import LOGISTIC, SQUARE, OutputLoss, softmax_loss
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import EMBEDDING
from streamfl.vafl.privacy import BoundedOutput, Mechanism

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.vafl.feature_attacks import reachable
from benchmarks.vafl.label_attacks import told_of_a_label

SECRET, SIZE, ENTITIES = "5e" * 32, 8, 1500
# Enough for a number on a finer grid to be among them.
FEW = 200


def embeddings(record: Sequence[float], noise: float) -> NDArray[np.float64]:
    """What a party with the identity as its model shows of so many entities with the same features,
    (ENTITIES, SIZE)."""
    role = make_party(
        name="a",
        function=BoundedOutput(Identity(), 1.0, normalise=False),
        inputs=SIZE,
        embedding_size=SIZE,
        steps=Steps(),
        seed=1,
        mechanism=Mechanism(1.0, noise, None, None, None, SECRET),
    )
    role.open(0)
    names = [f"e{number}" for number in range(ENTITIES)]
    batch = [
        Received(
            "samples", Sample(name, "s", tuple(record), None), Record("samples", 0, 0, name.encode(), b"")
        )
        for name in names
    ]
    sends = [one for one in role.receive(batch, 0.0) if isinstance(one, Send)]
    return np.array([np.frombuffer(EMBEDDING.decode(one.value).values) for one in sends])


class Identity(DenseNetwork):
    """Its parameters begin as those of h = x."""

    def __init__(self) -> None:
        super().__init__([SIZE, SIZE], bias=False, dtype=np.float64)

    def initial(self, seed: int, *path: str | int) -> NDArray[Any]:
        return np.eye(SIZE).ravel()


def test_the_last_digits_of_an_embedding_tell_no_record() -> None:
    """Protects the claim in double precision: a plain sum tells which record it is of by what such a sum can
    reach. What a party shows lies on the same grid for both, and the attack is no better than the mechanism
    allows.
    """
    noise, records = 8.0, np.array([[1.0] + [0.0] * (SIZE - 1), [-0.3, 0.4, 0.5, 0.5, 0.3, 0.2, 0.3, 0.1]])
    truth = np.repeat([1.0, 0.0], ENTITIES)
    bound = norm.cdf(np.linalg.norm(records[0] - records[1]) / noise / np.sqrt(2))

    def area(told: Sequence[NDArray[Any]]) -> float:
        both = np.concatenate(told)
        scores = [reachable(both, record * (1 - ROUNDING), noise).sum(axis=1) for record in records]
        return area_under_curve((scores[0] - scores[1]).astype(float), truth)

    drawn = np.random.default_rng(1).integers(0, 2**52, (2, ENTITIES, SIZE))
    noises = noise * ndtri((drawn + 0.5) * 2.0**-52)
    plain = area([record * (1 - ROUNDING) + own for record, own in zip(records, noises, strict=True)])
    shown = [embeddings(record.tolist(), noise) for record in records]
    own = area(shown)
    print(
        f"float64 embeddings, AUC of the last digits: plain sum {plain:.4f}, on a grid {own:.4f}, claimed "
        f"{bound:.4f}"
    )
    assert plain > 0.99
    assert own <= bound + 4 * np.sqrt(1 / (6 * ENTITIES))
    assert grid(shown[0]) == grid(shown[1]) == 2.0**-18


def label_parts(
    loss: OutputLoss, noise: float, label: float, dtype: Any, entities: int
) -> NDArray[np.float64]:
    """What a party is told of so many entities with this label, less what it can compute by itself,
    (entities, outputs)."""
    told = told_of_a_label(loss, noise, label, entities, SECRET, dtype)
    assert len(told) == entities
    return told.astype(np.float64)


def test_the_last_digits_of_a_gradient_tell_no_label() -> None:
    """Protects labels from whoever makes the rest of a gradient so small that the label and its noise are
    told exactly."""
    noise, truth = 2.0, np.repeat([1.0, 0.0], ENTITIES)
    told = [label_parts(LOGISTIC, noise, label, np.float64, ENTITIES)[:, 0] for label in (1.0, 0.0)]
    drawn = noise * ndtri((np.random.default_rng(2).integers(0, 2**52, (2, ENTITIES)) + 0.5) * 2.0**-52)

    def area(told: Sequence[NDArray[Any]]) -> float:
        both = np.concatenate(told)
        able = reachable(both, -1.0, noise).astype(float) - reachable(both, 0.0, noise)
        return area_under_curve(able - both / 100, truth)

    plain, own = area([drawn[0] - 1.0, drawn[1] + 0.0]), area(told)
    bound, margin = norm.cdf(1 / noise / np.sqrt(2)), 4 * np.sqrt(1 / (6 * ENTITIES))
    print(f"label, AUC of the last digits: plain sum {plain:.3f}, on a grid {own:.3f}, claimed {bound:.3f}")
    assert plain > bound + margin
    assert own <= bound + margin
    assert grid(told[0]) == grid(told[1]) == 2.0**-16


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [SQUARE, LOGISTIC, softmax_loss(3)], ids=lambda loss: loss.name)
def test_what_is_told_of_a_label_lies_on_one_grid(loss: OutputLoss, dtype: Any) -> None:
    """Protects every loss in both precisions: with any label the same numbers can be reached."""
    outputs = np.zeros((1, loss.outputs))
    nothing = loss.gradient(outputs, np.zeros(1))[0] if loss.name != "logistic" else np.zeros(1)
    steps = set()
    for label in (0.0, 1.0):
        told = label_parts(loss, 1.0, label, dtype, FEW)
        # The part of the output is no power of two with three classes, and is rounded as the sum is.
        rounding = 0.0 if loss.name != "softmax" else 2.0 ** (-20 if dtype is np.float32 else -48)
        steps_told = (told - nothing) * 2.0**17
        if rounding:
            assert np.abs(steps_told - np.rint(steps_told)).max() <= rounding * 2.0**17
        else:
            steps.add(grid(told - nothing))
    assert len(steps) <= 1
