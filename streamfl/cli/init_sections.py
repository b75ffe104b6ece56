"""The keys that ``streamfl init`` writes for samples and labels, each with its reason."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from streamfl.cli.config_draft import ConfigDraft, section_class
from streamfl.cli.init_read import RecordSample
from streamfl.cli.init_survey import Survey
from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import BadRecord, ConfigurationError, DataError
from streamfl.records.fields import shown
from streamfl.records.formats import is_textual
from streamfl.records.inputs import InputSection
from streamfl.records.paths import path_of
from streamfl.records.sample_fields import WORDS_REMEDY
from streamfl.records.schema_inference import InferredField, field_values, infer_fields, numbers_among
from streamfl.records.shared_names import names_in
from streamfl.terminal.words import counted, first_of

__all__ = [
    "ask_for_label",
    "check_fields",
    "guesses_of",
    "has_names",
    "owners_of",
    "partitions_of",
    "put_clients",
    "put_inputs",
    "put_labels",
    "put_names",
    "put_partitions",
    "put_topic",
    "without_label",
]

# The most fields that are listed when the user has to choose a name or a label.
CHOICES = 12
# The factor for the number of clients of a topic that was not read whole.
HEADROOM = 1.25
SQUARE = "square"
# Labels between 0 and 1 have that range if they vary by so much of it. Those that vary by far less, such as
# 1e-9 to 2e-9, would all be the same number to the learner.
LEAST_OF_ONE = 0.01


def check_fields(seen: RecordSample, fields: Iterable[str | None]) -> None:
    """ConfigurationError if one of these cannot be a record's field."""
    for field in fields:
        try:
            path_of("any" if field is None else field, seen.format.keys.get("columns"))
        except ValueError as error:
            raise ConfigurationError(str(error)) from None


def put_topic(draft: ConfigDraft, section: str, topic: str, seen: RecordSample) -> None:
    """Write the topic and the format of its records."""
    draft.put(section, "topic", topic)
    for key, value in seen.format.keys.items():
        if (key, value) != ("format", "json"):
            made_up = key == "columns" and value[0] == "column_1"
            why = (
                seen.format.why
                if key == "format"
                else "invented names, because there is no header line"
                if made_up
                else ""
            )
            draft.put(section, key, value, why)


def put_names(
    draft: ConfigDraft,
    section: str,
    name: str,
    seen: RecordSample,
    given: str | None,
    said: Mapping[str, Any],
    names_are_keys: bool,
) -> list[str]:
    """Write which field names a record's client or entity. Returns the names that were seen.

    name: "client" or "entity".
    given: the field that the user named.
    said: other keys of the section, such as how to read a record's key. ConfigurationError if neither the
    field nor the keys have names.
    """
    contents, columns = seen.format.read, seen.format.keys.get("columns")
    if given is not None:
        found = _strings(contents, given, columns)
        if not found:
            raise ConfigurationError(f"--{name} {given}: no record has a name there; {_names(seen)}")
        if names_are_keys:
            note = (
                f"Each record's key has to be its {given}: `streamfl write CONFIG {section} --key {given}`."
            )
            draft.notes.setdefault(section, []).append(note)
        else:
            why = f"{len(set(found))} different in {counted(len(contents), 'record')}"
            draft.put(section, name, given, why)
        return found
    try:
        keys = seen.keys(said)
    except BadRecord as error:
        raise ConfigurationError(
            f"which {name} a record is of is not known: {error.text}. Say --{name} FIELD; {_names(seen)}. Or "
            f"say how the key is read, such as --set {section}.key=int64, or {section}.key=json and "
            f"{section}.key_field=FIELD"
        ) from None
    different = f"{len(set(keys))} different in these records"
    note = f'The {name} is the record\'s key: {different}. Where a field names it: {name} = "FIELD".'
    draft.notes.setdefault(section, []).append(note)
    return keys


def has_names(seen: RecordSample, field: str) -> bool:
    """Whether these records have names in this field."""
    return bool(_strings(seen.format.read, field, seen.format.keys.get("columns")))


def put_partitions(draft: ConfigDraft, name: str, topic: str, seen: RecordSample, given: str | None) -> None:
    """If the samples of one name are in several partitions, write settings for a topic that `streamfl rekey`
    writes."""
    if given is None or (seen.partitions or 1) < 2:
        return
    where = partitions_of(seen, owners_of(seen, given, {}))
    torn = [value for value, places in where.items() if value and len(places) > 1]
    if not torn:
        return
    draft.put(
        "samples",
        "topic",
        f"{topic}-by-{name}",
        f"{topic} is not keyed by the {name}: {shown(torn[0])} lies in {len(where[torn[0]])} partitions. "
        "`streamfl rekey` writes this topic, keyed as it has to be",
    )
    draft.put("samples.rekey", "topic", topic, "your own")


def put_inputs(draft: ConfigDraft, guesses: Sequence[InferredField]) -> int:
    """Write the input fields. Returns how many numbers a sample has. DataError if no field can be an
    input."""
    taken = [guess for guess in guesses if guess.keys is not None]
    if not taken:
        raise DataError(
            "no field can be an input: "
            + (
                "; ".join(f"{guess.path}: {guess.why}" for guess in guesses[:CHOICES])
                or "the records have no field beside those with the name, the id and the label. A topic with "
                "labels alone is named by --labels-topic"
            )
        )
    notes = draft.notes.setdefault("samples", [])
    if all(not guess.keys for guess in taken):
        draft.put("samples", "features", [guess.path for guess in taken])
        notes += [f"{guess.path}: {guess.why}" for guess in taken]
    else:
        draft.inputs = [
            ({"field": guess.path, **(guess.keys or {})}, f"{guess.path}: {guess.why}") for guess in taken
        ]
    left = [guess for guess in guesses if guess.keys is None]
    if left:
        notes += ["Left out, each for its reason:", *(f"  {guess.path}: {guess.why}" for guess in left)]
    return sum(len(InputSection(**{"field": guess.path, **(guess.keys or {})}).names) for guess in taken)


def guesses_of(
    seen: RecordSample, besides: Collection[str], means: bool, owners: Sequence[str] = ()
) -> list[InferredField]:
    """What the fields of these records were taken for. owners: the client of each readable record."""
    columns = seen.format.keys.get("columns")
    return infer_fields(
        seen.format.read, besides, is_textual(seen.format.format), columns, means, _orders(seen, owners)
    )


def _orders(seen: RecordSample, owners: Sequence[str]) -> list[int]:
    """The number of each readable record's series: its client's records in its partition, or all records of
    its partition."""
    places = [record.partition for record, _ in seen.readable()]
    series: dict[Any, int] = {}
    if 0 < 2 * len(set(owners)) <= len(places):
        return [series.setdefault(both, len(series)) for both in zip(places, owners, strict=True)]
    return places


def owners_of(seen: RecordSample, given: str | None, said: Mapping[str, Any]) -> list[str]:
    """The client of each readable record, "" if its field has no name. given: the field; None: the record's
    key."""
    if given is None:
        names = seen.keys(said)
        return [
            name for name, content in zip(names, seen.format.contents, strict=True) if content is not None
        ]
    columns = seen.format.keys.get("columns")
    return [next(iter(_strings([content], given, columns)), "") for content in seen.format.read]


def partitions_of(seen: RecordSample, owners: Sequence[str]) -> dict[str, set[int]]:
    """The partitions of each client's records. owners: as of :func:`owners_of`."""
    where: dict[str, set[int]] = defaultdict(set)
    for (record, _), owner in zip(seen.readable(), owners, strict=True):
        where[owner].add(record.partition)
    return where


def put_clients(draft: ConfigDraft, seen: RecordSample, survey: Survey, names: Sequence[str]) -> None:
    """Write the number of clients: counted if all records were read, otherwise estimated, with headroom."""
    if seen.partitions is None or seen.whole:
        found, records = (
            (len(survey.names), survey.records) if survey.names else (len(set(names)), len(names))
        )
        of = "in the file" if seen.partitions is None else "in the topic now"
        draft.put(
            "federation",
            "clients",
            max(1, found),
            f"in {counted(records, 'record')}, all {of}: say how many there will be",
        )
        return
    times = Counter(names)
    # Good-Turing: the chance that the next record is of a new client is about the share of records of clients
    # seen once.
    new = sum(count == 1 for count in times.values()) / max(1, len(names))
    room = math.ceil(HEADROOM * len(times) / max(0.5, 1.0 - new))
    told = (
        f"{len(times)} were seen in {counted(len(names), 'record')}, the rest is headroom: say how many "
        "there are"
    )
    draft.put("federation", "clients", max(1, room), told)


def put_labels(
    draft: ConfigDraft,
    section: str,
    settings: type[RoleSettings],
    seen: RecordSample,
    survey: Survey,
    label: str,
    loss: str | None,
) -> None:
    """Write the field with the label, and its range and the loss if they need one. ConfigurationError if it
    holds no numbers.

    loss: the one that the user named.
    """
    if not survey.numbers:
        found = f"it is {shown(survey.other)}" if survey.other is not None else "no record has it"
        words = f". {WORDS_REMEDY}" if isinstance(survey.other, str) else ""
        raise ConfigurationError(
            f"--label {label}: {found}, numbers are expected, 1 and 0 of two classes; {_labels(seen)}{words}"
        )
    none = survey.values - survey.numbers
    told = f"{survey.numbers} of {counted(survey.records, 'record')} have it" + (
        f", and {none} hold no number" if none else ""
    )
    draft.put(section, "label", label, told)
    if survey.text and not is_textual(seen.format.format):
        draft.put(section, "label_as", "number", "it is text")
    own = "label_range" in section_class(settings, section).model_fields
    square = _put_loss(draft, settings, survey, loss)
    low, high = _range(survey.low, survey.high)
    if survey.binary and square:
        told += '. They are 0 and 1: with [learning] loss = "logistic" predictions are probabilities'
        draft.put(section, "label", label, told)
    # In a section of their own, labels have a range with the square loss alone.
    if square or section == "samples" or not own:
        draft.put(
            section if own else "samples",
            "label_range",
            [low, high],
            f"these were {survey.low:g} to {survey.high:g}. Losses are scaled by it",
        )


def _put_loss(draft: ConfigDraft, settings: type[RoleSettings], survey: Survey, given: str | None) -> bool:
    """Write the square loss if the default is for labels 0 and 1 and these are others. Returns whether it is
    square."""
    known = section_class(settings, "learning").model_fields if "learning" in settings.model_fields else {}
    if "loss" not in known:
        return False
    loss = given or known["loss"].default
    if given is None and loss != SQUARE and not survey.binary:
        draft.put("learning", "loss", SQUARE, "labels are others than 0 and 1")
        return True
    return bool(loss == SQUARE)


def without_label(draft: ConfigDraft) -> None:
    """Note in the file that nothing is learnt."""
    note = 'No label is named: samples are predicted, and nothing is learnt. Else: label = "FIELD".'
    draft.notes.setdefault("samples", []).append(note)


def ask_for_label(seen: RecordSample, besides: Collection[str]) -> ConfigurationError:
    """The error if the user has not named the label."""
    return ConfigurationError(
        "which field is to be predicted is not known: say --label FIELD, or --no-label; "
        f"{_labels(seen, besides)}"
    )


def _labels(seen: RecordSample, besides: Collection[str] = ()) -> str:
    found = [guess for guess in guesses_of(seen, besides, True) if guess.keys is not None]
    values = field_values(seen.format.read, seen.format.keys.get("columns"))
    numbers = [
        guess.path
        for guess in found
        if (guess.keys or {}).get("as", "number") in ("number", "boolean")
        and numbers_among(values[guess.path])
    ]
    return f"fields with numbers are {first_of(numbers, CHOICES) or 'none'}"


def _names(seen: RecordSample) -> str:
    found = field_values(seen.format.read, seen.format.keys.get("columns"))
    named: Mapping[str, int] = {
        path: len({str(value) for value in values})
        for path, values in found.items()
        if values and all(isinstance(value, (str, int)) and not isinstance(value, bool) for value in values)
    }
    few = sorted(named, key=lambda path: named[path])
    told = first_of([f"{path} ({named[path]} different)" for path in few], CHOICES)
    return f"fields that could name it are {told or 'none'}"


def _strings(contents: Sequence[dict[str, Any]], field: str, columns: Collection[str] | None) -> list[str]:
    path = path_of(field, columns)
    found = [path.find(content) for content in contents]
    return names_in(found)


def _range(low: float, high: float) -> tuple[float, float]:
    """Round numbers around these; 0 and 1 if both are between them and not far closer together.

    >>> _range(3.2, 97.0)
    (0.0, 100.0)
    >>> _range(6e-10, 1.3e-08)
    (0.0, 2e-08)
    """
    if low == high:
        low, high = min(low, 0.0), max(high, 0.0) or 1.0
    if low >= 0.0 and high <= 1.0 and high - low >= LEAST_OF_ONE:
        return 0.0, 1.0
    step = 10.0 ** math.floor(math.log10(high - low))
    # Steps of a power of ten above 1 are exact, those below are rounded to their own digits.
    digits = max(0, -round(math.log10(step)))
    return round(math.floor(low / step) * step, digits), round(math.ceil(high / step) * step, digits)
