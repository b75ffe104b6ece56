"""The default learner and its server's step in lockstep, called directly: what ablations, late labels and lone clients need."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from streamfl.kernels.log_weights import bin_probabilities, heaviest_first, normalised
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.default_learner import DefaultLearner
from streamfl.pofmkl.roles import learner as learner_of
from streamfl.pofmkl.roles import server_step
from streamfl.role import ConfigurationError
from streamfl.seeding import UniformSequence

__all__ = ["alone", "federated"]


def federated(
    settings: PofmklSettings, inputs: NDArray[np.float64], labels: NDArray[np.float64], names: list[str], delay: int = 0
) -> NDArray[np.float64]:
    """Predictions (T, K) of a federation whose labels come ``delay`` samples late.

    Sample t is predicted with the labels of samples 0 .. t - delay - 1 at hand. Without delay it is what
    :func:`streamfl.pofmkl.lab.federation.simulate` predicts, to rounding: the same draws, by the same ``names``. The server's step
    follows each round of labels, clients in order of name. inputs (T, K, d) and labels (T, K) are on the learning scale.

    Raises ConfigurationError for another preset than "default", whose updates belong to the model they were made on.
    """
    learner = _default_learner(settings, inputs.shape[2])
    step = server_step(settings)(learner.kernels)
    parameters = np.zeros((learner.kernels, learner.row_length), learner.dtype)
    rows = np.array([learner.borrow() for _ in names])
    by_name = sorted(range(len(names)), key=names.__getitem__)
    draws = [UniformSequence(settings.federation.seed, "bin", name) for name in names]
    sent = settings.kernels_per_upload or learner.kernels
    predictions = np.empty(labels.shape)
    pending: deque[tuple[list[bytes], NDArray[np.float64]]] = deque()
    learnt = 0
    for number, (sample, label) in enumerate(zip(inputs, labels, strict=True)):
        forecast = learner.predict(rows, sample, parameters)
        predictions[number] = forecast.predictions
        pending.append((forecast.encoded(), label))
        if len(pending) <= delay:
            continue
        forecasts, label = pending.popleft()
        taken = learner.learn(rows, forecasts, label, parameters, np.zeros(learner.kernels))
        uniforms = np.array([draw[learnt] for draw in draws])
        learnt += 1
        orders = heaviest_first(taken.log_weights)
        weights = np.take_along_axis(normalised(taken.log_weights), orders, axis=1)
        cumulated = np.cumsum(bin_probabilities(weights, sent, settings.learning.effective_exploration), axis=1)
        bins = np.minimum((cumulated <= uniforms[:, None]).sum(axis=1), cumulated.shape[1] - 1)
        kernels = [np.sort(orders[k, bins[k] * sent : (bins[k] + 1) * sent]) for k in by_name]
        samples = np.repeat(by_name, [len(held) for held in kernels])
        sent_kernels = np.concatenate(kernels)
        steps = taken.steps(samples, sent_kernels, np.ones(len(sent_kernels)))
        parameters = step.apply(parameters, sent_kernels, steps).astype(learner.dtype)
    return predictions


def alone(
    settings: PofmklSettings, inputs: NDArray[np.float64], labels: NDArray[np.float64], names: list[str], delay: int = 0
) -> NDArray[np.float64]:
    """Predictions (T, K) of clients that each train all kernels on their own labels only; arguments as :func:`federated`."""
    every = settings.model_copy(
        update={
            "uplink": settings.uplink.model_copy(
                update={"kernels_per_upload": settings.kernel_count, "budget_bytes_per_second": None}
            ),
            "kernels": settings.kernels.model_copy(update={"bandwidths": list(settings.bandwidths)}),
        }
    )
    each = [federated(every, inputs[:, k : k + 1], labels[:, k : k + 1], names[k : k + 1], delay) for k in range(len(names))]
    return np.concatenate(each, axis=1)


def _default_learner(settings: PofmklSettings, dimension: int) -> DefaultLearner:
    learner = learner_of(settings, dimension)
    if not isinstance(learner, DefaultLearner):
        raise ConfigurationError(f'learning.preset = "{settings.learning.preset}": late labels need preset = "default"')
    return learner
