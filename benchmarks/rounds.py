"""A federation called directly, in rounds in which not every client has a sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.commands import Floats
from streamfl.configuration.settings import RoleSection
from streamfl.contract.seeding import UniformSequence
from streamfl.pofmkl.config import PofmklFederation, PofmklSettings
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.log_weights import bin_probabilities, heaviest_first, normalised
from streamfl.pofmkl.roles import learner as learner_of
from streamfl.pofmkl.roles import server_step


def in_rounds(inputs: Floats, labels: Floats, present: NDArray[np.bool_], seed: int = 0) -> Floats:
    """Predictions (T, K) of the default federation; where a client is not ``present``, the mean of its labels
    so far.

    inputs (T, K, d), labels and present (T, K). A label is learnt when its sample was predicted, the server
    steps after each round."""
    rounds, clients, dimension = inputs.shape
    settings = PofmklSettings(
        federation=PofmklFederation(name="rounds", clients=clients, seed=seed),
        role=RoleSection(kind="pofmkl-client"),
    )
    learner = learner_of(settings, dimension)
    assert isinstance(learner, DefaultLearner)
    step = server_step(settings)(learner.kernels)
    parameters = np.zeros((learner.kernels, learner.row_length), learner.dtype)
    rows = np.array([learner.borrow() for _ in range(clients)])
    draws = [UniformSequence(seed, "bin", f"client-{number}") for number in range(clients)]
    counts = np.zeros(clients, np.int64)
    sent = settings.kernels_per_upload or learner.kernels
    predictions = np.empty((rounds, clients))
    for number in range(rounds):
        predictions[number] = labels[:number].mean(axis=0) if number else 0.0
        here = np.flatnonzero(present[number])
        if not len(here):
            continue
        forecast = learner.predict(rows[here], inputs[number, here], parameters)
        predictions[number, here] = forecast.predictions
        taken = learner.learn(
            rows[here], forecast.encoded(), labels[number, here], parameters, np.zeros(learner.kernels)
        )
        uniforms = np.array([draws[client][counts[client]] for client in here])
        counts[here] += 1
        orders = heaviest_first(taken.log_weights)
        weights = np.take_along_axis(normalised(taken.log_weights), orders, axis=1)
        cumulated = np.cumsum(
            bin_probabilities(weights, sent, settings.learning.effective_exploration), axis=1
        )
        bins = np.minimum((cumulated <= uniforms[:, None]).sum(axis=1), cumulated.shape[1] - 1)
        kernels = [
            np.sort(order[place * sent : (place + 1) * sent])
            for order, place in zip(orders, bins, strict=True)
        ]
        samples = np.repeat(np.arange(len(here)), [len(one) for one in kernels])
        held = np.concatenate(kernels)
        steps = taken.steps(samples, held, np.ones(len(held)))
        parameters = step.apply(parameters, held, steps).astype(learner.dtype)
    return predictions
