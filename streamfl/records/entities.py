"""Settings that every vertical system shares: who takes part, a party's own columns, the labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from streamfl.configuration.settings import FederationSection, Section
from streamfl.contract.role import ConfigurationError
from streamfl.records.fields import LabelRange, TopicName
from streamfl.records.inputs import (
    MOST_INPUTS,
    InputFields,
    InputSection,
    check_inputs,
    input_names,
    remembered_fields,
)
from streamfl.records.labels import remembered_label
from streamfl.records.paths import FieldPath
from streamfl.records.rekey import AssembledTopic, RekeyedTopic
from streamfl.records.samples import SamplesSection
from streamfl.records.topic import RecordSettings
from streamfl.state.changeable import CHANGEABLE

__all__ = [
    "EntityLabelsSection",
    "EntitySamplesSection",
    "PartySection",
    "VerticalMembers",
    "VerticalSettings",
]

PartyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$", max_length=64)]


def _are_different(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("no party may occur twice")
    return names


class VerticalMembers(FederationSection):
    """Who learns together. Every member has to be given the same values."""

    parties: Annotated[list[PartyName], Field(min_length=1, max_length=64), AfterValidator(_are_different)]
    """The names of all parties, in the same order at every member: letters, digits, `_` and `-`."""


class PartySection(Section):
    """Which party this is."""

    name: str
    """Which of federation.parties this member is."""


class EntitySamplesSection(AssembledTopic):
    """The party's own topic, with one record for each entity that it sees."""

    topic: TopicName
    """Your own topic; its name does not begin with the federation's."""
    entity: FieldPath | None = None
    """The field that names the entity; left out: the record's key."""
    features: InputFields | None = None
    """The fields with the inputs, or the one field that holds them as a list."""
    inputs: Annotated[list[InputSection], Field(min_length=1, max_length=MOST_INPUTS)] | None = None
    """Tables `[[samples.inputs]]`, one for each field, in place of features. Use them if values are text,
    times or categories, or may be missing. `missing = "mean"` and `"last"` are refused: an entity comes once
    and has no earlier values, and with the values of all entities each would change what is sent about the
    others."""
    dimension: int | None = Field(default=None, ge=1, le=100_000)
    """Length of the list, if features names one field. Not needed if features lists fields."""
    input_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Divisor of every number; choose it so that inputs are about one. `streamfl simulate --format json`
    reports a good value."""
    keyed_by_entity: Annotated[bool, CHANGEABLE] = True
    """With [privacy]: an entity is refused outside the partition that Kafka's default partitioner (murmur2)
    gives its name, because each partition has its own ledger. Set `false` if your producer chooses partitions
    in another way, always the same for an entity. Then nothing is checked, and an entity in two partitions
    costs twice what the metrics show."""

    @model_validator(mode="after")
    def _says_what_the_inputs_are(self) -> Self:
        check_inputs(self.inputs, self.features, self.dimension)
        if self.features is None and self.inputs is None:
            raise ValueError(
                "features is missing: the fields with the inputs, or a table [[samples.inputs]] for each"
            )
        for number, one in enumerate(self.inputs or ()):
            if one.fills_means:
                raise ValueError(
                    f'inputs.{number}.missing = "{one.missing}": an entity comes once and has no earlier '
                    "values, and with the "
                    "values of all entities each would change what is sent about the others; "
                    '"reject", "zero" and a number are possible'
                )
        return self

    @property
    def input_names(self) -> list[str] | None:
        """What each number of a sample means; None: they come as one list, and have no names."""
        return input_names(self.inputs, self.features)

    @property
    def width(self) -> int | None:
        """How many numbers a sample has; None: not known."""
        names = self.input_names
        return self.dimension if names is None else len(names)

    def remembered(self) -> dict[str, Any]:
        return remembered_fields(self, super().remembered(), "entity")

    @property
    def samples(self) -> SamplesSection:
        """This section for :class:`~streamfl.records.samples.SampleReader`: an entity is a client with one
        sample."""
        return SamplesSection(
            **self.of_topic,
            key=self.key,
            key_field=self.key_field,
            client=self.entity,
            features=self.features,
            inputs=self.inputs,
            dimension=self.dimension,
            input_norm=self.input_norm,
        )


class EntityLabelsSection(RekeyedTopic):
    """The labels, on a topic with as many partitions as the parties' and the same keys."""

    topic: TopicName
    """Your own topic, with as many partitions as the parties' and the same record keys."""
    entity: FieldPath | None = None
    """The field that names the entity; left out: the record's key."""
    label: FieldPath
    """The field with the label: a number, 0 or 1, or a class from 0."""
    label_as: Literal["number"] | None = None
    """`number`: text that is a number, such as "1", counts as a label. Left out: only a number does."""
    label_range: LabelRange = (0.0, 1.0)
    """With the square loss: the two label values that are scaled to 0 and 1. With privacy.reply_noise a label
    outside them goes to the dead letters."""

    def remembered(self) -> dict[str, Any]:
        return remembered_label(self, super().remembered(), "entity")

    @property
    def client(self) -> str | None:
        """An entity is a client with one sample."""
        return self.entity

    @property
    def sample_id(self) -> str | None:
        """See ``client``."""
        return None


class VerticalSettings(RecordSettings):
    """Settings of a member that has its own columns of the federation's entities, or their labels."""

    federation: VerticalMembers
    party: PartySection | None = None
    samples: EntitySamplesSection | None = None
    labels: EntityLabelsSection | None = None

    @property
    def own_party(self) -> str | None:
        """The party that this member is; None if it is not a party."""
        return None if self.party is None else self.party.name

    def required_party(self) -> str:
        """The party that this member is; ConfigurationError if it is not a party."""
        if self.party is None:
            raise ConfigurationError(
                "the section [party] is missing: say which of federation.parties this is"
            )
        return self.party.name

    def required_samples(self, whose: str) -> EntitySamplesSection:
        """``[samples]``; ConfigurationError if it is missing. whose: the role, for the error text."""
        if self.samples is None:
            raise ConfigurationError(
                f"the section [samples] is missing: {whose} has to know its samples' topic and fields"
            )
        return self.samples

    def required_labels(self, whose: str) -> EntityLabelsSection:
        """``[labels]``; ConfigurationError if it is missing. whose: the role, for the error text."""
        if self.labels is None:
            raise ConfigurationError(
                f"the section [labels] is missing: {whose} has to know its labels' topic and field"
            )
        return self.labels

    @property
    def member(self) -> str:
        return f"{self.federation.name}.{self.own_party or self.role.kind}"

    @property
    def dead_letters(self) -> str:
        # A member's dead letters hold its own records, which no other member may read.
        return f"{self.member}.dead-letters"

    @classmethod
    def needed_by(cls, kind: str) -> list[str]:
        return [section for section, readers in cls.read_by.items() if kind in readers]

    def unfit(self) -> Iterator[str]:
        """What this kind of role lacks, or has although it must not: all is told together. Each text begins
        with the key."""
        kind = self.role.kind
        for section in self.needed_by(kind):
            if getattr(self, section) is None:
                yield f"{section} is missing: a {kind} needs this section"

    def without_meaning(self) -> Iterator[str]:
        """Sections that this kind of role does not read: mistakes, where one would take them for more."""
        for section, readers in self.read_by.items():
            if self.role.kind not in readers and getattr(self, section) is not None:
                yield f"{section} has no meaning at a {self.role.kind}"

    @model_validator(mode="after")
    def _fits_its_kind(self) -> VerticalSettings:
        if found := list(self.unfit()):
            raise ValueError("\n".join(found))
        return self

    @model_validator(mode="after")
    def _is_a_member(self) -> VerticalSettings:
        federation = self.federation
        if self.party is not None and self.party.name not in federation.parties:
            raise ValueError(
                f"party.name = {self.party.name!r}: one of federation.parties = {federation.parties} is "
                "expected"
            )
        for section, given in (("samples", self.samples), ("labels", self.labels)):
            if given is not None and given.topic.startswith(f"{federation.name}."):
                raise ValueError(
                    f"{section}.topic = {given.topic!r}: a topic other than the federation's own is expected "
                    f"(those begin with {federation.name}.)"
                )
        return self
