"""A lower bound on epsilon from repeated runs on two neighbours: it is never above what is claimed, and is
with half the noise.

Runs choose an event, fresh ones count it, and Clopper and Pearson's intervals bound both probabilities with
99.9% confidence."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from dp_frank_wolfe.problems import divided
from scipy.stats import beta

from streamfl.dp_frank_wolfe.learning.iterate import quantise
from streamfl.dp_frank_wolfe.learning.sketch import IdentitySketch, SignSketch
from streamfl.dp_frank_wolfe.party.fit import column_scores, predictions
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Window, correlations
from streamfl.dp_frank_wolfe.privacy.budget import choice_rate
from streamfl.privacy.exponential_mechanism import exponential_mechanism
from streamfl.privacy.integer_distribution import DRAW_BYTES
from streamfl.privacy.integer_noise import IntegerNoise
from streamfl.privacy.zcdp import epsilon_of, range_of

FIRST, FRESH = 50_000, 200_000
DELTA = 1e-3
BOUND = 1
Draw = Callable[[int, bytes], np.ndarray]
Event = Callable[[np.ndarray], np.ndarray]


def bits(count: int, *name: object) -> bytes:
    return hashlib.shake_256(repr(name).encode()).digest(count * DRAW_BYTES)


def lower_bound(
    first: Draw, second: Draw, events: Callable[[np.ndarray, np.ndarray], Event], delta: float
) -> float:
    """The best log((p - delta) / q) that is certain. events: of two samples, which event to count."""
    best = -math.inf
    for one, two, name in ((first, second, "forth"), (second, first, "back")):
        event = events(one(FIRST, bits(1, name, 1)), two(FIRST, bits(1, name, 2)))
        hits = int(event(one(FRESH, bits(1, name, 3))).sum())
        others = int(event(two(FRESH, bits(1, name, 4))).sum())
        low = float(beta.ppf(0.0005, hits, FRESH - hits + 1)) if hits else 0.0
        high = float(beta.ppf(0.9995, others + 1, FRESH - others)) if others < FRESH else 1.0
        if low > delta:
            best = max(best, math.log((low - delta) / high))
    return best


def most_telling(one: np.ndarray, two: np.ndarray) -> Event:
    """The outcome whose counts differ most."""
    size = int(max(one.max(), two.max())) + 1
    counts = [np.bincount(given, minlength=size) + 3 * math.sqrt(FIRST) / 100 for given in (one, two)]
    best = int(np.argmax(counts[0] / counts[1]))
    return lambda drawn: drawn == best


def threshold(one: np.ndarray, two: np.ndarray) -> Event:
    """Being above the number for which the bound is largest."""
    found, best = 0.0, -math.inf
    for number in np.quantile(one, np.linspace(0.5, 0.9995, 60)):
        p, q = np.mean(one >= number), max(np.mean(two >= number), 10 / FIRST)
        if p > 2 * DELTA and math.log((p - DELTA) / q) > best:
            found, best = float(number), math.log((p - DELTA) / q)
    return lambda drawn: drawn >= found


def scores_of(window: Window, others: np.ndarray) -> np.ndarray:
    """Scores at x = 0 by the party's own functions. others: what the other parties' columns predict, by
    row."""
    sketch = IdentitySketch(len(others))
    predicted = predictions(
        window,
        np.zeros(window.columns.shape[1]),
        quantise(others * FEATURE_ONE),
        sketch,
        BOUND * RESIDUAL_ONE,
    )
    return column_scores(correlations(window.columns, predicted - window.labels, (BOUND + 1) * RESIDUAL_ONE))


def neighbouring_scores(columns: int, gap: float) -> tuple[np.ndarray, np.ndarray]:
    """Row 0 moves the first candidate up and all others' scores down by all that a row can; the first is
    ahead by ``gap`` Delta."""
    found = []
    for sign in (1.0, -1.0):
        features = np.zeros((40, columns))
        features[0] = -sign
        features[0, 0] = sign
        labels, others = np.zeros(40), np.zeros(40)
        # A residual of -(R + 1): the prediction is beyond its bound and is clipped.
        labels[0], others[0] = 1.0, -50.0
        features[1:31, 0] = gap / 30
        labels[1:31] = 1.0
        others[1:31] = -3.0
        scores = scores_of(divided(features, labels, 1)["party-0"], others)
        found.append(scores)
    return found[0], found[1]


def drawing(scores: np.ndarray, rate: Fraction) -> Draw:
    distribution = exponential_mechanism(scores, rate)
    return lambda count, name: distribution.draw(bits(count, name))


@pytest.mark.parametrize(("columns", "epsilon"), [(4, 0.5), (2, 4.0)])
def test_a_choice_keeps_its_epsilon_and_half_the_noise_does_not(columns: int, epsilon: float) -> None:
    """Protects the noise of choices against a wrong sensitivity, scale or draw, in the party's own scores at
    the corners of its bounds.
    """
    rate = choice_rate(epsilon**2 / 8, BOUND * RESIDUAL_ONE)
    assert range_of(epsilon**2 / 8) == pytest.approx(epsilon)
    bounds = {1: -math.inf, 2: -math.inf}
    for gap in (0.0, 4.0):
        first, second = neighbouring_scores(columns, gap)
        assert set(np.abs(first - second)) == {2 * (BOUND + 1) * FEATURE_ONE * RESIDUAL_ONE}
        for times in bounds:
            one, two = drawing(first, times * rate), drawing(second, times * rate)
            bounds[times] = max(bounds[times], lower_bound(one, two, most_telling, 0.0))
    assert 0.4 * epsilon < bounds[1] <= epsilon
    assert bounds[2] > epsilon


@pytest.mark.parametrize("cost", [0.5])
def test_a_sketch_keeps_its_epsilon_and_half_the_noise_does_not(cost: float) -> None:
    """Protects the noise of sketches: all sums of a column whose row goes from 1 to -1, along the direction
    of that row's signs."""
    sketch = SignSketch(50, 2, 1)
    columns = [np.zeros(50, dtype=np.int16) for _ in range(2)]
    for column, value in zip(columns, (FEATURE_ONE, -FEATURE_ONE), strict=True):
        column[:] = 1000
        column[7] = value
    sums = [sketch.apply(column) for column in columns]
    direction = sums[0] - sums[1]
    check_numbers(sums, direction, IntegerNoise.of_box(2 * FEATURE_ONE, 2, cost))


def check_numbers(sums: list[np.ndarray], direction: np.ndarray, noise: IntegerNoise) -> None:
    claimed = epsilon_of(noise.cost, DELTA)

    def drawing(values: np.ndarray, times: int) -> Draw:
        made = IntegerNoise(noise.unit, noise.variance / times**2, noise.cost)
        size = len(values)

        def draw(count: int, name: bytes) -> np.ndarray:
            drawn = made.add(np.tile(values, count), bits(count * size, name, size)).reshape(count, size)
            return drawn @ np.sign(direction)

        return draw

    bounds = [
        lower_bound(drawing(sums[0], times), drawing(sums[1], times), threshold, DELTA) for times in (1, 2)
    ]
    assert 0.4 * claimed < bounds[0] <= claimed
    assert bounds[1] > claimed
