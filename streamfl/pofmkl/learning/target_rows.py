"""Samples that the default learner has learnt, and their rows for the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.pofmkl.learning.views import ViewedFeatures

__all__ = ["TargetRows"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TargetRows:
    """Learnt samples. ``targets`` (samples,): y_n, 0 where a client knew fewer than two labels."""

    features: ViewedFeatures
    views: list[NDArray[Any]]
    targets: Floats
    predictions: Floats
    scores: Floats
    kernel_predictions: Floats
    log_weights: Floats
    log_weights_after: Floats

    def steps(
        self, samples: NDArray[np.intp], kernels: NDArray[np.intp], probabilities: Floats
    ) -> NDArray[Any]:
        """Target rows y_n z_i. The server's step decides how much each counts, so rows are not divided by
        their probability."""
        rows = self.features.rows(self.views, samples, kernels)
        return np.asarray(rows * self.targets[samples, None].astype(rows.dtype))
