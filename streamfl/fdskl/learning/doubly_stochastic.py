"""Doubly stochastic functional gradients: the coefficients of an iteration's new features, and how older ones
decay.

Dai et al., "Scalable Kernel Methods via Doubly Stochastic Gradients", 2014; Gu et al. 2020, Algorithm 1 and
equation (7). For ``learning.solver = "sgd"``. The default, "newton", is in
:mod:`streamfl.fdskl.learning.newton_iteration`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.learning.losses import MarginLoss

__all__ = ["SMALLEST_SCALE", "StepRule", "decay", "step_alphas", "step_size"]

Floats = NDArray[np.float64]
StepRule = Literal["constant", "horizon", "inverse"]
# Below it the scale is multiplied into the alphas and starts again at 1, long before the alphas over it
# overflow.
SMALLEST_SCALE = 1e-100


def step_alphas(
    features: NDArray[Any], outputs: Floats, labels: Floats, step: float, loss: MarginLoss
) -> Floats:
    """Coefficients of an iteration's R new features, (R,), before any decay.

    alpha_r = -gamma / (B R) sum_b L'(f(x_b), y_b) phi_r(x_b)

    B = R = 1 is Algorithm 1, line 7. The factor 1 / (B R) makes a step mean the same for every size of the
    blocks: it is the mean over instances and features of what the paper's iterations would add. A model over
    scale ``s`` stores alpha / s.

    features: phi of the new features at the block's instances, (B, R).
    outputs: f at these instances before this iteration, (B,).
    labels: (B,).
    step: gamma, above 0.
    """
    if not features.size:
        return np.zeros(features.shape[1])
    return np.asarray(features.T @ loss.gradient(outputs, labels), dtype=np.float64) * (-step / features.size)


def decay(scale: float, step: float, regularisation: float) -> float:
    """The common factor of all earlier alphas after an iteration: s (1 - gamma lambda).

    ValueError if gamma lambda is not below 1: the step would forget everything, or change all signs.
    """
    if not 0.0 <= step * regularisation < 1.0:
        raise ValueError(f"step {step} times regularisation {regularisation} has to be below 1")
    return scale * (1.0 - step * regularisation)


def step_size(
    rule: StepRule, iteration: int, step: float, regularisation: float, horizon: int | None = None
) -> float:
    """gamma of an iteration, counted from 0.

    constant: gamma. E|f_t - f*|^2 stops at a floor that is proportional to it.
    horizon: log(T) / (lambda T), at most gamma. E|f_T - f*|^2 = O(log(T) / T), and only at T: for a table of
    known length. inverse: 1 / (lambda (t + t0)) with t0 = 1 / (lambda gamma), so that the first step is
    gamma. It needs no known end, and forgets ever more slowly.

    step: gamma, above 0. With B = R = 1 the noise of the draws itself grows unless gamma L''^2 is below about
    2 lambda.
    horizon: T, the number of iterations of the whole run.
    """
    if rule == "constant":
        return step
    if rule == "inverse":
        return step / (1.0 + regularisation * step * iteration)
    if horizon is None or horizon < 2:
        raise ValueError("the rule 'horizon' needs a horizon of at least 2 iterations")
    return min(step, math.log(horizon) / (regularisation * horizon))
