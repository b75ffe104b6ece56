"""The methods that are compared: private and not, each a function of a problem that gives R^2 of test rows
and numbers sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from dp_frank_wolfe.proof.equal_shares import centre_by, equal_blocks, marginal, plans_of, two_round
from numpy.typing import NDArray
from sklearn.linear_model import LassoCV

from benchmarks.commands import Floats
from benchmarks.dp_frank_wolfe.problems import Problem
from streamfl.dp_frank_wolfe.learning.blocks import Sampling
from streamfl.dp_frank_wolfe.learning.refit import refit
from streamfl.dp_frank_wolfe.learning.sketch import IdentitySketch, SignSketch, Sketch
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Window
from streamfl.dp_frank_wolfe.privacy.budget import allowed_cost
from streamfl.dp_frank_wolfe.tools.direct import DirectFit, fit
from streamfl.dp_frank_wolfe.tools.estimators import Estimate
from streamfl.privacy.integer_noise import IntegerNoise
from streamfl.privacy.release_bits import Release, release_bits

DELTA = 1e-6
ESTIMATORS = ("frank-wolfe", "marginal", "two-round")
# A Lasso is fitted to no more cells than that: its path over the largest windows would take an hour.
MOST_CELLS = 2e7


@dataclass(frozen=True)
class Outcome:
    """r2: of test rows. numbers: sent up by all parties."""

    r2: float
    numbers: int


def private(
    problem: Problem,
    windows: dict[str, Window],
    name: str,
    epsilon: float,
    seed: int,
    sketch: Sketch | None = None,
    intercept: bool = True,
) -> Outcome:
    """One of ``ESTIMATORS``. sketch: of Frank-Wolfe, None for the identity. intercept: by noisy means, as is
    the default."""
    rows = len(problem.labels)
    cost = allowed_cost(epsilon, DELTA, rows)
    secret = b"secret of seed %d" % seed + bytes(range(32))
    own, numbers = None, 0
    if intercept:
        own = centre_by(windows, cost, secret)
        windows, cost, numbers = own.windows, own.cost, own.uplink_numbers
    found: DirectFit | Estimate
    if name == "frank-wolfe":
        sketch = sketch or IdentitySketch(rows)
        sampling = Sampling("full", equal_blocks(windows, problem.radius), seed)
        plans = plans_of(
            windows, sampling, problem.iterations, sketch, cost, problem.columns, problem.prediction_bound
        )
        found = fit(
            *(windows, sampling, problem.iterations, sketch, plans),
            delta=DELTA,
            secret=secret,
            show_objective=False,
        )
    else:
        estimator = {"marginal": marginal, "two-round": two_round}[name]
        found = estimator(windows, cost, problem.columns, problem.refit_radius, delta=DELTA, secret=secret)
    b = 0.0 if own is None else own.intercept(found.x)
    return Outcome(problem.r2(found.x, b), found.uplink_numbers + numbers)


def lasso(problem: Problem, windows: dict[str, Window], seed: int) -> Outcome:
    """scikit-learn's Lasso on the frozen table in one place, its penalty by cross-validation: no privacy."""
    columns, labels = problem.whole(windows)
    random = np.random.default_rng(seed)
    most = int(MOST_CELLS / columns.shape[1])
    rows = random.choice(len(labels), most, replace=False) if len(labels) > most else np.arange(len(labels))
    model = LassoCV(alphas=20, cv=3, fit_intercept=False, eps=1e-3, tol=1e-3).fit(
        columns[rows].astype(np.float64), labels[rows]
    )
    return Outcome(problem.r2({"": model.coef_}), columns.size)


def one_shot(
    problem: Problem, windows: dict[str, Window], numbers: int, epsilon: float, seed: int
) -> Outcome:
    """All columns sketched and sent at once (Heinze-Deml et al. 2017), with the same noise, budget and refit
    as ours.

    numbers: m. Each of the d columns has a d-th of cost. The noise's known part is taken off the Gram matrix.
    """
    rows = len(problem.labels)
    sketch = SignSketch(rows, numbers, seed)
    cost = allowed_cost(epsilon, DELTA, rows)
    total = problem.features.shape[1]
    noise = None if math.isinf(cost) else IntegerNoise.of_box(2 * FEATURE_ONE, sketch.moved, cost / total)
    sums = []
    for party, window in windows.items():
        for number, column in enumerate(window.columns.T):
            told = sketch.apply(np.ascontiguousarray(column)).astype(np.float64)
            if noise is not None:
                given = (noise.variance, noise.unit)
                place = Release("one-shot", "one-shot", party, 0, number, "sketch", given, window.digest)
                bits = release_bits(b"secret of seed %d" % seed + bytes(range(32)), place, numbers)
                told = noise.add(told.astype(np.int64), bits).astype(np.float64) * noise.unit
            sums.append(told / (FEATURE_ONE * math.sqrt(numbers)))
    # The labels are known to everybody, and so to the server.
    labels = next(iter(windows.values())).labels
    small = _sketch_labels(sketch, labels) / math.sqrt(numbers)
    columns = np.array(sums).T
    deviation = 0.0 if noise is None else noise.deviation / (FEATURE_ONE * math.sqrt(numbers))
    gram = columns.T @ columns / rows - numbers * deviation**2 / rows * np.eye(total)
    # Eigenvalues that noise alone makes, of the noise's own Gram matrix and of its products with the columns.
    doubt = deviation**2 * 2 * math.sqrt(numbers * total) / rows
    x = refit(gram, columns.T @ small / rows, problem.refit_radius, 0.01 + doubt)
    return Outcome(problem.r2({"": x}), numbers * total)


def _sketch_labels(sketch: SignSketch, labels: NDArray[np.int64]) -> Floats:
    """The labels' sums, in two parts that fit a column's type."""
    high, low = np.divmod(labels, FEATURE_ONE)
    return (
        sketch.apply(high.astype(np.int16)) * FEATURE_ONE + sketch.apply(low.astype(np.int16))
    ) / RESIDUAL_ONE
