"""The commands that write, read, look and begin anew, on a real broker with both Kafka clients."""

from __future__ import annotations

import io
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from broker import Broker
from command_line import run_command

import streamfl
from streamfl.configuration.settings import load_settings
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Bus, connect
from streamfl.runtime.kinds import build_worker

FEDERATION = """
[federation]
name = "{name}"
clients = 3
features = ["x"]
[bus]
url = "{url}"
commit_interval_ms = 0
[role]
kind = "pofmkl-{role}"
[learning]
features_per_kernel = 4
"""
SAMPLES = """
[samples]
topic = "{name}-readings"
client = "site"
label = "y"
"""
SITES, EACH = ("north", "south", "east"), 10


def work(bus: Bus, *configurations: Path, done: Callable[[], bool]) -> None:
    """Let workers of these roles go round until all is done, and a little longer."""
    workers = [build_worker(load_settings(path, PofmklSettings), bus) for path in configurations]
    deadline = time.monotonic() + 60
    try:
        while not done():
            assert time.monotonic() < deadline
            for worker in workers:
                worker.step(0.1)
    finally:
        for worker in workers:
            worker.close()


@pytest.mark.parametrize("scheme", ["kafka"])
def test_a_backfill_on_a_real_broker(
    scheme: str,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects a reset where offsets are Kafka's: state and offsets change in one transaction, every sample
    is predicted again, once, and what the commands show is what is there.
    """
    name, url = f"plant-{uuid.uuid4().hex[:8]}", f"{scheme}://{broker.address}"
    client, server = tmp_path / "client.toml", tmp_path / "server.toml"
    client.write_text((FEDERATION + SAMPLES).format(name=name, url=url, role="client"))
    server.write_text(FEDERATION.format(name=name, url=url, role="server"))

    def said(*arguments: object, stdin: str = "") -> str:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin.encode())))
        code, out, error = run_command(monkeypatch, capsys, *arguments)
        assert code == 0, error
        return out

    def predictions() -> Counter[str]:
        return Counter(
            one["sample"] for one in map(json.loads, said("read", client, "--format", "json").splitlines())
        )

    said("topics", client, "--create-inputs", "--partitions", 2)
    said("topics", server, "--create")
    rows: list[dict[str, Any]] = [
        {"site": site, "x": n / EACH, "y": n / EACH} for n in range(EACH) for site in SITES
    ]
    said("write", client, stdin="\n".join(map(json.dumps, rows)))
    with closing(connect(url)) as bus:
        work(bus, client, server, done=lambda: predictions().total() >= len(rows))
        assert set(predictions().values()) == {1}
        found = json.loads(said("inspect", client, "--format", "json"))
        assert {one["client"]: one["samples"] for one in found["clients"]} == dict.fromkeys(SITES, EACH)
        assert sum(one["behind"] for one in found["inputs"]) == 0
        shown = json.loads(said("top", client, "--count", 1, "--format", "json"))["topics"]
        records = {one["topic"]: one["records"] for one in shown}
        assert records[f"{name}-readings"] == records[f"{name}.predictions"] == len(rows)
        said("reset", server, "--all")
        said("reset", client, "--all")
        said("check", client)
        work(bus, client, server, done=lambda: predictions().total() >= 2 * len(rows))
        assert set(predictions().values()) == {2}
        said("reset", client, "--client", SITES[0], "--to", "earliest")
        assert predictions().total() == 2 * len(rows) + EACH
        work(bus, client, done=lambda: True)
        offsets = bus.committed(f"{name}.pofmkl-client")
        ends = bus.offsets(f"{name}-readings", float("inf"))
        assert {partition: offset for (_, partition), offset in offsets.items()} == {
            p: end for p, end in ends.items() if end
        }
    with streamfl.connect(url) as connection:
        following = connection.follow(f"{name}-readings", patience=20)
        connection.write(f"{name}-readings", [{"site": "north", "x": 0.5}], key="site")
        assert next(following).value == {"site": "north", "x": 0.5}
