"""``streamfl demo running-mean``: three clients with means of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from running_mean.config import KIND, RunningMeanFederation, RunningMeanSettings
from running_mean.tools.federation import predictions_of, rmse
from streamfl.configuration.settings import RoleSection
from streamfl.contract.seeding import rng_for
from streamfl.records.samples import SamplesSection
from streamfl.runtime.bus import Outgoing
from streamfl.simulation.pictures import FEDERATION, can_draw, label_axes, new_pyplot
from streamfl.simulation.system_tools import Report

__all__ = ["demo"]

CLIENTS, ROUNDS = 3, 200


def demo(out: Path, seed: int) -> Report:
    """Labels around a mean of each client; the error falls to their variance."""
    draws = rng_for(seed, "running-mean", "demo")
    labels = (draws.uniform(0, 1, CLIENTS) + draws.normal(0, 0.1, (ROUNDS, CLIENTS))).ravel()
    settings = RunningMeanSettings(
        federation=RunningMeanFederation(name="demo", seed=seed),
        role=RoleSection(kind=KIND),
        samples=SamplesSection(topic="samples", features=["x"], label="y", label_range=(-1.0, 2.0)),
    )
    records = [
        Outgoing(
            "samples", f"client-{number % CLIENTS}".encode(), json.dumps({"x": 0.0, "y": label}).encode()
        )
        for number, label in enumerate(labels.tolist())
    ]
    predictions = predictions_of(settings, records)
    error = rmse(predictions, labels)
    if can_draw():
        _draw(np.square(predictions - labels).reshape(ROUNDS, CLIENTS).mean(axis=1), out)
    return Report("Running means", [("RMSE, units of y", f"{error:.4f}")], {"rmse": error})


def _draw(squared: NDArray[np.float64], out: Path) -> None:
    """The RMSE so far. squared: errors of each round."""
    pyplot = new_pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    rounds = np.arange(1, ROUNDS + 1)
    axes.plot(rounds, np.sqrt(np.cumsum(squared) / rounds), color=FEDERATION, linewidth=2.5)
    label_axes(axes, "Error so far", "samples a client", "RMSE, units of y")
    figure.savefig(out, dpi=140)
    pyplot.close(figure)
