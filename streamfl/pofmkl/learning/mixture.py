"""Personal weights of many experts from their losses so far, and a ridge regression that corrects their
mixture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["corrected", "log_posterior", "mixed", "ridge_step"]

Floats = NDArray[np.float64]

# A squared error on the learning scale. Experts whose errors are below it count as equally good.
LEAST_NOISE = 1e-9


def log_posterior(losses: Floats, counts: Floats, log_prior: Floats, noisy: bool) -> Floats:
    """Log-weights of experts by Bayes' rule, up to a constant a row.

    Squared errors (``noisy``) come from Gaussian noise. Its variance is taken from the best expert:
        log w_i = log prior_i - (L_i - L_min) / (2 max(L_min / n, 1e-9)).
    Negative log-likelihoods need no variance:
        log w_i = log prior_i - (L_i - L_min).

    losses: sums L, (rows, experts).
    counts: samples n in each sum, (rows,).
    log_prior: (experts,).
    noisy: whether the losses are squared errors.

    Returns (rows, experts).

    >>> log_posterior(np.array([[1.0, 2.0]]), np.array([4.0]), np.zeros(2), noisy=True)
    array([[ 0., -2.]])
    """
    least = np.minimum.reduce(losses, axis=1, keepdims=True)
    excess = losses - least
    if noisy:
        excess /= 2.0 * np.maximum(least / np.maximum(counts, 1.0)[:, None], LEAST_NOISE)
    return np.asarray(log_prior - excess)


def mixed(predictions: Floats, log_weights: Floats) -> Floats:
    """sum_i w_i f_i with weights that sum to one: (rows,); both arguments (rows, experts).

    >>> mixed(np.array([[1.0, 3.0]]), np.array([[0.0, -1000.0]]))
    array([1.])
    """
    weights = np.exp(log_weights - np.maximum.reduce(log_weights, axis=1, keepdims=True))
    return np.asarray(np.add.reduce(weights * predictions, axis=1) / np.add.reduce(weights, axis=1))


def corrected(deviations: Floats, weights: Floats, covariances: Floats) -> tuple[Floats, Floats, Floats]:
    """The correction by a ridge regression on the experts' deviations from their mixture. It is shrunk where
    little was learnt yet.

    (w . u) / (1 + u' Q u)

    deviations: u, (rows, experts).
    weights: w, (rows, experts).
    covariances: Q, (rows, experts, experts).

    Returns the correction (rows,), u'Q (rows, experts) and u'Qu (rows,).
    """
    spread: Floats = np.matmul(deviations[:, None, :], covariances)[:, 0]
    total: Floats = np.einsum("ke,ke->k", spread, deviations)
    return np.einsum("ke,ke->k", weights, deviations) / (1.0 + total), spread, total


def ridge_step(
    deviations: Floats, targets: Floats, weights: Floats, covariances: Floats, ridge: float, leak: float
) -> tuple[Floats, Floats]:
    """One sample of recursive least squares: w and Q afterwards.

    k = Q u / (1 + u'Qu);  w <- w + k (t - w . u);  Q <- (1 - leak) (Q - k u'Q) + leak I / ridge

    The leak forgets old samples. Unlike with an exponential window, Q cannot grow without bound: it stays
    between 0 and I / ridge.

    deviations: u, (rows, experts).
    targets: t, (rows,).
    weights: w, (rows, experts).
    covariances: Q, (rows, experts, experts).
    ridge: of the regression.
    leak: how much is forgotten at each sample.
    """
    _, spread, total = corrected(deviations, weights, covariances)
    gains = spread / (1.0 + total)[:, None]
    errors = targets - np.einsum("ke,ke->k", weights, deviations)
    covariances = (1.0 - leak) * (covariances - gains[:, :, None] * spread[:, None, :])
    diagonal = np.einsum("kee->ke", covariances)
    diagonal += leak / ridge
    return weights + gains * errors[:, None], covariances
