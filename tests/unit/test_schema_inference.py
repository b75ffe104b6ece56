"""Fields and formats inferred from some records: what is guessed, and what is left to people."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from streamfl.contract.role import DataError
from streamfl.records.format_inference import infer_format
from streamfl.records.input_reader import InputReader
from streamfl.records.inputs import InputSection
from streamfl.records.schema_inference import InferredField, infer_fields
from streamfl.records.topic import TopicSection

ROWS = 40

# By field: its value in the n-th record, and the keys of its table; None: it is left out.
FIELDS: dict[str, tuple[Any, Mapping[str, Any] | None]] = {
    "number": (lambda n: n / 3, {}),
    "text": (lambda n: f"{n / 3:.2f}", {"as": "number"}),
    "mixed": (lambda n: "21.5" if n % 2 else 21, {"as": "number"}),
    "sometimes": (lambda n: None if n % 4 == 0 else float(n), {"missing": "mean"}),
    "gap": (lambda n: float("nan") if n % 4 == 0 else float(n), {"missing": "mean"}),
    "truth": (lambda n: n % 2 == 0, {"as": "boolean"}),
    "word": (lambda n: ["on", "off"][n % 2], {"as": "boolean"}),
    "at": (lambda n: f"2026-11-{1 + n % 28:02d}T0{n % 10}:00:00+01:00", {"as": "hour-of-day"}),
    "time": (lambda n: datetime(2026, 1, 1 + n % 28, n % 24, tzinfo=UTC), {"as": "hour-of-day"}),
    "millis": (lambda n: 1_790_000_000_000 + n, {"as": "hour-of-day", "unit": "ms"}),
    "createdAt": (lambda n: 1_790_000_000 + n, {"as": "hour-of-day", "unit": "s"}),
    "date": (lambda n: f"2026-11-{1 + n % 28:02d}", {"as": "day-of-week"}),
    "daily": (lambda n: datetime(2026, 1, 1 + n % 28, 7, tzinfo=UTC), {"as": "day-of-week"}),
    "dayMillis": (lambda n: 86_400_000 * (20_700 + n % 9), {"as": "day-of-week", "unit": "ms"}),
    "watts": (lambda n: 1_790_000_000 + 7 * n % ROWS, {}),
    "n": (lambda n: 5 * n, None),
    "nText": (lambda n: str(n), None),
    "nFloat": (lambda n: float(n), None),
    "day": (lambda n: f"{1 + n % 5:02d}/03/2004", None),
    "textMillis": (lambda n: str(1_790_000_000_000 + n), {"as": "hour-of-day", "unit": "ms"}),
    "notApplicable": (
        lambda n: ["N/A", "-", " N/A "][n % 3] if n % 5 == 0 else f"{n}.5",
        {"as": "number", "missing": "mean", "missing_values": ["-", "N/A"]},
    ),
    "kind": (
        lambda n: ["pump", "fan", "press"][n % 3],
        {"as": "category", "values": ["fan", "press", "pump"]},
    ),
    "kindSometimes": (
        lambda n: None if n % 5 == 0 else ["pump", "fan"][n % 2],
        {"as": "category", "values": ["fan", "pump"], "missing": "zero"},
    ),
    "make": (lambda n: "acme", None),
    "serial": (lambda n: f"S-{n}", None),
    "orderId": (lambda n: n, None),
    "nothing": (lambda n: None, None),
    "rare": (lambda n: 1.0 if n % 10 == 0 else None, None),
    "several": (lambda n: "a" if n % 2 else 3, None),
    "empty": (lambda n: [], None),
}


def one(name: str, **options: Any) -> InferredField:
    [guess] = infer_fields([{name: FIELDS[name][0](n)} for n in range(ROWS)], **options)
    return guess


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_what_its_values_say(name: str) -> None:
    """Protects users of the inferred settings: every value of the field is read, or the field is left out
    with a reason."""
    make, keys = FIELDS[name]
    guess = one(name)
    assert guess.path == name
    assert guess.keys == keys
    assert guess.why
    if keys is not None:
        read = InputReader(InputSection(field=name, **keys), 1.0)
        for n in range(ROWS):
            read.numbers({name: make(n)})


def test_fields_within_others_have_paths() -> None:
    """Protects nested records: each value has its own path, lists included. An object that is null at times
    is not a field."""
    rows = [{"meta": None if n == 0 else {"a.b": n / 2, "list": [n / 3, n / 4]}} for n in range(ROWS)]
    found = {guess.path: guess.keys for guess in infer_fields(rows)}
    filled = {"missing": "mean"}
    assert found == {"meta.`a.b`": filled, "meta.list[0]": filled, "meta.list[1]": filled}
    assert "meta.list[1]" not in {guess.path for guess in infer_fields(rows, besides=["meta.list[1]"])}


def test_the_schema_of_an_envelope_is_no_input() -> None:
    """Protects records as Kafka Connect writes them: names and types of fields say nothing of a sample."""
    schema = {"type": "struct", "fields": [{"field": "on", "type": "double", "optional": True}]}
    rows = [{"schema": schema, "payload": {"on": n / 3}} for n in range(ROWS)]
    assert {guess.path: guess.keys for guess in infer_fields(rows)} == {"payload.on": {}}


def test_a_text_that_is_there_or_not_is_an_input() -> None:
    """Protects flags that are written only where they hold, from those who leave out what is always the
    same."""
    guesses = infer_fields([{"flag": "Y" if n % 3 else None, "site": "north"} for n in range(ROWS)])
    assert {guess.path: guess.keys is None for guess in guesses} == {"flag": False, "site": True}


def test_dates_that_are_all_mondays_are_told() -> None:
    """Protects from an input that never changes."""
    mondays = [{"day": str(date(2026, 11, 2) + timedelta(weeks=n))} for n in range(ROWS)]
    [guess] = infer_fields(mondays)
    assert guess.keys == {"as": "day-of-week"}
    assert "of the same weekday: an input that never changes" in guess.why


def test_parties_have_no_means() -> None:
    """Protects settings of vertical parties, which refuse means: a missing number is 0 there."""
    assert one("sometimes", means=False).keys == {"missing": "zero"}


def test_a_few_values_that_fit_nothing_are_told() -> None:
    """Protects from silent losses: a field with some badly written numbers stays numeric, and the reason
    counts the loss."""
    [guess] = infer_fields([{"x": "21,5" if n % 20 == 0 else f"{n}"} for n in range(ROWS)])
    assert guess.keys == {"as": "number"}
    assert "2 of 40 are none, such as '21,5'" in guess.why
    [guess] = infer_fields(
        [{"x": [n, n] if n % 20 == 0 else n / 3} for n in range(ROWS)], besides=["x[0]", "x[1]"]
    )
    assert guess.keys == {}
    assert "2 of 40 are none, such as [0, 0]" in guess.why
    [guess] = infer_fields([{"x": [n] if n % 2 == 0 else n / 3} for n in range(ROWS)], besides=["x[0]"])
    assert (guess.keys, guess.why) == (None, "no single value: [0]")
    [guess] = infer_fields([{"x": "N/A" if n % 20 == 0 else f"{n}"} for n in range(ROWS)])
    assert guess.keys == {"as": "number", "missing": "mean", "missing_values": ["N/A"]}
    assert "'N/A' is treated as missing, which is a guess" in guess.why


def frame(content: bytes) -> bytes:
    return struct.pack(">bI", 0, 7) + content


FORMATS = {
    "json": lambda n: json.dumps({"a": n, "b": "x"}).encode(),
    "msgpack": lambda n: msgspec.msgpack.encode({"a": n}),
    "csv": lambda n: f'north,{n},"a, b"'.encode(),
    "json-schema": lambda n: frame(json.dumps({"a": n}).encode()),
    "debezium": lambda n: json.dumps(
        {"op": "c", "after": {"a": n}} if n else {"op": "d", "after": None}
    ).encode(),
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_found(name: str) -> None:
    """Protects a first try: users need not know the format, and every record is read."""
    found = infer_format([FORMATS[name](n) for n in range(ROWS)], TopicSection(topic="t"), time.monotonic())
    assert found.keys["format"] == name
    assert len(found.read) + found.passed_over == ROWS
    assert not found.why or "could not be read" not in found.why


def test_names_of_columns_come_from_the_first_line_or_are_made_up() -> None:
    """Protects CSV: a header line is not a sample, and without one the columns get names."""
    lines = [FORMATS["csv"](n) for n in range(ROWS)]
    with_names = infer_format([b"site,temp,note", *lines], TopicSection(topic="t"), time.monotonic())
    assert with_names.keys["columns"] == ["site", "temp", "note"]
    assert (len(with_names.read), with_names.passed_over) == (ROWS, 1)
    within = infer_format([*lines, b"site,temp,note"], TopicSection(topic="t"), time.monotonic())
    assert (within.keys["columns"], within.passed_over) == (["site", "temp", "note"], 1)
    assert infer_format(lines, TopicSection(topic="t"), time.monotonic()).keys["columns"] == [
        "column_1",
        "column_2",
        "column_3",
    ]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (frame(b"\x02abc"), "number 7 of a registry's schema.*--registry"),
        (b"\x08\x01\x12\x03ABC", "0 of 40.*--record-format"),
    ],
)
def test_what_cannot_be_read_is_told_with_a_way_out(value: bytes, told: str) -> None:
    """Protects from a file that cannot work: without a schema Avro and Protobuf cannot be read, and the error
    names the option."""
    with pytest.raises(DataError, match=told):
        infer_format([value] * ROWS, TopicSection(topic="t"), time.monotonic())


def test_a_few_broken_records_do_not_hide_the_format() -> None:
    """Protects real topics: broken records are counted and reported."""
    values = [b"{broken" if n % 10 == 0 else FORMATS["json"](n) for n in range(ROWS)]
    found = infer_format(values, TopicSection(topic="t"), time.monotonic())
    assert len(found.read) == 36
    assert "4 of 40 records could not be read" in found.why
