"""Commands of this system, and their options. What a command runs takes long to load, so it is loaded when it
is run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfl.simulation.options import ClientColumnOption, DataOption, LabelOption, SeedOption
from streamfl.simulation.system_tools import Report, SimulationOptions
from streamfl.terminal.console import ConfigArgument, FormatOption, OutputFormat

__all__ = ["compare", "simulate"]

ClientsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="K; left out: all that the column with the client names, or federation.clients."
    ),
]
RoundsOption = Annotated[
    int | None, typer.Option(min=1, help="T, samples a client at most; left out: all there are.")
]


def simulate(
    asked: SimulationOptions,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    client_column: ClientColumnOption = None,
) -> Report:
    """Deal the rows of the data set to clients and run the federation; errors as
    :func:`~streamfl.pofmkl.tools.streams.deal`."""
    from streamfl.pofmkl.tools.simulate import simulate as run

    return run(asked, clients, rounds, client_column)


def compare(
    config: ConfigArgument,
    data: DataOption,
    label: LabelOption = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    client_column: ClientColumnOption = None,
    methods: Annotated[
        str | None, typer.Option(help="Names with commas between them; left out: all but those of --all.")
    ] = None,
    all_methods: Annotated[
        bool, typer.Option("--all", help="With the methods that the paper of this learner compares it with.")
    ] = False,
    delay_labels: Annotated[
        int,
        typer.Option(
            "--label-delay",
            "--delay-labels",
            min=0,
            help="By how many samples of its client a label comes later.",
        ),
    ] = 0,
    chart: Annotated[
        Path | None, typer.Option(help="A .png or .svg for error over time and against bytes.")
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Run several methods on the same streams and show each one's error and bytes, best first.

    default and paper are the two presets, each with the keys of the configuration that have a meaning there.
    local is the default without a server. With --label-delay n a label is learnt after n more samples of its
    client are predicted.
    """
    from streamfl.pofmkl.tools.compare import compare as run

    named = None if methods is None else [name.strip() for name in methods.split(",")]
    run(
        config,
        data,
        label,
        clients,
        rounds,
        seed,
        client_column,
        named,
        all_methods,
        delay_labels,
        chart,
        format,
    )
