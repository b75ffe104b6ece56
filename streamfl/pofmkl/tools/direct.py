"""The default learner and its server's step in lockstep, called directly, for ablations and late labels."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import ConfigurationError
from streamfl.contract.seeding import UniformSequence
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.log_weights import bin_probabilities, heaviest_first, normalised
from streamfl.pofmkl.roles import learner as learner_of
from streamfl.pofmkl.roles import server_step
from streamfl.pofmkl.tools.sites import InputArray, present

__all__ = ["federated"]


def federated(
    settings: PofmklSettings,
    inputs: InputArray,
    labels: NDArray[np.float64],
    names: list[str],
    delay: int = 0,
) -> NDArray[np.float64]:
    """Predictions (T, K) of a federation whose labels come ``delay`` samples late.

    Sample t is predicted with the labels of samples 0 .. t - delay - 1 at hand. Without delay the predictions
    equal those of :func:`streamfl.pofmkl.tools.federation.simulate` up to rounding: the draws are the same
    for the same ``names``. The server's step follows each round of labels, clients in order of name. inputs
    (T, K, d) and labels (T, K) are on the learning scale. Labels and predictions are NaN where a client has
    no samples any more.

    Raises ConfigurationError for any preset but "default": updates of others belong to the model that they
    were made on."""
    learner = _default_learner(settings, inputs.shape[2])
    step = server_step(settings)(learner.kernels)
    parameters = np.zeros((learner.kernels, learner.row_length), learner.dtype)
    rows = np.array([learner.borrow() for _ in names])
    by_name = sorted(range(len(names)), key=names.__getitem__)
    draws = [UniformSequence(settings.federation.seed, "bin", name) for name in names]
    sent = settings.kernels_per_upload or learner.kernels
    predictions = np.full(labels.shape, np.nan)
    pending: deque[list[bytes]] = deque()
    here = [np.flatnonzero(there) for there in present(labels)]
    for number, clients in enumerate(here):
        forecast = learner.predict(rows[clients], inputs[number, clients], parameters)
        predictions[number, clients] = forecast.predictions
        pending.append(forecast.encoded())
        learnt = number - delay
        if learnt < 0:
            continue
        clients = here[learnt]
        forecasts = pending.popleft()
        taken = learner.learn(
            rows[clients], forecasts, labels[learnt, clients], parameters, np.zeros(learner.kernels)
        )
        uniforms = np.array([draws[k][learnt] for k in clients.tolist()])
        orders = heaviest_first(taken.log_weights)
        weights = np.take_along_axis(normalised(taken.log_weights), orders, axis=1)
        cumulated = np.cumsum(
            bin_probabilities(weights, sent, settings.learning.effective_exploration), axis=1
        )
        bins = np.minimum((cumulated <= uniforms[:, None]).sum(axis=1), cumulated.shape[1] - 1)
        places = {client: place for place, client in enumerate(clients.tolist())}
        speaking = [places[client] for client in by_name if client in places]
        kernels = [np.sort(orders[k, bins[k] * sent : (bins[k] + 1) * sent]) for k in speaking]
        samples = np.repeat(speaking, [len(held) for held in kernels])
        sent_kernels = np.concatenate(kernels)
        steps = taken.steps(samples, sent_kernels, np.ones(len(sent_kernels)))
        parameters = step.apply(parameters, sent_kernels, steps).astype(learner.dtype)
    return predictions


def _default_learner(settings: PofmklSettings, dimension: int) -> DefaultLearner:
    learner = learner_of(settings, dimension)
    if not isinstance(learner, DefaultLearner):
        raise ConfigurationError(
            f'learning.preset = "{settings.learning.preset}": late labels need preset = "default"'
        )
    return learner
