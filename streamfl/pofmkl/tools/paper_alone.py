"""Clients of the paper's preset that learn alone, computed together, as by ``POFMKLRegressor``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from streamfl.kernels import LOGISTIC, frequencies, loss_named, random_features
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.log_weights import normalised
from streamfl.pofmkl.tools.sites import InputArray, samples_of

__all__ = ["paper_alone"]

# Clients run together as long as their features fit into this.
MOST_BYTES = 2**25

Floats = NDArray[np.float64]


@np.errstate(over="ignore", invalid="ignore")
def paper_alone(
    settings: PofmklSettings,
    inputs: InputArray,
    labels: Floats,
    progress: Callable[[int], None] = lambda samples: None,
) -> Floats:
    """Predictions (T, K) of clients that each have parameters of their own. Every kernel learns every sample.

    They equal those of one estimator after the other, up to rounding. Where a client diverges, its
    predictions are not finite.

    inputs: (T, K, d), on the learning scale.
    labels: (T, K), on the learning scale; NaN where a client has no samples any more.
    """
    learning, dimension = settings.learning, inputs.shape[2]
    kernels = settings.kernels.dictionary()
    dtype = np.dtype(learning.precision)
    drawn = frequencies(kernels, learning.features_per_kernel, dimension, settings.federation.seed, dtype)
    # An estimator sorts columns by their names, as text.
    order = sorted(range(dimension), key=repr)
    loss, rate, regularisation = loss_named(learning.loss), learning.rate, learning.regularisation
    shape = len(kernels), 2 * learning.features_per_kernel
    counts = samples_of(labels)
    longest = np.argsort(-counts, kind="stable")
    together = max(1, MOST_BYTES // (8 * shape[0] * shape[1]))
    predictions = np.full(labels.shape, np.nan)
    done = 0
    for start in range(0, len(longest), together):
        chosen = longest[start : start + together]
        parameters, log_weights = np.zeros((len(chosen), *shape)), np.zeros((len(chosen), shape[0]))
        for number in range(int(counts[chosen].max())):
            clients = chosen[: int((counts[chosen] > number).sum())]
            theta = parameters[: len(clients)]
            weights = log_weights[: len(clients)]
            label = labels[number, clients, None]
            features = random_features(inputs[number, clients][:, order], drawn)
            combined = np.einsum("knd,knd->kn", features, theta.astype(dtype)).astype(np.float64)
            score = (combined * normalised(weights)).sum(axis=1)
            predictions[number, clients] = expit(score) if loss is LOGISTIC else score
            said = np.einsum("knd,knd->kn", theta, features)
            weights -= rate * (
                loss.value(said, label) + regularisation * np.einsum("knd,knd->kn", theta, theta)
            )
            weights -= weights.max(axis=1, keepdims=True)
            theta *= 1.0 - 2.0 * rate * regularisation
            theta -= (rate * loss.gradient(said, label))[..., None] * features
            done += len(clients)
            progress(done)
    return predictions
