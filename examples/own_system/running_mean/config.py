"""The settings of the role."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streamfl.configuration.settings import FederationSection, RoleSettings
from streamfl.records.samples import SamplesSection
from streamfl.state.changeable import CHANGEABLE

__all__ = ["KIND", "RunningMeanFederation", "RunningMeanSettings"]

KIND = "running-mean"


class RunningMeanFederation(FederationSection):
    """Who is there."""

    clients: Annotated[int, CHANGEABLE] = Field(default=100, ge=1, le=100_000)
    """The most clients of one partition; samples of others are refused."""


class RunningMeanSettings(RoleSettings):
    """All sections of the settings file."""

    federation: RunningMeanFederation
    samples: SamplesSection
    """The topic with the samples."""
