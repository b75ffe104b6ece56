"""Labels that come on a topic of their own: which field means what, and how a record becomes a
:class:`Label`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol, cast

import msgspec
from pydantic import Field

from streamfl.contract.role import BadRecord, ConfigurationError, Record
from streamfl.encoding.wire import LONGEST_KEY, MAXIMUM_BYTES
from streamfl.records.fields import LABEL_RANGE, TopicName, name_in, named_fields, scaled, struct_of
from streamfl.records.formats import FormatKeys, format_of, is_textual, without_value
from streamfl.records.keys import KeySection, key_reader, remembered_key
from streamfl.records.paths import ABSENT, FieldPath, Path, path_of
from streamfl.records.rekey import RekeyedTopic
from streamfl.records.sample_fields import fits_a_struct, label_in, name_at
from streamfl.state.changeable import CHANGEABLE

__all__ = ["Label", "LabelFields", "LabelReader", "LabelsSection", "of_two_classes"]


class LabelsSection(RekeyedTopic):
    """Labels that come later, on their own topic with as many partitions as the samples' topic and the same
    keys."""

    topic: TopicName
    """Your own topic, with as many partitions as samples.topic and the same record keys."""
    client: FieldPath | None = None
    """The field that names the client; left out: the record's key."""
    sample_id: FieldPath
    """The field with the sample's id, as samples.sample_id has it."""
    label: FieldPath
    """The field with the label, in the range of samples.label_range."""
    label_as: Literal["number"] | None = None
    """`number`: text that is a number, such as "21.5", counts as a label. Left out: only a number does."""
    expiry_seconds: Annotated[float, CHANGEABLE] = Field(default=86_400.0, gt=0, allow_inf_nan=False)
    """Seconds that a sample waits for its label, and a label for its sample. A label that comes twice is
    recognised for as long."""
    limit: Annotated[int, CHANGEABLE] = Field(default=1_000, ge=1)
    """Most samples, labels and learnt pairs kept per client. When it is full the client's oldest is
    forgotten."""

    def remembered(self) -> dict[str, Any]:
        return remembered_label(self, super().remembered(), "client")


class Label(msgspec.Struct, frozen=True, gc=False):
    """The label of one sample, scaled so that ``label_range`` is 0 to 1, or a class."""

    client: str
    sample: str
    label: float


class LabelFields(FormatKeys, Protocol):
    """The fields of a label's record. ``sample_id`` None: each client has one label."""

    @property
    def client(self) -> str | None: ...

    @property
    def sample_id(self) -> str | None: ...

    @property
    def label(self) -> str: ...

    @property
    def label_as(self) -> Literal["number"] | None: ...


class LabelReader:
    """Decodes the records of a labels' topic.

    label_range: the label values that are scaled to 0 and 1, from the setting ``range_key``. None: labels are
    classes, which stay as they are; the caller checks how many there are.

    Raises ConfigurationError if a field has two meanings.
    """

    def __init__(
        self, section: LabelFields, label_range: tuple[float, float] | None, range_key: str = LABEL_RANGE
    ) -> None:
        self._section = section
        self._range = label_range
        self._range_key = range_key
        format = self._format = format_of(section, "labels")
        columns = section.columns
        names = {} if section.sample_id is None else {"sample_id": section.sample_id}
        names["label"] = section.label
        if section.client is not None:
            names["client"] = section.client
        self._paths: dict[str, Path] = {
            attribute: path_of(name, columns) for attribute, name in names.items()
        }
        if len(set(self._paths.values())) < len(names):
            raise ConfigurationError(
                f"labels: {', '.join(names)} are read from the same field: each needs one of its own"
            )
        self._textual = is_textual(format)
        self._key = key_reader(cast(KeySection, section), "labels")
        self._diagnose = format.decoder(cast(type[Any], Any))
        self._decode: Callable[[bytes], Any] | None = None
        rename = {attribute: str(path.name) for attribute, path in self._paths.items() if fits_a_struct(path)}
        if len(rename) == len(names) and not self._textual and section.label_as is None:
            kinds = {"sample_id": str | int, "label": float | bool, "client": str | int}
            fields = [(attribute, kinds[attribute]) for attribute in names]
            namespace = {attribute: None for attribute in kinds if attribute not in names}
            decoded = msgspec.defstruct("LabelRecord", fields, rename=rename, namespace=namespace, gc=False)
            self._decode = format.decoder(cast(type[Any], decoded))

    def decode(self, record: Record) -> Label:
        """The label in ``record``; BadRecord with reason oversized, malformed, missing_field or label."""
        value, section = record.value, self._section
        if value is None:
            raise without_value(self._format, "a label")
        if (size := len(value) + len(record.key or b"")) > MAXIMUM_BYTES:
            raise BadRecord(
                "oversized", f"a label of {size} bytes with its key, at most {MAXIMUM_BYTES} are accepted"
            )
        if len(record.key or b"") > LONGEST_KEY:
            raise BadRecord(
                "oversized",
                f"a label's key of {len(record.key or b'')} bytes, at most {LONGEST_KEY} are accepted",
            )
        content = struct_of(self._decode, value)
        if content is None:
            given, identity, label = self._read(value)
        else:
            given, identity, label = content.client, content.sample_id, float(content.label)
        client = self._key(record.key) if section.client is None else name_in(given, section.client)
        sample = client if section.sample_id is None else name_in(identity, section.sample_id)
        return Label(
            client,
            sample,
            label if self._range is None else scaled(label, section.label, self._range, self._range_key),
        )

    def name(self, record: Record) -> str:
        """The client's name in ``record``, whatever else is in it; BadRecord as in ``decode``."""
        if self._section.client is None:
            return self._key(record.key)
        if record.value is None or len(record.value) > MAXIMUM_BYTES:
            raise BadRecord("malformed", "a label without a value, or too long")
        return name_in(name_at(self._paths["client"], self._content(record.value)), self._section.client)

    def _content(self, value: bytes) -> dict[str, Any]:
        content = named_fields(self._diagnose, value)
        if isinstance(content, BadRecord):
            raise content
        return content

    def _read(self, value: bytes) -> tuple[str | int | None, str | int | None, float]:
        """The client's name, the sample's, and the label in the user's unit; BadRecord for the first thing
        that is wrong."""
        content, section = self._content(value), self._section
        for path in self._paths.values():
            if path.find(content) is ABSENT:
                raise BadRecord("missing_field", path.lacking(content))
        label = label_in(
            self._paths["label"].find(content), section.label, self._textual or section.label_as == "number"
        )
        client, sample = (
            name_at(self._paths[attribute], content) if attribute in self._paths else None
            for attribute in ("client", "sample_id")
        )
        return client, sample, label


def of_two_classes(decode: Callable[[Record], Label]) -> Callable[[Record], Label]:
    """A decoder that refuses a class label other than 0 and 1, before it waits for its sample. BadRecord with
    reason label."""

    def checked(record: Record) -> Label:
        label = decode(record)
        if label.label not in (0.0, 1.0):
            raise BadRecord("label", f"the label is {label.label:g}, 0 or 1 is expected")
        return label

    return checked


def remembered_label(section: Any, content: dict[str, Any], name: str) -> dict[str, Any]:
    """The keys of a section to store with the state. How bytes are read does not matter once they are numbers
    and names.

    name: the key that names the client or entity.
    """
    for key in ("key", "key_field", "label_as"):
        content.pop(key, None)
    content[name] = remembered_key(section, content[name])
    return content
