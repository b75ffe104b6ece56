"""Settings of `streamfl rekey`: a topic that is not keyed as it has to be, and samples that come in several records."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from streamfl.records.keys import KeySection
from streamfl.records.paths import FieldPath
from streamfl.records.times import TimeUnit
from streamfl.settings import Section

__all__ = ["AssembleSection", "AssembledTopic", "RekeySection", "RekeyedTopic"]


class RekeySection(KeySection):
    """Your topic as it is, where it is not keyed as it has to be: `streamfl rekey` writes it anew to the section's `topic`.

    How its records are written is as the section says, but for the keys that stand here.
    """

    by: FieldPath | None = None
    """The field that becomes the key: the client's name, or of a vertical party the entity's. Left out: as the section says;
    where nothing is said there, the record's key."""


class AssembleSection(Section):
    """Several records become one sample; belongs to [samples.rekey]. Either `seconds` or `id` says which belong together."""

    seconds: float | None = Field(default=None, gt=0, le=86_400.0, allow_inf_nan=False)
    """Records of one client within the same span of so many seconds are one sample. The spans begin at 1970, as Kafka Streams'
    tumbling windows do."""
    id: FieldPath | None = None
    """Records of one client with the same content of this field are one sample."""
    time: FieldPath | None = None
    """The field with the time of what the record tells of. Left out: the record's own time."""
    time_unit: TimeUnit | None = None
    """Where that field is a number: seconds, milliseconds or microseconds since 1970. Left out: it is a text such as
    2026-11-23T09:30:00Z."""
    name: FieldPath | None = None
    """The field that says which input a record has, such as the sensor's name; belongs to `value`. Left out: a record has its
    inputs under their own names."""
    value: FieldPath | None = None
    """The field with that input."""
    fields: list[FieldPath] | None = Field(default=None, min_length=1, max_length=10_000)
    """What a sample consists of. It goes on as soon as it has all of these. Left out: the inputs, and samples.label if it is
    given."""
    several: Literal["first", "last", "mean"] = "first"
    """Of several values for one input: the first, the last, or the mean of numbers. With `last` and `mean` no sample goes on before
    its span is over or it expires."""
    grace_seconds: float | None = Field(default=None, ge=0, le=86_400.0, allow_inf_nan=False)
    """A span of a client is over, and a sample goes on with what it has, when a record of that client is so many seconds beyond its
    end. Left out: a sample waits until it expires. Records of one client in several partitions are not read in order of time, least
    of all from a backlog: what comes after its span is over is a dead letter."""
    expiry_seconds: float = Field(default=300.0, gt=0, le=604_800.0, allow_inf_nan=False)
    """So many seconds after its first record a sample goes on with what it has. So long it is known that it went on: what comes
    later begins another."""
    limit: int = Field(default=10_000, ge=1, le=1_000_000)
    """So many samples of a partition are assembled or known to have gone on; the oldest gives way."""

    @field_validator("fields")
    @classmethod
    def _are_different(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("no field is expected twice")
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> AssembleSection:
        if (self.seconds is None) == (self.id is None):
            raise ValueError("seconds or id is expected, and not both: it says which records belong together")
        if (self.name is None) != (self.value is None):
            missing, given = ("name", "value") if self.name is None else ("value", "name")
            raise ValueError(f"{missing} is missing: it belongs to {given}")
        return self


class RekeyedTopic(KeySection):
    """A topic that `streamfl rekey` may write. No state is made with how records came there."""

    rekey: RekeySection | None = Field(default=None, exclude=True)
    """Your topic as it is, where it is not keyed as it has to be: `streamfl rekey` reads it and writes `topic`."""


class AssembledTopic(RekeyedTopic):
    """The same of samples, which may come in several records each."""

    assemble: AssembleSection | None = Field(default=None, exclude=True)
    """Several records of the topic of `rekey` become one sample."""

    @model_validator(mode="after")
    def _pieces_come_from_somewhere(self) -> AssembledTopic:
        if self.assemble is not None and self.rekey is None:
            raise ValueError("rekey is missing: with assemble its topic has the records that a sample comes in")
        return self
