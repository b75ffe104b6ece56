"""Settings of POF-MKL's roles, the client and the server."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from streamfl.challengers import challenger_names
from streamfl.kernels.dictionary import LARGEST_SMOOTHNESS, Kernel, grid, paper_dictionary
from streamfl.pofmkl.views import VIEWS
from streamfl.samples import LabelsSection, SamplesSection
from streamfl.settings import Federation, RoleSettings, Section

__all__ = [
    "ChallengersSection",
    "DriftSection",
    "ExpertsSection",
    "KernelsSection",
    "LearningSection",
    "PofmklFederation",
    "PofmklSettings",
    "UplinkSection",
]

LARGEST_DIMENSION = 100_000
LARGEST_FREQUENCIES_BYTES = 4 * 2**30
BANDWIDTHS = (0.35, 0.5, 0.7, 1.4, 2.8, 5.6)
FEW_BANDWIDTHS = (0.7, 1.4, 2.8)
KERNELS_PER_UPLOAD, FEW_KERNELS = 5, 3
# What is said in the configuration and would be of no effect is a misunderstanding.
FOREIGN_KEYS: dict[str, dict[str, set[str]]] = {
    "paper": {"learning": {"server_step"}, "kernels": {"views"}, "experts": {"local", "river", "mixtures"}, "drift": {"detector"}},
    "default": {"learning": {"horizon", "regularisation", "shared_directions"}, "kernels": {"families", "smoothness"}},
}
OWN_TOPICS = ("predictions", "updates", "model", "pofmkl-client.state", "pofmkl-server.state", "dead-letters")


class PofmklFederation(Federation):
    """Who learns together. Every member has to be given the same values."""

    clients: int = Field(ge=1, le=1_000_000)
    """K, the size of the federation: the server divides by it."""
    shards: int = Field(default=1, ge=1, le=10_000)
    """Partitions of the updates and the model, over which the kernels are dealt."""
    features: list[str] | int | None = None
    """What a sample consists of: the inputs' names in order, or how many numbers they are. A new federation needs it; one that
    began without it goes on with as many as it learnt from."""
    client_expiry_seconds: float = Field(default=86_400.0, gt=0, allow_inf_nan=False)
    """Seconds after which a client that says nothing makes room for another; nobody is forgotten while there is room."""

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
        """How many numbers a sample consists of; None: it is not said."""
        return len(self.features) if isinstance(self.features, list) else self.features


class LearningSection(Section):
    """How clients learn. Symbols are those of Ghari and Shen, NeurIPS 2022."""

    preset: Literal["default", "paper"] = "default"
    """default: the learner to use. paper: the text to the letter, with what it leaves open as the documentation lists it."""
    staleness: Literal["lockstep", "bounded", "async"] = "async"
    """How far a client may run ahead of the model: not at all, max_staleness samples, or as far as it likes; left out with
    preset = "paper": lockstep. The server's has to be lockstep where the clients' is."""
    max_staleness: int | None = Field(default=None, ge=1)
    """The samples that a client may take on one model version; belongs to staleness = "bounded"."""
    precision: Literal["float32", "float64"] = "float32"
    """Of features and parameters; log-weights and sums are float64 always."""
    loss: Literal["square", "logistic"] = "square"
    """logistic: for labels 0 and 1."""
    server_step: Literal["least-squares", "gradient", "adagrad"] = "least-squares"
    """What the server makes of an update; belongs to preset = "default"."""
    learning_rate: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    """eta; left out: 1 / sqrt(horizon), or 0.5 with server_step = "gradient" and 0.1 with "adagrad"."""
    horizon: int = Field(default=1000, ge=1, le=10**15)
    """T, the samples a client expects to see; belongs to preset = "paper"."""
    regularisation: float = Field(default=1e-3, ge=0, le=1e6, allow_inf_nan=False)
    """lambda; belongs to preset = "paper"."""
    exploration: float | None = Field(default=None, ge=0, le=1)
    """xi, the share of the bin's draw that is uniform (equation 8); left out: 0.2, or 1 with preset = "paper"."""
    features_per_kernel: int = Field(default=100, ge=1, le=100_000)
    """D, frequencies a kernel."""
    shared_directions: bool = False
    """Kernels of one family share directions, scaled by bandwidth: faster, and no longer independent draws."""
    round_timeout_seconds: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds that a lockstep round waits for clients that are lost."""
    upload_interval_ms: int = Field(default=1000, ge=1, le=86_400_000)
    """Milliseconds after which a window without a new model is uploaded; belongs to "bounded" and "async"."""

    @property
    def rate(self) -> float:
        """eta: ``learning_rate``, or what stands for it where it is left out."""
        if self.learning_rate is not None:
            return self.learning_rate
        if self.preset == "paper":
            return 1.0 / math.sqrt(self.horizon)
        return 0.1 if self.server_step == "adagrad" else 0.5

    @property
    def exploration_rate(self) -> float:
        """xi."""
        return self.exploration if self.exploration is not None else 1.0 if self.preset == "paper" else 0.2

    @model_validator(mode="before")
    @classmethod
    def _the_paper_is_of_rounds(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and content.get("preset") == "paper" and "staleness" not in content:
            return {**content, "staleness": "lockstep"}
        return content

    @model_validator(mode="after")
    def _bounds_belong_to_bounded(self) -> LearningSection:
        if self.staleness == "bounded" and self.max_staleness is None:
            raise ValueError('max_staleness is missing: staleness = "bounded" needs it, a whole number from 1')
        if self.staleness != "bounded" and self.max_staleness is not None:
            raise ValueError(
                f'max_staleness = {self.max_staleness} has no meaning with staleness = "{self.staleness}"; '
                'set staleness = "bounded" or leave it out'
            )
        return self


class KernelsSection(Section):
    """The dictionary: every family, or every view, at every bandwidth. Where nothing is said it is the preset's."""

    views: list[Literal["standardised", "centred", "standardised-lags", "centred-lags"]] | None = Field(default=None, min_length=1)
    """What the Gaussian kernels of preset = "default" see of a sample; left out: all four."""
    families: list[Literal["gaussian", "laplacian", "matern"]] | None = Field(default=None, min_length=1)
    """Families of the grid, with preset = "paper"; left out, with bandwidths given: gaussian."""
    bandwidths: list[float] | None = Field(default=None, min_length=1)
    """sigma. Of preset = "default" on scaled views; left out: 0.35, 0.5, 0.7, 1.4, 2.8, 5.6, or three of them where few kernels are
    sent. Of preset = "paper" in units of the inputs after input_norm; left out, with families given: its 51."""
    smoothness: float = Field(default=1.5, gt=0, le=LARGEST_SMOOTHNESS)
    """nu of the Matern family, a multiple of 0.5."""

    @model_validator(mode="after")
    def _values_are_usable(self) -> KernelsSection:
        for name, values in (("views", self.views), ("families", self.families), ("bandwidths", self.bandwidths)):
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


def _known_models(value: list[str]) -> list[str]:
    known = challenger_names()
    if len(set(value)) < len(value) or not set(value) <= set(known):
        raise ValueError(f"any of {', '.join(known)} are expected, and none twice")
    return value


ModelNames = Annotated[list[str], AfterValidator(_known_models)]


class ExpertsSection(Section):
    """Who takes part in a client's own mixture; belongs to preset = "default"."""

    local: list[Literal["running-mean", "last-label", "neighbours", "scaled-neighbours"]] = Field(
        default=["running-mean", "last-label", "neighbours", "scaled-neighbours"]
    )
    """Predictors from the client's own samples, beside the kernels."""
    river: ModelNames = Field(default=[])
    """Any of the models that challengers can be, on the client's latest 100 to 256 samples, beside the kernels as well."""
    mixtures: list[Literal["kernels", "all", "ridge"]] = Field(default=["kernels", "all", "ridge"], min_length=1)
    """How they are combined: kernels alone, all of them, all corrected by a ridge regression. The results are mixed once more."""


class DriftSection(Section):
    """What a client does when its errors rise; belongs to preset = "default"."""

    detector: Literal["adwin", "none"] = "adwin"
    """adwin: where River's ADWIN finds that they have, the client no longer keeps its samples before that. none: it keeps them."""


class ChallengersSection(Section):
    """What learns beside a client on its own samples, to be measured: its predictions are not published and not remembered."""

    models: ModelNames = Field(default=[])
    """running-mean, last-label, linear, knn, scaled-knn, hoeffding: River's regressors, or classifiers with loss = "logistic"."""


class UplinkSection(Section):
    """What a client may send. Neither given: 5 kernels of a sample, or with preset = "paper" every kernel's at every upload."""

    budget_bytes_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Of one client, on encoded bytes with key, headers and framing."""
    kernels_per_upload: int | None = Field(default=None, ge=1)
    """M, the size of a bin."""

    @model_validator(mode="after")
    def _one_of_them(self) -> UplinkSection:
        if self.budget_bytes_per_second is not None and self.kernels_per_upload is not None:
            raise ValueError("budget_bytes_per_second and kernels_per_upload exclude one another: leave one out")
        return self


class PofmklSettings(RoleSettings):
    """Settings of pofmkl-client and pofmkl-server; only the client needs samples."""

    federation: PofmklFederation
    samples: SamplesSection | None = None
    labels: LabelsSection | None = None
    learning: LearningSection = Field(default_factory=LearningSection)
    kernels: KernelsSection = Field(default_factory=KernelsSection)
    experts: ExpertsSection = Field(default_factory=ExpertsSection)
    drift: DriftSection = Field(default_factory=DriftSection)
    uplink: UplinkSection = Field(default_factory=UplinkSection)
    challengers: ChallengersSection = Field(default_factory=ChallengersSection)

    @property
    def state_topic(self) -> str:
        """What a client's group remembers: several groups, each with samples of its own, can be clients of one federation."""
        return f"{self.group}.state"

    @property
    def views(self) -> tuple[str, ...]:
        """What the kernels of preset = "default" see."""
        return tuple(self.kernels.views or VIEWS)

    @property
    def bandwidths(self) -> tuple[float, ...]:
        """Of the kernels of preset = "default"; half of them where one or two are sent, so that each is trained often enough."""
        few = self.uplink.kernels_per_upload is not None and self.uplink.kernels_per_upload < FEW_KERNELS
        return tuple(self.kernels.bandwidths or (FEW_BANDWIDTHS if few else BANDWIDTHS))

    @property
    def kernel_count(self) -> int:
        """N."""
        if self.learning.preset == "paper":
            return len(self.kernels.dictionary())
        return len(self.views) * len(self.bandwidths)

    @property
    def kernels_per_upload(self) -> int | None:
        """M; None: what the byte budget allows, or every kernel where there is none."""
        if self.learning.preset == "paper" or self.uplink.budget_bytes_per_second is not None:
            return self.uplink.kernels_per_upload
        return self.uplink.kernels_per_upload or min(KERNELS_PER_UPLOAD, self.kernel_count)

    @model_validator(mode="before")
    @classmethod
    def _samples_consist_of_the_features(cls, content: Any) -> Any:
        """What samples.features, or samples.dimension, leaves out is as federation.features has it."""
        if not isinstance(content, Mapping):
            return content
        federation, samples = content.get("federation"), content.get("samples")
        if not isinstance(federation, Mapping) or not isinstance(samples, Mapping):
            return content
        features, own = federation.get("features"), samples.get("features")
        if isinstance(features, list) and own is None:
            return {**content, "samples": {**samples, "features": features}}
        if isinstance(features, int) and isinstance(own, str) and samples.get("dimension") is None:
            return {**content, "samples": {**samples, "dimension": features}}
        return content

    @model_validator(mode="after")
    def _features_are_the_federations(self) -> PofmklSettings:
        features = self.federation.features
        if self.samples is None or features is None or self.samples.features is None:
            return self
        own = self.samples.features
        count = len(own) if isinstance(own, list) else self.samples.dimension
        if count is not None and count != self.federation.dimension:
            key = "samples.features" if isinstance(own, list) else "samples.dimension"
            raise ValueError(
                f"{key} gives {count} inputs, federation.features says {self.federation.dimension}: as many are expected"
            )
        if isinstance(own, list) and isinstance(features, list) and own != features and set(own) == set(features):
            raise ValueError(
                f"samples.features = {own}: they are those of federation.features in another order; leave samples.features out, or "
                f"name them as {features}"
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
                    f'{section}.{min(given)} has no meaning with learning.preset = "{preset}"; leave it out or set '
                    f'learning.preset = "{other}"'
                )
        return self

    @model_validator(mode="after")
    def _fits_the_dictionary(self) -> PofmklSettings:
        kernels = self.kernel_count
        for key, value in (
            ("uplink.kernels_per_upload", self.uplink.kernels_per_upload),
            ("federation.shards", self.federation.shards),
        ):
            if value is not None and value > kernels:
                raise ValueError(f"{key} = {value}: the dictionary's number of kernels is {kernels}, 1 to {kernels} is allowed")
        return self

    @model_validator(mode="after")
    def _frequencies_fit_in_memory(self) -> PofmklSettings:
        if self.samples is None:
            return self
        features = self.samples.features
        dimension = len(features) if isinstance(features, list) else self.samples.dimension or 1
        kernels, count = self.kernel_count, self.learning.features_per_kernel
        needed = kernels * count * dimension * 8
        if needed > LARGEST_FREQUENCIES_BYTES:
            raise ValueError(
                f"learning.features_per_kernel = {count}: with {kernels} as the number of kernels and inputs of dimension "
                f"{dimension} (samples.features or samples.dimension), their product, of 8 bytes each, takes "
                f"{needed / 2**30:.1f} GiB; at most {LARGEST_FREQUENCIES_BYTES // 2**30} GiB is allowed: lower one of the three"
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
                f"bus.group = {group!r}: up to 200 letters, digits, '.', '_' and '-' are expected, for what the group remembers "
                "lies in the topic <group>.state"
            )
        return self

    @model_validator(mode="after")
    def _labels_belong_to_samples(self) -> PofmklSettings:
        if self.labels is None:
            return self
        if self.samples is None or self.samples.sample_id is None:
            raise ValueError("samples.sample_id is missing: with [labels] it names the field by which a label finds its sample")
        if self.samples.sample_id == self.samples.client or self.labels.sample_id == self.labels.client:
            raise ValueError("samples.sample_id names the client: with [labels] each sample of a client needs a name of its own")
        if self.samples.label is not None:
            raise ValueError(
                f"samples.label = {self.samples.label!r}: labels come with the samples or on a topic of their own; "
                "leave it out, or the section [labels]"
            )
        if self.labels.topic == self.samples.topic:
            raise ValueError(f"labels.topic = {self.labels.topic!r}: a topic other than the samples' is expected")
        if self.challengers.models:
            raise ValueError("challengers.models has no meaning with [labels]: challengers learn from labels in the samples only")
        return self
