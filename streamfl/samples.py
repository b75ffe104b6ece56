"""The user's sample records: which field of a record means what, and how its bytes become a :class:`Sample`.

Formats are found by name through the entry-point group ``streamfl.formats``.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from importlib.metadata import EntryPoints, entry_points
from operator import attrgetter
from typing import Annotated, Any, Protocol, TypeVar, cast

import msgspec
from pydantic import AfterValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, field_validator

from streamfl.role import ConfigurationError, PeerError, Record
from streamfl.settings import Section
from streamfl.wire import LONGEST_KEY, LONGEST_NAME, MAXIMUM_BYTES

__all__ = [
    "LABEL_RANGE",
    "DataError",
    "Format",
    "Label",
    "LabelReader",
    "LabelsSection",
    "Sample",
    "SampleReader",
    "SamplesSection",
    "format_named",
]

# Frequencies multiply the inputs in single precision and labels are squared: beyond this a product could be infinite.
LARGEST_NUMBER = 1e18
# In units of the labels' range. One label of a million would undo what a whole federation has learnt.
LARGEST_LABEL = 1000.0
LABEL_RANGE = "samples.label_range"

Decoded = TypeVar("Decoded")


class DataError(Exception):
    """A data set that cannot be used as it is; the text says which one and why."""


class Format(Protocol):
    """How records are written: JSON, MessagePack, …"""

    def decoder(self, type: type[Decoded]) -> Callable[[bytes], Decoded]:
        """A function from bytes to ``type`` (a msgspec Struct or Any) that raises ValueError or msgspec.DecodeError."""

    def encode(self, content: Any) -> bytes:
        """The bytes of a mapping, sequence, text, number, Struct or None."""


def _is_a_topic(value: str) -> str:
    # What Kafka allows.
    if not re.fullmatch("[A-Za-z0-9._-]{1,249}", value) or value in (".", ".."):
        raise ValueError("1 to 249 letters of A to Z and a to z, digits, '.', '_' and '-' are expected, not '.' or '..' alone")
    return value


def _is_a_range(value: Any, validated: ValidatorFunctionWrapHandler) -> tuple[float, float]:
    try:
        low, high = validated(value)
    except ValidationError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError("two finite numbers are expected, the smaller one first")
    return low, high


TopicName = Annotated[str, AfterValidator(_is_a_topic)]
LabelRange = Annotated[tuple[float, float], WrapValidator(_is_a_range)]


class SamplesSection(Section):
    """The topic that samples come from and the names of its fields."""

    topic: TopicName
    """The user's own topic."""
    format: str = "json"
    """json, msgpack, or any installed format."""
    client: str | None = None
    """The field that names the client; left out: the record's key."""
    sample_id: str | None = None
    """The field that names the sample; left out: 'topic-partition-offset'."""
    features: list[str] | str | None = None
    """The fields with the inputs, or the one field that holds them as a list."""
    dimension: int | None = Field(default=None, ge=1, le=100_000)
    """The length of that list; not needed where the fields are named one by one."""
    label: str | None = None
    """The field with the label; a record without it, or with null, is predicted but not learnt from."""
    label_range: LabelRange = (0.0, 1.0)
    """The label's values that become 0 and 1."""
    input_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """What every input is divided by."""

    @field_validator("features")
    @classmethod
    def _are_distinct(cls, value: list[str] | str | None) -> list[str] | str | None:
        if isinstance(value, list) and (not value or len(set(value)) < len(value)):
            raise ValueError("at least one field is expected, and none twice")
        return value


class LabelsSection(Section):
    """Labels that come later, on a topic of their own with as many partitions as the samples' and the same keys."""

    topic: TopicName
    """The user's own topic."""
    format: str = "json"
    """json, msgpack, or any installed format."""
    client: str | None = None
    """The field that names the client; left out: the record's key."""
    sample_id: str
    """The field with the sample's name, as samples.sample_id has it."""
    label: str
    """The field with the label; samples.label_range says which values become 0 and 1."""
    expiry_seconds: float = Field(default=86_400.0, gt=0, allow_inf_nan=False)
    """Seconds for which a sample waits for its label, a label for its sample, and a label that comes twice is known."""
    limit: int = Field(default=1_000, ge=1)
    """So many of these are kept of a client at most; its oldest gives way."""


class Label(msgspec.Struct, frozen=True, gc=False):
    """The label of one sample, 0 to 1 over ``label_range``, or a class."""

    client: str
    sample: str
    label: float


class Sample(msgspec.Struct, frozen=True, gc=False):
    """A sample as the mathematics sees it: features over ``input_norm``, the label 0 to 1 over ``label_range``."""

    client: str
    id: str
    features: tuple[float, ...]
    label: float | None


class SampleReader:
    """Decodes the records of one section.

    A record is decoded straight into a struct with exactly the fields asked for; only one that fails is looked at
    again, to say why.

    Raises ConfigurationError if the section does not say what the inputs are, or gives a field two meanings.
    """

    def __init__(self, section: SamplesSection, format: Format | None = None) -> None:
        format = format or format_named(section.format)
        if section.features is None:
            raise ConfigurationError(
                'samples.features is missing: name the fields with the inputs, such as features = ["t1", "t2"], or the '
                'one field that holds them all as a list, such as features = "inputs" with dimension = 16'
            )
        self._section = section
        self._names = [section.features] if isinstance(section.features, str) else section.features
        self._listed = isinstance(section.features, str)
        self.dimension = self._dimension(section)
        low, high = section.label_range
        self._low, self._span = low, high - low
        self._norm = section.input_norm
        self._limit = LARGEST_NUMBER * self._norm
        self._diagnose = format.decoder(cast(type[Any], Any))
        self._decode = format.decoder(self._struct())
        getter: Callable[[Any], Any] = attrgetter(*(f"feature_{index}" for index in range(len(self._names))))
        self._features: Callable[[Any], tuple[float, ...]] = (
            getter if self._listed or len(self._names) > 1 else lambda content: (getter(content),)
        )

    def decode(self, record: Record) -> Sample:
        """The sample in ``record``.

        PeerError with reason oversized, malformed, missing_field, not_numeric, not_finite, dimension or label.
        """
        value = record.value
        if value is None:
            raise PeerError("malformed", "a sample without a value")
        if (size := len(value) + len(record.key or b"")) > MAXIMUM_BYTES:
            raise PeerError("oversized", f"a sample of {size} bytes with its key, at most {MAXIMUM_BYTES} are accepted")
        if len(record.key or b"") > LONGEST_KEY:
            raise PeerError("oversized", f"a sample's key of {len(record.key or b'')} bytes, at most {LONGEST_KEY} are accepted")
        try:
            content = self._decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise self._reason(value, error) from None
        features = given = self._features(content)
        if self._norm != 1.0:
            features = tuple([number / self._norm for number in given])
        # One comparison for all: it is False for a NaN and for an infinity too.
        if len(features) != self.dimension or not sum(map(abs, features)) < LARGEST_NUMBER:
            self._check_features(given, features)
        section = self._section
        label = None if content.label is None else _scaled(content.label, section.label, section.label_range, LABEL_RANGE)
        client = _name(record.key, "the record key") if section.client is None else _name(content.client, section.client)
        if section.sample_id is None:
            identity = f"{record.topic}-{record.partition}-{record.offset}"
        elif section.sample_id == section.client:
            identity = client
        else:
            identity = _name(content.sample_id, section.sample_id)
        return Sample(client, identity, features, label)

    def original(self, prediction: float) -> float:
        """A prediction in the label's own unit.

        >>> from streamfl.samples import SamplesSection
        >>> section = SamplesSection(topic="t", features=["x"], label="y", label_range=(10, 30))
        >>> SampleReader(section).original(0.5)
        20.0
        """
        return self._low + prediction * self._span

    def _dimension(self, section: SamplesSection) -> int:
        if self._listed:
            if section.dimension is None:
                raise ConfigurationError(f"samples.dimension is missing: how many numbers are in the list {section.features!r}?")
            return section.dimension
        if section.dimension not in (None, len(self._names)):
            raise ConfigurationError(
                f"samples.dimension = {section.dimension}: the number of fields in samples.features is {len(self._names)}"
            )
        return len(self._names)

    def _struct(self) -> type[Any]:
        section = self._section
        fields: list[tuple[str, Any, Any]] = []
        rename: dict[str, str] = {}

        def add(attribute: str, field: str, kind: Any, default: Any = msgspec.NODEFAULT) -> None:
            if field in rename.values():
                raise ConfigurationError(
                    f"samples: the field {field!r} has two meanings; one of them has to come from another field"
                )
            rename[attribute] = field
            fields.append((attribute, kind, default))

        for index, name in enumerate(self._names):
            add(f"feature_{index}", name, tuple[float, ...] if self._listed else float)
        if section.client is not None:
            add("client", section.client, str | int)
        if section.sample_id is not None and section.sample_id != section.client:
            add("sample_id", section.sample_id, str | int)
        if section.label is not None:
            add("label", section.label, float | bool | None, None)
        fields.sort(key=lambda field: field[2] is not msgspec.NODEFAULT)
        namespace = {} if section.label is not None else {"label": None}
        return msgspec.defstruct("SampleRecord", fields, rename=rename, namespace=namespace, gc=False)

    def _check_features(self, given: tuple[float, ...], features: tuple[float, ...]) -> None:
        if len(features) != self.dimension:
            raise PeerError("dimension", f"{self._names[0]} has the length {len(features)}, {self.dimension} is expected")
        for index, number in enumerate(features):
            if not abs(number) < LARGEST_NUMBER / self.dimension:
                raise self._not_finite(index, given[index])

    def _not_finite(self, index: int, number: float) -> PeerError:
        return PeerError(
            "not_finite",
            f"{self._place(index)} is {_shown(number)}; finite numbers are expected that add up, signs apart, "
            f"to less than {self._limit:g} ({LARGEST_NUMBER:g} times samples.input_norm)",
        )

    def _place(self, index: int) -> str:
        return f"{self._names[0]}[{index}]" if self._listed else self._names[index]

    def _reason(self, value: bytes, error: Exception) -> PeerError:
        """Why a record did not fit the struct: the first thing that is wrong with it."""
        content = _named_fields(self._diagnose, value)
        if isinstance(content, PeerError):
            return content
        section = self._section
        for name in (section.client, section.sample_id, *self._names):
            if name is not None and name not in content:
                return PeerError("missing_field", f"{name} is missing")
        for name in (section.client, section.sample_id):
            if name is not None and (not isinstance(content[name], (str, int)) or isinstance(content[name], bool)):
                return PeerError("malformed", f"{name} is {_shown(content[name])}, a name is expected")
        numbers = content[self._names[0]] if self._listed else [content[name] for name in self._names]
        if not isinstance(numbers, list):
            return PeerError("not_numeric", f"{self._names[0]} is {_shown(numbers)}, a list of numbers is expected")
        for index, number in enumerate(numbers):
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                return PeerError("not_numeric", f"{self._place(index)} is {_shown(number)}, a number is expected")
            if not abs(number) < self._limit:
                return self._not_finite(index, number)
        label = None if section.label is None else content.get(section.label)
        if label is not None and not (isinstance(label, (int, float)) and abs(label) < LARGEST_NUMBER):
            return PeerError("label", f"{section.label} is {_shown(label)}, a finite number or null is expected")
        return PeerError("malformed", str(error))


class LabelFields(Protocol):
    """Where a label's record has what; ``sample_id`` None: there is one label a client."""

    @property
    def format(self) -> str: ...

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
        format = format_named(section.format, "labels.format")
        self._names = [*names.values()]
        self._diagnose = format.decoder(cast(type[Any], Any))
        self._decode = format.decoder(cast(type[Any], msgspec.defstruct("LabelRecord", fields, rename=names, gc=False)))

    def decode(self, record: Record) -> Label:
        """The label in ``record``; PeerError with reason oversized, malformed, missing_field or label."""
        value, section = record.value, self._section
        if value is None:
            raise PeerError("malformed", "a label without a value")
        if (size := len(value) + len(record.key or b"")) > MAXIMUM_BYTES:
            raise PeerError("oversized", f"a label of {size} bytes with its key, at most {MAXIMUM_BYTES} are accepted")
        try:
            content = self._decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise self._reason(value, error) from None
        client = _name(record.key, "the record key") if section.client is None else _name(content.client, section.client)
        sample = client if section.sample_id is None else _name(content.sample_id, section.sample_id)
        label = float(content.label)
        return Label(client, sample, label if self._range is None else _scaled(label, section.label, self._range, self._range_key))

    def _reason(self, value: bytes, error: Exception) -> PeerError:
        """Why a record did not fit the struct: the first thing that is wrong with it."""
        content = _named_fields(self._diagnose, value)
        if isinstance(content, PeerError):
            return content
        for name in self._names:
            if name not in content:
                return PeerError("missing_field", f"{name} is missing")
        label = content[self._section.label]
        if not (isinstance(label, (int, float)) and abs(label) < LARGEST_NUMBER):
            return PeerError("label", f"{self._section.label} is {_shown(label)}, a finite number is expected")
        return PeerError("malformed", str(error))


def _named_fields(decode: Callable[[bytes], Any], value: bytes) -> dict[str, Any] | PeerError:
    """The fields of an object by name, or why there are none."""
    try:
        content = decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError) as broken:
        return PeerError("malformed", str(broken))
    if not isinstance(content, dict):
        return PeerError("malformed", f"an object with named fields is expected, not {type(content).__name__}")
    return content


def _scaled(label: float, field: str | None, label_range: tuple[float, float], key: str) -> float:
    low, high = label_range
    scaled = (label - low) / (high - low)
    if not abs(scaled) <= LARGEST_LABEL:
        raise PeerError(
            "label",
            f"{field} is {label}, a number not {LARGEST_LABEL:g} times as large as {key} = {list(label_range)} is expected",
        )
    return scaled


def format_named(name: str, setting: str = "samples.format") -> Format:
    """The installed format called ``name``; ConfigurationError names ``setting`` and lists the known ones."""
    found = _installed_formats()
    for point in found:
        if point.name == name:
            return cast(Format, point.load()())
    known = ", ".join(sorted({point.name for point in found})) or "none"
    raise ConfigurationError(f"{setting} = {name!r}: no such format is installed (known: {known})")


@functools.cache
def _installed_formats() -> EntryPoints:
    # Every package's metadata is read for it.
    return entry_points(group="streamfl.formats")


def _name(content: str | int | bytes | None, field: str) -> str:
    if content is None:
        raise PeerError("missing_field", f"{field} is missing")
    try:
        name = content.decode() if isinstance(content, bytes) else str(content)
        if not name.isascii():
            name.encode()
    except UnicodeError:
        raise PeerError("malformed", f"{field} is not text in UTF-8") from None
    if not 0 < len(name) <= LONGEST_NAME:
        raise PeerError("malformed", f"{field} has {len(name)} characters, 1 to {LONGEST_NAME} are accepted")
    return name


def _shown(content: Any) -> str:
    text = repr(content)
    return text if len(text) <= 60 else text[:57] + "..."
