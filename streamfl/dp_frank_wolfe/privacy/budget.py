"""From the epsilon of one entity to the noise of each release, and back to the claimed epsilon.

All parties hold parts of the same rows, and everybody sees every release. So epsilon is for an entity over
all parties together: the costs of all releases add up, and the parties' shares are fixed beforehand. A party
that uses less hands nothing on.

This is the plan of the estimator "frank-wolfe", one release an iteration. The plans of "marginal", the
default, and of "two-round" are in :mod:`streamfl.dp_frank_wolfe.learning.selection`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from streamfl.dp_frank_wolfe.learning.sketch import Sketch
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE
from streamfl.privacy.integer_distribution import DRAW_BITS
from streamfl.privacy.integer_noise import IntegerNoise
from streamfl.privacy.zcdp import cost_of_choice, delta_of_variation, epsilon_of, largest_cost, range_of

__all__ = ["FitPlan", "allowed_cost", "choice_rate", "claim", "plan_fit"]

# The share of delta that covers the error of sampling with integers.
SPARE = 2.0**-10


@dataclass(frozen=True)
class FitPlan:
    """What one party may release in a fit, and how. Everything here is public and comes from the party's own
    configuration.

    choices: vertices that it may choose.
    columns: N_k, columns that it may show.
    prediction_bound: R as a whole number of ``RESIDUAL_ONE``.
    rate: of the choices' whole scores.
    noise: of a column's sketch. Both None where epsilon is infinite.
    """

    choices: int
    columns: int
    prediction_bound: int
    rate: Fraction | None
    noise: IntegerNoise | None

    @property
    def largest_residual(self) -> int:
        """Bound on a prediction minus a label, whatever the row is: R + 1, as a whole number."""
        return self.prediction_bound + RESIDUAL_ONE

    @property
    def cost(self) -> float:
        """Cost of all that the party may release. Infinite without noise."""
        if self.rate is None or self.noise is None:
            return math.inf
        each = cost_of_choice(2 * self.rate * score_sensitivity(self.prediction_bound))
        return self.choices * each + self.columns * self.noise.cost

    def variation(self, sketch: Sketch, candidates: int) -> float:
        """Total variation of all that the party may release. candidates: columns of its largest block."""
        if self.noise is None:
            return 0.0
        return (
            self.choices * 4 * candidates * 2.0**-DRAW_BITS
            + self.columns * sketch.numbers * self.noise.variation
        )


def score_sensitivity(prediction_bound: int) -> int:
    """Delta of a whole score: how far one replaced row moves the sum of a_i (prediction - y) over the rows.

    |a_i| <= 1, |y| <= 1 and |prediction| <= R hold for every row, before and after: the row's product lies
    within R + 1, and moves by 2 (R + 1) at most. The other rows' predictions follow from their own features
    and from what was released, not from this row."""
    return 2 * FEATURE_ONE * (prediction_bound + RESIDUAL_ONE)


def choice_rate(cost: float, prediction_bound: int) -> Fraction:
    """The rate of the exponential mechanism over signed scores at this cost: eps0 / (2 Delta), eps0 = sqrt(8
    cost).

    There are two candidates for a column, +score and -score, each with noise of its own. With one noise on
    the absolute value the loss would have no bound, because a score near 0 may change its sign.
    """
    return range_of(cost) / (2 * score_sensitivity(prediction_bound))


def plan_fit(
    cost: float,
    choices: int,
    columns: int,
    prediction_bound: float,
    sketch: Sketch,
    choice_share: float = 0.5,
) -> FitPlan:
    """A party's plan. Raises ValueError for arguments that no plan fits.

    cost: of this party, may be infinite.
    choices: how many the schedule has of it.
    columns: N_k.
    prediction_bound: R, in units of the label's bound.
    choice_share: of cost, for the choices; the rest is for the sketches.
    """
    if (
        choices < 1
        or columns < 1
        or not 0 < choice_share < 1
        or not (math.isfinite(prediction_bound) and prediction_bound > 0)
    ):
        raise ValueError(
            "a fit needs choices, columns, a share of them within 0 and 1, and a bound of predictions"
        )
    bound = int(prediction_bound * RESIDUAL_ONE)
    if math.isinf(cost):
        return FitPlan(choices, columns, bound, None, None)
    if not cost > 0:
        raise ValueError(f"cost = {cost}: nothing can be released for it")
    rate = choice_rate(cost * choice_share / choices, bound)
    if not rate > 0:
        raise ValueError(f"cost = {cost:.3g}: too little for {choices} choices")
    noise = IntegerNoise.of_box(2 * FEATURE_ONE, sketch.moved, cost * (1 - choice_share) / columns)
    return FitPlan(choices, columns, bound, rate, noise)


def allowed_cost(epsilon: float, delta: float, rows: int) -> float:
    """Cost of all releases of an entity. Raises ValueError unless delta < 1 / rows: a whole row could be
    shown for less."""
    if not (epsilon > 0 and 0 < delta < 1 / rows):
        raise ValueError(
            f"epsilon = {epsilon}, delta = {delta}: epsilon is above 0, and delta between 0 and 1 / {rows}"
        )
    return largest_cost(epsilon, delta * (1 - SPARE))


def claim(cost: float, variation: float, delta: float) -> float:
    """The epsilon at ``delta`` of releases with this total cost. Raises ValueError if they are not sampled
    well enough.

    variation: total variation of all of them.
    """
    epsilon = epsilon_of(cost, delta * (1 - SPARE))
    if math.isfinite(epsilon) and delta_of_variation(variation, epsilon) > delta * SPARE:
        raise ValueError(f"a total variation of {variation:.2g} is too much for delta = {delta:g}")
    return epsilon
