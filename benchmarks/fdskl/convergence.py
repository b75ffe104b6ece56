"""``python -m benchmarks.fdskl.convergence``: E|f_T - f*|^2 over T = 1,000 to 30,000 for each rule of the
step, and the slopes."""

from __future__ import annotations

import numpy as np
from fdskl.proof.convergence import RegularisedRisk, distances, slope

from benchmarks.commands import Markdown, arguments
from streamfl.fdskl.learning.losses import loss_named

HORIZONS = (1_000, 3_000, 10_000, 30_000)


def main() -> None:
    runs = arguments("fdskl.convergence", __doc__, runs=(40, "that are averaged")).runs
    random = np.random.default_rng(0)
    inputs = random.normal(size=(24, 2))
    labels = np.where(inputs[:, 0] * inputs[:, 1] > 0, 1.0, -1.0)
    table = Markdown("loss", "step", *(f"T = {horizon:,}" for horizon in HORIZONS), "slope")
    for loss, regularisation in (("square", 0.1), ("logistic", 0.02)):
        problem = RegularisedRisk(inputs, labels, loss_named(loss), regularisation)
        for rule, step in (("horizon", 1e9), ("inverse", 0.05), ("constant", 0.05)):
            errors = distances(problem, rule, step, HORIZONS, runs)  # type: ignore[arg-type]
            table.add(loss, rule, *map("{:.5f}".format, errors), f"{slope(HORIZONS, errors):.2f}")


if __name__ == "__main__":
    main()
