"""``streamfl simulate`` for POF-MKL."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from streamfl.pofmkl.tools.report import draw_errors, report
from streamfl.pofmkl.tools.streams import read_streams, run_with_progress
from streamfl.simulation.system_tools import Report, SimulationOptions

__all__ = ["simulate"]


def simulate(
    asked: SimulationOptions, clients: int | None, rounds: int | None, client_column: str | None
) -> Report:
    """Deal the rows of the data set to clients and run the federation; errors as
    :func:`~streamfl.pofmkl.tools.streams.deal`."""
    settings, streams = read_streams(
        asked.config, asked.data, asked.label, clients, rounds, asked.seed, client_column
    )
    outcome = run_with_progress(settings, streams, asked.trace)
    streams = streams.first(len(outcome.labels))
    low, high = streams.label_range
    found = report(outcome, f"Federation on {asked.data}", streams.unit, streams.record_bytes)
    return replace(
        found,
        figures={**found.figures, **streams.left_out},
        arrays=outcome.trace() if asked.trace else {},
        predictions={
            **streams.columns(),
            "prediction": streams.by_row(low + (high - low) * outcome.predictions),
        },
        draw=partial(draw_errors, outcome, unit=streams.unit),
    )
