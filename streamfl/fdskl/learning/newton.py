"""Block Newton over random features: the coefficients of one block move, all others are fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from streamfl.fdskl.learning.losses import MarginLoss

__all__ = ["of_few", "solve_block"]

Floats = NDArray[np.float64]
MOST_HALVINGS = 30
# With fewer entities than this the penalty on the sum of their losses stays the same.
MANY = 1024
# Share of the fall promised by the gradient that a step has to reach (Armijo).
SUFFICIENT = 1e-4


def of_few(regularisation: float, entities: int) -> float:
    """lambda max(1, 1024 / n) for n entities: the mean loss of few says less, so the penalty counts more."""
    return regularisation * max(1.0, MANY / max(1, entities))


def solve_block(
    features: NDArray[Any],
    outputs: Floats,
    labels: Floats,
    alphas: Floats,
    limit: int,
    regularisation: float,
    loss: MarginLoss,
    weights: Floats | None = None,
) -> Floats:
    """Returns a Newton step for one block of R features, (R,), to add to its alphas. f then grows by
    ``features @ step``.

    J = sum_n w_n L(f_n, y_n) / sum_n w_n + (lambda C / 2) |alpha|^2
    (Phi' diag(w L'') Phi / sum w + lambda C I) step = -(Phi' (w L') / sum w + lambda C alpha)

    With k(x, x') ~ sum_i phi_i(x) phi_i(x') / C, the penalty is (lambda / 2) |f|_H^2 of problem (1) in Gu et
    al. 2020. The step is halved until J falls: far from the optimum a logistic loss is flatter than its
    second derivative says.

    features: phi at the window's entities, (N, R); float32 halves the time of the products.
    outputs: f at these entities, the block included, (N,).
    labels: -1 and +1, or real for the square loss, (N,).
    alphas: the block's own, (R,).
    limit: C, how many features the model keeps when it is full.
    regularisation: lambda, above 0.
    weights: of the entities, (N,), at least 0; left out: all 1.

    Returns zeros where there is nothing to learn from: N or R is 0, or all weights are.
    """
    if regularisation <= 0.0 or limit < 1:
        raise ValueError(f"regularisation {regularisation} and limit {limit} have to be above 0")
    if weights is None:
        weights = np.ones(len(labels))
    total = float(weights.sum())
    if not features.size or total <= 0.0:
        return np.zeros(len(alphas))
    shares = weights / total
    penalty = regularisation * limit
    slopes = (shares * loss.gradient(outputs, labels)).astype(features.dtype)
    gradient = features.T @ slopes + penalty * alphas
    curvature = np.sqrt(shares * loss.curvature(outputs, labels)).astype(features.dtype)
    scaled = features * curvature[:, np.newaxis]
    hessian = (scaled.T @ scaled).astype(np.float64)
    hessian[np.diag_indices_from(hessian)] += penalty + _rounding(hessian, features.dtype)
    step = np.asarray(
        -cho_solve(cho_factor(hessian, lower=True), gradient.astype(np.float64)), dtype=np.float64
    )
    moved = (features @ step.astype(features.dtype)).astype(np.float64)

    def objective(size: float) -> float:
        risk = shares @ loss.value(outputs + size * moved, labels)
        return float(risk + 0.5 * penalty * np.sum(np.square(alphas + size * step)))

    size = _line_search(objective, float(gradient @ step))
    return size * step if size else np.zeros(len(alphas))


def _line_search(objective: Callable[[float], float], slope: float) -> float:
    """The largest of 1, 1/2, 1/4, … by which a step lowers the objective enough; 0 if none does.

    slope: of the objective at 0, along the step.
    """
    before, size = objective(0.0), 1.0
    for _ in range(MOST_HALVINGS):
        if objective(size) <= before + SUFFICIENT * size * slope:
            return size
        size /= 2.0
    return 0.0


def _rounding(hessian: Floats, dtype: Any) -> float:
    """Rounding error of the smallest eigenvalue: below it a positive definite matrix can look indefinite."""
    return float(np.finfo(dtype).eps * np.trace(hessian))
