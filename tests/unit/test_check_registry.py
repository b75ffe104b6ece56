"""``streamfl check`` with a schema registry that knows some schemas."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import Command
from registry import serving
from streamfl_connectors.avro import AvroSchema
from streamfl_connectors.framing import framed

from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.memory_bus import MemoryBus

CLIENT = """
[federation]
name = "plant"
clients = 5
[bus]
url = "{url}"
[role]
kind = "pofmkl-client"
[learning]
features_per_kernel = 4
[samples]
topic = "readings"
format = "avro"
client = "site"
features = ["temp"]
[registry]
url = "{registry}"
"""
SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "site", "type": "string"}, {"name": "temp", "type": ["null", "double"]}],
}


def test_one_unknown_schema_does_not_hide_what_else_is_wrong(tmp_path: Path, command: Command) -> None:
    """Protects the search for refused records' causes: one record of an unknown schema must not hide the
    others' findings."""
    bus = MemoryBus.at(f"memory://{tmp_path.name}")
    bus.create([TopicSpec("readings", 1, compacted=False)])
    written = AvroSchema(json.dumps(SCHEMA))
    with serving() as registry:
        number = registry.add(SCHEMA)
        good = framed(number, written.write({"site": "north", "temp": 0.5}))
        unknown, empty = framed(99, b"\0"), framed(number, written.write({"site": "north", "temp": None}))
        bus.write([Outgoing("readings", b"north", value) for value in (good, unknown, good, empty, good)])
        config = tmp_path / "client.toml"
        config.write_text(CLIENT.format(url=f"memory://{tmp_path.name}", registry=registry.url))
        assert command("topics", config, "--create")[0] == 0
        code, out, _ = command("check", config, "--format", "json")
    [found] = [one for one in json.loads(out)["checks"] if one["check"] == "records of readings"]
    assert code == 4
    assert found["detail"].startswith("3 of 5 records readable; the schema registry")
    assert "does not know the schema 99 yet" in found["detail"]
    assert "readings-0-3 not_numeric: temp is null" in found["detail"]
    assert "[registry]" in found["remedy"]
    assert "dead-letters" in found["remedy"]


def test_a_registry_that_is_away_is_a_finding_where_only_predictions_need_it(
    tmp_path: Path, command: Command
) -> None:
    """Protects operators from a traceback, with exit code 1, in place of what is wrong."""
    url = f"memory://{tmp_path.name}"
    bus = MemoryBus.at(url)
    bus.create([TopicSpec("readings", 1, compacted=False)])
    bus.write([Outgoing("readings", b"north", b'{"site": "north", "temp": 0.5}')])
    with serving() as registry:
        address = registry.url
    config = tmp_path / "client.toml"
    config.write_text(
        CLIENT.replace('"avro"', '"json"').format(url=url, registry=address)
        + '[predictions]\nformat = "avro"\n'
    )
    assert command("topics", config, "--create")[0] == 0
    code, out, _ = command("check", config, "--format", "json")
    [found] = [one for one in json.loads(out)["checks"] if one["check"] == "what it would write"]
    assert code == 4
    assert "cannot be asked" in found["detail"]
    assert "[registry]" in found["remedy"]


def test_a_command_that_needs_a_registry_that_is_away_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Protects scripts that try again on exit code 3: `write` ended with a traceback and exit code 1."""
    url = f"memory://{tmp_path.name}"
    MemoryBus.at(url).create([TopicSpec("readings", 1, compacted=False)])
    with serving() as registry:
        address = registry.url
    config = tmp_path / "client.toml"
    config.write_text(CLIENT.format(url=url, registry=address))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b'{"site": "north", "temp": 1}')))
    code, _, told = command("write", config)
    assert code == 3
    assert "cannot be asked" in told
