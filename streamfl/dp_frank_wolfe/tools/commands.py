"""Commands of this system, and their options. What they run takes long to load, so a command loads it when it
runs."""

from __future__ import annotations

from typing import Annotated

import typer

from streamfl.simulation.parties import NetworkDelayOption, SplitOption
from streamfl.simulation.system_tools import Report, SimulationOptions

__all__ = ["simulate"]

WindowsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="So many windows of window.rows rows are fitted, one after the other; left out: 1."
    ),
]
EpsilonOption = Annotated[
    float | None,
    typer.Option(help="For one entity, over all parties; inf: no noise; left out: privacy.epsilon."),
]
DrawsOption = Annotated[
    int | None,
    typer.Option(min=1, max=1000, help="Of noise that R^2 is told of, with its deviation; left out: 5."),
]


def simulate(
    asked: SimulationOptions,
    split: SplitOption = None,
    windows: WindowsOption = None,
    epsilon: EpsilonOption = None,
    draws: DrawsOption = None,
    network_delay: NetworkDelayOption = None,
) -> Report:
    """Run the parties and the server on the memory bus, and report how well they learnt, for which epsilon,
    and at what cost."""
    from streamfl.dp_frank_wolfe.tools.simulate import simulate as run

    return run(asked, split, windows, epsilon, draws, network_delay)
