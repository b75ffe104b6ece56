"""The rows of docs/will-my-topic-work.md that need no schema registry: each works on a real broker by
configuration alone."""

from __future__ import annotations

import json
import re
import tomllib
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest
from broker import Broker
from command_line import run_command
from page_commands import page_text
from scraped import scraped

from streamfl.cli.preflight import read_configuration
from streamfl.cli.rekey import rekeyings
from streamfl.configuration.settings import load_settings
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.worker import Worker

PAGE = page_text("will-my-topic-work.md", "Records like yours")
SITES = ("north", "south", "east", "west", "centre")
COUNT = 60
BASE = """
[federation]
name = "{name}"
clients = 5
[bus]
url = "{url}"
commit_interval_ms = 0
[role]
kind = "pofmkl-client"
[learning]
# What is tried here needs no server, so that no backlog may wait for one.
catch_up_samples = 0
features_per_kernel = 4
"""


@dataclass(frozen=True)
class Kind:
    """Records of one kind.

    write: returns a record's key and value by its number.

    bad: a bad record and the text of its dead letter.
    partitions: of the topic.
    label: returns key and value of a label on a topic of its own.
    """

    write: Callable[[int], tuple[bytes | None, bytes]]
    bad: tuple[bytes | None, bytes, str]
    partitions: int = 3
    label: Callable[[int], tuple[bytes, bytes]] | None = None


def site(number: int) -> str:
    return SITES[number % 5]


def flat(number: int) -> dict[str, Any]:
    return {"site": site(number), "id": f"r{number}", "temp": number % 7 / 7, "hum": 0.5, "load": number % 2}


def as_json(content: object, key: bytes | None = b"") -> tuple[bytes | None, bytes]:
    if key == b"" and isinstance(content, dict):
        key = content["site"].encode()
    return key, json.dumps(content).encode()


def nested(number: int) -> dict[str, Any]:
    one = flat(number)
    readings = [{"temp": one["temp"]}, {"hum": one["hum"]}]
    return {
        "meta": {"site": one["site"], "id": one["id"]},
        "payload": {"readings": readings, "load": one["load"]},
    }


def with_time(number: int) -> dict[str, Any]:
    return {**flat(number), "at": f"2026-11-{1 + number % 28:02}T{number % 24:02}:30:00+01:00"}


def without(field: str, number: int) -> dict[str, Any]:
    return {name: value for name, value in flat(number).items() if name != field}


def labelled_apart(number: int) -> tuple[bytes, bytes]:
    """Keyed by order, not by site."""
    return b"order-%d" % number, json.dumps(
        {"site": site(number), "id": f"r{number}", "load": number % 2}
    ).encode()


NORTH = b"north"
KINDS: dict[str, Kind] = {
    "Flat JSON, keyed by site": Kind(lambda n: as_json(flat(n)), (NORTH, b'{"temp"', "Expecting")),
    "MessagePack": Kind(
        lambda n: (site(n).encode(), msgspec.msgpack.encode(flat(n))),
        (NORTH, b'{"temp": 1}', "MessagePack data is malformed"),
    ),
    "Nested JSON": Kind(
        lambda n: as_json(nested(n), site(n).encode()),
        (NORTH, json.dumps({**nested(0), "payload": {"readings": []}}).encode(),
        "payload.readings[0].temp is missing"),
    ),
    "Times in ISO 8601": Kind(
        lambda n: as_json(with_time(n)), (*as_json({**with_time(0), "at": "yesterday"}), "at is 'yesterday'")
    ),
    "Text as categories": Kind(
        lambda n: as_json({**flat(n), "hum": ("dry", "damp", "wet")[n % 3]}),
        (*as_json({**flat(0), "hum": [1]}), "hum is [1]"),
    ),
    "Nulls and fields that are absent": Kind(
        lambda n: as_json({**flat(n), "temp": None} if n % 3 else without("hum", n)),
        (*as_json({**flat(0), "temp": "none"}), "temp is 'none'"),
    ),
    "Numbers as text": Kind(
        lambda n: as_json({**flat(n), "temp": f"{n % 7}.5", "load": f"{n % 2}"}),
        (*as_json({**flat(0), "temp": "21,5"}), "temp is '21,5'"),
    ),
    "Keys that are binary numbers": Kind(
        lambda n: as_json(flat(n), (n % 5).to_bytes(8, "big")),
        (*as_json(flat(0), b"0"), "the record key has 1 bytes")
    ),
    "No id in the record": Kind(
        lambda n: as_json(without("id", n)),
        (NORTH, b"[]", "an object with named fields is expected"),
    ),
    "Keyed by something else, or without a key": Kind(
        lambda n: as_json(flat(n), b"order-%d" % n if n % 2 else None),
        (*as_json({"temp": 1}, b"order"), "site is missing"),
    ),
    "Labels on a topic of their own": Kind(
        lambda n: as_json(flat(n)), (*as_json({**flat(0), "temp": "x"}), "temp is 'x'"), 2,
        label=lambda n: (site(n).encode(), labelled_apart(n)[1]),
    ),
    "Labels that are keyed otherwise": Kind(
        lambda n: as_json(flat(n)), (*as_json({**flat(0), "temp": "x"}), "temp is 'x'"), 2,
        label=labelled_apart
    ),
    "One partition": Kind(lambda n: as_json(flat(n)), (NORTH, b"", "Expecting value"), 1),
    "Twelve partitions": Kind(lambda n: as_json(flat(n)), (NORTH, b"", "Expecting value"), 12),
}  # fmt: skip


def configured(title: str) -> str:
    """The page's settings for this kind."""
    found = re.search(rf"^### {re.escape(title)}\n.*?```toml\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"the page has no section {title!r}"
    assert "\n### " not in found[0], f"the section {title!r} has no configuration"
    return found[1]


def test_every_row_of_the_page_is_tried() -> None:
    """Protects the page from an untested kind. Formats and samples in several records have their own
    files."""
    elsewhere = {"Avro", "Protobuf", "JSON Schema", "CSV", "Debezium", "One sensor a record"}
    assert set(re.findall("^### (.*)", PAGE, re.MULTILINE)) == KINDS.keys() | elsewhere
    # Each row of the table links to its section.
    assert len(re.findall(r"^\| \[", PAGE, re.MULTILINE)) == len(KINDS.keys() | elsewhere)


@pytest.mark.parametrize("title", re.findall("^### (.*)", PAGE, re.MULTILINE))
def test_what_the_page_says_can_be_loaded(title: str) -> None:
    """Protects users who copy from the page: each block has valid settings."""
    PofmklSettings(**tomllib.loads(BASE.format(name="plant", url="memory://plant") + configured(title)))


def work_off(workers: list[Worker], bus: Bus, name: str) -> None:
    """Let the workers run until they have written all their output."""
    deadline = monotonic() + 60
    # Every worker steps in every round: any() of a generator would skip some.
    while (
        sum([worker.step(0.1) for worker in workers])
        or sum(1 for _ in bus.read(f"{name}.predictions")) < COUNT
    ):
        assert monotonic() < deadline, list(bus.read(f"{name}.dead-letters"))


@pytest.mark.parametrize("title", KINDS)
def test_a_topic_works(
    title: str,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects an unchanged topic: each good record is predicted once, each bad one is dead-lettered with its
    reason."""
    kind, name = KINDS[title], f"plant-{uuid.uuid4().hex[:8]}"
    # The page's topics, renamed to names that no other test uses.
    own = re.sub('topic = "(.*?)"', rf'topic = "{name}-\1"', configured(title))
    config = tmp_path / "client.toml"
    config.write_text(BASE.format(name=name, url=broker.url) + own)
    settings = load_settings(config, PofmklSettings)
    asked = ("--create", "--create-inputs", "--partitions", kind.partitions)
    with closing(connect(broker.url)) as bus:
        others = rekeyings(read_configuration(config))
        assert run_command(monkeypatch, capsys, "topics", config, *asked)[0] == 0
        records = [Outgoing(f"{name}-readings", *kind.write(number)) for number in range(COUNT)]
        records.insert(7, Outgoing(f"{name}-readings", *kind.bad[:2]))
        if kind.label is not None:
            records += [Outgoing(f"{name}-results", *kind.label(number)) for number in range(COUNT)]
        bus.write(records)
        workers = [build_worker(one.settings, bus, kind=one.kind) for one in others] + [
            build_worker(settings, bus)
        ]
        work_off(workers, bus, name)
        figures = workers[-1].metrics.render().decode()
        for worker in workers:
            worker.close()
        predicted = [json.loads(record.value or b"") for record in bus.read(f"{name}.predictions")]
        letters = [dict(letter.headers)["text"].decode() for letter in bus.read(f"{name}.dead-letters")]
    assert len(predicted) == len({(one["client"], one["sample"]) for one in predicted}) == COUNT
    assert len({one["client"] for one in predicted}) == len(SITES)
    assert len(letters) == 1
    assert kind.bad[2] in letters[0]
    assert scraped(figures, "labels_total") == COUNT
