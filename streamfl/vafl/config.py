"""Settings of VAFL's roles, the party and the coordinator."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from streamfl.configuration.settings import ReadBy, Section
from streamfl.encoding.wire import ROOM, fingerprint
from streamfl.learning.optimisers import OptimiserName
from streamfl.records.entities import VerticalMembers, VerticalSettings
from streamfl.records.header_propagation import FollowedAcross
from streamfl.records.samples import SampleReader
from streamfl.state.changeable import CHANGEABLE
from streamfl.vafl.functions.networks import Activation
from streamfl.vafl.privacy_section import PrivacySection

__all__ = ["VaflSettings"]

LARGEST_LAYER = 65_536
# Bytes: the counters remembered with an embedding; an output as MessagePack; a probability as JSON, with its
# comma.
WITH_EMBEDDING, OUTPUT, PROBABILITY = 64, 9, 24
PARTY, COORDINATOR = "vafl-party", "vafl-coordinator"
# AdaGrad's learning rates on standardised inputs, found on fifteen tables. Key: is the loss square, is the
# model linear.
RATES = {(False, True): 0.5, (False, False): 0.1, (True, True): 0.1, (True, False): 0.05}
UNSCALED_RATE = 0.03
LARGEST_BATCH = 16
# Without learning.max_staleness: a gradient at an embedding that is older than this, in its party's steps,
# counts less, and one that has waited for another party in vain is asked for anew. Its party may have sent
# hundreds by the same parameters meanwhile; their gradients, all at once, would throw its model far off.
STALE_STEPS = 2

LayerSizes = Annotated[list[Annotated[int, Field(ge=1, le=LARGEST_LAYER)]], Field(max_length=8)]


class VaflFederation(VerticalMembers):
    """Who learns together. Every member has to be given the same values."""

    embedding_size: int = Field(ge=1, le=LARGEST_LAYER)
    """How many numbers a party sends for an entity. With head.kind = "sum": 1, or the number of classes. All
    parties' embeddings of an entity have to fit into one record: about 248,000 numbers in all, or 124,000 in
    `float64`."""
    precision: Literal["float32", "float64"] = "float32"
    """Number format of embeddings, gradients and parameters."""

    @field_validator("parties")
    @classmethod
    def _is_no_coordinator(cls, names: list[str]) -> list[str]:
        if COORDINATOR in names:
            raise ValueError(f"{COORDINATOR} is the coordinator's own name: another name is expected")
        return names


class EmbeddingSection(Section):
    """How a party computes embeddings from its features."""

    hidden: LayerSizes = Field(default=[])
    """Sizes of up to 8 hidden layers; none: the embedding is linear. All parameters together: up to
    134,217,728."""
    activation: Activation = "relu"
    """Activation of the hidden layers."""
    bias: bool = True
    """Whether layers have a constant term."""
    # A partition keeps the choice that it began with.
    standardise: Annotated[bool | None, CHANGEABLE] = None
    """`true`: each input is standardised by the mean and deviation of its column so far, and clipped at 3
    deviations; an entity's inputs together have a norm of about 1. Left out: `true`, but `false` with
    embedding.model, and with privacy.embedding_norm, where each entity would change the embeddings of the
    others. A partition goes on as it began."""
    model: str | None = Field(default=None, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """A model of your own, `"package.module:function"`, in place of the built-in network."""

    @model_validator(mode="after")
    def _one_of_them(self) -> EmbeddingSection:
        given = self.model_fields_set & {"hidden", "activation", "bias"}
        if self.model is not None and given:
            raise ValueError(f"{min(given)} has no meaning with embedding.model: leave one of them out")
        return self


class HeadSection(Section):
    """How the coordinator computes predictions from the embeddings."""

    kind: Literal["sum", "network"] = "sum"
    """`sum`: adds the embeddings, without parameters; with linear embeddings this is linear, logistic or
    softmax regression. `network`: a network over all embeddings side by side, learnt by the coordinator."""
    hidden: LayerSizes = Field(default=[])
    """Sizes of the network's hidden layers; none: a linear map. All parameters together: up to
    134,217,728."""
    activation: Activation = "relu"
    """Activation of the hidden layers."""


class VerticalLearningSection(Section):
    """How a member learns."""

    loss: Literal["square", "logistic", "softmax"] = "logistic"
    """The coordinator's loss: `square` for numbers, `logistic` for labels 0 and 1, `softmax` for classes."""
    classes: int | None = Field(default=None, ge=2, le=LARGEST_LAYER)
    """Coordinator: the number of classes. Required with `softmax`, refused with other losses. A prediction is
    one record, so at most 41,496."""
    optimiser: OptimiserName | None = None
    """The optimiser. `sgd-decay` uses learning_rate / k at step k. Left out: `adagrad`, or `sgd` with
    privacy.gradient_noise."""
    learning_rate: Annotated[float | None, CHANGEABLE] = Field(
        default=None, gt=0, le=1e6, allow_inf_nan=False
    )
    """The learning rate eta. Left out: 0.03; with `adagrad` 0.1 for a head, and with standardised inputs 0.5
    for a linear embedding or 0.1 for a network. With loss `square` these are 0.05, 0.1 and 0.05, so set
    learning.loss at the parties, too.
    """
    batch_size: Annotated[int | None, CHANGEABLE] = Field(default=None, ge=1, le=10_000)
    """Gradients per step of a party; entities per step of the coordinator. Left out: 16, but fewer where a
    party has fewer entities under way, so that each label makes a step where labels come at once; with
    privacy.gradient_noise always 16. Where there may be fewer, a party's gradient counts less if it took more
    than two steps meanwhile. The coordinator begins with 1 per step, and adds one every 64 steps."""
    regularisation: Annotated[float, CHANGEABLE] = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    """lambda of the penalty lambda |theta|^2 / 2."""
    in_flight: Annotated[int | None, CHANGEABLE] = Field(default=None, ge=1)
    """Party: the most entities between their embedding and the step on their gradient; further ones wait. At
    least batch_size if that is set, or 16 with privacy.gradient_noise. Left out: any number."""
    catch_up_samples: Annotated[int, CHANGEABLE] = Field(default=64, ge=0)
    """Party without in_flight: the most entities between their embedding and its gradient while more samples
    than this are unread, such as a history at the start. Raised to batch_size if lower. 0: the whole history
    is sent at once, with the model as it is. """
    catch_up_patience_seconds: Annotated[float, CHANGEABLE] = Field(
        default=30.0, gt=0, le=1e6, allow_inf_nan=False
    )
    """Party: seconds that a party with a backlog waits for a gradient. Then it sends as many more as it has
    sent in vain, and waits again, until a gradient comes within this time after its embedding."""
    wait_for: Annotated[int, CHANGEABLE] = Field(default=1, ge=1)
    """Coordinator: new embeddings of an entity needed before it is learnt from. The number of parties:
    synchronous."""
    quorum: Annotated[int | None, CHANGEABLE] = Field(default=None, ge=1)
    """Coordinator: the number of parties that must have sent an embedding of an entity before it is learnt
    from. After alignment.reply_seconds fewer are enough. Left out: all parties."""
    max_staleness: Annotated[int | None, CHANGEABLE] = Field(default=None, ge=0)
    """Coordinator: D, the most steps that a party may be known to have taken since an embedding. The
    coordinator asks for a newer embedding before it computes a gradient from an older one. Left out: no
    limit, but 2, once, for an embedding that waited for another party in vain."""
    # A partition keeps the start that it remembers.
    seeded_start: Annotated[bool, CHANGEABLE] = False
    """`true`: first parameters are drawn from federation.seed, so others can compute them, and with them
    features. `false`: from a secret of this member, made at the first start or derived from
    privacy.secret_file. A partition keeps the start that it remembers."""


class AlignmentSection(Section):
    """When embeddings of an entity are used, and how long they are kept."""

    quorum: Annotated[int, CHANGEABLE] = Field(default=1, ge=1)
    """Coordinator: the number of parties that must have sent an embedding of an entity before it is
    predicted."""
    revise: Annotated[bool, CHANGEABLE] = True
    """Coordinator: whether an entity is predicted again with every further embedding before its label."""
    expiry_seconds: Annotated[float, CHANGEABLE] = Field(default=3600.0, gt=0, allow_inf_nan=False)
    """Seconds without a message after which an entity is forgotten. A party forgets an entity whose gradient
    has not come, so set this to the longest delay of labels."""
    limit: Annotated[int, CHANGEABLE] = Field(default=100_000, ge=1)
    """Most entities remembered per partition. When it is full the oldest is forgotten."""
    reply_seconds: Annotated[float, CHANGEABLE] = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Coordinator: seconds that it waits for a newer embedding that it asked for, or for learning.quorum once
    an entity has its label. Then a missing party counts as absent for that entity, and learning.quorum waits
    for it again only once it keeps up."""
    requests: Annotated[int, CHANGEABLE] = Field(default=4, ge=0)
    """How often the coordinator may ask for a newer embedding of an entity, and the party send it, until the
    entity comes to the party again. At one request more the party forgets the entity. Best the same at all
    members."""
    patience_seconds: Annotated[float, CHANGEABLE] = Field(default=600.0, gt=0, allow_inf_nan=False)
    """Seconds of silence before a member is not ready: a party that sends embeddings and gets no gradient, or
    a coordinator that gets nothing of one party while others' embeddings or labels come. Set it to the
    longest delay of labels."""
    keep: Annotated[bool, CHANGEABLE] = False
    """Coordinator: whether entities stay remembered after they were learnt from, for histories that are
    replayed."""


class VaflSettings(VerticalSettings):
    """Settings of vafl-party and vafl-coordinator."""

    read_by: ClassVar[ReadBy] = {"party": (PARTY,), "samples": (PARTY,), "labels": (COORDINATOR,)}

    federation: VaflFederation
    embedding: EmbeddingSection = Field(default_factory=EmbeddingSection)
    head: HeadSection = Field(default_factory=HeadSection)
    learning: VerticalLearningSection = Field(default_factory=VerticalLearningSection)
    alignment: AlignmentSection = Field(default_factory=AlignmentSection)
    predictions: FollowedAcross = Field(default_factory=FollowedAcross)
    privacy: PrivacySection = Field(default_factory=PrivacySection)

    @property
    def own_party(self) -> str | None:
        return super().own_party if self.role.kind == PARTY else None

    @property
    def fingerprint(self) -> int:
        """A hash of what all members need alike."""
        own = self.federation
        return fingerprint("vafl", own.name, own.seed, tuple(own.parties), own.embedding_size, own.precision)

    @property
    def inputs(self) -> int:
        """How many numbers a sample of this party has."""
        return SampleReader(self.required_samples("a vafl-party").samples).dimension

    @property
    def dtype(self) -> Any:
        """Data type of embeddings, gradients and parameters."""
        return np.float64 if self.federation.precision == "float64" else np.float32

    @property
    def learning_quorum(self) -> int:
        """``learning.quorum``, or its default."""
        return self.learning.quorum or len(self.federation.parties)

    @property
    def optimiser(self) -> OptimiserName:
        """``learning.optimiser``, or its default. With noisy gradients that is SGD: AdaGrad's scale would be
        mostly noise."""
        return self.learning.optimiser or ("adagrad" if self.privacy.gradient_noise is None else "sgd")

    @property
    def batch_size(self) -> int:
        """``learning.batch_size``, or its default: the most gradients in a step."""
        return self.learning.batch_size or LARGEST_BATCH

    @property
    def fewer_at_once(self) -> bool:
        """Whether a party's step takes fewer gradients where fewer entities are under way. Never with noise
        on steps: the noise is the same however few gradients a step has."""
        return self.learning.batch_size is None and self.privacy.gradient_noise is None

    @property
    def least_in_flight(self) -> int:
        """The smallest allowed ``learning.in_flight``: with fewer no step would ever be full."""
        return 1 if self.fewer_at_once else self.batch_size

    @property
    def standardise(self) -> bool:
        """``embedding.standardise``, or its default."""
        given = self.embedding.standardise
        return (
            self.embedding.model is None and self.privacy.embedding_norm is None if given is None else given
        )

    def party_rate(self, standardised: bool) -> float:
        """A party's ``learning.learning_rate``, or its default. standardised: whether the partition's inputs
        are."""
        return self._rate(standardised, linear=self.embedding.model is None and not self.embedding.hidden)

    @property
    def head_rate(self) -> float:
        """``learning.learning_rate`` of the coordinator's head, or its default."""
        return self._rate(standardised=True, linear=False)

    def _rate(self, standardised: bool, linear: bool) -> float:
        if self.learning.learning_rate is not None:
            return self.learning.learning_rate
        if not standardised or self.optimiser != "adagrad":
            return UNSCALED_RATE
        return RATES[self.learning.loss == "square", linear]

    @property
    def number_bytes(self) -> int:
        """Bytes of one number in federation.precision."""
        return 8 if self.federation.precision == "float64" else 4

    @property
    def outputs(self) -> int:
        """How many numbers the head outputs for an entity."""
        return (self.learning.classes or 0) if self.learning.loss == "softmax" else 1

    @model_validator(mode="after")
    def _is_a_whole_member(self) -> VaflSettings:
        if self.role.kind == PARTY:
            self._check_party()
        elif self.role.kind == COORDINATOR:
            self._check_coordinator()
        self._check_sizes()
        return self

    def _check_party(self) -> None:
        if self.embedding.standardise and self.privacy.embedding_norm is not None:
            raise ValueError(
                "embedding.standardise = true has no meaning with privacy.embedding_norm: each entity would "
                "change what is sent about the others, which mu does not count; leave it out, and scale the "
                "columns by public numbers"
            )
        if self.privacy.budget_mu is not None and self.privacy.embedding_norm is None:
            raise ValueError("privacy.embedding_norm is missing: a party's budget is spent by its embeddings")
        learning = self.learning
        if learning.in_flight is not None and learning.in_flight < self.least_in_flight:
            raise ValueError(
                f"learning.in_flight = {learning.in_flight}: a step takes learning.batch_size = "
                f"{self.batch_size} gradients, so at least that number has to be on its way; leave it out, "
                "or set at least that"
            )

    def _check_coordinator(self) -> None:
        learning, count, size = self.learning, len(self.federation.parties), self.federation.embedding_size
        if (learning.loss == "softmax") != (learning.classes is not None):
            text = "is missing" if learning.classes is None else "has no meaning"
            raise ValueError(f'learning.classes {text}: it belongs to learning.loss = "softmax"')
        if self.head.kind == "sum" and size != self.outputs:
            raise ValueError(
                f'federation.embedding_size = {size}: with head.kind = "sum" and learning.loss = '
                f'"{learning.loss}" '
                f"it is {self.outputs}"
            )
        numbers = {
            "alignment.quorum": self.alignment.quorum,
            "learning.quorum": learning.quorum,
            "learning.wait_for": learning.wait_for,
        }
        for key, value in numbers.items():
            if value is not None and value > count:
                raise ValueError(f"{key} = {value}: there are {count} parties")
        labels = self.required_labels(f"a {COORDINATOR}")
        if learning.loss != "square" and labels.label_range != (0.0, 1.0):
            raise ValueError('labels.label_range has no meaning but with learning.loss = "square"')

    def _check_sizes(self) -> None:
        """ValueError if a value that the coordinator writes may exceed one record. A party knows only the
        federation's settings."""
        federation, classes = self.federation, self.learning.classes or 0
        if classes * PROBABILITY > ROOM:
            raise ValueError(
                f"learning.classes = {classes}: a prediction has the probability of each in one record, up "
                f"to {classes * PROBABILITY:,} bytes of {ROOM:,}: at most {ROOM // PROBABILITY} are possible"
            )
        count, size = len(federation.parties), federation.embedding_size
        rest = ROOM - count * WITH_EMBEDDING - self.outputs * OUTPUT
        needed = count * size * self.number_bytes
        if needed > rest:
            narrower = (
                ', or set federation.precision = "float32"' if federation.precision == "float64" else ""
            )
            network = (
                '; head.kind = "network" takes any number' if self.head.kind == "sum" and classes else ""
            )
            raise ValueError(
                f"federation.embedding_size = {size}: the coordinator's state of an entity is one record, "
                f"and embeddings of {count} parties take {needed:,} bytes of {rest:,} in it: set at most "
                f"{rest // (count * self.number_bytes)}, or name fewer parties{narrower}{network}"
            )
