"""``streamfl compare``: the federation beside its relatives and beside what a user would pick instead."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from streamfl.cli.output import FormatOption, OutputFormat, print_json, print_table, say
from streamfl.cli.preflight import ConfigArgument, read_configuration
from streamfl.cli.simulate import deal, scaled
from streamfl.pofmkl.config import PofmklSettings
from streamfl.role import ConfigurationError
from streamfl.simulation.comparison import Contender, Problem, method_names, picture
from streamfl.simulation.comparison import compare as run_methods

__all__ = ["compare"]


def compare(
    config: ConfigArgument,
    data: Annotated[str, typer.Option("--data", help="A .csv, .parquet or .npz file, or river:NAME.")],
    label: Annotated[str, typer.Option(help="The column with the label.")] = "y",
    clients: Annotated[int | None, typer.Option(min=1, help="K; left out: federation.clients.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="T, samples a client; left out: all there are.")] = None,
    seed: Annotated[int | None, typer.Option(help="Left out: federation.seed.")] = None,
    client_column: Annotated[
        str | None, typer.Option(help="The column with the client; left out: row t K + k is sample t of client k.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Names with commas between them; left out: all.")] = None,
    chart: Annotated[Path | None, typer.Option(help="A .png or .svg for error over time and against bytes.")] = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Run several methods on the same streams and show each one's error and bytes, best first."""
    federation = {name: value for name, value in (("clients", clients), ("seed", seed)) if value is not None}
    settings = read_configuration(config, {"federation": federation}).settings
    if not isinstance(settings, PofmklSettings):
        raise ConfigurationError(f"{config}: role.kind = {settings.role.kind!r} cannot be simulated")
    features = settings.samples.features if settings.samples is not None else None
    named = features if isinstance(features, list) else None
    streams = deal(data, label, settings.federation.clients, rounds, named, client_column)
    if streams.dropped:
        say(f"{streams.dropped} rows have no number in some column, or no client, and are left out")
    chosen = method_names() if methods is None else tuple(name.strip() for name in methods.split(","))
    contenders: list[Contender] = []
    problem = Problem(scaled(settings, streams), streams.inputs, streams.labels, streams.names)
    with Console(stderr=True).status("") as status:
        contenders += run_methods(problem, chosen, lambda name: status.update(f"{name}, {chosen.index(name) + 1} of {len(chosen)}"))
    if chart is not None:
        try:
            picture(contenders, chart, f"{Path(data).name}: {settings.federation.clients} clients")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"--chart {chart}: cannot be written: {error}") from None
    summaries = sorted(
        (contender.summary() for contender in contenders),
        key=lambda found: math.inf if found["mse"] is None else found["mse"],
    )
    if format is OutputFormat.JSON:
        print_json({"clients": settings.federation.clients, "rounds": len(streams.labels), "methods": summaries})
        return
    rows = [
        (
            found["method"],
            "diverged" if found["mse"] is None else f"{found['mse']:.5f}",
            f"{found['uplink_bytes_per_sample']:,.0f}" if found["uplink_bytes"] else "nothing",
        )
        for found in summaries
    ]
    print_table(f"Methods on {data}", ("method", "MSE, label on 0 to 1", "bytes sent a sample"), rows)
