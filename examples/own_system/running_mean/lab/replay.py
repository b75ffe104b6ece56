"""``streamfl replay``: a data set's rows as samples."""

from __future__ import annotations

from typing import cast

from running_mean.config import RunningMeanSettings
from streamfl.simulation.laboratory import Replayed
from streamfl.simulation.sources import LabelColumnOption, OwnerColumnOption, SampleRows
from streamfl.simulation.tables import read_data

__all__ = ["samples"]


def samples(asked: Replayed, label: LabelColumnOption = None, client_column: OwnerColumnOption = None) -> SampleRows:
    """The rows as the settings say that samples look, keyed by the client."""
    settings = cast(RunningMeanSettings, asked.settings)
    table, clients = read_data(asked.data), settings.federation.clients
    return SampleRows(settings.samples, None, table, asked.data, clients, label, client_column, None)
