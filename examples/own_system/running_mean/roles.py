"""The role as ``[role] kind`` names it, and its channels."""

from __future__ import annotations

from running_mean.config import KIND, RunningMeanSettings
from running_mean.messages import Mean
from running_mean.metrics import MeanMetrics
from running_mean.role import RunningMean
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.records.samples import SampleReader
from streamfl.roles.client_role import client_state
from streamfl.roles.role_kind import RoleKind, by_name

__all__ = ["ROLES"]


def _table(settings: RunningMeanSettings) -> ChannelTable:
    predictions = Channel(name="predictions", links={(KIND, USER): settings.predictions_topic})
    return ChannelTable(KIND, [SampleReader(settings.samples).channel(KIND), predictions])


ROLES = by_name(
    RoleKind(KIND, RunningMeanSettings, RunningMean, _table, state=client_state(Mean), metrics=(MeanMetrics,))
)
