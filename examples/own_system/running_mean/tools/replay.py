"""``streamfl replay``: a data set's rows as samples."""

from __future__ import annotations

from typing import cast

from running_mean.config import RunningMeanSettings
from streamfl.simulation.options import ClientColumnOption, LabelOption
from streamfl.simulation.sources import SampleRows
from streamfl.simulation.system_tools import Replayed
from streamfl.simulation.tables import read_data

__all__ = ["samples"]


def samples(asked: Replayed, label: LabelOption = None, client_column: ClientColumnOption = None) -> SampleRows:
    """The rows as the settings say that samples look, keyed by the client."""
    settings = cast(RunningMeanSettings, asked.settings)
    table, clients = read_data(asked.data), settings.federation.clients
    return SampleRows(settings.samples, None, table, asked.data, clients, label, client_column, None)
