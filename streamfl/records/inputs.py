"""``[[samples.inputs]]``: how one field of a record becomes one or more of the learner's numbers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from streamfl.configuration.settings import Section
from streamfl.contract.role import PeerError
from streamfl.records.fields import LARGEST_FLOAT, number_in, number_of_text, shown
from streamfl.records.keys import remembered_key
from streamfl.records.paths import ABSENT, FieldPath, Path, path_of
from streamfl.records.times import Timestamps, TimeUnit, zone_named

__all__ = [
    "MOST_INPUTS",
    "InputReader",
    "InputSection",
    "Numbers",
    "check_inputs",
    "input_names",
    "remembered_fields",
]

Kind = Literal["number", "boolean", "category", "hour-of-day", "day-of-week", "elapsed-seconds"]
_TIMES = ("hour-of-day", "day-of-week", "elapsed-seconds")
# A mean says nothing about a category, and the mean of 23 and 1 o'clock is not noon.
_NO_MEAN = ("category", "hour-of-day", "day-of-week")
MOST_VALUES = 10_000
MOST_INPUTS = 10_000
MOST_MISSING = 100
LARGEST_DIMENSION = 100_000
DAY = 86_400.0
TRUE, FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}

Numbers = tuple[float, ...]


class InputSection(Section):
    """One field of a record, and the inputs that it becomes."""

    field: FieldPath
    """The field, or the path to it: `temp`, `meta.site`, `readings[0].temp`."""
    kind: Kind | None = Field(default=None, alias="as")
    """What the field holds. Left out: a number. `number`: a number, or text that is one. `boolean`: true or
    false, also as text, or as 1 and 0. `category`: text or a whole number, with `values` or `buckets`.
    `hour-of-day`, `day-of-week`: a time, which becomes two inputs, sine and cosine. `elapsed-seconds`: a
    time, counted from `since` or `since_field`."""
    missing: Literal["reject", "mean", "last", "zero"] | Annotated[float, Field(allow_inf_nan=False)] = (
        "reject"
    )
    """What replaces a value that is absent, null or NaN. `reject`: the record goes to the dead letters.
    `mean`: the running mean of the client's own values. `last`: the client's last value. `zero` or a number:
    that number."""
    missing_values: (
        Annotated[list[str | int | float], Field(min_length=1, max_length=MOST_MISSING)] | None
    ) = None
    """Further values that mean a missing value, such as `["N/A", "-", -999]`. They apply to the field of
    `since_field`, too."""
    indicator: bool = False
    """Adds an input that is 1 if the value is missing and 0 if not. It lowered accuracy wherever it was
    measured."""
    values: Annotated[list[str], Field(min_length=1, max_length=MOST_VALUES)] | None = None
    """Values of a category. Each becomes an input that is 1 if the field has this value. Any other value sets
    all of them to 0."""
    buckets: int | None = Field(default=None, ge=2, le=MOST_VALUES)
    """Number of inputs for a category whose values nobody can list. The value's hash chooses its input, which
    never changes."""
    unit: TimeUnit | None = None
    """Unit of a time that is a number, or digits as text: seconds (`s`), milliseconds (`ms`) or microseconds
    (`us`) since 1970. Text that is no number is ISO 8601. Left out: all text is."""
    zone: str = "UTC"
    """Time zone in which hours and days are counted, such as `Europe/Oslo`. It also applies to an ISO time
    without a zone."""
    since: str | None = None
    """With `elapsed-seconds`: the time from which seconds are counted, in ISO 8601."""
    since_field: FieldPath | None = None
    """With `elapsed-seconds`: the field of the same record with the time from which seconds are counted."""

    @field_validator("missing_values", mode="before")
    @classmethod
    def _are_no_truth_values(cls, value: Any) -> Any:
        # pydantic would take true for 1.
        if isinstance(value, list) and any(isinstance(one, bool) for one in value):
            raise ValueError("texts and numbers are expected, not true or false")
        return value

    @field_validator("zone")
    @classmethod
    def _is_a_zone(cls, value: str) -> str:
        zone_named(value)
        return value

    @field_validator("since")
    @classmethod
    def _is_a_time(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                datetime.fromisoformat(value).timestamp()
            except (ValueError, OverflowError):
                raise ValueError("a time in ISO 8601 is expected, such as 2026-01-01T00:00:00Z") from None
        return value

    @model_validator(mode="after")
    def _keys_belong_to_the_kind(self) -> InputSection:
        kind = self.kind or "number"
        for key, kinds in (
            ("values", ("category",)),
            ("buckets", ("category",)),
            ("unit", _TIMES),
            ("zone", _TIMES),
            ("since", ("elapsed-seconds",)),
            ("since_field", ("elapsed-seconds",)),
        ):
            if key in self.model_fields_set and getattr(self, key) is not None and kind not in kinds:
                raise ValueError(f'{key} has no meaning with as = "{kind}"; it belongs to {", ".join(kinds)}')
        if kind == "category" and (self.values is None) == (self.buckets is None):
            raise ValueError(
                "values is expected, the list of them, or buckets, into how many they are put: one of the two"
            )
        if self.indicator and self.missing == "reject":
            raise ValueError('indicator has no meaning with missing = "reject": nothing is missing there')
        if self.values is not None and len(set(self.values)) < len(self.values):
            raise ValueError(f"values = {shown(self.values)}: none may come twice")
        if kind == "elapsed-seconds" and (self.since is None) == (self.since_field is None):
            raise ValueError(
                "since is expected, the time that seconds are counted from, or since_field: one of the two"
            )
        if self.missing not in ("reject", "zero") and kind in _NO_MEAN:
            raise ValueError(
                f'missing = {self.missing!r}: as = "{kind}" has "reject" and "zero", which leaves all its '
                "inputs at 0"
            )
        return self

    @property
    def fills_means(self) -> bool:
        """Whether a role has to fill in a mean of the client's own values, or the last of them."""
        return self.missing in ("mean", "last")

    @property
    def names(self) -> list[str]:
        """The meaning of each input that the field becomes. It does not say how the field is read."""
        return [*self._own_names, *([f"{self.field} is missing"] if self.indicator else [])]

    @property
    def _own_names(self) -> list[str]:
        field, kind = self.field, self.kind
        zone = "" if self.zone == "UTC" else f" in {self.zone}"
        if kind == "category":
            if self.values is not None:
                return [f"{field} = {value}" for value in self.values]
            return [f"{field} in bucket {number} of {self.buckets}" for number in range(self.buckets or 0)]
        if kind in ("hour-of-day", "day-of-week"):
            return [f"{function} of {field}'s {kind}{zone}" for function in ("sine", "cosine")]
        own = (
            f"seconds from {self.since_field or self.since} to {field}"
            if kind == "elapsed-seconds"
            else field
        )
        # Such an input may be relative to the client's first value: its state has another unit.
        return [f"{own}, or its {self.missing}"] if self.fills_means else [own]

    @property
    def scaled(self) -> bool:
        """Whether input_norm divides the input. Sines, categories and truth values are about one already."""
        return self.kind in (None, "number", "elapsed-seconds")


def check_inputs(
    inputs: list[InputSection] | None, features: list[str] | str | None, dimension: int | None
) -> None:
    """ValueError if inputs are named twice, or in two ways, or are more than a sample may have."""
    if inputs is None:
        return
    if features is not None:
        raise ValueError("features names inputs, and so does [[samples.inputs]]: leave one of them out")
    names = input_names(inputs, None) or []
    if len(names) > LARGEST_DIMENSION:
        raise ValueError(
            f"inputs become {len(names):,} numbers a sample, at most {LARGEST_DIMENSION:,} are possible"
        )
    if (
        twice := [name for number, name in enumerate(names) if name in names[:number]]
        if len(set(names)) < len(names)
        else []
    ):
        raise ValueError(f"inputs has {twice[0]!r} twice: each is expected once")
    if dimension not in (None, len(names)):
        raise ValueError(f"dimension = {dimension}: the inputs become {len(names)} numbers; leave it out")


def input_names(inputs: list[InputSection] | None, features: list[str] | str | None) -> list[str] | None:
    """What each number of a sample means; None: they come as one list, and have no names."""
    if inputs is not None:
        return [name for section in inputs for name in section.names]
    return features if isinstance(features, list) else None


def remembered_fields(section: Any, content: dict[str, Any], name: str) -> dict[str, Any]:
    """The keys of a section to store with the state. How bytes are read does not matter once they are numbers
    and names.

    section: has features, inputs and a key. content: its keys. name: the key that names the client or entity.
    """
    for key in ("inputs", "key", "key_field", "label_as"):
        content.pop(key, None)
    if section.inputs is not None:
        content["features"] = section.input_names
    content[name] = remembered_key(section, content[name])
    return content


class InputReader:
    """Computes an input from a record.

    norm: numbers are divided by it. columns: the record's fields, if the settings list them. textual: every
    value is text."""

    def __init__(
        self, section: InputSection, norm: float, columns: list[str] | None = None, textual: bool = False
    ) -> None:
        self.path: Path = path_of(section.field, columns)
        self._reject = section.missing == "reject"
        self.names = section.names
        self._norm = norm if section.scaled else 1.0
        self._textual = textual
        # Empty text can only mean that a time or a truth value is missing. It may be a category.
        self._empty_is_missing = textual or section.kind in (*_TIMES, "boolean")
        self._nothing = _missing_ones(section.missing_values) if section.missing_values else None
        self._indicated = section.indicator
        self._make = self._maker(section, columns)
        number = (
            section.missing / self._norm
            if isinstance(section.missing, float)
            else math.nan
            if section.fills_means
            else 0.0
        )
        count = len(self.names) - self._indicated
        self._missing: Numbers = (number,) * count + (1.0,) * self._indicated

    def numbers(self, content: dict[str, Any]) -> Numbers:
        """The input's numbers of one record, NaN for values that the role fills in.

        PeerError with reason missing_field, not_numeric, not_finite, not_a_category or not_a_time.
        """
        value = self.path.find(content)
        if self._is_missing(value):
            if self._reject:
                raise self._lacking(content, value)
            return self._missing
        made = self._make(value, content)
        if made is None:
            if self._reject:
                raise self._lacking(content, math.nan)
            return self._missing
        return (*made, 0.0) if self._indicated else made

    def _is_missing(self, value: Any) -> bool:
        if value is ABSENT or value is None or value != value or (self._empty_is_missing and value == ""):
            return True
        return self._nothing is not None and self._nothing(value)

    def _lacking(self, content: dict[str, Any], value: Any) -> PeerError:
        if value is ABSENT:
            return PeerError("missing_field", self.path.lacking(content))
        if value != value:
            return PeerError("not_finite", f"{self.path} is {shown(value)}, a finite number is expected")
        return PeerError("not_numeric", f"{self.path} is {shown(value)}, a value is expected")

    def _maker(
        self, section: InputSection, columns: list[str] | None
    ) -> Callable[[Any, dict[str, Any]], Numbers | None]:
        kind, path, norm = section.kind, self.path, self._norm
        if kind in (None, "number"):
            as_text = kind == "number" or self._textual

            def number(value: Any, _content: dict[str, Any]) -> Numbers | None:
                found = number_in(value, path, as_text)
                # NaN can be written as text too.
                return None if found != found else (found / norm,)

            return number
        if kind == "boolean":
            return lambda value, _content: (_truth(value, path),)
        if kind == "category":
            return (
                _one_hot(section.values, path)
                if section.values is not None
                else _hashed(section.buckets or 0, path)
            )
        zone = zone_named(section.zone)
        times = Timestamps(section.unit, zone)
        if kind == "elapsed-seconds":
            if section.since_field is None:
                since = Timestamps(None, zone).read(section.since, "since")
                return lambda value, _content: ((times.read(value, path) - since) / norm,)
            other = path_of(section.since_field, columns)

            def elapsed(value: Any, content: dict[str, Any]) -> Numbers | None:
                begun = other.find(content)
                if self._is_missing(begun):
                    if self._reject:
                        lacking = (
                            other.lacking(content)
                            if begun is ABSENT
                            else f"{other} is {shown(begun)}, a time is expected"
                        )
                        raise PeerError("missing_field", lacking)
                    return None
                return ((times.read(value, path) - times.read(begun, other)) / norm,)

            return elapsed
        local = zone is not UTC
        share = _share_of_day if kind == "hour-of-day" else _share_of_week

        def circular(value: Any, _content: dict[str, Any]) -> Numbers:
            seconds = times.read(value, path)
            if local:
                offset = datetime.fromtimestamp(seconds, zone).utcoffset()
                seconds += 0.0 if offset is None else offset.total_seconds()
            angle = 2 * math.pi * share(seconds)
            return (math.sin(angle), math.cos(angle))

        return circular


def _share_of_day(seconds: float) -> float:
    return seconds % DAY / DAY


def _share_of_week(seconds: float) -> float:
    # The first of January 1970 was a Thursday; weeks begin with Monday.
    return (math.floor(seconds / DAY) + 3) % 7 / 7


def _missing_ones(values: list[str | int | float]) -> Callable[[Any], bool]:
    """A function that says whether a value is one of these. Numbers are compared as numbers, also if they are
    written as text."""
    texts = {value.strip() for value in values if isinstance(value, str)}
    numbers = {value for value in values if not isinstance(value, str)}
    # The values of whole numbers in a field of floats. Between whole numbers all digits count.
    floats = {float(value) for value in numbers if abs(value) < LARGEST_FLOAT}

    def is_one(value: Any) -> bool:
        if isinstance(value, str):
            if value.strip() in texts:
                return True
            value = _exact_number(value) if numbers else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return value in numbers or (isinstance(value, float) and value in floats)

    return is_one


def _exact_number(text: str) -> int | float | None:
    number = number_of_text(text)
    digits = text.strip()
    return int(digits) if number is not None and digits.lstrip("+-").isdigit() else number


def _truth(value: Any, path: Path) -> float:
    text = value.strip().lower() if isinstance(value, str) else None
    if value is True or text in TRUE or (value == 1 and isinstance(value, (int, float))):
        return 1.0
    if value is False or text in FALSE or (value == 0 and isinstance(value, (int, float))):
        return 0.0
    raise PeerError("not_numeric", f"{path} is {shown(value)}, true or false is expected")


def _category(value: Any, path: Path) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    # No schema has numbers beyond 64 bits, and long ones cost time.
    if isinstance(value, int) and abs(value) < 2**64:
        return str(value)
    raise PeerError(
        "not_a_category", f"{path} is {shown(value)}, text, a whole number or a truth value is expected"
    )


def _one_hot(values: list[str], path: Path) -> Callable[[Any, dict[str, Any]], Numbers]:
    width = len(values)
    rows = {
        value: tuple(float(place == number) for place in range(width)) for number, value in enumerate(values)
    }
    other = (0.0,) * width
    return lambda value, _content: rows.get(_category(value, path), other)


def _hashed(buckets: int, path: Path) -> Callable[[Any, dict[str, Any]], Numbers]:
    rows = [tuple(float(place == number) for place in range(buckets)) for number in range(buckets)]

    def hashed(value: Any, _content: dict[str, Any]) -> Numbers:
        content = _category(value, path).encode(errors="surrogatepass")
        # The hash is the same in every process and release: the parameters were learnt with it.
        return rows[int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") % buckets]

    return hashed
