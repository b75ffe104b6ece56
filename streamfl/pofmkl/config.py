"""Settings of POF-MKL's roles, the client and the server."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from streamfl.configuration.settings import FederationSection, ReadBy, Section
from streamfl.configuration.shared import SHARED
from streamfl.kernels.dictionary import LARGEST_SMOOTHNESS, Kernel, grid, paper_dictionary
from streamfl.pofmkl.kinds import CLIENT, SERVER
from streamfl.pofmkl.learning.section import LearningSection
from streamfl.pofmkl.learning.views import VIEWS
from streamfl.pofmkl.model_settings import ChallengersSection, ExpertsSection, Models, check_models
from streamfl.records.header_propagation import FollowedPredictions
from streamfl.records.labels import LabelsSection
from streamfl.records.samples import SamplesSection
from streamfl.records.topic import RecordSettings
from streamfl.state.changeable import CHANGEABLE
from streamfl.state.state_settings import shown

__all__ = [
    "ChallengersSection",
    "DriftSection",
    "ExpertsSection",
    "KernelsSection",
    "PofmklFederation",
    "PofmklSettings",
    "UplinkSection",
]

LARGEST_DIMENSION = 100_000
LARGEST_FREQUENCIES_BYTES = 4 * 2**30
BANDWIDTHS = (0.35, 0.5, 0.7, 1.4, 2.8, 5.6)
FEW_BANDWIDTHS = (0.7, 1.4, 2.8)
KERNELS_PER_UPLOAD, FEW_KERNELS = 5, 3
# Keys that have no effect with a preset are refused: a user who sets one expects an effect.
FOREIGN_KEYS: dict[str, dict[str, set[str]]] = {
    "paper": {
        "learning": {"server_step"},
        "kernels": {"views"},
        "experts": {"local", "river", "mixtures"},
        "drift": {"detector"},
    },
    "default": {
        "learning": {"horizon", "regularisation", "shared_directions"},
        "kernels": {"families", "smoothness"},
    },
}
OWN_TOPICS = ("predictions", "updates", "model", f"{CLIENT}.state", f"{SERVER}.state", "dead-letters")


class PofmklFederation(FederationSection):
    """Who learns together. All members need the same values."""

    clients: Annotated[int, CHANGEABLE] = Field(ge=1, le=1_000_000)
    """K, the number of clients. No more than this are remembered. With `paper` the server divides by it."""
    shards: int = Field(default=1, ge=1, le=10_000)
    """Partitions of the topics with updates and model. Each holds some of the kernels, so this many server
    workers can share the work. At most the number of kernels."""
    # A federation may name them later. A client's samples.features must stay, and the fingerprint guards what
    # was learnt.
    features: Annotated[list[str] | int | None, CHANGEABLE] = None
    """The inputs of a sample: their names, in the same order for all members, or their number if they come as
    one list. A new server needs it. A server that began without it goes on with the number it learnt from."""
    client_expiry_seconds: Annotated[float, CHANGEABLE] = Field(default=86_400.0, gt=0, allow_inf_nan=False)
    """Idle seconds after which a client is forgotten if a new one needs its place. The server counts from its
    last update, a worker of clients from its last sample, by the newest time in any of its partitions."""

    @field_validator("features")
    @classmethod
    def _are_distinct(cls, value: list[str] | int | None) -> list[str] | int | None:
        if isinstance(value, list) and (not value or len(set(value)) < len(value)):
            raise ValueError("at least one name is expected, and none twice")
        if isinstance(value, int) and not 1 <= value <= LARGEST_DIMENSION:
            raise ValueError(f"a number from 1 to {LARGEST_DIMENSION} is expected, or a list of names")
        return value

    @property
    def dimension(self) -> int | None:
        """The number of inputs of a sample; None: not set."""
        return len(self.features) if isinstance(self.features, list) else self.features


class KernelsSection(Section):
    """The kernel dictionary: every family, or every view, at every bandwidth. Left out: the preset's."""

    views: list[Literal["standardised", "centred", "standardised-lags", "centred-lags"]] | None = Field(
        default=None, min_length=1
    )
    """With the preset `default`: how a sample is scaled for the kernels. Left out: all four."""
    families: list[Literal["gaussian", "laplacian", "matern"]] | None = Field(default=None, min_length=1)
    """With `paper`: the kernels' families. Left out with bandwidths given: `gaussian`."""
    bandwidths: list[float] | None = Field(default=None, min_length=1)
    """The kernels' bandwidths. With the preset `default`: on scaled views; left out: 0.35, 0.5, 0.7, 1.4,
    2.8, 5.6, or 0.7, 1.4, 2.8 if one or two kernels are sent. With `paper`: in units of the inputs after
    input_norm; left out with families given: the paper's 51."""
    smoothness: float = Field(default=1.5, gt=0, le=LARGEST_SMOOTHNESS)
    """With `paper`: nu of the Matern family, a multiple of 0.5; 0.5 is the exponential kernel."""

    @model_validator(mode="after")
    def _values_are_usable(self) -> KernelsSection:
        for name, values in (
            ("views", self.views),
            ("families", self.families),
            ("bandwidths", self.bandwidths),
        ):
            if values is not None and len(set(values)) < len(values):
                raise ValueError(f"{name} = {values}: none may come twice")
        if self.bandwidths is not None and not all(0 < width < math.inf for width in self.bandwidths):
            raise ValueError(f"bandwidths = {self.bandwidths}: positive finite numbers are expected")
        if not (2 * self.smoothness).is_integer():
            raise ValueError(f"smoothness = {self.smoothness}: 0.5, 1, 1.5, 2, … is expected")
        return self

    def dictionary(self) -> tuple[Kernel, ...]:
        """The kernels of preset = "paper", in the order in which they are numbered."""
        if self.families is None and self.bandwidths is None:
            return paper_dictionary()
        bandwidths = self.bandwidths or [kernel.bandwidth for kernel in paper_dictionary()]
        return grid(list(self.families or ["gaussian"]), bandwidths, self.smoothness)


class DriftSection(Section):
    """What a client does when its errors rise. Only with preset = "default"."""

    detector: Literal["adwin", "none"] = "adwin"
    """The drift detector. `adwin`: when River's ADWIN finds that a client's errors rose, the client forgets
    its earlier samples. `none`: clients never forget all at once."""


class UplinkSection(Section):
    """How much a client may send. Neither set: 5 kernels per sample, or with preset = "paper" all kernels in
    every upload."""

    budget_bytes_per_second: Annotated[float | None, CHANGEABLE] = Field(
        default=None, gt=0, allow_inf_nan=False
    )
    """Limit for one client, in bytes as sent, with key, headers and framing. Never exceeded."""
    # With 1 or 2 kernels the default bandwidths differ; bandwidths must stay.
    kernels_per_upload: Annotated[int | None, CHANGEABLE, SHARED] = Field(default=None, ge=1)
    """M, the most kernels in an upload."""

    @model_validator(mode="after")
    def _one_of_them(self) -> UplinkSection:
        if self.budget_bytes_per_second is not None and self.kernels_per_upload is not None:
            raise ValueError(
                "budget_bytes_per_second and kernels_per_upload exclude one another: leave one out"
            )
        return self


class PofmklSettings(RecordSettings):
    """Settings of pofmkl-client and pofmkl-server; only the client needs samples."""

    read_by: ClassVar[ReadBy] = dict.fromkeys(("samples", "labels"), (CLIENT,))

    federation: PofmklFederation
    samples: SamplesSection | None = None
    labels: LabelsSection | None = None
    predictions: FollowedPredictions = Field(default_factory=FollowedPredictions)
    learning: LearningSection = Field(default_factory=LearningSection)
    kernels: Annotated[KernelsSection, SHARED] = Field(default_factory=KernelsSection)
    experts: ExpertsSection = Field(default_factory=ExpertsSection)
    drift: DriftSection = Field(default_factory=DriftSection)
    uplink: UplinkSection = Field(default_factory=UplinkSection)
    challengers: ChallengersSection = Field(default_factory=ChallengersSection)
    models: Models = Field(default_factory=dict)

    @property
    def member(self) -> str:
        # Several consumer groups of clients, each with its own samples and state, can share a federation.
        return (self.bus.group if self.role.kind == CLIENT else None) or super().member

    @property
    def views(self) -> tuple[str, ...]:
        """The views of preset = "default"."""
        return tuple(self.kernels.views or VIEWS)

    @property
    def bandwidths(self) -> tuple[float, ...]:
        """Bandwidths of preset = "default"; half as many if one or two kernels are sent, so that each is
        trained often enough."""
        few = self.uplink.kernels_per_upload is not None and self.uplink.kernels_per_upload < FEW_KERNELS
        return tuple(self.kernels.bandwidths or (FEW_BANDWIDTHS if few else BANDWIDTHS))

    @property
    def kernel_count(self) -> int:
        """N, the number of kernels."""
        if self.learning.preset == "paper":
            return len(self.kernels.dictionary())
        return len(self.views) * len(self.bandwidths)

    @property
    def kernels_per_upload(self) -> int | None:
        """M; None: as many as the byte budget allows, or all kernels without a budget."""
        if self.learning.preset == "paper" or self.uplink.budget_bytes_per_second is not None:
            return self.uplink.kernels_per_upload
        return self.uplink.kernels_per_upload or min(KERNELS_PER_UPLOAD, self.kernel_count)

    @model_validator(mode="before")
    @classmethod
    def _samples_consist_of_the_features(cls, content: Any) -> Any:
        """Take samples.features, or samples.dimension, from federation.features if it is left out."""
        if not isinstance(content, Mapping):
            return content
        federation, samples = content.get("federation"), content.get("samples")
        if not isinstance(federation, Mapping) or not isinstance(samples, Mapping):
            return content
        features, own = federation.get("features"), samples.get("features") or samples.get("inputs")
        if isinstance(features, list) and own is None:
            return {**content, "samples": {**samples, "features": features}}
        if isinstance(features, int) and isinstance(own, str) and samples.get("dimension") is None:
            return {**content, "samples": {**samples, "dimension": features}}
        return content

    @model_validator(mode="after")
    def _features_are_the_federations(self) -> PofmklSettings:
        features = self.federation.features
        if self.samples is None or features is None:
            return self
        own, count = self.samples.input_names, self.samples.width
        if count is not None and count != self.federation.dimension:
            encoded = self.samples.inputs is not None
            key = "samples.inputs" if encoded else "samples.dimension" if own is None else "samples.features"
            text = (
                f"{key} gives {count} inputs, federation.features says {self.federation.dimension}: as many "
                "are expected"
            )
            if encoded:
                text += f" (they are {shown(own)})"
            raise ValueError(text)
        if (
            isinstance(own, list)
            and isinstance(features, list)
            and own != features
            and set(own) == set(features)
        ):
            raise ValueError(
                f"samples.features = {own}: these are federation.features in another order; leave "
                f"samples.features out, or name them as {features}"
            )
        return self

    @model_validator(mode="after")
    def _keys_belong_to_the_preset(self) -> PofmklSettings:
        preset = self.learning.preset
        other = "default" if preset == "paper" else "paper"
        for section, keys in FOREIGN_KEYS[preset].items():
            given = getattr(self, section).model_fields_set & keys
            if given:
                raise ValueError(
                    f'{section}.{min(given)} has no meaning with learning.preset = "{preset}"; leave it out '
                    f'or set learning.preset = "{other}"'
                )
        return self

    @model_validator(mode="after")
    def _own_models_fit_the_loss(self) -> PofmklSettings:
        check_models(self, self.learning.loss)
        return self

    @model_validator(mode="after")
    def _fits_the_dictionary(self) -> PofmklSettings:
        kernels = self.kernel_count
        for key, value in (
            ("uplink.kernels_per_upload", self.uplink.kernels_per_upload),
            ("federation.shards", self.federation.shards),
        ):
            if value is not None and value > kernels:
                raise ValueError(
                    f"{key} = {value}: the dictionary's number of kernels is {kernels}, 1 to {kernels} is "
                    "allowed"
                )
        return self

    @model_validator(mode="after")
    def _frequencies_fit_in_memory(self) -> PofmklSettings:
        if self.samples is None:
            return self
        dimension = self.samples.width or 1
        kernels, count = self.kernel_count, self.learning.features_per_kernel
        needed = kernels * count * dimension * 8
        if needed > LARGEST_FREQUENCIES_BYTES:
            raise ValueError(
                f"learning.features_per_kernel = {count}: with {kernels} as the number of kernels and inputs "
                f"of dimension {dimension} (samples.features or samples.dimension), their product, of 8 "
                f"bytes each, takes {needed / 2**30:.1f} GiB; at most {LARGEST_FREQUENCIES_BYTES // 2**30} "
                "GiB is allowed: lower one of the three"
            )
        return self

    @model_validator(mode="after")
    def _samples_have_a_topic_of_their_own(self) -> PofmklSettings:
        own = [f"{self.federation.name}.{topic}" for topic in OWN_TOPICS]
        for name, section in (("samples", self.samples), ("labels", self.labels)):
            if section is not None and section.topic in own:
                raise ValueError(
                    f"{name}.topic = {section.topic!r}: a topic other than the federation's own is expected "
                    f"(those are {', '.join(own)})"
                )
        return self

    @model_validator(mode="after")
    def _group_names_a_topic(self) -> PofmklSettings:
        group = self.bus.group
        if group is not None and (len(group) > 200 or not re.fullmatch(r"[A-Za-z0-9._-]+", group)):
            raise ValueError(
                f"bus.group = {group!r}: up to 200 letters, digits, '.', '_' and '-' are expected, because "
                "the group's state is in the topic <group>.state"
            )
        return self

    @model_validator(mode="after")
    def _labels_belong_to_samples(self) -> PofmklSettings:
        if self.labels is None:
            return self
        if self.samples is None or self.samples.sample_id is None:
            raise ValueError(
                "samples.sample_id is missing: with [labels] it names the field by which a label finds its "
                "sample"
            )
        if self.samples.sample_id == self.samples.client or self.labels.sample_id == self.labels.client:
            raise ValueError(
                "samples.sample_id names the client: with [labels] each sample of a client needs a name of "
                "its own"
            )
        if self.samples.label is not None:
            raise ValueError(
                f"samples.label = {self.samples.label!r}: labels come with the samples or on a topic of "
                "their own; leave it out, or the section [labels]"
            )
        if self.labels.topic == self.samples.topic:
            raise ValueError(
                f"labels.topic = {self.labels.topic!r}: a topic other than the samples' is expected"
            )
        if self.challengers.models:
            raise ValueError(
                "challengers.models has no meaning with [labels]: challengers learn from labels in the "
                "samples only"
            )
        return self
