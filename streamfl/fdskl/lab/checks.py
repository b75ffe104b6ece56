"""What must hold of a federation of masked sums, whatever happened: checked from its topics, with everybody's secrets."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.lab.said import decode_prediction
from streamfl.fdskl.lab.scenario import LABELS, FdsklScenario
from streamfl.fdskl.messages import Prediction
from streamfl.runtime.bus import Bus
from streamfl.simulation.faults.cluster import FaultyBus
from streamfl.simulation.faults.said import latest, require

__all__ = ["check_outcome"]


def check_outcome(bus: FaultyBus, chosen: FdsklScenario) -> None:
    """Nobody was refused, no mask served twice, everybody was predicted, and all labels were learnt."""
    for member in chosen.members:
        letters = list(bus.read(chosen.of(member).dead_letters))
        require(not letters, f"{member}: {len(letters)} records were refused: {[letter.headers for letter in letters[:1]]}")
    require(not chosen.said.reused, f"{chosen.said.reused[:1]}")
    check_predictions(bus, chosen)


def check_predictions(bus: Bus, chosen: FdsklScenario) -> None:
    found: dict[str, list[Prediction]] = defaultdict(list)
    for record in bus.read(f"{chosen.name}.predictions"):
        prediction = decode_prediction(record)
        found[prediction.entity].append(prediction)
    require(chosen.forgets or chosen.to_be_predicted <= found.keys(), f"predicted were {sorted(found)}")
