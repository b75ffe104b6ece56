"""Narrow records: one value per record, and a field that names it. Several of them make one sample."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfl.contract.role import BadRecord
from streamfl.records.paths import path_of
from streamfl.records.schema_inference import InferredField, last_name
from streamfl.records.times import Timestamps

__all__ = ["Narrow", "NarrowRecord", "narrow_shape"]

SPANS = (
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    15,
    20,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14_400,
    21_600,
    43_200,
    86_400,
)
# Share of a client's samples that have to have all of its values to rule out chance.
SHARE = 0.7
# Up to this many records per value, a sample is still one sample, with a few records that came twice.
SURPLUS = 1.5
FEWEST = 8
# Seconds of a span if nothing says when a record was written.
ANY_SPAN = 60.0
NAMES = {
    "sensor",
    "metric",
    "measurement",
    "channel",
    "tag",
    "parameter",
    "variable",
    "signal",
    "quantity",
    "point",
    "property",
}
VALUES = {"value", "val", "v", "reading", "measurement", "data"}


@dataclass(frozen=True)
class NarrowRecord:
    """A record: its client, when it was written in seconds since 1970 (0: not known), and its fields."""

    client: str
    time: float
    content: Mapping[str, Any]


@dataclass(frozen=True)
class Narrow:
    """How narrow records become samples.

    name, value: the fields that say which input a record has, and its value.
    names: of the inputs.
    together: the keys of ``[samples.assemble]`` that say which records are one sample.
    complete: the share of samples that then have all values of their client; None: not known.
    text: whether values are text.
    """

    name: str
    value: str
    names: list[str]
    together: Mapping[str, Any]
    complete: float | None
    text: bool

    def told(self) -> str:
        """What the records look like."""
        shown = ", ".join(self.names[:6]) + (", …" if len(self.names) > 6 else "")
        return f"each record has one number, {self.value}, and {self.name} says which: {shown}"


def narrow_shape(
    readings: Sequence[NarrowRecord], guesses: Sequence[InferredField], columns: Collection[str] | None = None
) -> Narrow | None:
    """How these records become samples, if they are narrow; else None.

    guesses: for all fields except those that name the client and the sample.
    """
    contents = [dict(reading.content) for reading in readings]

    def values(guess: InferredField) -> list[Any]:
        return list(map(path_of(guess.path, columns).find, contents))

    fields = {guess.path: values(guess) for guess in guesses}
    clients = [reading.client for reading in readings]
    kinds = {guess.path: _kind(guess) for guess in guesses}
    texts = [path for path, kind in kinds.items() if kind == "text"]
    # The text field with the most values names the value; a unit or a place follows from it, or from the
    # client.
    name = max(texts, key=lambda path: len(set(map(str, fields[path]))), default=None)
    if name is None or len(readings) < FEWEST or len(set(map(str, fields[name]))) < 2:
        return None
    # A field that is the same in all of a client's records of a name tells nothing more.
    follows = list(zip(clients, map(str, fields[name]), strict=True))

    def free(path: str) -> bool:
        return not _follows_from(follows, fields[path])

    numbers = [path for path, kind in kinds.items() if kind == "number" and free(path)]
    times = [guess for guess in guesses if kinds[guess.path] == "time"]
    if any(free(path) for path in texts if path != name) or len(times) > 1 or not 0 < len(numbers) <= 2:
        return None
    names = [str(one) for one in fields[name]]
    if not all(map(_is_a_field, set(names))) or not _have_several(clients, names):
        return None
    others = [guess.path for guess in guesses if kinds[guess.path] == "other"]
    complete: float | None
    value, by_id = _by_id(clients, names, fields, numbers, others)
    if by_id is not None:
        together, complete = by_id
    elif len(numbers) > 1:
        return None
    else:
        value = numbers[0]
        found = _by_time(
            readings,
            names,
            times,
            fields,
            last_name(name).lower() in NAMES and last_name(value).lower() in VALUES,
        )
        if found is None:
            return None
        together, complete = found
    as_text = any(isinstance(one, str) for one in fields[value])
    return Narrow(name, value, sorted(set(names)), together, complete, as_text)


def _kind(guess: InferredField) -> str:
    keys = guess.keys
    if keys is None:
        return "other"
    if keys.get("as") == "category":
        return "text"
    if keys.get("as") in ("hour-of-day", "day-of-week"):
        return "time"
    return "number" if keys.get("as", "number") == "number" else "other"


def _follows_from(causes: Sequence[Any], effects: Sequence[Any]) -> bool:
    """Whether equal causes always have equal effects."""
    found: dict[Any, Any] = {}
    return all(
        found.setdefault(cause, effect) == effect
        for cause, effect in zip(causes, map(repr, effects), strict=True)
    )


def _is_a_field(name: str) -> bool:
    try:
        path_of(name)
    except ValueError:
        return False
    return True


def _have_several(clients: Sequence[str], names: Sequence[str]) -> bool:
    """Whether most records are of a client with several names. Otherwise the text field names the client."""
    own: dict[str, set[str]] = defaultdict(set)
    for client, name in zip(clients, names, strict=True):
        own[client].add(name)
    return sum(len(own[client]) > 1 for client in clients) >= SHARE * len(clients)


def _by_id(
    clients: Sequence[str],
    names: Sequence[str],
    fields: Mapping[str, Sequence[Any]],
    numbers: Sequence[str],
    others: Sequence[str],
) -> tuple[str, tuple[Mapping[str, Any], float] | None]:
    """The value's field and, if a field names the sample that a record belongs to, that field."""
    for candidate in (*others, *numbers):
        rest = [path for path in numbers if path != candidate]
        places = fields[candidate]
        if len(rest) != 1 or not all(isinstance(place, (str, int)) for place in places):
            continue
        complete, surplus = _complete(clients, places, names)
        if complete >= SHARE and surplus <= SURPLUS and len(set(places)) > 1:
            return rest[0], ({"id": candidate}, complete)
    return "", None


def _by_time(
    readings: Sequence[NarrowRecord],
    names: Sequence[str],
    times: Sequence[InferredField],
    fields: Mapping[str, Sequence[Any]],
    hinted: bool,
) -> tuple[Mapping[str, Any], float | None] | None:
    """The span of time whose records are one sample. hinted: the fields' names alone show that the records
    are narrow."""
    clients = [reading.client for reading in readings]
    said: dict[str, Any] = {}
    at = [reading.time for reading in readings]
    if times:
        keys = times[0].keys or {}
        said = {"time": times[0].path, **({"time_unit": keys["unit"]} if "unit" in keys else {})}
        read = Timestamps(keys.get("unit"))
        at = [_seconds(read, value) for value in fields[times[0].path]]
    if len(set(at)) < 2:
        # There are no times. A client's sample ends where a name comes again.
        complete, surplus = _complete(clients, _turns(clients, names), names)
        regular = complete >= SHARE and surplus <= SURPLUS
        return ({"seconds": ANY_SPAN, **said}, None) if regular or hinted else None
    for span in SPANS:
        complete, surplus = _complete(clients, [at_ // span for at_ in at], names)
        if complete >= SHARE and surplus <= SURPLUS:
            return {"seconds": span, **said}, complete
    if not hinted:
        return None
    slowest = _slowest(clients, names, at)
    span = next((span for span in SPANS if span >= slowest), SPANS[-1])
    complete, surplus = _complete(clients, [at_ // span for at_ in at], names)
    # Some values come more often than others.
    return {"seconds": span, **said, **({"several": "mean"} if surplus > SURPLUS else {})}, complete


def _seconds(read: Timestamps, value: Any) -> float:
    try:
        return read.read(value, "")
    except BadRecord:
        return 0.0


def _complete(clients: Sequence[str], places: Sequence[Any], names: Sequence[str]) -> tuple[float, float]:
    """The share of samples with all names of their client, and how often a name comes in a sample on
    average."""
    own: dict[str, set[str]] = defaultdict(set)
    samples: dict[tuple[str, Any], Counter[str]] = defaultdict(Counter)
    for client, place, name in zip(clients, places, names, strict=True):
        own[client].add(name)
        samples[client, place][name] += 1
    whole = sum(len(counts) == len(own[client]) > 1 for (client, _), counts in samples.items())
    return whole / len(samples), len(names) / sum(map(len, samples.values()))


def _turns(clients: Sequence[str], names: Sequence[str]) -> list[int]:
    """For each record, how many of its client's samples came before. A sample ends where a name comes
    again."""
    turn: Counter[str] = Counter()
    seen: dict[str, set[str]] = defaultdict(set)
    found = []
    for client, name in zip(clients, names, strict=True):
        if name in seen[client]:
            turn[client] += 1
            seen[client] = set()
        seen[client].add(name)
        found.append(turn[client])
    return found


def _slowest(clients: Sequence[str], names: Sequence[str], at: Sequence[float]) -> float:
    """The median seconds between two values of the name that comes least often."""
    series: dict[tuple[str, str], list[float]] = defaultdict(list)
    for client, name, time in zip(clients, names, at, strict=True):
        series[client, name].append(time)
    periods: dict[str, list[float]] = defaultdict(list)
    for (_, name), times in series.items():
        periods[name] += [later - sooner for sooner, later in itertools.pairwise(sorted(times))]
    return max((statistics.median(found) for found in periods.values() if found), default=ANY_SPAN)
