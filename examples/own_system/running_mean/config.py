"""The settings of the role."""

from __future__ import annotations

from streamfl.configuration.settings import RoleSettings
from streamfl.records.samples import SamplesSection
from streamfl.roles.client_role import ClientsFederation

__all__ = ["KIND", "RunningMeanSettings"]

KIND = "running-mean"


class RunningMeanSettings(RoleSettings):
    """All sections of the settings file."""

    federation: ClientsFederation
    samples: SamplesSection
    """The topic with the samples."""
