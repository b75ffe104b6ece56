"""``streamfl demo fdskl``: two parties with one axis each learn a curved border that neither could draw, and show nobody a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.circle import from_circle, number_type
from streamfl.fdskl.config import FdsklFederation, FdsklSettings, KernelLearningSection, WORKER
from streamfl.fdskl.lab.run import KernelOutcome
from streamfl.fdskl.lab.simulate import run_with_bar
from streamfl.fdskl.losses import loss_named
from streamfl.fdskl.newton import solve_block
from streamfl.records.entities import EntityLabelsSection, EntitySamplesSection, PartySection
from streamfl.seeding import rng_for
from streamfl.settings import RoleSection
from streamfl.simulation.laboratory import Report
from streamfl.simulation.pictures import FEDERATION, LOCAL, STYLES, label_axes
from streamfl.simulation.tables import numbers, read_data
from streamfl.simulation.vertical import VerticalTable

__all__ = ["demo"]

# Points of two classes that lie around each other like two bananas.
DATA = "river:Bananas"
TEST = 1300
PARTIES = ("east", "north")
LABEL_DELAY, BATCH = 200, 128
# Virtual seconds of a message.
NETWORK_DELAY = 0.1
# The model is drawn at so many points of each axis.
GRID = 60
TITLES = {
    "together": "the two parties together",
    "one table": "whoever had both columns in one table",
    "linear": "a linear model of both columns",
    "east alone": "east alone",
    "north alone": "north alone",
}
