"""Commands of this system, and their options. What they run takes long to load, so it is loaded when a
command is run."""

from __future__ import annotations

from typing import Annotated

import typer

from streamfl.simulation.parties import (
    DelayDistributionOption,
    DelaysOption,
    EpochsOption,
    LabelDelayOption,
    NetworkDelayOption,
    OnlineOption,
    SplitOption,
    TestFractionOption,
)
from streamfl.simulation.system_tools import Report, SimulationOptions

__all__ = ["simulate"]

CoordinatorDelayOption = Annotated[
    float | None,
    typer.Option(help="Virtual seconds that the coordinator takes for one upload of a party; left out: 0."),
]


def simulate(
    asked: SimulationOptions,
    split: SplitOption = None,
    delays: DelaysOption = None,
    delay_distribution: DelayDistributionOption = None,
    network_delay: NetworkDelayOption = None,
    coordinator_delay: CoordinatorDelayOption = None,
    epochs: EpochsOption = None,
    online: OnlineOption = False,
    label_delay: LabelDelayOption = None,
    test_fraction: TestFractionOption = None,
) -> Report:
    """Run coordinator and parties on the memory bus, and say how well and at what cost they learnt."""
    from streamfl.vafl.tools.simulate import simulate as run

    delayed = delays, delay_distribution, network_delay, coordinator_delay
    return run(asked, split, *delayed, epochs, online, label_delay, test_fraction)
