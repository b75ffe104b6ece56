"""Commands of this system, and their options. What they run takes long to load, so it is loaded only when a
command runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from streamfl.simulation.parties import NetworkDelayOption, SplitOption, TestFractionOption
from streamfl.simulation.system_tools import Report, SimulationOptions

__all__ = ["Precision", "simulate"]


class Precision(StrEnum):
    """How numbers are encrypted."""

    PAILLIER = "paillier"
    PLAIN = "plain"


PrecisionOption = Annotated[
    Precision | None,
    typer.Option(
        help="plain: the same numbers without encryption, which is fast; left out: encryption.precision."
    ),
]
MostEpochsOption = Annotated[
    int | None, typer.Option(min=1, help="Passes at most; left out: learning.epochs.")
]


def simulate(
    asked: SimulationOptions,
    split: SplitOption = None,
    precision: PrecisionOption = None,
    network_delay: NetworkDelayOption = None,
    epochs: MostEpochsOption = None,
    test_fraction: TestFractionOption = None,
) -> Report:
    """Run guest, hosts and coordinator on the memory bus, and say how well and at what cost they learnt."""
    from streamfl.quasi_newton.tools.simulate import simulate as run

    return run(asked, split, precision, network_delay, epochs, test_fraction)
