"""Where the fields of samples are in a record, and how each becomes a name, a number or a label."""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.records.fields import (
    LARGEST_FLOAT,
    LARGEST_NUMBER,
    named_fields,
    number_in,
    number_of_text,
    says_nothing,
    shown,
)
from streamfl.records.formats import Format, is_textual
from streamfl.records.input_reader import InputReader, Numbers
from streamfl.records.inputs import InputSection
from streamfl.records.paths import ABSENT, Path, path_of

__all__ = ["WORDS_REMEDY", "SampleFields", "fits_a_struct", "label_in", "name_at"]

# Characters that a name of a struct's field may not have.
_UNFIT = re.compile(r'[\\"\x00-\x1f]')


class SampleFields:
    """The fields of a :class:`~streamfl.records.samples.SamplesSection`, read in the general way: the record
    is decoded whole.

    section: a SamplesSection.
    format: of its records.

    ConfigurationError if a field has two meanings, or the section does not say how long a list is.
    """

    def __init__(self, section: Any, format: Format) -> None:
        self._section = section
        self.textual = is_textual(format)
        columns = section.columns
        self._client = None if section.client is None else path_of(section.client, columns)
        self._sample_id = None if section.sample_id is None else path_of(section.sample_id, columns)
        self._label = None if section.label is None else path_of(section.label, columns)
        self._listed: Path | None = (
            path_of(section.features, columns) if isinstance(section.features, str) else None
        )
        named = section.inputs or [
            InputSection(field=name) for name in section.features if self._listed is None
        ]
        self.inputs = [InputReader(one, section.input_norm, columns, self.textual) for one in named]
        self._names = [name for one in self.inputs for name in one.names]
        self._places = [str(one.path) for one in self.inputs for _ in one.names]
        fills = _fills(named)
        self.means = tuple(place for place, fill in enumerate(fills) if fill is not None)
        self.lasts = tuple(place for place in self.means if fills[place] == "last")
        self.dimension = self._dimension()
        # A filled-in number is one of these numbers or their mean, and may be relative to the first of them.
        self._largest = LARGEST_NUMBER / self.dimension / (2 if self.means else 1)
        self._limit = LARGEST_NUMBER * section.input_norm
        self._decode = format.decoder(cast(type[Any], Any))
        self._check_meanings()

    def struct(self, format: Format) -> type[Any] | None:
        """The struct that a record is decoded into; None if a struct is not enough."""
        section = self._section
        paths = [self._client, self._sample_id, self._label, self._listed, *(one.path for one in self.inputs)]
        simple = all(path is None or fits_a_struct(path) for path in paths)
        if section.inputs is not None or section.label_as is not None or self.textual or not simple:
            return None
        fields: list[tuple[str, Any, Any]] = []
        rename: dict[str, str] = {}
        namespace: dict[str, Any] = {}

        def add(attribute: str, path: Path | None, kind: Any, default: Any = msgspec.NODEFAULT) -> None:
            if path is None:
                namespace[attribute] = None
            elif path.name is not None:
                rename[attribute] = path.name
                fields.append((attribute, kind, default))

        if self._listed is not None:
            add("feature_0", self._listed, tuple[float, ...])
        for index, one in enumerate(self.inputs):
            add(f"feature_{index}", one.path, float)
        add("client", self._client, str | int)
        add("sample_id", None if self._sample_id == self._client else self._sample_id, str | int)
        add("label", self._label, float | bool | None, None)
        fields.sort(key=lambda field: field[2] is not msgspec.NODEFAULT)
        return msgspec.defstruct("SampleRecord", fields, rename=rename, namespace=namespace, gc=False)

    def read(self, value: bytes) -> tuple[str | int | None, str | int | None, Numbers, float | None]:
        """The client's name and the sample's, the inputs, and the label as the user has it.

        BadRecord with reason malformed, missing_field, not_numeric, not_finite, not_a_category, not_a_time,
        dimension or label: the first thing that is wrong.
        """
        content = self._content(value)
        paths = (self._client, self._sample_id, self._listed)
        for path in paths:
            if path is not None and path.find(content) is ABSENT:
                raise BadRecord("missing_field", path.lacking(content))
        client, sample_id = (None if path is None else name_at(path, content) for path in paths[:2])
        features = self._list(content, self._listed) if self._listed is not None else self._inputs(content)
        self.check(features)
        return client, sample_id, features, self._label_in(content)

    def client(self, value: bytes) -> str | int:
        """The client's name alone."""
        content = self._content(value)
        assert self._client is not None
        return name_at(self._client, content)

    def check(self, features: Numbers) -> None:
        """BadRecord with reason dimension or not_finite for inputs that nothing can be learnt from."""
        if len(features) != self.dimension:
            place = self._places[0] if self._listed is None else self._listed
            raise BadRecord(
                "dimension", f"{place} has the length {len(features)}, {self.dimension} is expected"
            )
        if not self.means and sum(map(abs, features)) < LARGEST_NUMBER:
            return
        for index, number in enumerate(features):
            # A NaN is below no limit, so it passes only if it is to be filled in.
            if not abs(number) < self._largest and not (number != number and index in self.means):
                raise self._not_finite(index, number * self._section.input_norm)

    def _content(self, value: bytes) -> dict[str, Any]:
        content = named_fields(self._decode, value)
        if isinstance(content, BadRecord):
            raise content
        return content

    def _inputs(self, content: dict[str, Any]) -> Numbers:
        numbers: list[float] = []
        for one in self.inputs:
            numbers += one.numbers(content)
        return tuple(numbers)

    def _list(self, content: dict[str, Any], listed: Path) -> Numbers:
        values, norm = listed.find(content), self._section.input_norm
        if not isinstance(values, (list, tuple)):
            raise BadRecord("not_numeric", f"{listed} is {shown(values)}, a list of numbers is expected")
        numbers = []
        for index, value in enumerate(values):
            number = number_in(value, f"{listed}[{index}]", self.textual)
            if not abs(number) < self._limit:
                raise self._not_finite(index, number)
            numbers.append(number / norm)
        return tuple(numbers)

    def _label_in(self, content: dict[str, Any]) -> float | None:
        label = None if self._label is None else self._label.find(content)
        as_text = self.textual or self._section.label_as == "number"
        if label is None or label is ABSENT or (as_text and says_nothing(label)):
            return None
        return label_in(label, self._label, as_text, " or null")

    def _dimension(self) -> int:
        section = self._section
        if self._listed is None:
            if section.dimension not in (None, len(self._names)):
                raise ConfigurationError(
                    f"samples.dimension = {section.dimension}: the number of fields in samples.features is "
                    f"{len(self._names)}"
                )
            return len(self._names)
        if section.dimension is None:
            raise ConfigurationError(
                f"samples.dimension is missing: how many numbers are in the list {section.features!r}?"
            )
        return int(section.dimension)

    def _check_meanings(self) -> None:
        single = [path for path in (self._listed, self._client, self._label) if path is not None]
        if self._sample_id is not None and self._sample_id != self._client:
            single.append(self._sample_id)
        # A field may be the client's name and a category, or two inputs. The label's field can be nothing
        # else.
        single += [one.path for one in self.inputs if self._section.inputs is None or one.path == self._label]
        for number, path in enumerate(single):
            if path in single[:number]:
                raise ConfigurationError(
                    f"samples: the field {path.text!r} has two meanings; one of them has to come from "
                    "another field"
                )

    def _not_finite(self, index: int, number: float) -> BadRecord:
        return BadRecord(
            "not_finite",
            f"{self._place(index)} is {shown(number)}; finite numbers are expected that add up, signs apart, "
            f"to less than {self._limit:g} ({LARGEST_NUMBER:g} times samples.input_norm)",
        )

    def _place(self, index: int) -> str:
        return f"{self._listed}[{index}]" if self._listed is not None else self._places[index]


def fits_a_struct(path: Path) -> bool:
    """Whether a struct can have this field: it is at the record's top level, and a struct accepts its
    name."""
    return path.name is not None and _UNFIT.search(path.name) is None


def name_at(path: Path, content: dict[str, Any]) -> str | int:
    """The name in a field; BadRecord with reason missing_field or malformed."""
    value = path.find(content)
    if value is ABSENT:
        raise BadRecord("missing_field", path.lacking(content))
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise BadRecord("malformed", f"{path} is {shown(value)}, a name is expected")
    return value


WORDS_REMEDY = (
    "Words are no labels, and no setting maps them: write numbers in their place, of two classes 1 and 0"
)


def label_in(value: Any, field: object, as_text: bool, also: str = "") -> float:
    """The label in a field's value, in the user's unit; BadRecord with reason label.

    as_text: text that is a number counts as one.
    also: what else is expected, for the text.
    """
    try:
        label = float(value) if isinstance(value, bool) else number_in(value, field, as_text)
    except BadRecord:
        label = float("nan")
    # Whoever scales it compares it with the range.
    if not abs(label) < LARGEST_FLOAT:
        hint = ""
        if isinstance(value, str) and number_of_text(value) is None:
            hint = f". {WORDS_REMEDY}" if value.strip() else ""
        elif isinstance(value, str) and not as_text:
            hint = '; label_as = "number" accepts numbers as text'
        raise BadRecord("label", f"{field} is {shown(value)}, a finite number{also} is expected{hint}")
    return label


def _fills(inputs: list[InputSection]) -> list[Any]:
    """For each number of a sample, what a role fills in if it is missing; None: nothing."""
    return [
        one.missing if one.fills_means and not place else None
        for one in inputs
        for place in range(len(one.names))
    ]
