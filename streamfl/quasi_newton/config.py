"""Settings of the quasi-Newton system's three roles."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from streamfl.quasi_newton.descent import Learning
from streamfl.quasi_newton.fixed_point import Kinds, kinds
from streamfl.quasi_newton.keys import LARGEST_BITS, SMALLEST_BITS, STEP_BITS
from streamfl.quasi_newton.preprocessing import EVIDENCE, Method
from streamfl.quasi_newton.scorecard import Scale
from streamfl.records.entities import VerticalMembers, VerticalSettings
from streamfl.records.header_propagation import FollowedPredictions
from streamfl.settings import Section

__all__ = ["COORDINATOR", "GUEST", "HOST", "MOST_COLUMNS", "QuasiNewtonSettings", "link_files"]

GUEST, HOST, COORDINATOR = "quasi-newton-guest", "quasi-newton-host", "quasi-newton-coordinator"
# A party's vectors of a round are remembered together, in one record.
MOST_COLUMNS = 4_096
SAFE_BITS = 2048
# The coordinator remembers the losses of an epoch's batches in one record.
MOST_BATCHES = 50_000
# One batch of 500 or 1,000 rows takes 20 to 100 of them until it converges.
ITERATIONS = 400


class QuasiNewtonFederation(VerticalMembers):
    """Who learns together. Every member has to be given the same values."""

    guest: str | None = None
    """The party that knows the labels. Left out: the first of federation.parties."""

    @model_validator(mode="after")
    def _guest_is_a_party(self) -> QuasiNewtonFederation:
        if self.guest is not None and self.guest not in self.parties:
            raise ValueError(f"guest = {self.guest!r}: one of federation.parties = {self.parties} is expected")
        return self

    @property
    def guest_party(self) -> str:
        """Its name."""
        return self.parties[0] if self.guest is None else self.guest

    @property
    def hosts(self) -> list[str]:
        """All others."""
        return [name for name in self.parties if name != self.guest_party]


class CurvatureLearningSection(Section):
    """What is learnt and how. Every member has to be given the same values.

    learning_rate, largest_step, freeze_below, tolerance and epochs may be changed between restarts, the guest's last: a training
    that came to nothing is tried again with them.
    """

    optimiser: Literal["quasi-newton", "sgd"] = "quasi-newton"
    """`sgd`: the same without curvature."""
    batch: int = Field(default=1000, ge=1, le=100_000)
    """Entities of a batch. Batches are fixed once; entities that fill none wait. One batch comes nearest to the optimum: with up to
    some 5,000 entities it may hold them all. Where the first training has fewer entities, for some are held out or not common, they
    are one batch together, and all later ones have as many: half of this or more, min_batch or more, and 20 for each of a party's
    columns or more."""
    memory: int = Field(default=20, ge=1, le=100)
    """So many curvature pairs are kept."""
    curvature_every: int = Field(default=4, ge=1, le=10_000)
    """A pair each so many iterations."""
    regularisation: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    """lambda of lambda |w|^2 / 2, without the intercept."""
    learning_rate: float = Field(default=Learning().learning_rate, gt=0, le=1e6, allow_inf_nan=False)
    """The share of a step that is taken."""
    largest_step: float = Field(default=Learning().largest_step, gt=0, le=1e6, allow_inf_nan=False)
    """No step is longer. With one batch or two it grows, up to ten times this, while each step is shortened by it and losses
    fall."""
    freeze_below: float = Field(default=Learning().freeze_below, ge=0, allow_inf_nan=False)
    """No pairs are taken while the losses of two epochs in a row differ by less."""
    tolerance: float = Field(default=1e-5, ge=0, allow_inf_nan=False)
    """It is over when the losses of two epochs in a row differ by less. With one batch or two: when those of three in a row differ
    by less than a tenth of it."""
    epochs: int = Field(default=20, ge=1, le=100_000)
    """At most. Left out: 20, or as many as 400 iterations take, so that few batches converge, too."""
    min_batch: int = Field(default=256, ge=1, le=100_000)
    """A smaller batch is refused, and one smaller than 20 times a party's columns."""
    min_support: int = Field(default=10, ge=1, le=100_000)
    """A column in which fewer entities of a batch differ from the most common value is left out. In a batch of a later training it
    has its most common value instead."""
    largest_leverage: float = Field(default=0.2, gt=0, le=1)
    """An entity so far out in a party's columns that it could have a larger share of a batch's gradient to itself is learnt from
    with zeros in the place of these columns. Before that, columns are cut at the range of the entities that are not far out. 1:
    nothing is cut, and none is left out."""
    input_bound: float = Field(default=256.0, ge=1, le=1e6, allow_inf_nan=False)
    """Inputs beyond it are cut to it, after preprocessing."""
    output_bound: float = Field(default=64.0, gt=0, le=1e6, allow_inf_nan=False)
    """A party's inner product beyond it ends the run."""

    @property
    def learning(self) -> Learning:
        """The same for the arithmetic."""
        return Learning(
            optimiser=self.optimiser,
            batch=self.batch,
            memory=self.memory,
            curvature_every=self.curvature_every,
            regularisation=self.regularisation,
            learning_rate=self.learning_rate,
            largest_step=self.largest_step,
            freeze_below=self.freeze_below,
            tolerance=self.tolerance,
            epochs=self.epochs,
            iterations=0 if "epochs" in self.model_fields_set else ITERATIONS,
        )


class EncryptionSection(Section):
    """How numbers are hidden. precision, key_bits and key_fingerprint are the same at every member."""

    precision: Literal["paillier", "plain"] = "paillier"
    """`plain`: the same messages without encryption, for study and for tables."""
    study: bool = False
    """`true`: `plain`, and keys of fewer than 2048 bits, are allowed on a bus other than memory."""
    key_bits: int = Field(default=2048, ge=SMALLEST_BITS, le=LARGEST_BITS, multiple_of=STEP_BITS)
    """Length of the coordinator's key."""
    key_fingerprint: str | None = Field(default=None, pattern="^[0-9a-f]{64}$", max_length=64)
    """Of the coordinator's public key: 64 hexadecimal digits, as `streamfl keys` shows them."""
    key_file: str | None = None
    """Of the coordinator: the file with its private keys."""
    secret_file: str | None = None
    """Of a party: a file with at least 32 bytes that nobody else knows, which all that hides its numbers is drawn from."""
    link_secret_file: str | dict[str, str] | None = None
    """A file with at least 32 bytes that a host shares with the guest and with nobody else. At a guest with several hosts: a table
    with a file for each host."""
    mask_gradients: bool = True
    """`false`: the coordinator sees this party's gradients."""


class PrivateAlignmentSection(Section):
    """Which entities the parties have in common, and when they find out. method and limit are the same at every member."""

    method: Literal["intersection", "keyed-hash"] = "intersection"
    """`intersection`: private set intersection; neither of two parties learns a name that it does not have. `keyed-hash`: quicker,
    but the other party can try out names, some 600,000 a second with one core, and so find all that this party has."""
    entities: int = Field(default=1000, ge=1, le=1_000_000)
    """A party waits until it knows so many entities; the guest counts those with labels, also those that held_out keeps
    back. At least learning.batch."""
    settle_seconds: float = Field(default=30.0, ge=0, le=1e6, allow_inf_nan=False)
    """And so long after that, so that all have the same entities. Records that are older than this as they come are a history: with
    them it is so long after the last one, and 20 times as long at most."""
    limit: int = Field(default=200_000, ge=1, le=1_000_000)
    """So many entities are kept; the oldest gives way. Neither has any other party more. Batches have no more entities than this:
    the oldest batch gives way as a whole."""
    held_out: float = Field(default=0.1, ge=0, le=0.5, allow_inf_nan=False)
    """Of the guest: this share of its entities is never learnt from. They show what a model is worth, and make probabilities of its
    outputs."""
    expiry_seconds: float = Field(default=2_592_000.0, gt=0, le=1e9, allow_inf_nan=False)
    """So long an entity is kept that is not learnt from."""
    patience_seconds: float = Field(default=3_600.0, gt=0, allow_inf_nan=False)
    """A member that has waited for another so long is not ready."""


class RetrainingSection(Section):
    """When another training follows. The guest's values decide.

    A training that came to nothing is tried again once new entities have come to the guest, or after a restart with another
    learning_rate, largest_step, freeze_below, tolerance or epochs. Each failure in a row doubles the time before.
    """

    every_seconds: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)
    """So long after the end of a training. Left out: there is one training, and another only after one that came to nothing.
    Weights go on from the last model; batches stay as they are, and new entities fill new ones."""
    entities: int | None = Field(default=None, ge=1, le=1_000_000)
    """So many new entities with columns and labels have to have come to the guest. Left out: learning.batch."""


class PreprocessingSection(Section):
    """What a party does to its own columns before they are learnt from. Each party has its own. It is fitted once, in the first
    training, and kept for life."""

    method: Method = "clip"
    """`clip`, `standardise`, `rank`, `signed-log`, `quantile-bins` or `none`. At the guest `weight-of-evidence`, too: it needs
    labels."""


class ScoringSection(Section):
    """How entities are scored with the model. enabled and quantum are the same at every member."""

    enabled: bool = True
    """`false`: a model is learnt and nobody is scored."""
    quantum: float = Field(default=1 / 64, ge=2**-20, le=1, allow_inf_nan=False)
    """A host tells its part of an output in whole multiples of this: the larger, the less it shows of its columns."""
    interval_seconds: float = Field(default=5.0, gt=0, le=1e6, allow_inf_nan=False)
    """Of the guest: between two questions to a host, at least."""
    versions: int = Field(default=10, ge=0, le=1_000_000)
    """Of a host: so many versions of the model it answers for in all. Who has as many as there are columns can solve for them."""
    calibration_entities: int = Field(default=100, ge=2, le=1_000_000)
    """Of the guest: so many held-out entities, with both labels, are needed before probabilities are published."""
    base_points: float = Field(default=Scale().base_points, ge=-1e6, le=1e6, allow_inf_nan=False)
    """Of the guest: the score at odds of base_odds to one against label 1."""
    base_odds: float = Field(default=Scale().base_odds, gt=0, le=1e6, allow_inf_nan=False)
    """Of the guest."""
    doubling: float = Field(default=Scale().doubling, gt=0, le=1e6, allow_inf_nan=False)
    """Of the guest: points that double these odds."""

    @property
    def scale(self) -> Scale:
        """Of the points."""
        return Scale(self.base_points, self.base_odds, self.doubling)


class QuasiNewtonSettings(VerticalSettings):
    """Settings of guest, host and coordinator."""

    federation: QuasiNewtonFederation
    learning: CurvatureLearningSection = Field(default_factory=CurvatureLearningSection)
    encryption: EncryptionSection = Field(default_factory=EncryptionSection)
    alignment: PrivateAlignmentSection = Field(default_factory=PrivateAlignmentSection)
    preprocessing: PreprocessingSection = Field(default_factory=PreprocessingSection)
    scoring: ScoringSection = Field(default_factory=ScoringSection)
    predictions: FollowedPredictions = Field(default_factory=FollowedPredictions)
    retraining: RetrainingSection = Field(default_factory=RetrainingSection)

    @property
    def kinds(self) -> Kinds:
        """What messages consist of."""
        learning = self.learning
        return kinds(
            len(self.federation.parties),
            learning.batch,
            learning.batch,
            input_bound=learning.input_bound,
            inner_bound=learning.output_bound,
        )

    @property
    def message_bytes(self) -> int:
        """The longest content that any message has."""
        # Whatever key there is: another may be longer, and what was said under this one is read then.
        vector = self.learning.batch * LARGEST_BITS // 4
        return max(vector, 64 * self.alignment.limit) + 1024

    @model_validator(mode="after")
    def _fits_its_kind(self) -> QuasiNewtonSettings:
        kind, federation = self.role.kind, self.federation
        if len(federation.parties) < 2:
            raise ValueError("federation.parties: a guest and at least one host are expected")
        if self.bus.processing_guarantee != "exactly_once":
            raise ValueError(
                f'bus.processing_guarantee = "{self.bus.processing_guarantee}": "exactly_once" is expected: a step that is taken '
                "twice may take other entities than the others were told of"
            )
        if kind == COORDINATOR:
            for section, given in (("party", self.party), ("samples", self.samples), ("labels", self.labels)):
                if given is not None:
                    raise ValueError(f"{section} has no meaning at a {COORDINATOR}")
        else:
            for section, given in (("party", self.party), ("samples", self.samples)):
                if given is None:
                    raise ValueError(f"{section} is missing: a {kind} needs this section")
            if (kind == GUEST) != (self.own_party == federation.guest_party):
                raise ValueError(f"party.name = {self.own_party!r}: the guest is {federation.guest_party!r}")
            if kind == HOST and self.preprocessing.method == EVIDENCE:
                raise ValueError(
                    f'preprocessing.method = "{EVIDENCE}" needs labels, which a {HOST} does not have: it is for the guest alone. '
                    '"quantile-bins" makes bins without labels'
                )
            if (kind == GUEST) != (self.labels is not None):
                raise ValueError("labels is missing at the guest" if kind == GUEST else "labels has no meaning at a host")
        return self

    @model_validator(mode="after")
    def _hides_what_it_should(self) -> QuasiNewtonSettings:
        encryption, kind = self.encryption, self.role.kind
        if encryption.precision == "plain":
            if not (encryption.study or self.bus.url.startswith("memory:")):
                raise ValueError(
                    'encryption.precision = "plain" shows what it is to hide: set encryption.study = true if that is meant'
                )
            return self
        if encryption.key_bits < SAFE_BITS and not (encryption.study or self.bus.url.startswith("memory:")):
            raise ValueError(
                f"encryption.key_bits = {encryption.key_bits}: keys of fewer than {SAFE_BITS} bits can be broken: set "
                "encryption.study = true if that is meant"
            )
        needed = ("key_fingerprint", "key_file") if kind == COORDINATOR else ("key_fingerprint", "secret_file", "link_secret_file")
        for key in needed:
            if getattr(encryption, key) is None:
                raise ValueError(f"encryption.{key} is missing: a {kind} needs it")
        return self

    @model_validator(mode="after")
    def _batches_are_large_enough(self) -> QuasiNewtonSettings:
        learning, alignment = self.learning, self.alignment
        if learning.batch < learning.min_batch:
            raise ValueError(f"learning.batch = {learning.batch}: at least learning.min_batch = {learning.min_batch} is expected")
        if not learning.batch <= alignment.entities <= alignment.limit:
            raise ValueError(
                f"alignment.entities = {alignment.entities}: learning.batch = {learning.batch} to alignment.limit = "
                f"{alignment.limit} is expected"
            )
        if alignment.limit // learning.batch > MOST_BATCHES:
            raise ValueError(
                f"alignment.limit = {alignment.limit}: at most {MOST_BATCHES} times learning.batch = {learning.batch} is expected"
            )
        links = link_files(self)
        if self.role.kind == GUEST and links is not None and set(links) != set(self.federation.hosts):
            raise ValueError(f"encryption.link_secret_file: a file for each of {self.federation.hosts} is expected")
        if self.role.kind == HOST and links is not None and set(links) != {self.federation.guest_party}:
            raise ValueError(f"encryption.link_secret_file: a file for {self.federation.guest_party!r} alone is expected")
        return self


def link_files(settings: QuasiNewtonSettings) -> dict[str, str] | None:
    """The file of each link's secret, by the other's name; None where none is given."""
    given, federation = settings.encryption.link_secret_file, settings.federation
    if given is None or isinstance(given, dict):
        return given
    return {federation.guest_party: given} if settings.role.kind == HOST else dict.fromkeys(federation.hosts[:1], given)
