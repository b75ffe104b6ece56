"""Settings of POF-MKL's roles, the client and the server."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from streamfl.kernels.dictionary import LARGEST_SMOOTHNESS, Kernel, grid, paper_dictionary
from streamfl.samples import SamplesSection
from streamfl.settings import RoleSettings, Section

__all__ = ["KernelsSection", "LearningSection", "PofmklSettings", "UplinkSection"]

LARGEST_FREQUENCIES_BYTES = 4 * 2**30
OWN_TOPICS = ("predictions", "updates", "model", "pofmkl-client.state", "pofmkl-server.state", "dead-letters")


class LearningSection(Section):
    """How clients learn. Symbols are those of Ghari and Shen, NeurIPS 2022."""

    preset: Literal["paper"] = "paper"
    """paper: the text to the letter, with the values that it leaves open as the documentation lists them."""
    staleness: Literal["lockstep", "bounded", "async"] = "lockstep"
    """How far a client may run ahead of the model: not at all, max_staleness samples, or as far as it likes."""
    max_staleness: int | None = Field(default=None, ge=1)
    """The samples that a client may take on one model version; belongs to staleness = "bounded"."""
    precision: Literal["float32", "float64"] = "float32"
    """Of features and parameters; log-weights and sums are float64 always."""
    loss: Literal["square", "logistic"] = "square"
    """logistic: for labels 0 and 1."""
    learning_rate: float | None = Field(default=None, gt=0, le=1e6, allow_inf_nan=False)
    """eta; left out: 1 / sqrt(horizon)."""
    horizon: int = Field(default=1000, ge=1, le=10**15)
    """T, the samples a client expects to see."""
    regularisation: float = Field(default=1e-3, ge=0, le=1e6, allow_inf_nan=False)
    """lambda."""
    exploration: float = Field(default=1.0, ge=0, le=1)
    """xi, the share of the bin's draw that is uniform (equation 8)."""
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
        """eta: ``learning_rate``, or 1 / sqrt(horizon)."""
        return self.learning_rate if self.learning_rate is not None else 1.0 / math.sqrt(self.horizon)

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
    """The dictionary: every family at every bandwidth, or the paper's 51 Gaussians where nothing is said."""

    families: list[Literal["gaussian", "laplacian", "matern"]] | None = Field(default=None, min_length=1)
    """Families of the grid; left out, with bandwidths given: gaussian."""
    bandwidths: list[float] | None = Field(default=None, min_length=1)
    """sigma, in units of the inputs after input_norm; left out, with families given: the paper's 51."""
    smoothness: float = Field(default=1.5, gt=0, le=LARGEST_SMOOTHNESS)
    """nu of the Matern family, a multiple of 0.5."""

    @model_validator(mode="after")
    def _values_are_usable(self) -> KernelsSection:
        for name, values in (("families", self.families), ("bandwidths", self.bandwidths)):
            if values is not None and len(set(values)) < len(values):
                raise ValueError(f"{name} = {values}: none may come twice")
        if self.bandwidths is not None and not all(0 < width < math.inf for width in self.bandwidths):
            raise ValueError(f"bandwidths = {self.bandwidths}: positive finite numbers are expected")
        if not (2 * self.smoothness).is_integer():
            raise ValueError(f"smoothness = {self.smoothness}: 0.5, 1, 1.5, 2, … is expected")
        return self

    def dictionary(self) -> tuple[Kernel, ...]:
        """The kernels, in the order in which they are numbered."""
        if self.families is None and self.bandwidths is None:
            return paper_dictionary()
        bandwidths = self.bandwidths or [kernel.bandwidth for kernel in paper_dictionary()]
        return grid(list(self.families or ["gaussian"]), bandwidths, self.smoothness)


class UplinkSection(Section):
    """What a client may send. Neither given: every kernel's update at every upload."""

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

    samples: SamplesSection | None = None
    learning: LearningSection = Field(default_factory=LearningSection)
    kernels: KernelsSection = Field(default_factory=KernelsSection)
    uplink: UplinkSection = Field(default_factory=UplinkSection)

    @model_validator(mode="after")
    def _fits_the_dictionary(self) -> PofmklSettings:
        kernels = len(self.kernels.dictionary())
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
        kernels, count = len(self.kernels.dictionary()), self.learning.features_per_kernel
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
        if self.samples is not None and self.samples.topic in own:
            raise ValueError(
                f"samples.topic = {self.samples.topic!r}: a topic other than the federation's own is expected "
                f"(those are {', '.join(own)})"
            )
        return self
