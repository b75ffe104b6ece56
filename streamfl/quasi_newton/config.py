"""Settings of the quasi-Newton system's three roles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from streamfl.configuration.settings import ReadBy, Section
from streamfl.configuration.shared import SHARED
from streamfl.encoding.wire import fingerprint
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint, Kinds, kinds
from streamfl.quasi_newton.encryption.keys import LARGEST_BITS
from streamfl.quasi_newton.encryption.section import EncryptionSection
from streamfl.quasi_newton.learning.own_columns import PRODUCTS
from streamfl.quasi_newton.learning.section import CurvatureLearningSection
from streamfl.quasi_newton.rows.batches import least_batch
from streamfl.quasi_newton.rows.preprocessing import EVIDENCE, Method, most_columns
from streamfl.quasi_newton.scoring.scorecard import ScoreScale
from streamfl.records.entities import VerticalMembers, VerticalSettings
from streamfl.records.header_propagation import FollowedPredictions
from streamfl.records.samples import SampleReader
from streamfl.state.changeable import CHANGEABLE

__all__ = ["COORDINATOR", "GUEST", "HOST", "MOST_COLUMNS", "QuasiNewtonSettings", "link_files"]

GUEST, HOST, COORDINATOR = "quasi-newton-guest", "quasi-newton-host", "quasi-newton-coordinator"
# A party stores all its vectors of a round in one changelog record, which bounds the columns.
MOST_COLUMNS = 4_096
SAFE_BITS = 2048
# The coordinator stores the losses of an epoch's batches in one changelog record.
MOST_BATCHES = 50_000


class QuasiNewtonFederation(VerticalMembers):
    """Who learns together. Every member has to be given the same values."""

    guest: str | None = None
    """The party that knows the labels. Left out: the first of federation.parties."""

    @model_validator(mode="after")
    def _guest_is_a_party(self) -> QuasiNewtonFederation:
        if self.guest is not None and self.guest not in self.parties:
            raise ValueError(
                f"guest = {self.guest!r}: one of federation.parties = {self.parties} is expected"
            )
        return self

    @property
    def guest_party(self) -> str:
        return self.parties[0] if self.guest is None else self.guest

    @property
    def hosts(self) -> list[str]:
        """The names of all parties but the guest."""
        return [name for name in self.parties if name != self.guest_party]


class PrivateAlignmentSection(Section):
    """How and when the parties find their common entities. method and limit are the same at every member."""

    method: Annotated[Literal["intersection", "keyed-hash"], SHARED] = "intersection"
    """How names are compared. `intersection`: private set intersection; neither of two parties learns a name
    that it does not have. `keyed-hash`: quicker, but the other party can try out names, some 600,000 a second
    with one core, and so find all that this party has."""
    entities: Annotated[int, CHANGEABLE] = Field(default=1000, ge=1, le=1_000_000)
    """Entities that a party must know before the first training. The guest counts those with labels, held-out
    ones included. At least learning.batch."""
    settle_seconds: Annotated[float, CHANGEABLE] = Field(default=30.0, ge=0, le=1e6, allow_inf_nan=False)
    """Seconds that a party waits after that, so that all have the same entities. Records older than this on
    arrival are a history: then the wait starts at the last of them, and takes 20 times as long at most."""
    limit: Annotated[int, SHARED] = Field(default=200_000, ge=1, le=1_000_000)
    """Most entities kept: beyond it the oldest is forgotten. No other party may have more. All batches
    together have no more entities than this: the oldest batch is forgotten as a whole."""
    # Entities of a batch stay in it, and held-out entities join no batch.
    held_out: Annotated[float, CHANGEABLE] = Field(default=0.1, ge=0, le=0.5, allow_inf_nan=False)
    """Share of the guest's entities that is never learnt from. They measure how good a model is, and
    calibrate its probabilities."""
    expiry_seconds: Annotated[float, CHANGEABLE] = Field(
        default=2_592_000.0, gt=0, le=1e9, allow_inf_nan=False
    )
    """Seconds after which an entity is forgotten whose columns and label have not changed. Then it joins no
    batch and is predicted no longer. A batch keeps the rows that it has."""
    patience_seconds: Annotated[float, CHANGEABLE] = Field(default=3_600.0, gt=0, allow_inf_nan=False)
    """Seconds to wait for another member. A member that has waited longer reports not ready."""

    @property
    def hashed(self) -> bool:
        return self.method == "keyed-hash"


class RetrainingSection(Section):
    """When another training follows. The guest's values decide.

    A failed training is tried again once the guest has new entities, or after a restart with another
    learning_rate, largest_step, freeze_below, tolerance or epochs. Each failure in a row doubles the wait.
    """

    every_seconds: Annotated[float | None, CHANGEABLE] = Field(
        default=None, gt=0, le=1e9, allow_inf_nan=False
    )
    """Seconds from the end of a training to the next one. Left out: there is one training, and another only
    after one that failed. Weights go on from the last model; batches stay as they are, and new entities fill
    new ones."""
    entities: Annotated[int | None, CHANGEABLE] = Field(default=None, ge=1, le=1_000_000)
    """New entities with columns and labels that the guest needs before the next training. Left out:
    learning.batch."""


class PreprocessingSection(Section):
    """How a party transforms its own columns before training. Each party has its own values. The
    transformation is fitted once, in the first training, and never changes."""

    method: Method = "clip"
    """The transformation: `clip`, `standardise`, `rank`, `signed-log`, `quantile-bins` or `none`. At the
    guest also `weight-of-evidence`, which needs labels."""


class ScoringSection(Section):
    """How entities are scored with the model. enabled and quantum are the same at every member."""

    enabled: Annotated[bool, SHARED] = True
    """Whether entities are scored. `false`: a model is learnt and no entity is scored."""
    quantum: Annotated[float, SHARED] = Field(default=1 / 64, ge=2**-20, le=1, allow_inf_nan=False)
    """The unit that a host's part of an output is rounded to. The larger it is, the less a host shows of its
    columns."""
    interval_seconds: Annotated[float, CHANGEABLE] = Field(default=5.0, gt=0, le=1e6, allow_inf_nan=False)
    """Fewest seconds between two questions of the guest to a host."""
    versions: Annotated[int, CHANGEABLE] = Field(default=10, ge=0, le=1_000_000)
    """Versions of the model that a host answers for, in all. A guest that has as many as there are columns
    can solve for them."""
    calibration_entities: Annotated[int, CHANGEABLE] = Field(default=100, ge=2, le=1_000_000)
    """Held-out entities, with both labels among them, that the guest needs before it publishes
    probabilities."""
    base_points: Annotated[float, CHANGEABLE] = Field(
        default=ScoreScale().base_points, ge=-1e6, le=1e6, allow_inf_nan=False
    )
    """The score at odds of base_odds to one against label 1. Read by the guest."""
    base_odds: Annotated[float, CHANGEABLE] = Field(
        default=ScoreScale().base_odds, gt=0, le=1e6, allow_inf_nan=False
    )
    """Odds to one against label 1 at which the score is base_points. Read by the guest."""
    doubling: Annotated[float, CHANGEABLE, SHARED] = Field(
        default=ScoreScale().doubling, gt=0, le=1e6, allow_inf_nan=False
    )
    """Points that double these odds. Read by the guest, and by `streamfl scorecard` at every party: the same
    at all."""

    @property
    def scale(self) -> ScoreScale:
        """The scale of the scorecard's points."""
        return ScoreScale(self.base_points, self.base_odds, self.doubling)


class QuasiNewtonSettings(VerticalSettings):
    """Settings of guest, host and coordinator."""

    read_by: ClassVar[ReadBy] = {"party": (GUEST, HOST), "samples": (GUEST, HOST), "labels": (GUEST,)}

    federation: QuasiNewtonFederation
    learning: Annotated[CurvatureLearningSection, SHARED] = Field(default_factory=CurvatureLearningSection)
    encryption: EncryptionSection = Field(default_factory=EncryptionSection)
    alignment: PrivateAlignmentSection = Field(default_factory=PrivateAlignmentSection)
    preprocessing: PreprocessingSection = Field(default_factory=PreprocessingSection)
    scoring: ScoringSection = Field(default_factory=ScoringSection)
    predictions: FollowedPredictions = Field(default_factory=FollowedPredictions)
    retraining: RetrainingSection = Field(default_factory=RetrainingSection)

    @property
    def is_guest(self) -> bool:
        return self.role.kind == GUEST

    @cached_property
    def columns(self) -> int:
        """The columns of this party."""
        return SampleReader(self.required_samples("a party").samples).dimension

    @property
    def new_entities(self) -> int:
        """New entities that another training needs."""
        return self.retraining.entities or self.learning.batch

    @property
    def most_batches(self) -> int:
        """Most batches of a training."""
        return self.alignment.limit // self.learning.batch

    @cached_property
    def least_batch(self) -> int:
        """Rows with which a batch is large enough for any columns that preprocessing may make: half of a
        whole batch, or more.

        At most half of the entities are held out, so as many entities as a whole batch has are enough.
        """
        columns = most_columns(self.preprocessing.method, self.columns) + self.is_guest
        whole = self.learning.batch
        return min(whole, max((whole + 1) // 2, least_batch(columns, self.learning.min_batch)))

    @property
    def products(self) -> FixedPoint:
        """The kind of inner products that are summed over the parties."""
        return PRODUCTS.sum_of(len(self.federation.parties))

    @cached_property
    def fingerprint(self) -> int:
        """A hash of what all members need alike."""
        federation, learning = self.federation, self.learning
        return fingerprint(
            "quasi-newton",
            federation.name,
            federation.seed,
            tuple(federation.parties),
            federation.guest_party,
            learning.batch,
            # These limits keep parties from finding out labels, and are only as strong as at the member with
            # the weakest ones.
            learning.min_batch,
            learning.min_support,
            learning.largest_leverage,
            learning.memory,
            learning.curvature_every,
            learning.regularisation,
            learning.input_bound,
            learning.output_bound,
            self.encryption.precision,
            self.scoring.enabled,
            self.scoring.quantum,
            self.alignment.method,
            self.alignment.limit,
        )

    def linked(self, other: str, name: str) -> str:
        """The topic of the channel ``name`` between this party and another: the guest and a host, whose name
        the topic has."""
        return f"{self.federation.name}.{other if self.is_guest else self.own_party}.{name}"

    @cached_property
    def kinds(self) -> Kinds:
        """The fixed-point kinds of the numbers in messages."""
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
        """Bytes of the longest message content."""
        # Computed for the longest key: after a change of keys, messages under either key have to be readable.
        vector = self.learning.batch * LARGEST_BITS // 4
        return max(vector, 64 * self.alignment.limit) + 1024

    def unfit(self) -> Iterator[str]:
        yield from super().unfit()
        yield from self.without_meaning()
        kind, needed = self.role.kind, ["key_fingerprint"]
        needed += ["key_file"] if kind == COORDINATOR else ["secret_file", "link_secret_file"]
        for key in needed if self.encryption.encrypted else ():
            if getattr(self.encryption, key) is None:
                yield f"encryption.{key} is missing: a {kind} needs it"

    @model_validator(mode="after")
    def _is_a_whole_member(self) -> QuasiNewtonSettings:
        kind, federation = self.role.kind, self.federation
        if len(federation.parties) < 2:
            raise ValueError("federation.parties: a guest and at least one host are expected")
        if self.bus.processing_guarantee != "exactly_once":
            raise ValueError(
                f'bus.processing_guarantee = "{self.bus.processing_guarantee}": "exactly_once" is expected: '
                "a step that is taken "
                "twice may take other entities than the others were told of"
            )
        if kind != COORDINATOR:
            if (kind == GUEST) != (self.own_party == federation.guest_party):
                raise ValueError(
                    f'party.name = {self.own_party!r} with role.kind = "{kind}": the guest is '
                    f"{federation.guest_party!r} (federation.guest; left out: the first of "
                    "federation.parties), and every other party is a host"
                )
            if kind == HOST and self.preprocessing.method == EVIDENCE:
                raise ValueError(
                    f'preprocessing.method = "{EVIDENCE}" needs labels, which a {HOST} does not have: it is '
                    'for the guest alone. "quantile-bins" makes bins without labels'
                )
        return self

    @model_validator(mode="after")
    def _hides_what_it_should(self) -> QuasiNewtonSettings:
        encryption = self.encryption
        if encryption.precision == "plain":
            if not (encryption.study or self.bus.url.startswith("memory:")):
                raise ValueError(
                    'encryption.precision = "plain" reveals what it should hide: set encryption.study = true '
                    "if you mean that"
                )
            return self
        if encryption.key_bits < SAFE_BITS and not (encryption.study or self.bus.url.startswith("memory:")):
            raise ValueError(
                f"encryption.key_bits = {encryption.key_bits}: keys of fewer than {SAFE_BITS} bits can be "
                "broken: set encryption.study = true if you mean that"
            )
        return self

    @model_validator(mode="after")
    def _batches_are_large_enough(self) -> QuasiNewtonSettings:
        learning, alignment = self.learning, self.alignment
        if learning.batch < learning.min_batch:
            raise ValueError(
                f"learning.batch = {learning.batch}: at least learning.min_batch = {learning.min_batch} is "
                "expected"
            )
        if not learning.batch <= alignment.entities <= alignment.limit:
            raise ValueError(
                f"alignment.entities = {alignment.entities}: learning.batch = {learning.batch} to "
                f"alignment.limit = {alignment.limit} is expected"
            )
        if self.most_batches > MOST_BATCHES:
            raise ValueError(
                f"alignment.limit = {alignment.limit}: at most {MOST_BATCHES} times learning.batch = "
                f"{learning.batch} is expected"
            )
        links = link_files(self)
        if self.role.kind == GUEST and links is not None and set(links) != set(self.federation.hosts):
            raise ValueError(
                f"encryption.link_secret_file: a file for each of {self.federation.hosts} is expected"
            )
        if self.role.kind == HOST and links is not None and set(links) != {self.federation.guest_party}:
            raise ValueError(
                f"encryption.link_secret_file: a file for {self.federation.guest_party!r} alone is expected"
            )
        return self


def link_files(settings: QuasiNewtonSettings) -> dict[str, str] | None:
    """The file with each link's secret, by the other party's name; None if no file is given."""
    given, federation = settings.encryption.link_secret_file, settings.federation
    if given is None or isinstance(given, dict):
        return given
    return (
        {federation.guest_party: given}
        if settings.role.kind == HOST
        else dict.fromkeys(federation.hosts[:1], given)
    )
