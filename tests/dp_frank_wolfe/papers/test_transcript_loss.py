"""What one entity's row can change in a whole fit, over all parties: measured on transcripts, against what is
charged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from dp_frank_wolfe.problems import divided, real, sparse
from dp_frank_wolfe.proof.equal_shares import equal_blocks, marginal, plans_of, two_round
from dp_frank_wolfe.replaying import Chosen, Transcript, transcript
from scipy.special import log_softmax

from streamfl.dp_frank_wolfe.learning.blocks import Sampling
from streamfl.dp_frank_wolfe.learning.sketch import SignSketch
from streamfl.dp_frank_wolfe.party.window import Window
from streamfl.dp_frank_wolfe.privacy.budget import FitPlan, allowed_cost
from streamfl.dp_frank_wolfe.tools.direct import DirectFit, fit
from streamfl.privacy.zcdp import cost_of_choice, epsilon_of

ROWS, PARTIES, ITERATIONS = 300, 3, 12
EPSILON, DELTA = 2.0, 1e-5


def softmax(chosen: Chosen) -> np.ndarray:
    return log_softmax(chosen.scores * float(chosen.rate))


def neighbours(windows: dict[str, Window], seed: int) -> dict[str, Window]:
    """One row replaced at all parties, by one at the corners of the bounds."""
    random = np.random.default_rng(seed)
    columns, labels = real(windows)
    row = int(random.integers(len(labels)))
    columns[row] = random.choice([-1.0, 1.0], columns.shape[1])
    labels[row] = random.choice([-1.0, 1.0])
    return divided(columns, labels, len(windows))


def spent(first: Transcript, second: Transcript) -> float:
    """Cost of the two transcripts' difference: an eighth of each choice's squared range, and each release's
    squared shift."""
    total = 0.0
    for one, two in zip(first.choices, second.choices, strict=True):
        total += cost_of_choice(float(np.ptp(softmax(one) - softmax(two))))
    for told, again in zip(first.releases, second.releases, strict=True):
        rounded = [(given.values + given.noise.unit // 2) // given.noise.unit for given in (told, again)]
        total += float(np.sum((rounded[0] - rounded[1]).astype(float) ** 2)) / float(2 * told.noise.variance)
    return total


def private(windows: dict[str, Window], plans: dict[str, FitPlan]) -> DirectFit:
    sampling = Sampling("full", equal_blocks(windows, 1.0), 0)
    return fit(windows, sampling, ITERATIONS, SignSketch(ROWS, 25, 3), plans, show_objective=False)


def planned(windows: dict[str, Window], cost: float) -> dict[str, FitPlan]:
    return plans_of(
        windows,
        Sampling("full", equal_blocks(windows, 1.0), 0),
        ITERATIONS,
        SignSketch(ROWS, 25, 3),
        cost,
        9,
        2.0,
    )


def measured(
    windows: dict[str, Window], cost: float, mutation: float = 1, tries: int = 4
) -> tuple[float, float]:
    """The largest joint cost over neighbours, and the largest share that one choice has of what was planned
    for it.

    mutation: what the choices' rates are multiplied by.
    """
    plans = {
        party: replace(plan, rate=plan.rate * mutation) for party, plan in planned(windows, cost).items()
    }
    _, before = transcript(lambda: private(windows, plans), "party.fit")
    found, share = 0.0, 0.0
    each = cost / PARTIES / 2 / ITERATIONS
    for seed in range(tries):
        other = neighbours(windows, seed)
        _, after = transcript(lambda other=other: private(other, plans), "party.fit", before)
        found = max(found, spent(before, after))
        ranges = [
            float(np.ptp(softmax(one) - softmax(two)))
            for one, two in zip(before.choices, after.choices, strict=True)
        ]
        share = max(share, cost_of_choice(max(ranges)) / each)
    return found, share


@pytest.fixture(name="windows", scope="module")
def _windows() -> dict[str, Window]:
    return sparse(ROWS, 30, PARTIES, seed=4)


def test_a_row_changes_a_fit_by_no_more_than_is_charged(windows: dict[str, Window]) -> None:
    """Protects the claim of epsilon for an entity: the same transcript on neighbours, over all parties, costs
    less than the ledger has, choice by choice and together.
    """
    cost = allowed_cost(EPSILON, DELTA, ROWS)
    plans = planned(windows, cost)
    found, share = measured(windows, cost)
    assert 0.2 < share <= 1
    assert 0.1 * cost < found <= cost
    assert epsilon_of(sum(plan.cost for plan in plans.values()), DELTA) <= EPSILON


def test_every_sketch_moves_by_what_is_charged(windows: dict[str, Window]) -> None:
    """Protects the sketches' price: a replaced row moves each shown column by the noise's sensitivity at
    most, and by it at corners.
    """
    plans = planned(windows, 0.1)
    _, before = transcript(lambda: private(windows, plans), "party.fit")
    columns, labels = real(windows)
    shifts = []
    for first, second in ((1.0, -1.0), (1.0, 0.0)):
        pair = []
        for value in (first, second):
            columns[7] = value
            pair.append(
                transcript(lambda: private(divided(columns, labels, PARTIES), plans), "party.fit", before)[1]
            )
        for one, two in zip(pair[0].releases, pair[1].releases, strict=True):
            change = (one.values - two.values) / one.noise.unit
            shifts.append(float(change @ change) / float(2 * one.noise.variance) / one.noise.cost)
    assert max(shifts) == pytest.approx(1.0, rel=1e-9)
    assert len(before.releases) <= 9


def test_the_mutant_with_half_the_noise_is_caught(windows: dict[str, Window]) -> None:
    """Protects this test: choices at half the scale cost more than they are charged for."""
    _, share = measured(windows, 0.1, mutation=2, tries=2)
    assert share > 1


@pytest.mark.parametrize("estimator", [marginal, two_round])
def test_a_row_changes_an_estimate_by_no_more_than_is_charged(
    windows: dict[str, Window], estimator: Callable[..., DirectFit]
) -> None:
    """Protects the estimators' claim: choices, values, rows and products on neighbours cost less together
    than the ledger has."""
    cost = allowed_cost(EPSILON, DELTA, ROWS)
    _, before = transcript(lambda: estimator(windows, cost, 9, 1.0), "party.selection")
    assert before.choices
    most = 0.0
    for seed in range(4):
        other = neighbours(windows, seed)
        _, after = transcript(lambda other=other: estimator(other, cost, 9, 1.0), "party.selection", before)
        most = max(most, spent(before, after))
    assert 0.1 * cost < most <= cost
