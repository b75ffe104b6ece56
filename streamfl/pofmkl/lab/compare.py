"""``streamfl compare``: the federation beside its relatives and beside what a user would pick instead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from streamfl.console import ConfigArgument, FormatOption, OutputFormat, print_json, print_table
from streamfl.pofmkl.lab.comparison import Contender, Problem, method_names
from streamfl.pofmkl.lab.comparison import compare as run_methods
from streamfl.pofmkl.lab.comparison_picture import picture, sent_in_words
from streamfl.pofmkl.lab.errors import in_words
from streamfl.pofmkl.lab.report import error_columns
from streamfl.pofmkl.lab.streams import ClientColumnOption, ClientsOption, RoundsOption, read_streams
from streamfl.role import ConfigurationError
from streamfl.simulation.options import DataOption, LabelOption, SeedOption
from streamfl.simulation.pictures import check_can_draw

__all__ = ["chosen_methods", "columns", "compare", "sorted_summaries", "summary_rows"]


def compare(
    config: ConfigArgument,
    data: DataOption,
    label: LabelOption = "y",
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    client_column: ClientColumnOption = None,
    methods: Annotated[str | None, typer.Option(help="Names with commas between them; left out: all but those of --all.")] = None,
    all_methods: Annotated[
        bool, typer.Option("--all", help="With the methods that the paper of this learner compares it with.")
    ] = False,
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
    named = None if methods is None else [name.strip() for name in methods.split(",")]
    chosen = chosen_methods(named, all_methods, delay_labels)
    contenders: list[Contender] = []
    problem = Problem(settings, streams.inputs, streams.labels, streams.names, delay_labels)
    with Console(stderr=True).status("") as status:
        contenders += run_methods(problem, chosen, lambda name: status.update(f"{name}, {chosen.index(name) + 1} of {len(chosen)}"))
    if chart is not None:
        try:
            heading = f"{Path(data).name}: {settings.federation.clients} clients"
            picture(contenders, chart, heading, streams.unit, streams.record_bytes)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"--chart {chart}: cannot be written: {error}") from None
    summaries = sorted_summaries(contenders)
    if format is OutputFormat.JSON:
        print_json(
            {
                "clients": settings.federation.clients,
                "rounds": len(streams.labels),
                "delay_labels": delay_labels,
                "record_bytes": streams.record_bytes,
                **streams.left_out,
                "methods": summaries,
            }
        )
        return
    late = f", labels {delay_labels} samples late" if delay_labels else ""
    print_table(f"Methods on {data}{late}", columns(streams.unit, streams.record_bytes), summary_rows(summaries))


def chosen_methods(methods: Sequence[str] | None, all_methods: bool, delay_labels: int) -> tuple[str, ...]:
    """What is to be compared; ConfigurationError where names are given and all are asked for."""
    if methods is not None and all_methods:
        raise ConfigurationError("--methods names what is compared, and --all asks for everything: leave one of them out")
    return method_names(delay_labels, all_methods) if methods is None else tuple(methods)


def columns(unit: str, record_bytes: int) -> tuple[str, ...]:
    """The headings of :func:`summary_rows`, as :func:`error_columns` has them."""
    return ("method", "what it is", *error_columns(unit, record_bytes))


def sorted_summaries(contenders: Iterable[Contender]) -> list[dict[str, Any]]:
    """The figures of each, best first."""
    found = (contender.summary() for contender in contenders)
    return sorted(found, key=lambda one: math.inf if one["rmse"] is None else one["rmse"])


def summary_rows(summaries: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The figures of each, ready to print beneath :func:`columns`."""
    return [
        (
            found["method"],
            found["about"],
            *("diverged" if found[name] is None else in_words(found[name]) for name in ("rmse", "mae")),
            sent_in_words(found["uplink_bytes_per_sample"]),
        )
        for found in summaries
    ]
