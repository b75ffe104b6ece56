"""Settings of FDSKL's worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from streamfl.configuration.settings import ReadBy, Section
from streamfl.configuration.shared import SHARED
from streamfl.encoding.wire import fingerprint
from streamfl.fdskl.learning.losses import MarginLoss, loss_named, prediction_of
from streamfl.fdskl.learning.section import KernelLearningSection
from streamfl.fdskl.messages import CARRIED_BYTES, MOST_RANGES
from streamfl.fdskl.sums.pending_sums import trees_of
from streamfl.fdskl.sums.topology import Aggregation
from streamfl.records.entities import VerticalMembers, VerticalSettings
from streamfl.records.header_propagation import FollowedPredictions
from streamfl.records.samples import SampleReader
from streamfl.state.changeable import CHANGEABLE

__all__ = ["FEWEST_ENTITIES", "WORKER", "FdsklSettings"]

WORKER = "fdskl-worker"
# Bounds of input_noise, in multiples of input_norm: less hides nothing, more leaves nothing.
LEAST_NOISE, MOST_NOISE = 1e-6, 1e5
# Default of features_per_entity where features_limit is small.
MOST_TOLD = 16_384
# Fewest entities for the bandwidth: it is the median distance of pairs of them.
FEWEST_ENTITIES = 32


class FdsklFederation(VerticalMembers):
    """Who learns together. Every member has to be given the same values."""

    active: str | Annotated[list[str], Field(min_length=1)] | None = None
    """The party that knows the labels. Left out: the first of federation.parties. With learning.solver =
    "sgd" it can be a list: all of them learn, and the first predicts."""

    @model_validator(mode="after")
    def _active_are_parties(self) -> FdsklFederation:
        wrong = [name for name in self.active_parties if name not in self.parties]
        if wrong:
            raise ValueError(f"active = {wrong[0]!r}: one of federation.parties = {self.parties} is expected")
        if len(set(self.active_parties)) < len(self.active_parties):
            raise ValueError(f"active = {self.active_parties}: no party may occur twice")
        return self

    @property
    def active_parties(self) -> list[str]:
        """Names of the parties that know labels. The first one predicts."""
        if self.active is None:
            return self.parties[:1]
        return [self.active] if isinstance(self.active, str) else self.active

    @property
    def active_party(self) -> str:
        """The name of the active party, or of the first of several."""
        return self.active_parties[0]

    @cached_property
    def actives(self) -> list[int]:
        """The places of the active parties in the list of parties."""
        return [self.parties.index(name) for name in self.active_parties]

    @cached_property
    def root(self) -> int:
        """Place of the first active party in the list of parties."""
        return self.actives[0]


class AggregationSection(Section):
    """How sums are made without showing their parts. Every member has to be given the same values, but for
    files."""

    topology: Annotated[Literal["tree", "star", "ring"], SHARED] = "tree"
    """Which party adds whose sums on the way to the active party."""
    mask: Annotated[Literal["one-time", "paper", "none"], SHARED] = "one-time"
    """How the parts of a sum are hidden. `one-time`: by numbers that cancel in the sum and are never used
    twice. `paper` and `none` are for study."""
    study: Annotated[bool, CHANGEABLE, SHARED] = False
    """Whether the masks `paper` and `none` are allowed on a bus other than memory. The page of this system
    says what they show."""
    frequencies: Annotated[Literal["private", "shared"], SHARED] = "private"
    """What a party draws its part of the random features from. `private`: from a secret of its own. `shared`:
    from federation.seed, so that others can compute it."""
    # The state remembers a digest of the secret and refuses another one.
    secret_file: Annotated[str | None, CHANGEABLE] = None
    """A file with at least 32 secret bytes, from which private frequencies are drawn. Left out: the party
    makes a secret at its first start and keeps it in its state. Old features mean nothing with another
    secret, so a state that was made with another one is refused."""
    circle_bits: Annotated[Literal[32, 64], SHARED] = 32
    """Bits of a number in a partial sum. 32: a phase is exact to 4e-9."""
    round_seconds: Annotated[float, CHANGEABLE] = Field(default=30.0, gt=0, le=1e6, allow_inf_nan=False)
    """Seconds after which an incomplete round is abandoned and asked again. More than
    alignment.reply_seconds."""
    rounds_in_flight: Annotated[int, CHANGEABLE] = Field(default=16, ge=1, le=1_000)
    """Most rounds of a partition under way at a time. Each is one record of every party."""


class EntityAlignmentSection(Section):
    """How long entities are remembered and waited for."""

    reply_seconds: Annotated[float, CHANGEABLE] = Field(default=10.0, gt=0, le=1e6, allow_inf_nan=False)
    """Seconds that a party waits for its own columns when it is asked for an entity. Then their mean stands
    in."""
    expiry_seconds: Annotated[float, CHANGEABLE] = Field(default=86_400.0, gt=0, allow_inf_nan=False)
    """Seconds without news of an entity after which it is forgotten. Set it above the longest delay of
    labels."""
    limit: Annotated[int, CHANGEABLE] = Field(default=100_000, ge=1)
    """Most entities remembered per partition. When it is full the oldest is forgotten. With `newton` at least
    learning.window."""
    revise: Annotated[bool, CHANGEABLE] = True
    """Whether the active party predicts an entity again when a party has new columns of it and no label has
    come."""
    linger_ms: Annotated[float, CHANGEABLE] = Field(default=20.0, ge=0, le=60_000, allow_inf_nan=False)
    """Milliseconds for which the active party gathers entities, to predict them in one round."""
    patience_seconds: Annotated[float, CHANGEABLE] = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Seconds of abandoned or unanswered rounds after which a party is not ready."""


class StandardisationSection(Section):
    """Each party scales its columns to mean 0 and deviation 1 before it computes anything from them."""

    columns: bool = True
    """Whether columns are standardised. `false`: they are used as they come."""
    transform: Literal["auto", "none"] = "auto"
    """How unusual columns are treated. `auto`: a column with a few numbers far from all others is first put
    through arcsinh, which is a logarithm for large numbers of either sign and leaves small ones as they are;
    a rare flag is kept near the usual value. `none`: mean and deviation alone."""
    first_entities: Annotated[int, CHANGEABLE] = Field(default=1024, ge=2, le=1_000_000)
    """Samples of a partition from which a party computes its columns' scale, which is then frozen. Nothing
    else is computed from columns before. Fewer do if the labels of the first iteration are there, or a round
    waits, and alignment.reply_seconds have passed."""


class InputPrivacySection(Section):
    """Limits on what a party shows of its columns: noise before they are projected, which costs accuracy; a
    number of features."""

    input_norm: Annotated[float | None, CHANGEABLE] = Field(default=None, gt=0, allow_inf_nan=False)
    """B, the norm to which an entity's standardised columns are shortened. It belongs to input_noise."""
    input_noise: Annotated[float | None, CHANGEABLE] = Field(default=None, gt=0, allow_inf_nan=False)
    """Standard deviation of the noise on each column; from 1e-6 to 100,000 times B. Needs
    aggregation.secret_file."""

    features_per_entity: Annotated[int | None, CHANGEABLE] = Field(default=None, ge=1)
    """Most random features that a party answers for one entity in its whole life, where members have keys.
    Then the mean stands in, as for an unknown entity. At least twice learning.features_limit. Left out: eight
    times that, or 16,384 if that is more."""

    @model_validator(mode="after")
    def _belong_together(self) -> InputPrivacySection:
        if (self.input_norm is None) != (self.input_noise is None):
            key = "input_norm" if self.input_norm is None else "input_noise"
            raise ValueError(f"{key} is missing: a norm and the noise on it protect only together")
        if self.input_norm is not None and self.input_noise is not None:
            low, high = LEAST_NOISE * self.input_norm, MOST_NOISE * self.input_norm
            if not low <= self.input_noise <= high:
                raise ValueError(f"input_noise = {self.input_noise:g}: {low:g} to {high:g} is expected")
        return self


class FdsklSettings(VerticalSettings):
    """Settings of fdskl-worker."""

    read_by: ClassVar[ReadBy] = dict.fromkeys(("party", "samples"), (WORKER,))

    federation: FdsklFederation
    learning: KernelLearningSection = Field(default_factory=KernelLearningSection)
    aggregation: AggregationSection = Field(default_factory=AggregationSection)
    alignment: EntityAlignmentSection = Field(default_factory=EntityAlignmentSection)
    predictions: FollowedPredictions = Field(default_factory=FollowedPredictions)
    standardisation: StandardisationSection = Field(default_factory=StandardisationSection)
    privacy: InputPrivacySection = Field(default_factory=InputPrivacySection)

    @property
    def is_active(self) -> bool:
        """Whether this member knows labels."""
        return self.own_party in self.federation.active_parties

    @property
    def predicts(self) -> bool:
        """Whether this member is the active party that predicts."""
        return self.own_party == self.federation.active_party

    @cached_property
    def own(self) -> int:
        """The place of this party in the list of parties."""
        return self.federation.parties.index(self.required_party())

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of this party's columns. Columns without names are named by party, field and number."""
        samples = self.required_samples(f"a {WORKER}")
        if samples.input_names is not None:
            return tuple(samples.input_names)
        dimension = SampleReader(samples.samples).dimension
        return tuple(f"{self.own_party}/{samples.features}/{number}" for number in range(dimension))

    @cached_property
    def fingerprint(self) -> int:
        """A hash of what all members need alike."""
        federation, learning, aggregated = self.federation, self.learning, self.aggregation
        return fingerprint(
            "fdskl",
            federation.name,
            federation.seed,
            tuple(federation.parties),
            federation.active_party if len(federation.actives) == 1 else tuple(federation.active_parties),
            learning.kernel,
            learning.matern_nu,
            learning.columns_share,
            aggregated.topology,
            aggregated.mask,
            aggregated.frequencies,
            aggregated.circle_bits,
        )

    @cached_property
    def trees(self) -> dict[int, Aggregation]:
        """The topology of each stage of a round, by stage."""
        federation, aggregated = self.federation, self.aggregation
        return trees_of(
            aggregated.topology, len(federation.parties), federation.actives, aggregated.mask == "paper"
        )

    @property
    def loss(self) -> MarginLoss:
        return loss_named(self.learning.loss, self.learning.positive_weight)

    @property
    def prediction_of(self) -> Callable[[float], float]:
        """Maps f to what the active party publishes."""
        return prediction_of(self.learning.loss, *self.required_labels("the active party").label_range)

    @property
    def features_per_entity(self) -> int:
        """Most features that a party answers for one entity."""
        return self.privacy.features_per_entity or max(MOST_TOLD, 8 * self.learning.features_limit)

    @property
    def answered_features(self) -> int | None:
        """The limit that this party enforces. None: without keys a stranger may ask and use it up, or nobody
        else asks."""
        return (
            None
            if self.is_open or self.federation.active_parties == [self.own_party]
            else self.features_per_entity
        )

    @property
    def is_for_study(self) -> bool:
        """Whether messages show what one-time masks would hide."""
        return self.aggregation.mask != "one-time" and len(self.federation.parties) > 1

    @property
    def is_open(self) -> bool:
        """Whether others can agree on masks in a party's name, because members have no keys."""
        agreed = self.aggregation.mask == "one-time" and len(self.federation.parties) > 1
        return agreed and self.federation.members is None and not self.bus.url.startswith("memory:")

    def unfit(self) -> Iterator[str]:
        yield from super().unfit()
        if self.party is not None and self.is_active and self.labels is None:
            yield "labels is missing: the active party needs this section"

    @model_validator(mode="after")
    def _is_a_whole_member(self) -> FdsklSettings:
        if not self.is_active and self.labels is not None:
            raise ValueError(
                f"labels has no meaning at {self.own_party!r}: federation.active is "
                f"{', '.join(map(repr, self.federation.active_parties))}"
            )
        if len(self.federation.active_parties) > 1:
            self._check_several_actives()
        learning, aggregation = self.learning, self.aggregation
        number = aggregation.circle_bits // 8
        if (2 * learning.features_limit + learning.block_features) * number > CARRIED_BYTES:
            most = (CARRIED_BYTES // number - learning.block_features) // 2
            raise ValueError(
                f"learning.features_limit = {learning.features_limit}: the sums of one entity are one "
                f"record: at most {most} is expected"
            )
        if self.is_for_study and not aggregation.study and not self.bus.url.startswith("memory:"):
            raise ValueError(
                f'aggregation.mask = "{aggregation.mask}" reveals what it should hide: for a study, set '
                "aggregation.study = true"
            )
        if self.features_per_entity < 2 * learning.features_limit:
            raise ValueError(
                f"privacy.features_per_entity = {self.features_per_entity}: at least twice "
                f"learning.features_limit = {learning.features_limit} is expected, otherwise no entity can "
                "be learnt from completely"
            )
        if learning.solver == "newton" and self.alignment.limit < learning.window:
            raise ValueError(
                f"alignment.limit = {self.alignment.limit}: at least learning.window = {learning.window} is "
                "expected, because entities of the window are requested again"
            )
        if aggregation.round_seconds <= self.alignment.reply_seconds:
            raise ValueError(
                f"aggregation.round_seconds = {aggregation.round_seconds:g}: more than "
                f"alignment.reply_seconds = {self.alignment.reply_seconds:g} is expected, otherwise a round "
                "is given up while a party waits for its columns"
            )
        if learning.bandwidth is None and max(learning.window, learning.block_instances) < FEWEST_ENTITIES:
            raise ValueError(
                f"learning.window = {learning.window}: at least {FEWEST_ENTITIES} is expected, because the "
                "bandwidth is computed from their distances; or set learning.bandwidth"
            )
        if self.privacy.input_noise is not None and aggregation.secret_file is None:
            raise ValueError(
                "aggregation.secret_file is missing: noise that others can compute does not protect anything"
            )
        return self

    def _check_several_actives(self) -> None:
        """ValueError for settings that do not work with several active parties."""
        names, learning = ", ".join(self.federation.active_parties), self.learning
        if self.is_active and learning.solver == "newton":
            raise ValueError(
                'learning.solver = "newton" needs exactly one active party, and federation.active names '
                f'{names}: set learning.solver = "sgd" at each of them, or name one'
            )
        if self.aggregation.mask == "paper":
            raise ValueError(
                'aggregation.mask = "paper" needs exactly one active party, which owns no phase: '
                f"federation.active names {names}"
            )
        if self.bus.processing_guarantee != "exactly_once":
            raise ValueError(
                f'bus.processing_guarantee = "{self.bus.processing_guarantee}": "exactly_once" is expected '
                "where federation.active "
                f"names {names}, because an iteration has to be announced and stored in one step"
            )
        if learning.features_limit // learning.block_features > 2 * MOST_RANGES:
            raise ValueError(
                f"learning.block_features = {learning.block_features}: at least a {2 * MOST_RANGES:,}th of "
                f"learning.features_limit = {learning.features_limit} is expected where federation.active "
                f"names {names}: a round asks for the blocks of one"
            )
