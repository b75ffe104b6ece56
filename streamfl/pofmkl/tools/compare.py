"""``streamfl compare``: the federation, related methods, and the models that a user would pick instead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from streamfl.contract.role import ConfigurationError
from streamfl.pofmkl.tools.comparison import Contender, Problem, method_names
from streamfl.pofmkl.tools.comparison import compare as run_methods
from streamfl.pofmkl.tools.comparison_picture import picture, sent_in_words
from streamfl.pofmkl.tools.report import error_columns
from streamfl.pofmkl.tools.streams import read_streams
from streamfl.simulation.error_words import in_words
from streamfl.simulation.pictures import check_can_draw, check_picture
from streamfl.terminal.console import OutputFormat, print_json, print_table
from streamfl.terminal.exit_codes import ExitCode
from streamfl.terminal.progress import progress

__all__ = ["chosen_methods", "columns", "compare", "sorted_summaries", "summary_rows"]


def compare(
    config: Path,
    data: str,
    label: str | None,
    clients: int | None,
    rounds: int | None,
    seed: int | None,
    client_column: str | None,
    methods: Sequence[str] | None,
    all_methods: bool,
    delay_labels: int,
    chart: Path | None,
    format: OutputFormat,
) -> None:
    """Run the methods and print their results. The arguments are the command's options."""
    if chart is not None:
        check_can_draw()
        check_picture(chart, "--chart")
    with progress(f"reading {data}"):
        settings, streams = read_streams(config, data, label, clients, rounds, seed, client_column)
    chosen = chosen_methods(methods, all_methods, delay_labels)
    problem = Problem(settings, streams.inputs, streams.labels, streams.names, delay_labels)
    contenders, interrupted = _run(problem, chosen)
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
                **({"interrupted": interrupted} if interrupted else {}),
            }
        )
    else:
        late = f", labels {delay_labels} samples late" if delay_labels else ""
        so_far = f", interrupted at {interrupted}" if interrupted else ""
        print_table(
            f"Methods on {data}{late}{so_far}",
            columns(streams.unit, streams.record_bytes),
            summary_rows(summaries),
        )
    # Whatever is wrong with the picture: the results have been printed.
    if chart is not None and not interrupted:
        try:
            heading = f"{Path(data).name}: {settings.federation.clients} clients"
            picture(contenders, chart, heading, streams.unit, streams.record_bytes)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"--chart {chart}: cannot be written: {error}") from None
    if interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _run(problem: Problem, chosen: Sequence[str]) -> tuple[list[Contender], str]:
    """The results of the methods; and how many there are of how many, if the user has interrupted them."""
    contenders: list[Contender] = []
    with progress("compare") as work:

        def begin(name: str) -> None:
            work.of = name
            work(len(contenders), len(chosen))

        try:
            for contender in run_methods(problem, chosen, begin):
                contenders.append(contender)
        except KeyboardInterrupt:
            return contenders, f"{len(contenders)} of {len(chosen)} methods"
    return contenders, ""


def chosen_methods(methods: Sequence[str] | None, all_methods: bool, delay_labels: int) -> tuple[str, ...]:
    """The methods to compare. ConfigurationError if both names and all are given."""
    if methods is not None and all_methods:
        raise ConfigurationError(
            "--methods names what is compared, and --all asks for everything: leave one of them out"
        )
    return method_names(delay_labels, all_methods) if methods is None else tuple(methods)


def columns(unit: str, record_bytes: int) -> tuple[str, ...]:
    """The headings of :func:`summary_rows`. Arguments as for :func:`error_columns`."""
    return ("method", "what it is", *error_columns(unit, record_bytes))


def sorted_summaries(contenders: Iterable[Contender]) -> list[dict[str, Any]]:
    """Each method's figures, best first."""
    found = (contender.summary() for contender in contenders)
    return sorted(found, key=lambda one: math.inf if one["rmse"] is None else one["rmse"])


def summary_rows(summaries: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Each method's figures as text, in the order of :func:`columns`."""
    return [
        (
            found["method"],
            found["about"],
            *("diverged" if found[name] is None else in_words(found[name]) for name in ("rmse", "mae")),
            sent_in_words(found["uplink_bytes_per_sample"]),
        )
        for found in summaries
    ]
