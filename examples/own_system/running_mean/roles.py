"""The role as ``[role] kind`` names it, and its channels."""

from __future__ import annotations

from operator import attrgetter

from running_mean.config import KIND, RunningMeanSettings
from running_mean.messages import STATE
from running_mean.metrics import MeanMetrics
from running_mean.role import RunningMean
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.records.samples import SampleReader
from streamfl.roles.role_kind import RoleKind

__all__ = ["ROLES"]


def _table(settings: RunningMeanSettings) -> ChannelTable:
    name, read = settings.federation.name, SampleReader(settings.samples).decode
    rows = [
        Channel(
            name="samples",
            links={(USER, KIND): settings.samples.topic},
            decode=read,
            client=attrgetter("client"),
        ),
        Channel(name="predictions", links={(KIND, USER): f"{name}.predictions"}),
        Channel(name="state", links={(KIND, KIND): f"{name}.{KIND}.state"}, state=True, like="samples"),
    ]
    return ChannelTable(KIND, rows)


ROLES = {KIND: RoleKind(KIND, RunningMeanSettings, RunningMean, _table, state=STATE, metrics=(MeanMetrics,))}
