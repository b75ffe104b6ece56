"""Inputs as the settings declare them: numbers, booleans, categories, times, and replacements for missing
values."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pydantic import ValidationError

from streamfl.configuration.settings import load_settings
from streamfl.contract.role import BadRecord, ConfigurationError, Record
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.state_settings import client_state_settings
from streamfl.records.entities import EntitySamplesSection
from streamfl.records.input_reader import InputReader
from streamfl.records.inputs import InputSection
from streamfl.records.labels import LabelReader, LabelsSection
from streamfl.records.samples import Sample, SampleReader, SamplesSection

Inputs = list[dict[str, Any]]


def reader(inputs: Inputs, **settings: Any) -> SampleReader:
    return SampleReader(SamplesSection(**{"topic": "t", "inputs": inputs, **settings}), fills_means=True)


def read(inputs: Inputs, content: dict[str, Any], **settings: Any) -> Sample:
    return reader(inputs, **settings).decode(Record("t", 0, 0, b"c", json.dumps(content).encode()))


def features(one: dict[str, Any], value: Any, **settings: Any) -> tuple[float, ...]:
    return read([{"field": "f", **one}], {"f": value}, **settings).features


LONG = 2**63 - 1  # Java's Long.MAX_VALUE, which has no exact float
NOON = "2026-11-23T12:00:00Z"  # a Monday


@pytest.mark.parametrize(
    ("one", "value", "expected"),
    [
        ({}, 21.5, (21.5,)),
        ({"as": "number"}, "21.5", (21.5,)),
        ({"as": "number"}, " -2e1 ", (-20.0,)),
        ({"as": "boolean"}, True, (1.0,)),
        ({"as": "boolean"}, "False", (0.0,)),
        ({"as": "boolean"}, 1, (1.0,)),
        ({"as": "category", "values": ["a", "b"]}, "b", (0.0, 1.0)),
        ({"as": "category", "values": ["a", "b"]}, "c", (0.0, 0.0)),
        ({"as": "category", "values": ["7", "true"]}, 7, (1.0, 0.0)),
        ({"as": "category", "values": ["7", "true"]}, True, (0.0, 1.0)),
        ({"as": "hour-of-day"}, "2026-11-23T06:00:00Z", (1.0, 0.0)),
        ({"as": "hour-of-day"}, "2026-11-23T06:00:00+06:00", (0.0, 1.0)),
        ({"as": "hour-of-day", "zone": "Asia/Tokyo"}, "2026-11-22T21:00:00Z", (1.0, 0.0)),
        ({"as": "hour-of-day", "zone": "Asia/Tokyo"}, "2026-11-23T06:00:00", (1.0, 0.0)),
        ({"as": "hour-of-day", "unit": "us"}, 6 * 3600 * 10**6, (1.0, 0.0)),
        ({"as": "hour-of-day", "unit": "ms"}, "21600000", (1.0, 0.0)),
        ({"as": "hour-of-day", "unit": "s"}, " 2.16e4 ", (1.0, 0.0)),
        ({"as": "hour-of-day", "unit": "ms"}, "2026-11-23T06:00:00Z", (1.0, 0.0)),
        (
            {"as": "hour-of-day"},
            "2026-11-23T07:00:00.000000000+01:00[America/Argentina/ComodRivadavia]",
            (1.0, 0.0),
        ),
        ({"as": "day-of-week"}, NOON, (0.0, 1.0)),
        (
            {"as": "day-of-week"},
            "2026-11-24T23:59:00Z",
            (math.sin(2 * math.pi / 7), math.cos(2 * math.pi / 7)),
        ),
        ({"as": "elapsed-seconds", "since": "2026-11-23T11:59:00Z"}, NOON, (60.0,)),
        ({"missing": "zero"}, None, (0.0,)),
        ({"missing": 4.5}, None, (4.5,)),
        ({"missing": 4.5}, math.nan, (4.5,)),
        ({"as": "number", "missing": 4.5}, "NaN", (4.5,)),
        ({"as": "number", "missing": 4.5}, "", (4.5,)),
        ({"missing": "mean"}, 3, (3.0,)),
        ({"missing": "mean", "indicator": True}, 3, (3.0, 0.0)),
        ({"missing": 4.5, "indicator": True}, None, (4.5, 1.0)),
        ({"as": "category", "values": ["a"], "missing": "zero", "indicator": True}, None, (0.0, 1.0)),
        ({"as": "day-of-week", "missing": "zero"}, None, (0.0, 0.0)),
        ({"as": "boolean", "missing": "zero"}, "", (0.0,)),
        ({"missing": 4.5, "missing_values": [-999]}, -999.0, (4.5,)),
        ({"missing": 4.5, "missing_values": ["-999"]}, -999.0, (-999.0,)),
        ({"as": "number", "missing": 4.5, "missing_values": ["N/A", -999]}, "-999.0", (4.5,)),
        ({"as": "number", "missing": 4.5, "missing_values": ["N/A", -999]}, " N/A ", (4.5,)),
        ({"missing": 4.5, "missing_values": ["-"]}, "-", (4.5,)),
        ({"missing": 4.5, "missing_values": [LONG]}, LONG, (4.5,)),
        ({"missing": 4.5, "missing_values": [2**53 + 1]}, 2**53, (2.0**53,)),
        ({"as": "number", "missing": 4.5, "missing_values": [LONG]}, str(LONG), (4.5,)),
        ({"as": "number", "missing": 4.5, "missing_values": [2**53 + 1]}, str(2**53), (2.0**53,)),
        ({"as": "hour-of-day", "missing": "zero", "missing_values": ["unknown"]}, "unknown", (0.0, 0.0)),
        (
            {"as": "category", "values": ["a", "?"], "missing": "zero", "missing_values": ["?"]},
            "?",
            (0.0, 0.0),
        ),
    ],
)
def test_a_value_becomes_its_numbers(one: dict[str, Any], value: Any, expected: tuple[float, ...]) -> None:
    """Protects the inputs of learning: each kind of value is converted as documented, and missing ones as
    requested."""
    assert features(one, value) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("one", "value", "reason"),
    [
        ({}, "21.5", "not_numeric"),
        ({}, True, "not_numeric"),
        ({}, None, "not_numeric"),
        ({}, math.nan, "not_finite"),
        ({}, math.inf, "not_finite"),
        ({}, 10**400, "not_finite"),
        ({"missing": "zero"}, math.inf, "not_finite"),
        ({"missing": "mean"}, 9e17, "not_finite"),
        ({"as": "number"}, "21,5", "not_numeric"),
        ({"as": "number"}, "1e999", "not_finite"),
        ({"as": "number"}, "9" * 1000, "not_numeric"),
        ({"as": "boolean"}, "maybe", "not_numeric"),
        ({"as": "boolean"}, 2, "not_numeric"),
        ({"as": "category", "buckets": 4}, 1.5, "not_a_category"),
        ({"as": "hour-of-day"}, "noon", "not_a_time"),
        ({"as": "hour-of-day"}, 1e9, "not_a_time"),
        ({"as": "hour-of-day", "unit": "s"}, 1e300, "not_a_time"),
        ({"as": "hour-of-day"}, "2" * 10_000, "not_a_time"),
        ({"as": "hour-of-day"}, "1767225600000", "not_a_time"),
        ({"as": "hour-of-day", "unit": "ms"}, "1e999", "not_a_time"),
        ({"as": "hour-of-day"}, "2026-11-23T07:00:00[Europe/Oslo]", "not_a_time"),
        ({"as": "number", "missing": 4.5, "missing_values": ["N/A"]}, "n.a.", "not_numeric"),
        ({"missing": 4.5, "missing_values": [1]}, True, "not_numeric"),
        ({"missing": 4.5, "missing_values": ["-"]}, [1], "not_numeric"),
    ],
)
def test_another_value_is_refused_with_its_reason(one: dict[str, Any], value: Any, reason: str) -> None:
    """Protects the model from unintended numbers, and the operator from a refusal without a reason."""
    with pytest.raises(BadRecord) as caught:
        features(one, value)
    assert caught.value.reason == reason
    assert caught.value.text.startswith("f is ")


def test_a_text_that_may_say_that_there_is_none_is_told_how_to_say_so() -> None:
    """Protects users with N/A in their topic: the reason names the setting. A badly written number does not
    get that hint."""
    with pytest.raises(BadRecord, match="missing_values"):
        features({"as": "number", "missing": "zero"}, "N/A")
    with pytest.raises(BadRecord, match=r"a number is expected$"):
        features({"as": "number", "missing": "zero"}, "21,5")


@pytest.mark.parametrize("kind", ["hour-of-day", "day-of-week"])
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize(
    "value",
    [
        "9999-12-31T23:59:59Z",
        "0001-01-01T00:00:00",
        1_767_225_600_000_000_000,
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ],
)
def test_a_time_that_is_too_far_is_refused_as_such(kind: str, zone: str, value: object) -> None:
    """Protects a worker from records that end it, and users whose systems write year 1 or 9999 for "none", or
    nanoseconds where milliseconds are declared: the reason is not how the time is written."""
    read_one = reader([{"field": "f", "as": kind, "unit": "ms", "zone": zone}], format="msgpack").decode
    with pytest.raises(BadRecord, match="a time from 0001-01-02 to 9999-12-30 is expected"):
        read_one(Record("t", 0, 0, b"c", msgspec.msgpack.encode({"f": value})))


def test_a_bucket_is_the_same_for_good() -> None:
    """Protects a federation's parameters: another hash in another release would assign them to other
    categories.

    Oracle: the last three bits of the output of `b2sum --length 64`.
    """
    of = {
        value: features({"as": "category", "buckets": 8}, value).index(1.0)
        for value in ("oslo", "bergen", "42", "")
    }
    assert of == {"oslo": 0x70 % 8, "bergen": 0x05 % 8, "42": 0x7A % 8, "": 0xB4 % 8}


def test_numbers_are_divided_and_the_rest_is_not() -> None:
    """Protects sines, flags and categories from a divisor that is meant for numbers."""
    inputs: Inputs = [
        {"field": "a", "missing": "mean", "indicator": True},
        {"field": "b", "as": "boolean"},
        {"field": "c", "missing": 6},
        {"field": "t", "as": "hour-of-day"},
    ]
    found = read(inputs, {"a": None, "b": True, "t": "2026-11-23T06:00:00Z"}, input_norm=2.0).features
    assert math.isnan(found[0])
    assert found[1:] == pytest.approx((1.0, 1.0, 3.0, 1.0, 0.0), abs=1e-12)


def test_one_field_may_be_several_inputs_and_paths_work_everywhere() -> None:
    """Protects the records of companies: nested fields, one time used twice, client and label within
    objects."""
    inputs: Inputs = [
        {"field": "meta.at", "as": "hour-of-day"},
        {"field": "meta.at", "as": "day-of-week"},
        {"field": "payload.readings[0].temp", "as": "number"},
        {"field": "meta.at", "as": "elapsed-seconds", "since_field": "meta.begun"},
        {"field": "meta.site", "as": "category", "values": ["oslo"]},
    ]
    content = {
        "meta": {"site": "oslo", "at": NOON, "begun": "2026-11-23T11:00:00Z", "id": 5},
        "payload": {"readings": [{"temp": "20"}]},
        "target": {"y": "1.5"},
    }
    found = read(
        inputs,
        content,
        client="meta.site",
        sample_id="meta.id",
        label="target.y",
        label_as="number",
        label_range=(1, 2),
    )
    assert (found.client, found.id, found.label) == ("oslo", "5", 0.5)
    assert found.features == pytest.approx((0, -1, 0, 1, 20, 3600, 1), abs=1e-12)
    with pytest.raises(
        BadRecord, match=r"payload\.readings\[0\]\.temp is missing: payload\.readings is a list of 0"
    ):
        read(inputs, content | {"payload": {"readings": []}}, client="meta.site")


@pytest.mark.parametrize("begun", ["N/A", 0, "0", None, math.nan, ""])
def test_a_time_to_count_from_can_be_missing_too(begun: Any) -> None:
    """Protects from fifty years of elapsed time for a missing start, and from a dead letter for a value that
    may be missing."""
    keys = {
        "field": "at",
        "as": "elapsed-seconds",
        "unit": "s",
        "since_field": "begun",
        "missing_values": ["N/A", 0],
    }
    content = {"at": 1767225600, "begun": begun}
    of = {
        missing: InputReader(InputSection(**{**keys, "missing": missing}), 1.0) for missing in (4.5, "reject")
    }
    assert of[4.5].numbers(content) == (4.5,)
    with pytest.raises(BadRecord, match="a time is expected") as caught:
        of["reject"].numbers(content)
    assert caught.value.reason == "missing_field"
    assert of["reject"].numbers(content | {"begun": 1767225540}) == (60.0,)


@pytest.mark.parametrize("text", ["", "  ", "NaN", "null"])
def test_a_label_that_says_nothing_leaves_a_sample_unlabelled(text: str) -> None:
    """Protects the sample's prediction: an empty text counts as no label, in JSON as in CSV, and is no reason
    for a refusal."""
    found = read([{"field": "f"}], {"f": 1, "y": text}, label="y", label_as="number")
    assert (found.features, found.label) == ((1.0,), None)
    with pytest.raises(BadRecord, match="y is"):
        read([{"field": "f"}], {"f": 1, "y": text}, label="y")
    with pytest.raises(BadRecord, match='label_as = "number"'):
        read([{"field": "f"}], {"f": 1, "y": "0.5"}, label="y")
    with pytest.raises(BadRecord, match=r"y is 'high'.*expected\."):
        read([{"field": "f"}], {"f": 1, "y": "high"}, label="y", label_as="number")


def test_the_short_form_takes_paths_too() -> None:
    """Protects the short form: features = [...] with nested names, and with a nested list."""
    section = SamplesSection(topic="t", features=["meta.a", "b"], label="meta.y")
    found = SampleReader(section).decode(Record("t", 0, 0, b"c", b'{"meta": {"a": 1, "y": 0.5}, "b": 2}'))
    assert (found.features, found.label) == ((1.0, 2.0), 0.5)
    listed = SamplesSection(topic="t", features="payload.x", dimension=2)
    assert SampleReader(listed).decode(Record("t", 0, 0, b"c", b'{"payload": {"x": [1, 2]}}')).features == (
        1.0,
        2.0,
    )
    with pytest.raises(BadRecord, match=r"payload\.x has the length 3, 2 is expected"):
        SampleReader(listed).decode(Record("t", 0, 0, b"c", b'{"payload": {"x": [1, 2, 3]}}'))


class Lines:
    """A format whose values are all text."""

    textual = True

    def decoder(self, type: Any) -> Any:
        return lambda value: dict(zip(["a", "t", "y"], value.decode().split(";"), strict=True))

    def encode(self, content: Any) -> bytes:
        raise NotImplementedError


def test_where_every_value_is_text_numbers_need_no_word() -> None:
    """Protects lines of text: 21.5 is a number there, in inputs, times and labels, and an empty field is
    missing."""
    section = SamplesSection(
        topic="t",
        inputs=[{"field": "a", "missing": "zero"}, {"field": "t", "as": "hour-of-day", "unit": "s"}],
        label="y",
    )
    read_line = SampleReader(section, Lines()).decode
    found = read_line(Record("t", 0, 0, b"c", b"21.5;21600;0.5"))
    assert (found.features, found.label) == (pytest.approx((21.5, 1, 0)), 0.5)
    found = read_line(Record("t", 0, 0, b"c", b";21600;"))
    assert (found.features, found.label) == (pytest.approx((0, 1, 0)), None)
    short = SampleReader(SamplesSection(topic="t", features=["a"], label="y"), Lines())
    assert short.decode(Record("t", 0, 0, b"c", b"21.5;;0.5")).features == (21.5,)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([{"field": "a"}, {"field": "a"}], "twice"),
        ([{"field": "a", "indicator": True}], "indicator has no meaning"),
        ([{"field": "a", "as": "category"}], "values is expected"),
        ([{"field": "a", "as": "category", "values": ["x"], "buckets": 3}], "one of the two"),
        ([{"field": "a", "as": "category", "values": ["x", "x"]}], "none may come twice"),
        ([{"field": "a", "as": "category", "values": ["x"], "missing": "mean"}], "missing = 'mean'"),
        ([{"field": "a", "as": "hour-of-day", "missing": 3}], "missing = 3"),
        ([{"field": "a", "values": ["x"]}], "no meaning"),
        ([{"field": "a", "unit": "s"}], "no meaning"),
        ([{"field": "a", "as": "hour-of-day", "zone": "Mars/Olympus"}], "Europe/Oslo"),
        ([{"field": "a", "as": "elapsed-seconds"}], "since is expected"),
        ([{"field": "a", "as": "elapsed-seconds", "since": "then"}], "ISO 8601"),
        ([{"field": "a..b"}], "path"),
        ([{"field": "a", "missing": True}], "number is expected"),
        ([{"field": "a", "missing": math.inf}], "finite"),
        (
            [{"field": "a", "missing": "mean", "missing_values": ["-", True]}],
            "texts and numbers are expected",
        ),
        ([{"field": "a", "as": "text"}], "number"),
        ([], "at least 1"),
    ],
)
def test_inputs_that_cannot_work_are_refused_at_the_start(inputs: Inputs, text: str) -> None:
    """Protects the operator: a mistake is reported before any record is read."""
    with pytest.raises(ValidationError, match=text):
        SamplesSection(topic="t", inputs=inputs)


def test_a_slip_in_a_table_is_told_by_its_place(tmp_path: Path) -> None:
    """Protects the message: it names the table's number and the key as in the file."""
    path = tmp_path / "client.toml"
    base = (
        '[federation]\nname="f"\nclients=2\n[role]\nkind="pofmkl-client"\n'
        '[samples]\ntopic="t"\n[[samples.inputs]]\nfield="a"\n'
    )
    path.write_text(base + 'kind="number"\n')
    with pytest.raises(ConfigurationError, match=r"samples\.inputs\.0\.kind is not known.*\bas\b"):
        load_settings(path, PofmklSettings)
    path.write_text(base + 'as="hours"\n')
    with pytest.raises(
        ConfigurationError, match=r"samples\.inputs\.0\.as= 'hours'|samples\.inputs\.0\.as = 'hours'"
    ):
        load_settings(path, PofmklSettings)


def test_what_is_to_be_predicted_is_no_input() -> None:
    """Protects from a model that gets the label as an input."""
    with pytest.raises(ConfigurationError, match="two meanings"):
        reader([{"field": "m.y"}], label="m.y")
    with pytest.raises(ValidationError, match="leave one of them out"):
        reader([{"field": "a"}], features=["b"])


@pytest.mark.parametrize("features", [[], ["a", "b", "a"]])
def test_fields_that_are_missing_or_named_twice_are_a_mistake_of_every_section(features: list[str]) -> None:
    """Protects a party from a traceback at the start: the mistake was found only where a reader was built,
    not with the settings."""
    for section in (SamplesSection, EntitySamplesSection):
        with pytest.raises(ValidationError, match="none twice"):
            section(topic="t", features=features)


@pytest.mark.parametrize("missing", ["mean", "last"])
def test_a_party_and_a_role_without_means_refuse_them(missing: str) -> None:
    """Protects a party's ledger: with a mean over entities, each entity would change what is released about
    the others."""
    inputs: Inputs = [{"field": "a", "missing": missing}]
    with pytest.raises(ValidationError, match="no earlier values"):
        EntitySamplesSection(topic="t", inputs=inputs)
    with pytest.raises(ConfigurationError, match="knows no client"):
        SampleReader(SamplesSection(topic="t", inputs=inputs))
    party = EntitySamplesSection(
        topic="t", inputs=[{"field": "a.b", "missing": "zero"}], entity="who", key="int64"
    )
    assert (party.width, party.input_names) == (1, ["a.b"])
    found = SampleReader(party.samples).decode(Record("t", 0, 0, None, b'{"who": 3, "a": {}}'))
    assert (found.client, found.features) == ("3", (0.0,))


def settings(samples: dict[str, Any], **federation: Any) -> PofmklSettings:
    return PofmklSettings(
        federation={"name": "f", "clients": 2, **federation},
        role={"kind": "pofmkl-client"},
        samples={"topic": "t", **samples},
    )


def test_state_goes_on_where_the_numbers_mean_the_same() -> None:
    """Protects state from another meaning, but does not refuse it for a change in how bytes are read."""
    short = client_state_settings(settings({"features": ["a", "b"]}))
    remembered = json.loads(short.encode())
    assert not {
        key for key in remembered if key.startswith(("samples.inputs", "samples.key", "samples.label_as"))
    }
    same = {
        "inputs": [{"field": "a", "as": "number", "missing": "zero"}, {"field": "b"}],
        "label_as": "number",
    }
    assert client_state_settings(settings(same)).compare(remembered) == ([], [])
    other = client_state_settings(
        settings({"inputs": [{"field": "a", "missing": "mean"}, {"field": "b"}], "key": "int64"})
    )
    assert {one.key for one in other.compare(remembered)[0]} == {"samples.features", "samples.client"}


def test_inputs_are_counted_as_the_federation_counts_them() -> None:
    """Protects the model: a server with two inputs, and a client whose category became five inputs."""
    samples = {"inputs": [{"field": "a"}, {"field": "c", "as": "category", "buckets": 4}]}
    assert settings(samples, features=5).samples is not None
    with pytest.raises(ValidationError, match=r"samples\.inputs gives 5 inputs, federation\.features says 2"):
        settings(samples, features=["a", "c"])


def test_other_formats_may_lack_values_too() -> None:
    """Protects MessagePack, which has NaN: it counts as missing, as in JSON."""
    read_one = reader([{"field": "a", "missing": "zero"}], format="msgpack").decode
    for content in ({"a": math.nan}, {"a": None}, {}):
        assert read_one(Record("t", 0, 0, b"c", msgspec.msgpack.encode(content))).features == (0.0,)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.datetimes(timezones=st.just(UTC))
    | st.sampled_from(["NaN", "1e999", NOON, "9999-12-31", "0001-01-01", "21.5"])
    | st.sampled_from([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)
EVERY_KIND: Inputs = [
    {"field": "a.b", "as": "number", "missing": "mean"},
    {"field": "b[0]", "missing": 3, "indicator": True},
    {"field": "b", "as": "boolean", "missing": "zero"},
    {"field": "c", "as": "category", "buckets": 3, "missing": "zero"},
    {"field": "a", "as": "hour-of-day", "unit": "ms", "zone": "Europe/Oslo", "missing": "zero"},
    {"field": "c", "as": "day-of-week", "missing": "zero"},
    {"field": "a.c", "as": "elapsed-seconds", "since_field": "b", "unit": "us", "missing": "last"},
]


# The first draws are slow, and the machine may be busy.
@hypothesis.settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["a", "b", "c", "y", "id"]), ANYTHING))
def test_whatever_is_in_a_record_it_is_read_or_refused(content: dict[str, Any]) -> None:
    """Protects a worker from a record that ends it: any value becomes numbers within bounds, or a refusal
    with a reason."""
    read_one = reader(EVERY_KIND, sample_id="id", label="y", label_as="number", format="msgpack")
    try:
        value = msgspec.msgpack.encode(content)
    except OverflowError:
        return
    try:
        found = read_one.decode(Record("t", 0, 0, b"c", value))
    except BadRecord:
        return
    assert len(found.features) == read_one.dimension
    lacking = {place for place, number in enumerate(found.features) if math.isnan(number)}
    assert lacking <= set(read_one.means)
    assert sum(abs(number) for number in found.features if number == number) < 1e18


@pytest.mark.parametrize(
    "value",
    [
        b'\xef\xbb\xbf{"a": 3, "y": 0.5}',
        '{"a": 3, "y": 0.5}'.encode("utf-16"),
        b'{"a": 3, "y": 0.5, "note": "\\ud800"}',
    ],
    ids=["byte order mark", "UTF-16", "half a surrogate in a field that nobody reads"],
)
def test_whether_a_record_is_read_does_not_follow_from_how_inputs_are_named(value: bytes) -> None:
    """Protects a topic: a list of names as features refused what [[samples.inputs]] and their labels took."""
    record = Record("t", 0, 0, b"c", value)
    for named in ({"features": ["a"]}, {"inputs": [InputSection(field="a")]}):
        found = SampleReader(SamplesSection(**{"topic": "t", "label": "y", **named})).decode(record)
        assert (found.features, found.label) == ((3.0,), 0.5)
    labels = LabelReader(LabelsSection(topic="t", sample_id="a", label="y"), (0.0, 1.0))
    assert labels.decode(record).label == 0.5
