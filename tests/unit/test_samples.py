"""Sample records: the contents of a good one, and the reason for refusing a bad one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfl.contract.role import BadRecord, ConfigurationError, Record
from streamfl.encoding.wire import MAXIMUM_BYTES
from streamfl.records.formats import format_named
from streamfl.records.samples import SampleReader, SamplesSection


def reader(**settings: Any) -> SampleReader:
    chosen: dict[str, Any] = {"topic": "t", "features": ["a", "b"], "client": "c", "label": "y"}
    return SampleReader(SamplesSection(**{**chosen, **settings}))


def record(value: bytes | None, key: bytes | None = None) -> Record:
    return Record("t", 3, 17, key, value)


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_both_formats_give_the_same_sample(name: str) -> None:
    """The mathematics must not depend on the format of records."""
    read = reader(format=name, label_range=(10, 30), input_norm=2.0)
    sample = read.decode(record(format_named(name).encode({"a": 1, "b": 3.0, "c": 9, "y": 15, "more": [1]})))
    assert (sample.client, sample.id, sample.features, sample.label) == ("9", "t-3-17", (0.5, 1.5), 0.25)
    assert read.original(0.25) == 15


def test_client_from_the_key_inputs_from_a_list_and_an_identity() -> None:
    """The mapping is configurable: every form in the documentation has to work."""
    read = reader(client=None, features="inputs", dimension=3, sample_id="id")
    sample = read.decode(record(b'{"inputs": [1, 2, 3], "id": "s1"}', b"dev"))
    assert (sample.client, sample.id, sample.features, sample.label) == ("dev", "s1", (1.0, 2.0, 3.0), None)
    assert reader(features=["a"]).decode(record(b'{"a": 4, "c": "x"}')).features == (4.0,)
    assert reader().decode(record(b'{"a": 1, "b": 2, "c": "x", "y": null}')).label is None
    assert reader().decode(record(b'{"a": 1, "b": 2, "c": "x", "y": true}')).label == 1.0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "malformed"),
        (b"", "malformed"),
        (b"{", "malformed"),
        (b"\xff", "malformed"),
        (b"[1]", "malformed"),
        (b"[" * 100_000, "malformed"),
        (b'{"a": 1, "b": 2, "c": ""}', "malformed"),
        (b'{"a": 1, "b": 2, "c": null}', "malformed"),
        (b'{"a": 1, "b": 2}', "missing_field"),
        (b'{"a": 1, "c": "x"}', "missing_field"),
        (b'{"a": 1, "b": "2", "c": "x"}', "not_numeric"),
        (b'{"a": 1, "b": null, "c": "x"}', "not_numeric"),
        (b'{"a": 1, "b": true, "c": "x"}', "not_numeric"),
        (b'{"a": NaN, "b": 2, "c": "x"}', "not_finite"),
        (b'{"a": 1, "b": -Infinity, "c": "x"}', "not_finite"),
        (b'{"a": 1, "b": 1e999, "c": "x"}', "not_finite"),
        (b'{"a": 1, "b": 1e30, "c": "x"}', "not_finite"),
        (b'{"a": 1, "b": 2, "c": "x", "y": "high"}', "label"),
        (b'{"a": 1, "b": 2, "c": "x", "y": NaN}', "label"),
        (b'{"a": 1, "b": 2, "c": "x", "y": 1e300}', "label"),
        (b" " * (MAXIMUM_BYTES + 1), "oversized"),
    ],
)
def test_a_bad_record_is_refused_for_the_right_reason(value: bytes | None, reason: str) -> None:
    """The reason labels a metric and a dead letter. Any other exception would stop a worker."""
    with pytest.raises(BadRecord) as caught:
        reader().decode(record(value))
    assert caught.value.reason == reason


def test_numbers_that_only_messagepack_has() -> None:
    """MessagePack has NaN, JSON does not: the fast path itself has to find it, at any place."""
    read = reader(format="msgpack")
    for content in (
        {"a": float("nan"), "b": 1.0},
        {"a": 1.0, "b": float("nan")},
        {"a": float("inf"), "b": float("-inf")},
    ):
        with pytest.raises(BadRecord) as caught:
            read.decode(record(format_named("msgpack").encode({**content, "c": "x"})))
        assert caught.value.reason == "not_finite"


def test_a_number_that_is_too_large_is_shown_as_the_sender_wrote_it() -> None:
    """The sender finds the original number in the record, not a divided one. The allowed range is in the same
    unit."""
    for norm, number, limit in ((1.0, 1e30, "1e+18"), (1e-20, 5.0, "0.01"), (1e10, 1e29, "1e+28")):
        read = reader(input_norm=norm)
        with pytest.raises(BadRecord) as caught:
            read.decode(record(json.dumps({"a": 0, "b": number, "c": "x"}).encode()))
        assert caught.value.reason == "not_finite"
        assert f"b is {number};" in caught.value.text
        assert f"less than {limit} " in caught.value.text


def test_a_large_number_in_a_large_unit_is_not_what_is_wrong() -> None:
    """The reason has to be the record's true fault: 1e20 over a norm of 1e10 is a valid input."""
    read = reader(input_norm=1e10)
    assert read.decode(record(b'{"a": 1e20, "b": 0, "c": "x"}')).features == (1e10, 0.0)
    with pytest.raises(BadRecord) as caught:
        read.decode(record(b'{"a": 1e20, "b": 0, "c": "x", "y": "high"}'))
    assert caught.value.reason == "label"


@pytest.mark.parametrize(
    "inputs",
    [
        {"features": ["a"]},
        {"features": ["n.a"]},
        {"features": None, "inputs": [{"field": "a", "missing": "zero"}]},
    ],
    ids=["by their names", "nested", "a table"],
)
def test_a_large_label_within_its_range_counts_whatever_else_is_in_the_record(inputs: dict[str, Any]) -> None:
    """Protects whoever counts in small units: with a table of inputs each label beyond 1e18 was a dead
    letter, though `samples.label_range` had it."""
    read = reader(**inputs, label_range=(0, 2e19))
    assert read.decode(record(b'{"a": 1, "n": {"a": 1}, "c": "x", "y": 1.5e19}')).label == 0.75
    with pytest.raises(BadRecord, match=r"1000 times as large as samples\.label_range"):
        read.decode(record(b'{"a": 1, "n": {"a": 1}, "c": "x", "y": 1.5e29}'))


def test_a_list_of_another_length_and_a_record_without_a_key() -> None:
    """A wrong dimension would break everybody's batch."""
    read = reader(features="inputs", dimension=2, client=None)
    for value, key, reason in (
        (b'{"inputs": [1]}', b"x", "dimension"),
        (b'{"inputs": 1}', b"x", "not_numeric"),
        (b'{"inputs": [1, "2"]}', b"x", "not_numeric"),
        (b'{"inputs": [1, 2]}', None, "missing_field"),
        (b'{"inputs": [1, 2]}', b"\xff", "malformed"),
        (b'{"inputs": [1, 2]}', b"x" * 300, "malformed"),
    ):
        with pytest.raises(BadRecord) as caught:
            read.decode(record(value, key))
        assert caught.value.reason == reason


def test_field_names_need_not_be_identifiers() -> None:
    """Users name their fields as they like."""
    read = reader(features=["t 1", "class", "é-2"])
    assert read.decode(record(json.dumps({"t 1": 1, "class": 2, "é-2": 3, "c": "x"}).encode())).features == (
        1,
        2,
        3,
    )
    odd = ['in "quotes"', "back\\slash", "two\nlines"]
    read = reader(features=odd)
    content = {name: place for place, name in enumerate(odd)} | {"c": "x"}
    assert read.decode(record(json.dumps(content).encode())).features == (0, 1, 2)


def test_settings_that_make_no_reader() -> None:
    """A label among the inputs would make every figure wrong; a missing dimension would fail at the first
    record."""
    for settings, expected in (
        ({"features": None}, r"samples\.features is missing"),
        ({"features": "inputs"}, r"samples\.dimension is missing"),
        ({"dimension": 3}, r"samples\.dimension = 3"),
        ({"features": ["a", "y"]}, "'y' has two meanings"),
        ({"format": "parquet"}, r"'parquet'.*json.*msgpack"),
    ):
        with pytest.raises(ConfigurationError, match=expected):
            reader(**settings)


def test_the_key_counts_too() -> None:
    """Protects the partition: a message under the record's key has to fit into a record, or the partition is
    stuck for ever."""
    section = SamplesSection(topic="t", features=["a"], client="c")
    record = Record("t", 0, 0, b"k" * MAXIMUM_BYTES, b'{"a": 1, "c": "x"}')
    with pytest.raises(BadRecord) as refused:
        SampleReader(section).decode(record)
    assert refused.value.reason == "oversized"


RUN_SETTINGS: list[dict[str, Any]] = [
    {},
    {"client": None, "label_range": (10, 30), "input_norm": 2.0},
    {"sample_id": "id"},
    {"sample_id": "c"},
    {"features": "a", "dimension": 2},
    {"label": None, "features": ["b"]},
    {"format": "msgpack"},
]
NUMBERS = st.one_of(
    st.floats(-1e3, 1e3), st.sampled_from([0, 1e17, 1e18, 6e17, True, None, "x", math.nan, math.inf])
)
CONTENTS = st.fixed_dictionaries(
    {"a": st.one_of(NUMBERS, st.lists(NUMBERS, max_size=3)), "b": NUMBERS},
    optional={"c": st.sampled_from(["p", "", 7, None]), "id": st.sampled_from(["s", "", 8]), "y": NUMBERS},
)


@pytest.mark.parametrize("settings", RUN_SETTINGS, ids=str)
@given(
    contents=st.lists(CONTENTS, min_size=1, max_size=4),
    keys=st.lists(st.sampled_from([b"k", None, b""]), min_size=4, max_size=4),
)
def test_records_in_a_row_give_the_same_samples_as_one_by_one(
    settings: dict[str, Any], contents: Any, keys: list[bytes | None]
) -> None:
    """A worker decodes together what it can. A sample must not depend on the records beside it."""
    read, encode = reader(**settings), format_named(settings.get("format", "json")).encode
    records = [
        Record("t", 3, 17 + place, keys[place], encode(content)) for place, content in enumerate(contents)
    ]
    run = read.run(records)
    together = None if run is None else list(run)
    try:
        singly = [read(record) for record in records]
    except BadRecord:
        singly = None
    # Records of which none is refused may be decoded one by one too.
    assert together == singly if singly is None else together in (singly, None)


def test_good_records_are_decoded_together() -> None:
    """Else each record would cost as much as before, and no other test would notice."""
    value = b'{"a": 1, "b": 2.5, "c": "x", "y": 0.5}'
    run = reader().run([record(value), record(value)])
    assert run is not None
    assert list(run) == [reader().decode(record(value))] * 2
    assert reader().run([record(value), record(b"{")]) is None
    assert reader().run([record(None)]) is None
