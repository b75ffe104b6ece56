"""``streamfl replay``: a data set's rows as samples of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from streamfl.contract.role import ConfigurationError
from streamfl.simulation.options import ClientColumnOption, LabelOption
from streamfl.simulation.sources import LateByOption, SampleRows
from streamfl.simulation.system_tools import Replayed
from streamfl.simulation.tables import read_data

if TYPE_CHECKING:
    # Not loaded for --help: the learner's libraries take long to load.
    from streamfl.pofmkl.config import PofmklSettings

__all__ = ["samples"]


def samples(
    asked: Replayed, label: LabelOption = None, client_column: ClientColumnOption = None, label_delay: LateByOption = None
) -> SampleRows:
    """The rows as samples in the format of the settings, keyed by client; with [labels] their labels under the same key."""
    settings = cast("PofmklSettings", asked.settings)
    if settings.samples is None:
        raise ConfigurationError(f"{asked.config}: the section [samples] is missing: it names the topic and the fields")
    if settings.labels is None and label_delay is not None:
        raise ConfigurationError(f"--label-delay = {label_delay}: without the section [labels] a label comes with its sample")
    table = read_data(asked.data)
    clients = settings.federation.clients
    return SampleRows(settings.samples, settings.labels, table, asked.data, clients, label, client_column, label_delay)
