"""The role as ``[role] kind`` names it."""

from __future__ import annotations

from running_mean.config import KIND, RunningMeanSettings
from running_mean.metrics import MeanMetrics
from running_mean.role import RunningMean
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.records.samples import Sample, SampleReader
from streamfl.roles.role_kind import RoleKind
from streamfl.state.changeable import changeable_keys
from streamfl.state.state_settings import StateSettings, by_key

__all__ = ["ROLES"]


def _client_of(sample: Sample) -> str:
    return sample.client


def _build(settings: RunningMeanSettings) -> RunningMean:
    return RunningMean(settings.federation.clients, SampleReader(settings.samples).original)


def _table(settings: RunningMeanSettings) -> ChannelTable:
    read = SampleReader(settings.samples).decode
    rows = [
        Channel(name="samples", links={(USER, KIND): settings.samples.topic}, decode=read, client=_client_of),
        Channel(name="predictions", links={(KIND, USER): settings.predictions}),
        Channel(name="state", links={(KIND, KIND): settings.state}, state=True, like="samples"),
    ]
    return ChannelTable(KIND, rows)


def _state_settings(settings: RunningMeanSettings) -> StateSettings:
    content = by_key(settings, ("federation", "samples"))
    return StateSettings.of(content, changeable_keys(settings, KIND))


ROLES = {KIND: RoleKind(KIND, RunningMeanSettings, _build, _table, _state_settings, metrics=(MeanMetrics,))}
