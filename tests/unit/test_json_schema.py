"""JSON that is validated by a schema, from a registry or from a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from registry import FakeRegistry, serving
from streamfl_connectors.framing import framed

from streamfl.contract.role import BadRecord, ConfigurationError, Record
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.roles import ROLES
from streamfl.records.formats import format_of
from streamfl.records.samples import SampleReader, SamplesSection
from streamfl.records.topic import RegistrySection, TopicSection

READING = {
    "type": "object",
    "required": ["site"],
    "properties": {
        "site": {"type": "string", "maxLength": 8},
        "x": {"type": "number", "minimum": 0},
        "rows": {"items": {"type": "null"}},
    },
}


@pytest.fixture(name="served")
def _served() -> Iterator[FakeRegistry]:
    with serving() as registry:
        yield registry


def section(served: FakeRegistry, **keys: Any) -> SamplesSection:
    registry = RegistrySection(url=served.url)
    return SamplesSection(
        topic="t",
        format="json-schema",
        check_schema=True,
        registry=registry,
        client="site",
        features=["x"],
        **keys,
    )


def record(value: bytes) -> Record:
    return Record("t", 0, 0, None, value)


def test_what_the_schema_refuses_is_told_by_its_place(served: FakeRegistry) -> None:
    """Protects a model from records that violate their own schema, and tells their writers where."""
    number = served.add(READING, "JSON")
    reader = SampleReader(section(served))
    assert reader.decode(record(framed(number, b'{"site": "north", "x": 0.5}'))).features == (0.5,)
    for content, text in (
        (b'{"x": 0.5}', r'refuses the record: "site" is a required property'),
        (b'{"site": "north", "x": -1}', r"refuses x: its value is less than the minimum of 0"),
        (b'{"site": "north", "x": 1, "rows": [null, 2]}', r"refuses rows\[1\]: its value is not of type"),
    ):
        with pytest.raises(BadRecord, match=text):
            reader.decode(record(framed(number, content)))
    long = b'{"site": "%s", "x": 1}' % (b"n" * 100_000)
    with pytest.raises(BadRecord) as refused:
        reader.decode(record(framed(number, long)))
    assert len(refused.value.text) < 400
    for value, text in (
        (b'{"site": "north", "x": 1}', "names no schema"),
        (framed(number, b'{"site'), "malformed"),
    ):
        with pytest.raises(BadRecord, match=text):
            reader.decode(record(value))
    assert [path for path in served.asked if path.endswith(f"/{number}")] == [f"/schemas/ids/{number}"]


def test_what_streamfl_writes_can_be_read_again(served: FakeRegistry) -> None:
    """Protects assembled samples and lines from a terminal: they name the schema that validates them."""
    number = served.add(READING, "JSON", "t-value")
    format = format_of(section(served))
    value = format.encode({"site": "north", "x": 1})
    assert value[:5] == framed(number, b"")
    assert SampleReader(section(served), format).decode(record(value)).features == (1.0,)


def test_nothing_is_fetched_but_what_the_registry_refers_to(served: FakeRegistry) -> None:
    """Protects the worker's network and files from a schema: references are only read from the registry."""
    served.add({"type": "number", "maximum": 1}, "JSON", "common")
    inner = [{"name": "common.json", "subject": "common", "version": 1}]
    outer = {"$id": f"{served.url}/reading.json", "properties": {"x": {"$ref": "common.json"}}}
    reader = SampleReader(section(served))
    number = served.add(outer, "JSON", references=inner)
    good, bad = (framed(number, b'{"site": "north", "x": %d}' % value) for value in (1, 2))
    assert reader.decode(record(good)).features == (1.0,)
    with pytest.raises(BadRecord, match="refuses x: its value is greater than the maximum of 1"):
        reader.decode(record(bad))
    asked = len(served.asked)
    for address in (f"{served.url}/secret.json", "file:///etc/passwd", "other.json"):
        number = served.add({"$ref": address}, "JSON")
        with pytest.raises(BadRecord, match=r"unknown_schema.*this JSON Schema cannot validate records"):
            reader.decode(record(framed(number, b'{"site": "north", "x": 1}')))
    assert [path for path in served.asked[asked:] if not path.startswith("/schemas/ids/")] == []
    number = served.add('"double"', "AVRO")
    with pytest.raises(BadRecord, match="kind AVRO"):
        reader.decode(record(framed(number, b'{"site": "north", "x": 1}')))


def test_a_pattern_takes_no_longer_than_its_text(served: FakeRegistry) -> None:
    """Protects the worker from a text made for a pattern of its schema: with back-tracking it would take for
    ever.

    So patterns that need back-tracking are refused.
    """
    number = served.add({"properties": {"site": {"pattern": "^(a+)+$"}}}, "JSON")
    with pytest.raises(BadRecord, match="does not match"):
        SampleReader(section(served)).decode(
            record(framed(number, b'{"x": 1, "site": "%s!"}' % (b"a" * 10_000)))
        )
    number = served.add({"properties": {"site": {"pattern": "(?=a)b"}}}, "JSON")
    with pytest.raises(BadRecord, match="unknown_schema"):
        SampleReader(section(served)).decode(record(framed(number, b'{"x": 1, "site": "b"}')))


def test_a_file_serves_records_with_and_without_a_number(served: FakeRegistry, tmp_path: Path) -> None:
    """Protects topics whose schema is in no registry: the file is used, whatever precedes a record."""
    path = tmp_path / "reading.json"
    path.write_bytes(msgspec.json.encode(READING))
    reader = SampleReader(section(served, schema_file=str(path)))
    content = b'{"site": "north", "x": 1}'
    assert reader.decode(record(content)) == reader.decode(record(framed(7, content)))
    with pytest.raises(BadRecord, match="minimum"):
        reader.decode(record(content.replace(b"1", b"-1")))
    assert served.asked == []
    path.write_text('{"type": "nothing"}')
    with pytest.raises(
        ConfigurationError, match=r"samples.schema_file = .*this JSON Schema cannot validate records"
    ):
        SampleReader(section(served, schema_file=str(path)))


def test_what_cannot_be_checked_is_told_at_the_start() -> None:
    """Protects users who believe that records are checked, but give no schema."""
    for keys, text in (
        ({"format": "json-schema", "check_schema": True}, "where is the schema"),
        ({"format": "json-schema", "schema_file": "s.json"}, "check_schema = true alone"),
        ({"format": "json", "check_schema": True}, "check_schema has no meaning"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            format_of(TopicSection(topic="t", **keys))


def test_checking_is_no_part_of_the_state(served: FakeRegistry) -> None:
    """Protects a federation that begins to check: its state stays valid."""

    def state_settings(**keys: Any) -> Any:
        settings = PofmklSettings.model_validate(
            {
                "federation": {"name": "f", "clients": 1},
                "role": {"kind": "pofmkl-client"},
                "samples": {
                    "topic": "t",
                    "format": "json-schema",
                    "client": "site",
                    "features": ["x"],
                    "label": "y",
                    **keys,
                },
            }
        )
        return ROLES["pofmkl-client"].state_settings(settings)

    assert (
        state_settings(check_schema=True, registry={"url": served.url}).encode() == state_settings().encode()
    )
