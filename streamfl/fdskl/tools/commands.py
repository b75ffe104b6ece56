"""Commands of this system, and their options. What they run takes long to load, so it is loaded when one is
run."""

from __future__ import annotations

from typing import Annotated

import typer

from streamfl.simulation.parties import (
    EpochsOption,
    LabelDelayOption,
    NetworkDelayOption,
    OnlineOption,
    SplitOption,
    TestFractionOption,
)
from streamfl.simulation.system_tools import Report, SimulationOptions

__all__ = ["simulate"]

ActiveOption = Annotated[
    str | None,
    typer.Option(
        help="The party that knows the labels, or several with commas; left out: federation.active."
    ),
]


def simulate(
    asked: SimulationOptions,
    split: SplitOption = None,
    active: ActiveOption = None,
    network_delay: NetworkDelayOption = None,
    epochs: EpochsOption = None,
    online: OnlineOption = False,
    label_delay: LabelDelayOption = None,
    test_fraction: TestFractionOption = None,
) -> Report:
    """Run all parties on the memory bus, and say how well and at what cost they learnt."""
    from streamfl.fdskl.tools.simulate import simulate as run

    return run(asked, split, active, network_delay, epochs, online, label_delay, test_fraction)
