"""Problems for DP Frank-Wolfe, with their public bounds: nothing that scales the data is taken from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.commands import Floats, data_set
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Bounds, Window, freeze

TEST_ROWS = 5000


@dataclass(frozen=True)
class Problem:
    """features, labels: of training. test, test_labels: of other rows, never clipped or rounded. parties: K,
    of consecutive columns.

    bounds: public.
    radius: of Frank-Wolfe's balls together.
    refit_radius: of the other estimators' ball.
    prediction_bound: R.
    columns: N.
    iterations: T of Frank-Wolfe.
    """

    name: str
    features: NDArray[Any]
    labels: Floats
    test: NDArray[Any]
    test_labels: Floats
    bounds: Bounds
    label_bounds: Bounds
    parties: int
    radius: float
    columns: int
    iterations: int
    refit_radius: float
    prediction_bound: float = 1.0

    def windows(self) -> dict[str, Window]:
        """The frozen windows of all parties."""
        found = {}
        for number, own in enumerate(self.parts()):
            bounds = Bounds(self.bounds.centre[own], self.bounds.bound[own])
            found[f"party-{number}"] = freeze(
                self.features[:, own], self.labels, bounds, self.label_bounds, len(self.labels)
            )
        return found

    def parts(self) -> list[NDArray[np.int64]]:
        """Numbers of each party's columns."""
        return np.array_split(np.arange(self.features.shape[1]), self.parties)

    def r2(self, x: dict[str, Floats], intercept: float = 0.0) -> float:
        """R^2 of the test rows' own labels, about their mean. Features are scaled and clipped as in the
        window.

        intercept: in label bounds.
        """
        weights = np.concatenate(list(x.values()))
        active = np.flatnonzero(weights)
        scaled = np.clip(
            (self.test[:, active] - self.bounds.centre[active]) / self.bounds.bound[active], -1, 1
        )
        outputs = intercept + scaled @ weights[active]
        wrong = self.label_bounds.centre[0] + self.label_bounds.bound[0] * outputs - self.test_labels
        return 1 - float(np.mean(np.square(wrong)) / np.var(self.test_labels))

    def whole(self, windows: dict[str, Window]) -> tuple[NDArray[np.float32], Floats]:
        """The frozen table in one place, for methods without privacy."""
        columns = np.hstack([window.columns for window in windows.values()]) / np.float32(FEATURE_ONE)
        return np.asarray(columns, np.float32), next(iter(windows.values())).labels / RESIDUAL_ONE


def _sizes(random: np.random.Generator) -> Floats:
    """Ten weights of .5 to 1.5, with signs."""
    return np.asarray(random.choice([-1, 1], 10) * random.uniform(0.5, 1.5, 10))


def synthetic(rows: int, seed: int, columns: int = 1000, deviations: float = 1.5) -> Problem:
    """Independent standard normal columns, ten of which make the label, with 5% noise. Bounds of so many
    deviations, label included.

    Ten weights of sizes .5 to 1.5 and a label of deviation 1.
    """
    random = np.random.default_rng([seed, rows])
    weights = np.zeros(columns)
    # The sizes are drawn first.
    weights[random.choice(columns, 10, replace=False)] = _sizes(random)
    weights *= np.sqrt(0.95) / np.linalg.norm(weights)

    def draw(count: int) -> tuple[NDArray[np.float32], Floats]:
        features = random.standard_normal((count, columns), dtype=np.float32)
        return features, np.asarray(
            features @ weights + np.sqrt(0.05) * random.normal(size=count), dtype=np.float64
        )

    bounds = Bounds(np.zeros(columns), np.full(columns, deviations))
    label = Bounds(np.zeros(1), np.array([deviations + 0.5]))
    # T = O(n^(2/3)), as the paper has it.
    iterations = max(2, round(0.012 * rows ** (2 / 3)))
    name = f"synthetic, n = {rows:,}"
    return Problem(name, *draw(rows), *draw(TEST_ROWS), bounds, label, 5, 1.5, 20, iterations, 3.0)


def sparse(rows: int, seed: int, nonzeros: int, columns: int = 1000) -> Problem:
    """Columns of as many values of -1 and 1, and zeros; ten of them make the label, with 5% noise, as in
    :func:`synthetic`.

    nonzeros: of each column of training; test rows have the same share of them. The label has a deviation of
    1, and its bound is 2."""
    random = np.random.default_rng([seed, rows, nonzeros])
    active, weights = random.choice(columns, 10, replace=False), np.zeros(columns)
    weights[active] = _sizes(random)
    weights *= np.sqrt(0.95 / (nonzeros / rows)) / np.linalg.norm(weights)
    features = np.zeros((rows, columns), dtype=np.float32)
    for column in range(columns):
        features[random.choice(rows, nonzeros, replace=False), column] = random.choice([-1.0, 1.0], nonzeros)
    held_out = random.choice([-1.0, 1.0], (TEST_ROWS, columns)) * (
        random.random((TEST_ROWS, columns)) < nonzeros / rows
    )
    test = held_out.astype(np.float32)

    def labels(of: NDArray[np.float32]) -> Floats:
        told = of[:, active] @ weights[active] + np.sqrt(0.05) * random.normal(size=len(of))
        return np.asarray(told, dtype=np.float64)

    bounds, label = Bounds(np.zeros(columns), np.ones(columns)), Bounds(np.zeros(1), np.array([2.0]))
    radius = float(np.abs(weights).sum()) / 2.0
    return Problem(
        "sparse", features, labels(features), test, labels(test), bounds, label, 5, radius, 20, 2, radius
    )


def air(folder: Path, seed: int) -> Problem:
    """log CO of the Beijing air quality set: logarithms of pollutants, weather, hour and month as angles.
    Bounds by hand."""
    raw, label = data_set(folder, "air")
    whole = np.isfinite(raw).all(axis=1) & np.isfinite(label)
    raw, label = raw[whole], np.log(label[whole])
    year, month, hour = raw[:, 0] - 2015, 2 * np.pi * raw[:, 1] / 12, 2 * np.pi * raw[:, 3] / 24
    features = np.column_stack(
        [
            np.log(raw[:, 4:9]),
            raw[:, 9:12],
            np.log1p(raw[:, 12:14]),
            year,
            np.cos(month),
            np.sin(month),
            np.cos(hour),
            np.sin(hour),
        ]
    )
    centre = np.array([4.0, 4.4, 2.2, 3.7, 3.6, 13, 1010, 2, 0, 0.9, 0, 0, 0, 0, 0])
    bound = np.array([2.0, 1.8, 2.2, 1.4, 2.2, 20, 17, 25, 1, 1.0, 2, 1, 1, 1, 1])
    # Pollutants and weather lie with different parties.
    order = np.array([0, 5, 8, 11, 13, 1, 3, 6, 9, 12, 2, 4, 7, 10, 14])
    taken = _split(features[:, order], label, seed)
    label_bounds = Bounds(np.array([6.8]), np.array([1.6]))
    return Problem(
        "air, log CO", *taken, Bounds(centre[order], bound[order]), label_bounds, 3, 1.0, 9, 8, 1.5, 3.0
    )


def a9a(folder: Path, seed: int) -> Problem:
    """Adult: 123 binary columns and a constant, which is public. The label of -1 and 1 has a public centre of
    -.5."""
    inputs, labels, test, test_labels = data_set(folder, "a9a", "X", "y", "X_test", "y_test")
    given, tested = (np.insert(one, 0, 1.0, axis=1).astype(np.float32) for one in (inputs, test))
    bounds = Bounds(np.zeros(124), np.ones(124))
    label_bounds = Bounds(np.array([-0.5]), np.array([1.5]))
    return Problem("a9a", given, labels, tested, test_labels, bounds, label_bounds, 2, 1.0, 8, 24, 1.0, 3.0)


def uji(folder: Path, seed: int) -> Problem:
    """Longitude by the strengths of 520 access points, as heard or not. Few rows, many rare columns: it is
    here to fail."""
    raw, label = data_set(folder, "uji")
    heard = np.where(raw == 100, 0.0, (raw + 105) / 105)
    taken = _split(np.column_stack([np.ones(len(heard)), heard]), label, seed)
    label_bounds = Bounds(np.array([-7500.0]), np.array([200.0]))
    return Problem(
        "uji, longitude", *taken, Bounds(np.zeros(521), np.ones(521)), label_bounds, 5, 4.0, 20, 12, 4.0
    )


REAL: dict[str, Callable[[Path, int], Problem]] = {"air": air, "a9a": a9a, "uji": uji}


def _split(
    features: Floats, labels: Floats, seed: int
) -> tuple[NDArray[np.float32], Floats, NDArray[np.float32], Floats]:
    order = np.random.default_rng(seed).permutation(len(labels))
    end = len(order) * 4 // 5
    first, last = order[:end], order[end:]
    return features[first].astype(np.float32), labels[first], features[last].astype(np.float32), labels[last]
