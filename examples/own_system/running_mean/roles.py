"""The role as ``[role] kind`` names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from running_mean.config import KIND, RunningMeanSettings
from running_mean.role import RunningMean
from streamfl.contract.role import Channels, Input, TopicSpec
from streamfl.records.samples import Sample, SampleReader
from streamfl.roles.role_kind import RoleKind
from streamfl.state.state_settings import StateSettings, by_key

__all__ = ["ROLES"]


def _client_of(sample: Sample) -> str:
    return sample.client


def _build(settings: RunningMeanSettings) -> RunningMean:
    return RunningMean(settings.federation.clients, SampleReader(settings.samples).original)


def _channels(settings: RunningMeanSettings) -> Channels:
    return Channels(
        inputs={"samples": Input(settings.samples.topic, SampleReader(settings.samples).decode, client=_client_of)},
        outputs={"predictions": settings.predictions},
        changelogs={"state": settings.state},
    )


def _topics(settings: RunningMeanSettings) -> Sequence[TopicSpec]:
    return [
        TopicSpec(settings.samples.topic, None, compacted=False, users=True),
        TopicSpec(settings.predictions, None, compacted=False),
        TopicSpec(settings.state, None, compacted=True),
        TopicSpec(settings.dead_letters, None, compacted=False),
    ]


def _state_settings(settings: RunningMeanSettings) -> StateSettings:
    may_change = {"federation.clients", "federation.members", "samples.format"}
    return StateSettings.of(by_key(settings, ("federation", "samples")), may_change)


def _partitioned_like(settings: RunningMeanSettings) -> Mapping[str, str]:
    return {settings.state: settings.samples.topic}


ROLES = {KIND: RoleKind(KIND, RunningMeanSettings, _build, _channels, _topics, _state_settings, _partitioned_like)}
