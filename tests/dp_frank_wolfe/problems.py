"""Sparse problems whose columns several parties have."""

from __future__ import annotations

import numpy as np

from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Bounds, Window, freeze


def sparse(rows: int, columns: int, parties: int, seed: int = 0, noise: float = 0.1) -> dict[str, Window]:
    """Uniform features, four of which make the label."""
    random = np.random.default_rng(seed)
    features = random.uniform(-1, 1, (rows, columns))
    weights = np.zeros(columns)
    weights[:: columns // 4][:4] = (0.3, -0.25, 0.2, 0.15)
    labels = np.clip(features @ weights + noise * random.normal(size=rows), -1, 1)
    return divided(features, labels, parties)


def divided(
    features: np.ndarray, labels: np.ndarray, parties: int, rows: int | None = None
) -> dict[str, Window]:
    """Features and labels within 1, consecutive columns to each party, in a window of so many rows."""
    one = Bounds(np.zeros(1), np.ones(1))
    return {
        f"party-{number}": freeze(
            own, labels, Bounds(np.zeros(own.shape[1]), np.ones(own.shape[1])), one, rows or len(labels)
        )
        for number, own in enumerate(np.array_split(features, parties, axis=1))
    }


def real(windows: dict[str, Window]) -> tuple[np.ndarray, np.ndarray]:
    """The frozen table as real numbers: all columns, and labels."""
    columns = np.hstack([window.columns / FEATURE_ONE for window in windows.values()])
    return columns, next(iter(windows.values())).labels / RESIDUAL_ONE
