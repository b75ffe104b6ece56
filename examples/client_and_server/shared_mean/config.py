"""The settings of both roles."""

from pydantic import Field

from streamfl.configuration.settings import RoleSettings, Section
from streamfl.records.samples import SamplesSection
from streamfl.roles.client_role import ClientsFederation


class ShrinkageSection(Section):
    """How much the shared mean counts."""

    labels: float = Field(default=5.0, gt=0, le=1e6)
    """The shared mean counts as much as this number of the client's own labels."""


class SharedMeanSettings(RoleSettings):
    """All sections of the settings file."""

    federation: ClientsFederation
    samples: SamplesSection | None = None
    """The topic with the samples. A server reads none."""
    shrinkage: ShrinkageSection = ShrinkageSection()
