"""Records as companies write them, on a real broker: nested, with int64 keys, text, times, categories and
gaps."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from broker import Broker
from command_line import run_command
from scraped import scraped

from streamfl.configuration.settings import load_settings
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Outgoing, connect
from streamfl.runtime.kinds import build_worker

CONFIGURATION = """
[federation]
name = "{name}"
clients = 5
features = 8
[bus]
url = "{url}"
commit_interval_ms = 0
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}-readings"
key = "int64"
sample_id = "meta.id"
[[samples.inputs]]
field = "payload.readings[0].temp"
as = "number"
missing = "mean"
indicator = true
[[samples.inputs]]
field = "meta.at"
as = "hour-of-day"
[[samples.inputs]]
field = "payload.kind"
as = "category"
values = ["pump", "fan"]
missing = "zero"
[[samples.inputs]]
field = "payload.on"
as = "boolean"
[[samples.inputs]]
field = "payload.volts"
missing = 230
[labels]
topic = "{name}-results"
client = "about.site"
sample_id = "about.id"
label = "value"
label_as = "number"
[learning]
features_per_kernel = 4
staleness = "async"
"""


def sample(number: int) -> dict[str, Any]:
    readings = [] if number % 3 == 1 else [{"temp": f"{20 + number % 5}.5"}]
    payload = {"readings": readings, "kind": ["pump", "fan", None][number % 3], "on": number % 2 == 0}
    return {"meta": {"id": number, "at": f"2026-11-23T{number % 24:02}:30:00Z"}, "payload": payload}


def test_records_are_read_as_they_are(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects an unchanged topic: every good record is predicted once, also by a second worker that restores
    the means. Each label finds its sample, and each bad record becomes a dead letter with the full path in
    its reason.
    """
    name = f"plant-{uuid.uuid4().hex[:8]}"
    config = tmp_path / "client.toml"
    config.write_text(CONFIGURATION.format(name=name, url=broker.url))
    settings = load_settings(config, PofmklSettings)
    assert run_command(monkeypatch, capsys, "topics", config, "--create-inputs", "--partitions", 4)[0] == 0

    def key(number: int) -> bytes:
        return (number % 5).to_bytes(8, "big")

    def readings(numbers: range) -> list[Outgoing]:
        return [
            Outgoing(f"{name}-readings", key(number), json.dumps(sample(number)).encode())
            for number in numbers
        ]

    def labels(numbers: range) -> list[Outgoing]:
        made = [
            {"about": {"site": number % 5, "id": number}, "value": f"0.{number % 10}"} for number in numbers
        ]
        return [
            Outgoing(f"{name}-results", key(number), json.dumps(label).encode())
            for number, label in zip(numbers, made, strict=True)
        ]

    bad = [
        (key(0), {**sample(0), "meta": {"id": "late"}}, "meta.at is missing: meta is an object without it"),
        (
            key(0),
            {**sample(0), "payload": {"on": "perhaps"}},
            "payload.on is 'perhaps', true or false is expected",
        ),
        (b"0", sample(0), 'the record key has 1 bytes, key = "int64" has 8'),
    ]
    with closing(connect(broker.url)) as bus:
        for first in (0, 30):
            numbers = range(first, first + 30)
            bus.write(readings(numbers))
            bus.write(labels(numbers))
            if not first:
                bus.write(
                    [
                        Outgoing(f"{name}-readings", its_key, json.dumps(content).encode())
                        for its_key, content, _ in bad
                    ]
                )
            with closing(build_worker(settings, bus)) as worker:
                deadline = time.monotonic() + 60
                came = float(63 if not first else 60)
                while scraped(worker.metrics.render().decode(), "records_total") != came:
                    assert time.monotonic() < deadline, worker.metrics.render().decode()
                    worker.step(0.2)
                figures = worker.metrics.render().decode()
                assert scraped(figures, "filled_inputs_total") == 10
                assert scraped(figures, "samples_without_label") == 0
        predictions = [json.loads(record.value or b"") for record in bus.read(f"{name}.predictions")]
        assert sorted(int(one["sample"]) for one in predictions) == list(range(60))
        letters = [dict(letter.headers)["text"].decode() for letter in bus.read(f"{name}.dead-letters")]
        assert sorted(letters) == sorted(text for _, _, text in bad)
