"""``streamfl simulate`` of running means."""

from __future__ import annotations

from itertools import chain

import numpy as np

from running_mean.config import RunningMeanSettings
from running_mean.tools.federation import predictions_of, rmse
from streamfl.configuration.settings import load_settings
from streamfl.records.samples import SamplesSection
from streamfl.simulation.options import ClientColumnOption
from streamfl.simulation.sources import SampleRows
from streamfl.simulation.system_tools import Report, SimulationOptions
from streamfl.simulation.tables import numbers, read_data

__all__ = ["simulate"]


def simulate(asked: SimulationOptions, client_column: ClientColumnOption = None) -> Report:
    """Every usable row in the order of the file, dealt to the clients in turn unless a column names them."""
    table = read_data(asked.data)
    labels = numbers(table, [asked.label], asked.data)[:, 0]
    overrides = {} if asked.seed is None else {"federation": {"seed": asked.seed}}
    settings = load_settings(asked.config, RunningMeanSettings, overrides)
    content = {
        **settings.samples.model_dump(),
        "label": asked.label,
        "label_range": (float(labels.min()), float(labels.max())),
    }
    settings = settings.model_copy(update={"samples": SamplesSection(**content)})
    clients = settings.federation.clients
    rows = SampleRows(settings.samples, None, table, asked.data, clients, asked.label, client_column, None)
    records = list(chain.from_iterable(rows.records(len(rows.usable))))
    predictions, usable = predictions_of(settings, records), labels[rows.usable]
    figures = {"samples": len(records), "rmse": rmse(predictions, usable), "deviation": float(np.std(usable))}
    return Report(
        title=f"Running means of {asked.data}",
        rows=[(name, f"{value:,.5g}") for name, value in figures.items()],
        figures=figures,
        arrays={"predictions": predictions, "labels": usable},
    )
