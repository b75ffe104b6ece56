"""``streamfl.compare`` from Python: several methods on the same frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadpoolctl import threadpool_limits

from streamfl.contract.role import ConfigurationError
from streamfl.pofmkl.tools.commands import compare as command
from streamfl.pofmkl.tools.compare import chosen_methods, columns, sorted_summaries, summary_rows
from streamfl.pofmkl.tools.comparison import Contender, Problem
from streamfl.pofmkl.tools.comparison import compare as run_methods
from streamfl.pofmkl.tools.comparison_picture import draw_errors
from streamfl.pofmkl.tools.streams import Streams, read_streams
from streamfl.simulation.notebook import Config, Data, Result, settings_given, table_given
from streamfl.simulation.options import options_given

__all__ = ["compare"]


def compare(
    data: Data,
    config: Config = None,
    *,
    label: str | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    client_column: str | None = None,
    methods: Sequence[str] | None = None,
    all_methods: bool = False,
    delay_labels: int = 0,
) -> Result:
    """Run several methods on the same streams, as ``streamfl compare`` does, best first.

    Parameters
    ----------
    data
        A DataFrame, a dictionary of columns, or a value of ``--data``.
    config
        A client's settings: the path of its file, or its sections as a dictionary. Left out: all defaults.
    label
        The column with the label; left out: the one that ``config`` names, or y.
    clients, rounds
        Number of clients, and of samples of each; left out: federation.clients, or all clients in
        client_column, and all samples.
    seed
        Left out: federation.seed.
    client_column
        The column with the client; left out: the one that ``config`` names, or else rows are dealt to the
        clients in turn.
    methods
        Names of methods; left out: all but the paper's rivals. "default" is what streamfl runs, "local" the
        same without a server.
    all_methods
        With the methods that the paper of this learner compares it with.
    delay_labels
        Samples of a client by which each label comes late.
    """
    options: dict[str, Any] = {
        "label": label,
        "clients": clients,
        "rounds": rounds,
        "seed": seed,
        "client_column": client_column,
    }
    options = options_given(command, {**options, "delay_labels": delay_labels, "all_methods": all_methods})
    delay_labels, all_methods = options.pop("delay_labels"), options.pop("all_methods")
    if methods is not None and (isinstance(methods, str) or not isinstance(methods, Sequence) or not methods):
        raise ConfigurationError(
            f'methods = {methods!r}: a list of names is expected, such as ["default", "local"]; left out: all'
        )
    settings, streams = read_streams(settings_given(config), table_given(data), **options)
    problem = Problem(settings, streams.inputs, streams.labels, streams.names, delay_labels)
    with threadpool_limits(1):
        contenders = list(run_methods(problem, chosen_methods(methods, all_methods, delay_labels)))
    return _result(problem, streams, contenders)


def _result(problem: Problem, streams: Streams, contenders: Sequence[Contender]) -> Result:
    """The figures, best first, with each method's predictions in the label's own unit."""
    clients, summaries = problem.settings.federation.clients, sorted_summaries(contenders)
    low, high = streams.label_range
    predictions: dict[str, Any] = streams.columns()
    for contender in contenders:
        predictions[contender.name] = streams.by_row(low + (high - low) * contender.predictions)
    return Result(
        f"{len(contenders)} methods, {clients} clients",
        columns(streams.unit, streams.record_bytes),
        summary_rows(summaries),
        {
            "clients": clients,
            "rounds": len(streams.labels),
            "delay_labels": problem.delay,
            "record_bytes": streams.record_bytes,
            **streams.left_out,
            "methods": summaries,
        },
        predictions=predictions,
        draw=lambda axes: draw_errors(contenders, axes, streams.unit),
    )
