"""The user's sample records: which field of a record means what, and how its bytes become a :class:`Sample`."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

import msgspec
from pydantic import Field, field_validator

from streamfl.records.fields import LABEL_RANGE, LARGEST_NUMBER, LabelRange, name_in, named_fields, scaled, shown
from streamfl.records.formats import Format, format_of, without_value
from streamfl.records.topic import TopicSection
from streamfl.role import ConfigurationError, PeerError, Record
from streamfl.wire import LONGEST_KEY, MAXIMUM_BYTES

__all__ = ["DataError", "Sample", "SampleReader", "SamplesSection"]


class DataError(Exception):
    """A data set that cannot be used as it is; the text says which one and why."""


class SamplesSection(TopicSection):
    """The topic that samples come from and the names of its fields."""

    client: str | None = None
    """The field that names the client; left out: the record's key."""
    sample_id: str | None = None
    """The field that names the sample; left out: `<topic>-<partition>-<offset>`."""
    features: list[str] | str | None = None
    """The fields with the inputs, or the one field that holds them as a list. Left out: the names of federation.features. The same
    names in another order than there are refused."""
    dimension: int | None = Field(default=None, ge=1, le=100_000)
    """The length of that list; left out: as federation.features says. Not needed where fields are named one by one."""
    label: str | None = None
    """The field with the label, where it comes with the sample. A record without it, or with null, is predicted and not learnt
    from."""
    label_range: LabelRange = (0.0, 1.0)
    """The label's values that become 0 and 1. Predictions come back in the label's own unit."""
    input_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Every input is divided by it, so that a sample's norm is about one."""

    @field_validator("features")
    @classmethod
    def _are_distinct(cls, value: list[str] | str | None) -> list[str] | str | None:
        if isinstance(value, list) and (not value or len(set(value)) < len(value)):
            raise ValueError("at least one field is expected, and none twice")
        return value


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
        format = format or format_of(section)
        self._format = format
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
            raise without_value(self._format, "a sample")
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
        label = None if content.label is None else scaled(content.label, section.label, section.label_range, LABEL_RANGE)
        client = name_in(record.key, "the record key") if section.client is None else name_in(content.client, section.client)
        if section.sample_id is None:
            identity = f"{record.topic}-{record.partition}-{record.offset}"
        elif section.sample_id == section.client:
            identity = client
        else:
            identity = name_in(content.sample_id, section.sample_id)
        return Sample(client, identity, features, label)

    def original(self, prediction: float) -> float:
        """A prediction in the label's own unit.

        >>> from streamfl.records.samples import SamplesSection
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
            f"{self._place(index)} is {shown(number)}; finite numbers are expected that add up, signs apart, "
            f"to less than {self._limit:g} ({LARGEST_NUMBER:g} times samples.input_norm)",
        )

    def _place(self, index: int) -> str:
        return f"{self._names[0]}[{index}]" if self._listed else self._names[index]

    def _reason(self, value: bytes, error: Exception) -> PeerError:
        """Why a record did not fit the struct: the first thing that is wrong with it."""
        content = named_fields(self._diagnose, value)
        if isinstance(content, PeerError):
            return content
        section = self._section
        for name in (section.client, section.sample_id, *self._names):
            if name is not None and name not in content:
                return PeerError("missing_field", f"{name} is missing")
        for name in (section.client, section.sample_id):
            if name is not None and (not isinstance(content[name], (str, int)) or isinstance(content[name], bool)):
                return PeerError("malformed", f"{name} is {shown(content[name])}, a name is expected")
        numbers = content[self._names[0]] if self._listed else [content[name] for name in self._names]
        if not isinstance(numbers, list):
            return PeerError("not_numeric", f"{self._names[0]} is {shown(numbers)}, a list of numbers is expected")
        for index, number in enumerate(numbers):
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                return PeerError("not_numeric", f"{self._place(index)} is {shown(number)}, a number is expected")
            if not abs(number) < self._limit:
                return self._not_finite(index, number)
        label = None if section.label is None else content.get(section.label)
        if label is not None and not (isinstance(label, (int, float)) and abs(label) < LARGEST_NUMBER):
            return PeerError("label", f"{section.label} is {shown(label)}, a finite number or null is expected")
        return PeerError("malformed", str(error))
