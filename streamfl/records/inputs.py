"""``[[samples.inputs]]``: how one field of a record becomes one or more of the learner's numbers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from streamfl.configuration.settings import Section
from streamfl.records.fields import shown
from streamfl.records.keys import remembered_key
from streamfl.records.paths import FieldPath, path_of
from streamfl.records.times import TimeUnit, zone_named

__all__ = [
    "MOST_INPUTS",
    "InputFields",
    "InputSection",
    "check_inputs",
    "input_names",
    "remembered_fields",
]

Kind = Literal["number", "boolean", "category", "hour-of-day", "day-of-week", "elapsed-seconds"]
TIME_KINDS = ("hour-of-day", "day-of-week", "elapsed-seconds")
# A mean says nothing about a category, and the mean of 23 and 1 o'clock is not noon.
_NO_MEAN = ("category", "hour-of-day", "day-of-week")
MOST_VALUES = 10_000
MOST_INPUTS = 10_000
MOST_MISSING = 100
LARGEST_DIMENSION = 100_000


def _are_distinct(fields: list[str] | str) -> list[str] | str:
    if isinstance(fields, list) and (not fields or len({path_of(name) for name in fields}) < len(fields)):
        raise ValueError("at least one field is expected, and none twice")
    return fields


InputFields = Annotated[list[FieldPath] | FieldPath, AfterValidator(_are_distinct)]
"""A setting that names the fields with the inputs, or the one field that holds them as a list."""


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
            ("unit", TIME_KINDS),
            ("zone", TIME_KINDS),
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

    section: has features, inputs and a key.
    content: its keys.
    name: the key that names the client or entity.
    """
    for key in ("inputs", "key", "key_field", "label_as"):
        content.pop(key, None)
    if section.inputs is not None:
        content["features"] = section.input_names
    content[name] = remembered_key(section, content[name])
    return content
