"""Labels that come on a topic of their own: which field means what, and how a record becomes a :class:`Label`."""

from __future__ import annotations

from typing import Any, Protocol, cast

import msgspec
from pydantic import Field

from streamfl.records.fields import LABEL_RANGE, LARGEST_NUMBER, TopicName, name_in, named_fields, scaled, shown
from streamfl.records.formats import FormatKeys, format_of, without_value
from streamfl.records.topic import TopicSection
from streamfl.role import ConfigurationError, PeerError, Record
from streamfl.wire import MAXIMUM_BYTES

__all__ = ["Label", "LabelFields", "LabelReader", "LabelsSection"]


class LabelsSection(TopicSection):
    """Labels that come later, on a topic of their own with as many partitions as the samples' and the same keys."""

    topic: TopicName
    """Your own topic, with as many partitions as samples.topic and the same record keys."""
    client: str | None = None
    """The field that names the client; left out: the record's key."""
    sample_id: str
    """The field with the sample's id, as samples.sample_id has it."""
    label: str
    """The field with the label, in the range of samples.label_range."""
    expiry_seconds: float = Field(default=86_400.0, gt=0, allow_inf_nan=False)
    """For so many seconds a sample waits for its label, a label waits for its sample, and a label that comes twice is known."""
    limit: int = Field(default=1_000, ge=1)
    """So many of these are kept of each client; its oldest gives way."""


class Label(msgspec.Struct, frozen=True, gc=False):
    """The label of one sample, 0 to 1 over ``label_range``, or a class."""

    client: str
    sample: str
    label: float


class LabelFields(FormatKeys, Protocol):
    """Where a label's record has what; ``sample_id`` None: there is one label a client."""

    @property
    def client(self) -> str | None: ...

    @property
    def sample_id(self) -> str | None: ...

    @property
    def label(self) -> str: ...


class LabelReader:
    """Decodes the records of a labels' topic.

    label_range: the label's values that become 0 and 1, as the setting ``range_key`` says. None: labels are classes, which stay as
    they are; how many there are is for whoever takes them to check.

    Raises ConfigurationError if a field has two meanings.
    """

    def __init__(
        self, section: LabelFields, label_range: tuple[float, float] | None, range_key: str = LABEL_RANGE
    ) -> None:
        self._section = section
        self._range = label_range
        self._range_key = range_key
        names = {} if section.sample_id is None else {"sample_id": section.sample_id}
        names["label"] = section.label
        if section.client is not None:
            names["client"] = section.client
        if len(set(names.values())) < len(names):
            raise ConfigurationError(f"labels: {', '.join(names)} are read from the same field: each needs one of its own")
        kinds = {"sample_id": str | int, "label": float | bool, "client": str | int}
        fields = [(attribute, kinds[attribute]) for attribute in names]
        format = self._format = format_of(section, "labels")
        self._names = [*names.values()]
        self._diagnose = format.decoder(cast(type[Any], Any))
        self._decode = format.decoder(cast(type[Any], msgspec.defstruct("LabelRecord", fields, rename=names, gc=False)))

    def decode(self, record: Record) -> Label:
        """The label in ``record``; PeerError with reason oversized, malformed, missing_field or label."""
        value, section = record.value, self._section
        if value is None:
            raise without_value(self._format, "a label")
        if (size := len(value) + len(record.key or b"")) > MAXIMUM_BYTES:
            raise PeerError("oversized", f"a label of {size} bytes with its key, at most {MAXIMUM_BYTES} are accepted")
        try:
            content = self._decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise self._reason(value, error) from None
        client = name_in(record.key, "the record key") if section.client is None else name_in(content.client, section.client)
        sample = client if section.sample_id is None else name_in(content.sample_id, section.sample_id)
        label = float(content.label)
        return Label(client, sample, label if self._range is None else scaled(label, section.label, self._range, self._range_key))

    def _reason(self, value: bytes, error: Exception) -> PeerError:
        """Why a record did not fit the struct: the first thing that is wrong with it."""
        content = named_fields(self._diagnose, value)
        if isinstance(content, PeerError):
            return content
        for name in self._names:
            if name not in content:
                return PeerError("missing_field", f"{name} is missing")
        label = content[self._section.label]
        if not (isinstance(label, (int, float)) and abs(label) < LARGEST_NUMBER):
            return PeerError("label", f"{self._section.label} is {shown(label)}, a finite number is expected")
        return PeerError("malformed", str(error))
