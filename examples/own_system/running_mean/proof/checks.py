"""What must hold of a federation, whatever happened."""

from __future__ import annotations

from collections import defaultdict

from running_mean.messages import Mean, Prediction
from running_mean.proof.scenario import Scenario, predictions, scenario
from streamfl.runtime.bus import Bus
from streamfl.testing.faults.federation import Reading
from streamfl.testing.faults.observed_messages import require
from streamfl.testing.faults.systems import FaultSimulation

__all__ = ["FAULTS"]


def check(bus: Bus, chosen: Scenario) -> None:
    """Every sample is predicted once, in order, as the mean of all labels before it: none is lost, none
    counts twice."""
    written: dict[str, list[Reading]] = defaultdict(list)
    for reading in (*(one for producer in chosen.readings for one in producer), *chosen.last):
        written[reading.client].append(reading)
    found: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions(bus, chosen.settings):
        found[prediction.client].append(prediction)
    for client, readings in written.items():
        names = [prediction.sample for prediction in found[client]]
        require(names == [reading.content["id"] for reading in readings], f"{client}: predicted are {names}")
        mean = Mean()
        for reading, prediction in zip(readings, found[client], strict=True):
            expected = mean.mean if mean.count else 0.5
            require(
                prediction.prediction == expected,
                f"{prediction.sample}: {prediction.prediction}, not {expected}",
            )
            mean = mean.after(reading.content["y"])


FAULTS = FaultSimulation.of(scenario, check)
