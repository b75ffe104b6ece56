"""``streamfl compare``: the federation beside its relatives and beside what a user would pick instead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from streamfl.console import ConfigArgument, FormatOption, OutputFormat, print_json, print_table
from streamfl.pofmkl.lab.comparison import Contender, Problem, method_names, picture
from streamfl.pofmkl.lab.comparison import compare as run_methods
from streamfl.pofmkl.lab.streams import ClientColumnOption, ClientsOption, RoundsOption, read_streams
from streamfl.role import ConfigurationError
from streamfl.simulation.options import DataOption, LabelOption, SeedOption
from streamfl.simulation.pictures import check_can_draw

__all__ = ["COLUMNS", "compare", "sorted_summaries", "summary_rows"]

COLUMNS = ("method", "MSE, label on 0 to 1", "bytes sent a sample")


def compare(
    config: ConfigArgument,
    data: DataOption,
    label: LabelOption = "y",
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    client_column: ClientColumnOption = None,
    methods: Annotated[str | None, typer.Option(help="Names with commas between them; left out: all.")] = None,
    delay_labels: Annotated[int, typer.Option(min=0, help="Samples of a client by which each label comes late.")] = 0,
    chart: Annotated[Path | None, typer.Option(help="A .png or .svg for error over time and against bytes.")] = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Run several methods on the same streams and show each one's error and bytes, best first.

    default and paper are the two presets, each with what the configuration says that has a meaning there; local is the default
    without a server. With --delay-labels n a label is learnt after n more samples of its client are predicted.
    """
    if chart is not None:
        check_can_draw()
    settings, streams = read_streams(config, data, label, clients, rounds, seed, client_column)
    chosen = method_names(delay_labels) if methods is None else tuple(name.strip() for name in methods.split(","))
    contenders: list[Contender] = []
    problem = Problem(settings, streams.inputs, streams.labels, streams.names, delay_labels)
    with Console(stderr=True).status("") as status:
        contenders += run_methods(problem, chosen, lambda name: status.update(f"{name}, {chosen.index(name) + 1} of {len(chosen)}"))
    if chart is not None:
        try:
            picture(contenders, chart, f"{Path(data).name}: {settings.federation.clients} clients")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"--chart {chart}: cannot be written: {error}") from None
    summaries = sorted_summaries(contenders)
    if format is OutputFormat.JSON:
        print_json(
            {
                "clients": settings.federation.clients,
                "rounds": len(streams.labels),
                "delay_labels": delay_labels,
                **streams.left_out,
                "methods": summaries,
            }
        )
        return
    late = f", labels {delay_labels} samples late" if delay_labels else ""
    print_table(f"Methods on {data}{late}", COLUMNS, summary_rows(summaries))


def sorted_summaries(contenders: Iterable[Contender]) -> list[dict[str, Any]]:
    """The figures of each, best first."""
    found = (contender.summary() for contender in contenders)
    return sorted(found, key=lambda one: math.inf if one["mse"] is None else one["mse"])


def summary_rows(summaries: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """The figures of each, ready to print beneath ``COLUMNS``."""
    return [
        (
            found["method"],
            "diverged" if found["mse"] is None else f"{found['mse']:.5f}",
            _sent(found["uplink_bytes_per_sample"]),
        )
        for found in summaries
    ]


def _sent(bytes_a_sample: float | None) -> str:
    if bytes_a_sample is None:
        return "not counted"
    return f"{bytes_a_sample:,.0f}" if bytes_a_sample else "nothing"
