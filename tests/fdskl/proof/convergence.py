"""How fast doubly stochastic steps approach the best function: E|f_T(x) - f*(x)|^2 over numbers of iterations
T."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from streamfl.contract.seeding import rng_for
from streamfl.fdskl.learning.doubly_stochastic import StepRule, decay, step_alphas, step_size
from streamfl.fdskl.learning.losses import MarginLoss

__all__ = ["RegularisedRisk", "distances", "slope"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RegularisedRisk:
    """min over f of mean L(f(x_i), y_i) + (lambda / 2) |f|_H^2 for a Gaussian kernel of bandwidth 1, on a few
    points.

    inputs: (n, d).
    labels: (n,).
    regularisation: lambda.
    """

    inputs: Floats
    labels: Floats
    loss: MarginLoss
    regularisation: float

    def best(self) -> Floats:
        """f* at the points, (n,): with f = K c the problem is one of n numbers (the representer theorem)."""
        differences = self.inputs[:, np.newaxis] - self.inputs[np.newaxis]
        kernel = np.exp(-0.5 * np.square(differences).sum(axis=2))

        def objective(weights: Floats) -> tuple[float, Floats]:
            outputs = kernel @ weights
            gradient = self.loss.gradient(outputs, self.labels) / len(outputs) + self.regularisation * weights
            value = (
                self.loss.value(outputs, self.labels).mean() + 0.5 * self.regularisation * weights @ outputs
            )
            return float(value), kernel @ gradient

        found = minimize(
            objective,
            np.zeros(len(self.labels)),
            jac=True,
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-10},
        )
        return np.asarray(kernel @ found.x)

    def run(
        self, rule: StepRule, step: float, iterations: int, seed: int, looks: Sequence[int] = ()
    ) -> list[Floats]:
        """f at the points after each of the numbers of iterations ``looks``, or at the end: Algorithm 1 with
        B = R = 1."""
        random = rng_for(seed, "fdskl", "convergence", str(iterations))
        outputs, scale, found = np.zeros(len(self.labels)), 1.0, []
        chosen = random.integers(0, len(self.labels), iterations)
        phases = self.inputs @ random.normal(size=(self.inputs.shape[1], iterations))
        features = np.sqrt(2.0) * np.cos(phases + random.uniform(0, 2 * np.pi, iterations)).T
        ends = set(looks) or {iterations}
        for iteration, (row, phi) in enumerate(zip(chosen.tolist(), features, strict=True)):
            gamma = step_size(
                rule, iteration, step, self.regularisation, iterations if rule == "horizon" else None
            )
            # Outputs are divided by the common scale of their alphas, as the alphas of a model are.
            present = scale * outputs[row : row + 1]
            alpha = step_alphas(phi[row].reshape(1, 1), present, self.labels[row : row + 1], gamma, self.loss)
            scale = decay(scale, gamma, self.regularisation)
            outputs += alpha / scale * phi
            if iteration + 1 in ends:
                found.append(scale * outputs)
            if scale < 1e-100:
                outputs, scale = outputs * scale, 1.0
        return found


def distances(
    problem: RegularisedRisk, rule: StepRule, step: float, horizons: Sequence[int], runs: int
) -> Floats:
    """E|f_T - f*|^2 for each T, (T,): the mean over points and runs."""
    best = problem.best()
    return np.array(
        [
            np.mean(
                [np.square(problem.run(rule, step, horizon, seed)[-1] - best).mean() for seed in range(runs)]
            )
            for horizon in horizons
        ]
    )


def slope(horizons: Sequence[int], errors: Floats) -> float:
    """The slope of log error over log T, by least squares."""
    return float(np.polyfit(np.log(horizons), np.log(errors), 1)[0])
