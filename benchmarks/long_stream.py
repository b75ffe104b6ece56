"""Does the default learner last? ``python -m benchmarks.long_stream --samples 1000000`` prints a line of JSON
each 100,000.

Two clients and the server's least squares in lockstep, in single precision as deployed, with few and small
kernels. The labels are those of a direction that turns once in 200,000 samples, so that what was learnt has
to be unlearnt again and again.
"""

from __future__ import annotations

import json
import time

import numpy as np

from benchmarks.commands import arguments
from streamfl.configuration.settings import RoleSection
from streamfl.pofmkl.config import ExpertsSection, KernelsSection, PofmklFederation, PofmklSettings
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.section import LearningSection
from streamfl.pofmkl.roles import learner as learner_of
from streamfl.pofmkl.roles import server_step

CLIENTS, DIMENSION, NOISE, TURN = 2, 3, 0.1, 200_000
REPORT_EVERY = 100_000


def main() -> None:
    says = "Feed the default learner a long stream and print how it fares."
    count = arguments("long_stream", says, samples=(1_000_000, "of each client")).samples
    settings = PofmklSettings(
        federation=PofmklFederation(name="long", clients=CLIENTS),
        role=RoleSection(kind="pofmkl-client"),
        learning=LearningSection(features_per_kernel=16),
        kernels=KernelsSection(views=["standardised", "centred-lags"], bandwidths=[0.7, 2.8]),
        # The neighbours are chosen anew from the latest samples each time: nothing of theirs grows old.
        experts=ExpertsSection(local=["running-mean", "last-label"]),
    )
    learner = learner_of(settings, DIMENSION)
    assert isinstance(learner, DefaultLearner)
    step = server_step(settings)(learner.kernels)
    theta = np.zeros((learner.kernels, learner.row_length), learner.dtype)
    rows = np.array([learner.borrow() for _ in range(CLIENTS)])
    sent = np.tile(np.arange(learner.kernels), CLIENTS)
    sender = np.repeat(np.arange(CLIENTS), learner.kernels)
    generator = np.random.default_rng(0)
    errors = squares = total = 0.0
    largest_theta = largest_eigenvalue = 0.0
    started = time.perf_counter()
    for number in range(1, count + 1):
        inputs = generator.standard_normal((CLIENTS, DIMENSION))
        angle = 2 * np.pi * number / TURN
        labels = np.sin(inputs @ [np.cos(angle), np.sin(angle), 0.0]) + NOISE * generator.standard_normal(
            CLIENTS
        )
        forecast = learner.predict(rows, inputs, theta)
        taken = learner.learn(rows, forecast.encoded(), labels, theta, np.zeros(learner.kernels))
        theta = step.apply(theta, sent, taken.steps(sender, sent, np.ones(len(sent)))).astype(learner.dtype)
        errors += float(np.square(forecast.predictions - labels).sum())
        squares, total = squares + float(np.square(labels).sum()), total + float(labels.sum())
        if number % 1000 == 0:
            largest_theta = max(largest_theta, float(np.linalg.norm(theta, axis=1).max()))
            covariances = np.stack(
                [learner.snapshot(row).mixture["ridge_covariance"] for row in rows.tolist()]
            )
            eigenvalues = np.linalg.eigvalsh(covariances)
            largest_eigenvalue = max(largest_eigenvalue, float(eigenvalues.max()))
        if number % REPORT_EVERY == 0 or number == count:
            window = CLIENTS * ((number - 1) % REPORT_EVERY + 1)
            line = {
                "samples": number,
                "mse": errors / window,
                "label_variance": squares / window - (total / window) ** 2,
                "largest_theta_norm": largest_theta,
                "largest_ridge_eigenvalue": largest_eigenvalue,
                "seconds": time.perf_counter() - started,
            }
            print(json.dumps(line), flush=True)
            errors = squares = total = largest_theta = largest_eigenvalue = 0.0


if __name__ == "__main__":
    main()
