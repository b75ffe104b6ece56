"""What samples taught the default learner, and the rows that the server is sent of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.pofmkl.views import ViewedFeatures

__all__ = ["TargetRows"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TargetRows:
    """Samples as they were learnt; ``targets`` (samples,) are y_n, 0 where a client knew fewer than two labels."""

    features: ViewedFeatures
    views: list[NDArray[Any]]
    targets: Floats
    predictions: Floats
    scores: Floats
    kernel_predictions: Floats
    log_weights: Floats
    log_weights_after: Floats

    def steps(self, samples: NDArray[np.intp], kernels: NDArray[np.intp], probabilities: Floats) -> NDArray[Any]:
        """Target rows y_n z_i. The server's step settles how much each counts, so nothing is divided by its probability."""
        rows = self.features.rows(self.views, samples, kernels)
        return np.asarray(rows * self.targets[samples, None].astype(rows.dtype))
