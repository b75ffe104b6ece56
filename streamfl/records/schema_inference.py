"""Guesses what the fields of records are: numbers, text that is a number, times, categories. Every guess says
why."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from streamfl.contract.role import BadRecord
from streamfl.records.fields import number_in, number_of_text, says_nothing, shown
from streamfl.records.input_reader import DAY
from streamfl.records.paths import ABSENT, Path, leaf_paths, path_of
from streamfl.records.times import Timestamps, TimeUnit

__all__ = ["InferredField", "field_values", "infer_fields", "last_name", "looks_like_an_id", "numbers_among"]

MOST_FIELDS = 1_000
# Most items of a list that have paths of their own.
MOST_ITEMS = 64
MOST_VALUES = 32
LONGEST_VALUE = 60
# If a smaller share of the values fits, a field is something else.
SHARE = 0.9
# Limits for texts among numbers that may all mean a missing value.
MOSTLY, MOST_NOTHINGS, LONGEST_NOTHING = 0.7, 3, 10
# A field that most records lack teaches nothing.
PRESENT = 0.5
# That numbers rise by chance has to be rarer than one in a million.
UNLIKELY = math.log(1e6)
# With fewer records, that all values differ says nothing.
ENOUGH = 10
WORDS = {"true", "false", "yes", "no", "on", "off"}
# From 2008 to 2039.
EPOCH: dict[TimeUnit, tuple[float, float]] = {
    "s": (1.2e9, 2.2e9),
    "ms": (1.2e12, 2.2e12),
    "us": (1.2e15, 2.2e15),
}
_TIME_NAME = re.compile(
    r"(^|_)(ts|at|time|date|datetime|epoch|\w*stamp|created|updated|seen)($|_)", re.IGNORECASE
)
_ID_NAME = re.compile(r"(^|_)(id|uuid|guid|key|seq|sequence|offset|index|row|nr|no)$", re.IGNORECASE)
_OTHER_TIME = re.compile(r"\s*[0-9]{1,4}([./:-][0-9]{1,4}){2}([ T].*)?\s*")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# What Kafka Connect writes with each record as JSON, if schemas.enable is not off.
ENVELOPE = {"schema", "payload"}
# Fields that the format of change events adds to a row.
ADDED = {"__op", "__ts_ms", "__source_ts_ms", "__deleted"}


@dataclass(frozen=True)
class InferredField:
    """What a field looks like.

    keys: of its table ``[[samples.inputs]]``, without ``field``; None: it is no input.
    why: a text for the user.
    """

    path: str
    keys: Mapping[str, Any] | None
    why: str


@dataclass
class _Values:
    """The values of one field in all records that have one."""

    path: str
    total: int
    present: list[Any] = field(default_factory=list)

    @property
    def lacking(self) -> int:
        return self.total - len(self.present)

    @property
    def distinct(self) -> int:
        return len({repr(value) for value in self.present})


def field_values(
    contents: Sequence[dict[str, Any]], columns: Collection[str] | None = None
) -> dict[str, list[Any]]:
    """The values of at most a thousand fields, by path, without null and NaN."""
    found: dict[str, list[Any]] = {}
    for path in _paths(contents):
        where = path_of(path, columns)
        values = [where.find(content) for content in contents]
        found[path] = [
            value for value in values if value is not ABSENT and value is not None and value == value
        ]
    return found


def infer_fields(
    contents: Sequence[dict[str, Any]],
    besides: Collection[str] = (),
    textual: bool = False,
    columns: Collection[str] | None = None,
    means: bool = True,
    orders: Sequence[int] | None = None,
) -> list[InferredField]:
    """What each field of these records looks like, in the order of the records.

    besides: fields with a meaning already.
    textual: every value is text, as in CSV.
    columns: the names that a record has.
    means: whether a missing number may be the mean of its client's values.
    orders: for each record, the series that it belongs to, such as its client's or its partition's; None: all
    are one series.
    """
    others = {path_of(path, columns) for path in besides}
    values = field_values(contents, columns)
    enveloped = all(content.keys() == ENVELOPE for content in contents)
    found = []
    for path, present in values.items():
        if enveloped and path.startswith("schema."):
            continue
        if path_of(path, columns) in others or _is_within(path, present, values):
            continue
        guess = _guess(_Values(path, len(contents), present), textual, "mean" if means else "zero")
        if guess.keys is not None and guess.keys.get("as", "number") == "number" and "unit" not in guess.keys:
            where = path_of(path, columns)
            if _rises([where.find(content) for content in contents], orders):
                guess = InferredField(path, None, "it rises with each record: a counter or a running total")
        found.append(guess)
    return found


def _is_within(path: str, present: Sequence[Any], others: Collection[str]) -> bool:
    """Whether the path is no field: it is null or empty where other records have fields within it."""
    if not all(isinstance(value, (dict, list)) for value in present):
        return False
    return any(other.startswith((f"{path}.", f"{path}[")) for other in others)


def numbers_among(values: Sequence[Any]) -> list[float]:
    """Those of the values that are numbers, or text that is one, or truth values."""
    found = []
    for value in values:
        try:
            number = float(value) if isinstance(value, bool) else number_in(value, "", True)
        except BadRecord:
            continue
        if number == number:
            found.append(number)
    return found


def _paths(contents: Sequence[dict[str, Any]]) -> list[str]:
    found: dict[str, None] = {}
    for content in contents:
        found |= dict.fromkeys(leaf_paths(content, MOST_FIELDS, MOST_ITEMS))
        if len(found) >= MOST_FIELDS:
            break
    return [path for path in list(found)[:MOST_FIELDS] if _is_nameable(path)]


def _is_nameable(path: str) -> bool:
    try:
        # A file of settings cannot hold a lone surrogate.
        path.encode()
        path_of(path)
    except ValueError:
        return False
    return True


def _guess(values: _Values, textual: bool, filling: str) -> InferredField:
    name = last_name(values.path)
    if name in ADDED:
        return InferredField(values.path, None, "of the change, not of the row")
    if not values.present:
        return InferredField(values.path, None, f"null in all of {values.total} records")
    if len(values.present) < PRESENT * values.total:
        return InferredField(
            values.path, None, f"only {len(values.present)} of {values.total} records have it"
        )
    keys, why = _kind(values, name, textual)
    if keys is not None and "missing_values" in keys and not values.lacking:
        keys = {**keys, "missing": filling}
    if keys is not None and values.lacking:
        keys = {**keys, "missing": filling if keys.get("as", "number") == "number" else "zero"}
        why += f"; missing in {values.lacking} of {values.total}"
    return InferredField(values.path, keys, why)


def _kind(values: _Values, name: str, textual: bool) -> tuple[dict[str, Any] | None, str]:
    present = values.present
    if all(
        isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in WORDS)
        for value in present
    ):
        return {"as": "boolean"}, "true or false"
    if all(isinstance(value, datetime) for value in present):
        return _time(present, f"a time, such as {present[0]}")
    numbers = numbers_among([value for value in present if not isinstance(value, bool)])
    if len(numbers) >= SHARE * len(present) and not (nothing := _for_nothing(present)):
        return _number(values, numbers, name, textual)
    if len(numbers) >= MOSTLY * len(present) and (nothing := _for_nothing(present)):
        keys, told = _number(
            _Values(values.path, values.total, _without(present, nothing)), numbers, name, textual
        )
        if keys is not None and "unit" not in keys:
            said = ", ".join(map(repr, nothing))
            return {
                **keys,
                "missing_values": nothing,
            }, f"{told}; {said} is treated as missing, which is a guess"
    if several := [value for value in present if isinstance(value, (dict, list, bytes))]:
        return None, f"no single value: {shown(several[0])}"
    texts = [value for value in present if isinstance(value, str)]
    if len(texts) < len(present):
        return None, f"values of several kinds, such as {shown(present[0])} and {_other(present)}"
    times = Timestamps(None)
    if sum(_works(lambda text: times.read(text, ""), text) for text in texts) >= SHARE * len(texts):
        zone = (
            ""
            if re.search(r"([+-]\d\d:?\d\d|Z)$", texts[0].strip())
            else "; it names no zone: UTC is taken, or set zone"
        )
        return _time(texts, f"a time, such as {texts[0].strip()}{zone}")
    return _category(values, sorted(set(texts)))


def _time(values: Sequence[Any], told: str, unit: TimeUnit | None = None) -> tuple[dict[str, Any], str]:
    """The weekday if all are at one time of the day, as dates are: the hour would be a constant."""
    times = Timestamps(unit)
    seconds: set[float] = set()
    for value in values:
        with suppress(BadRecord):
            seconds.add(times.read(value, ""))
    hours = {second % DAY for second in seconds}
    if len(hours) == 1 and (len(seconds) > 1 or hours == {0}):
        alike = len({second // DAY % 7 for second in seconds}) == 1
        more = " of the same weekday: an input that never changes" if alike else ""
        return {"as": "day-of-week"}, f"{told}; always the same hour{more}. elapsed-seconds is possible too"
    return {"as": "hour-of-day"}, f"{told}. day-of-week and elapsed-seconds are possible too"


def _for_nothing(present: Sequence[Any]) -> list[str]:
    """Texts among numbers that may mean a missing value, such as N/A; empty if there are none, or if there is
    other text."""
    texts = [value for value in present if isinstance(value, str) and not says_nothing(value)]
    others = {text.strip() for text in texts if number_of_text(text) is None}
    alike = len(others) <= MOST_NOTHINGS and all(
        len(text) <= LONGEST_NOTHING and not re.search(r"\d", text) for text in others
    )
    return sorted(others) if alike else []


def _without(present: Sequence[Any], nothing: Collection[str]) -> list[Any]:
    return [value for value in present if not isinstance(value, str) or value.strip() not in nothing]


def _number(
    values: _Values, numbers: list[float], name: str, textual: bool
) -> tuple[dict[str, Any] | None, str]:
    if not numbers:
        return None, f"nothing but {shown(values.present[0])}"
    low, high = min(numbers), max(numbers)
    told = f"a number, {low:g} to {high:g}" if low < high else f"a number that was {low:g} in all of these"
    as_text = not textual and any(isinstance(value, str) for value in values.present)
    for unit, (first, last) in EPOCH.items():
        if first <= low and high <= last and (unit != "s" or _TIME_NAME.search(_CAMEL.sub("_", name))):
            told = f"a time since 1970 in {unit}, such as {shown(values.present[0])}"
            if as_text:
                told += ", as text"
            keys, why = _time(values.present, told, unit)
            return {**keys, "unit": unit}, why
    whole = all(number.is_integer() for number in numbers)
    if (
        whole
        and len(values.present) >= ENOUGH
        and values.distinct == len(values.present)
        and looks_like_an_id(name)
    ):
        return None, "each record has another: it looks like a name or a sequence number"
    if (
        whole
        and values.distinct > 2
        and values.distinct <= MOST_VALUES
        and len(values.present) >= 10 * values.distinct
    ):
        told += f"; {values.distinct} different whole ones: if they are codes, a category"
    wrong = len(values.present) - len(numbers)
    if wrong:
        example = _no_number(values.present)
        told += f"; {wrong} of {len(values.present)} are none, such as {example}, and would be dead letters"
    return ({"as": "number"} if as_text else {}), told + (", as text" if as_text else "")


def _category(values: _Values, known: list[str]) -> tuple[dict[str, Any] | None, str]:
    if all(map(_OTHER_TIME.fullmatch, known)):
        return None, f"a date or a time, such as {shown(known[0])}, but not in ISO 8601"
    if len(known) == 1 and not values.lacking and len(values.present) >= ENOUGH:
        return None, f"the same in all of {len(values.present)} records: {shown(known[0])}"
    few = len(known) <= MOST_VALUES and (len(known) <= ENOUGH or 2 * len(known) <= len(values.present))
    if few and all(len(text) <= LONGEST_VALUE and text.isprintable() for text in known):
        return {
            "as": "category",
            "values": known,
        }, f"text of {len(known)} different values. Any other value sets all of them to 0"
    buckets = 2 ** max(3, math.ceil(math.log2(4 * len(known))))
    return None, (
        f"text with {len(known)} different values in {len(values.present)} records, such as "
        f"{shown(known[0])}. "
        f'If it is a category: as = "category", buckets = {min(buckets, 1024)}'
    )


def last_name(path: str) -> str:
    """The last step of a path that is a name."""
    return str([step for step in Path(path).steps if isinstance(step, str)][-1])


def looks_like_an_id(name: str) -> bool:
    """Whether a field of this name usually holds names or numbers in order."""
    return _ID_NAME.search(_CAMEL.sub("_", name)) is not None


def _rises(values: Sequence[Any], orders: Sequence[int] | None) -> bool:
    """Whether whole numbers rise from each record to the next of its series, and not by chance."""
    series: dict[int, list[int]] = defaultdict(list)
    for place, value in enumerate(values):
        if isinstance(value, bool) or not re.fullmatch(r"\s*-?[0-9]{1,18}(\.0*)?\s*", str(value)):
            return False
        # Tables with gaps write whole numbers as 7.0.
        series[0 if orders is None else orders[place]].append(int(str(value).partition(".")[0]))
    # n numbers rise in one of their n! orders.
    unlikely = sum(math.lgamma(len(own) + 1) for own in series.values())
    return unlikely > UNLIKELY and all(
        low < high for own in series.values() for low, high in itertools.pairwise(own)
    )


def _works(function: Callable[[Any], Any], value: Any) -> bool:
    try:
        function(value)
    except BadRecord:
        return False
    return True


def _no_number(values: Sequence[Any]) -> str:
    return next(
        (shown(value) for value in values if not numbers_among([value]) or isinstance(value, bool)), "NaN"
    )


def _other(values: Sequence[Any]) -> str:
    return next((shown(value) for value in values if type(value) is not type(values[0])), "")
