"""Settings of `streamfl rekey`: topics with the wrong record keys, and samples that come in several
records."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from streamfl.configuration.settings import Section
from streamfl.records.keys import KeySection
from streamfl.records.paths import FieldPath
from streamfl.records.times import TimeUnit

__all__ = ["AssembleSection", "AssembledTopic", "RekeySection", "RekeyedTopic"]


class RekeySection(KeySection):
    """Your existing topic, if its records have the wrong keys: `streamfl rekey` rewrites it to the section's
    `topic`.

    Its format is the section's. If you set any key of the format here, the others have their defaults.
    """

    by: FieldPath | None = None
    """The field that becomes the key: the client's name, or the entity's at a vertical party. Left out: the
    section's `client` or `entity`; if that is left out too, the record's key."""


class AssembleSection(Section):
    """Several records become one sample; needs [samples.rekey]. Set either `seconds` or `id` to say which
    belong together."""

    seconds: float | None = Field(default=None, gt=0, le=86_400.0, allow_inf_nan=False)
    """Length of a span, in seconds: records of one client within the same span are one sample. The spans
    begin at 1970, as Kafka Streams' tumbling windows do."""
    id: FieldPath | None = None
    """The field with the sample's id: records of one client with the same id are one sample."""
    time: FieldPath | None = None
    """The field with the event time. Left out: the header `streamfl.time`, or the record's own time where
    there is none."""
    time_unit: TimeUnit | None = None
    """Unit of `time` if it is a number: seconds, milliseconds or microseconds since 1970. Left out: `time` is
    a text such as 2026-11-23T09:30:00Z."""
    name: FieldPath | None = None
    """The field that names a record's input, such as the sensor's name; with `value`. Left out: a record has
    its inputs under their own names."""
    value: FieldPath | None = None
    """The field with the value of that input; with `name`."""
    fields: list[FieldPath] | None = Field(default=None, min_length=1, max_length=10_000)
    """The fields of a complete sample. A sample is written as soon as it has all of them. Left out: the
    inputs, and samples.label if it is given."""
    several: Literal["first", "last", "mean"] = "first"
    """Which of several values for one input to take: the first, the last, or the mean of numbers. With `last`
    and `mean` no sample is written before its span is over (grace_seconds), it expires, or it makes room
    (limit)."""
    grace_seconds: float | None = Field(default=None, ge=0, le=86_400.0, allow_inf_nan=False)
    """With `seconds`: how long a span stays open past its end. A record of that client whose event time is
    later than this ends the span, and the sample is written with what it has. Left out: no record ends a
    span, and a sample waits until it expires. Records of one client in several partitions are not read in
    order of time, least of all from a backlog: a value that a sample was written without is a dead letter
    when it comes."""
    expiry_seconds: float = Field(default=300.0, gt=0, le=604_800.0, allow_inf_nan=False)
    """Seconds after its first record is read when a sample is written with what it has, whatever the records'
    event times are. A written sample is known for as long again; a record that comes later begins another
    sample."""
    limit: int = Field(default=10_000, ge=1, le=1_000_000)
    """Most samples per partition, being assembled or known as written. When it is full the oldest is written
    and forgotten."""

    @field_validator("fields")
    @classmethod
    def _are_different(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("no field may occur twice")
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> AssembleSection:
        if (self.seconds is None) == (self.id is None):
            raise ValueError("seconds or id is expected, and not both: it says which records belong together")
        if self.grace_seconds is not None and self.seconds is None:
            raise ValueError("grace_seconds has no meaning with id: it belongs to the spans of seconds")
        if (self.name is None) != (self.value is None):
            missing, given = ("name", "value") if self.name is None else ("value", "name")
            raise ValueError(f"{missing} is missing: it belongs to {given}")
        return self


class RekeyedTopic(KeySection):
    """A topic that `streamfl rekey` may write. State does not depend on how records came there."""

    rekey: RekeySection | None = Field(default=None, exclude=True)
    """Your existing topic, if its records have the wrong keys: `streamfl rekey` reads it and writes
    `topic`."""


class AssembledTopic(RekeyedTopic):
    """The same for samples, each of which may come in several records."""

    assemble: AssembleSection | None = Field(default=None, exclude=True)
    """How several records of the topic in `rekey` become one sample."""

    @model_validator(mode="after")
    def _pieces_come_from_somewhere(self) -> AssembledTopic:
        if self.assemble is not None and self.rekey is None:
            raise ValueError(
                "rekey is missing: with assemble its topic has the records that a sample comes in"
            )
        return self
