"""``streamfl reset`` of clients and server, and what the page on backfills says of it."""

from __future__ import annotations

import io
import json
import math
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import run_command

from streamfl.cli.preflight import read_configuration
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

FEDERATION = """
[federation]
name = "plant"
seed = 7
clients = 4
features = ["x"]
[bus]
url = "memory://{name}"
connect_timeout_seconds = 0.5
[role]
kind = "pofmkl-{role}"
[learning]
features_per_kernel = 4
"""
SAMPLES = """
[samples]
topic = "readings"
client = "device"
label = "y"
"""


class Plant:
    """A server and clients on a memory bus, and the command line beside them."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._run = lambda *arguments: run_command(monkeypatch, capture, *arguments)
        self.bus = MemoryBus.at(f"memory://{folder.name}")
        self.client, self.server = folder / "client.toml", folder / "server.toml"
        self.client.write_text(FEDERATION.format(name=folder.name, role="client") + SAMPLES)
        self.server.write_text(FEDERATION.format(name=folder.name, role="server"))
        self.command("topics", self.client, "--create-inputs", "--partitions", 2)
        self.command("topics", self.server, "--create")
        self._written = 0

    def command(self, *arguments: object, code: int = 0) -> str:
        found, out, error = self._run(*arguments)
        assert found == code, error
        return out + error

    def write(self, count: int = 20) -> float:
        """So many samples of each of three devices; the time before them."""
        before = self.bus.clock()
        for step in range(self._written, self._written + count):
            x = math.sin(step)
            rows = [{"device": device, "x": x, "y": 0.5 + 0.4 * x} for device in ("a", "b", "c")]
            self.bus.write(
                [Outgoing("readings", row["device"].encode(), json.dumps(row).encode()) for row in rows]
            )  # type: ignore[attr-defined]
        self._written += count
        return before

    def state_of(self, client: bytes) -> dict[bytes, bytes | None]:
        """What lies in the changelog of a client with a name of one letter."""
        latest = {record.key or b"": record.value for record in self.bus.read("plant.pofmkl-client.state")}
        return {
            key: value
            for key, value in latest.items()
            if key.startswith((b"client/" + client, b"part/\0\1" + client))
        }

    def worker(self, config: Path) -> Worker:
        return build_worker(read_configuration(config).settings, self.bus)

    def work(self) -> list[dict[str, Any]]:
        """Let clients and server work off what is there; the predictions that come of it."""
        before = sum(1 for _ in self.bus.read("plant.predictions"))
        with closing(self.worker(self.client)) as clients, closing(self.worker(self.server)) as server:
            while clients.step(0.0) | server.step(0.0):
                pass
        return [json.loads(record.value or b"") for record in self.bus.read("plant.predictions")][before:]


@pytest.fixture(name="plant")
def _plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plant:
    return Plant(tmp_path, monkeypatch, capsys)


def samples(predictions: list[dict[str, Any]]) -> Counter[str]:
    return Counter(one["sample"] for one in predictions)


def test_a_federation_begins_anew_from_history(plant: Plant) -> None:
    """Protects a backfill: after it every sample is predicted again, once, by a federation that knows
    nothing, as at first."""
    plant.write()
    first = plant.work()
    plant.command("reset", plant.client, "--all")
    plant.command("reset", plant.server, "--all")
    plant.command("check", plant.client)
    again = plant.work()
    assert samples(again) == samples(first)
    assert set(samples(again).values()) == {1}
    assert sum(1 for _ in plant.bus.read("plant.dead-letters")) == 0
    # What was learnt before is not known any more: neither by the clients nor in the model that they read.
    assert again[0] == first[0]
    assert again[0]["model_version"] == 0


def test_a_server_that_began_anew_leaves_no_old_model(plant: Plant) -> None:
    """Protects clients that start before the server does: what they read is the model of nobody, not the one
    that was learnt."""
    plant.write()
    plant.work()
    plant.command("reset", plant.server, "--all")
    plant.write(2)
    with closing(plant.worker(plant.client)) as clients:
        while clients.step(0.0):
            pass
    newest = json.loads([record.value or b"" for record in plant.bus.read("plant.predictions")][-1])
    assert newest["model_version"] == 0
    assert plant.work() == []


def test_a_time_is_where_it_begins(plant: Plant) -> None:
    """Protects a partial backfill: what is older stays unread, what is as late or later is read once."""
    plant.write()
    plant.work()
    before = plant.write(5)
    plant.work()
    plant.command("reset", plant.client, "--all", "--to", before)
    assert len(plant.work()) == 15
    assert plant.work() == []


def test_a_changed_setting_asks_for_a_reset_and_goes_on_after_it(plant: Plant) -> None:
    """Protects an operator who corrects label_range: the message offers the command, and the command is
    enough."""
    plant.write()
    plant.work()
    plant.client.write_text(
        plant.client.read_text().replace('label = "y"', 'label = "y"\nlabel_range = [0.0, 2.0]')
    )
    assert "streamfl reset" in plant.command("check", plant.client, code=4)
    plant.command("reset", plant.client, "--all")
    plant.command("check", plant.client)
    assert len(plant.work()) == 60


def test_one_client_learns_its_history_again_and_others_stay(plant: Plant) -> None:
    """Protects the other clients of a partition: one is read again from the beginning, they neither lose nor
    repeat anything."""
    plant.write()
    plant.work()
    kept = plant.state_of(b"b")
    said = json.loads(
        plant.command("reset", plant.client, "--client", "a", "--to", "earliest", "--format", "json")
    )
    assert said["learnt_again"] == 20
    predictions = [json.loads(record.value or b"") for record in plant.bus.read("plant.predictions")][60:]
    assert Counter(one["client"] for one in predictions) == {"a": 20}
    assert plant.state_of(b"b") == kept
    assert plant.work() == []
    plant.write(3)
    assert Counter(one["client"] for one in plant.work()) == {"a": 3, "b": 3, "c": 3}


def test_one_client_is_forgotten(plant: Plant) -> None:
    """Protects whoever has one client begin anew from now on: nothing is read again, and a name that nobody
    knows is told."""
    plant.write()
    plant.work()
    plant.command("reset", plant.client, "--client", "a")
    assert plant.work() == []
    assert "remembers it" in plant.command("reset", plant.client, "--client", "a", code=2)


def test_a_dry_run_does_nothing(plant: Plant) -> None:
    """Protects whoever looks first."""
    plant.write()
    plant.work()
    said = plant.command("reset", plant.client, "--all", "--dry-run")
    assert "would read readings on from offset" in said
    assert plant.work() == []


def test_what_was_not_meant_is_refused(plant: Plant) -> None:
    """Protects what was learnt from half a command: nothing is forgotten unless it is said what."""
    for arguments in (
        (),
        ("--all", "--client", "a"),
        ("--all", "--to", "yesterday"),
        ("--client", "a", "--to", "1e20"),
    ):
        plant.command("reset", plant.client, *arguments, code=2)


def test_late_labels_are_learnt_again_with_their_samples(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a client whose labels come on a topic of their own: both are read again, each label meets its
    sample once."""
    labels = '[labels]\ntopic = "results"\nclient = "device"\nsample_id = "id"\nlabel = "y"\n'
    text = plant.client.read_text().replace('label = "y"', 'sample_id = "id"')
    plant.client.write_text(text.replace('name = "plant"', 'name = "late"') + labels)
    plant.server.write_text(plant.server.read_text().replace('name = "plant"', 'name = "late"'))
    plant.command("topics", plant.client, "--create-inputs", "--partitions", 2)
    plant.command("topics", plant.server, "--create")
    for what, field in (("samples", "x"), ("labels", "y")):
        rows = [
            json.dumps({"device": device, "id": f"{device}{n}", field: n / 10})
            for n in range(10)
            for device in "ab"
        ]
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("\n".join(rows).encode())))
        plant.command("write", plant.client, what)

    def inspected() -> dict[str, tuple[int, int]]:
        found = json.loads(plant.command("inspect", plant.client, "--format", "json"))["clients"]
        return {one["client"]: (one["samples"], one["labels"]) for one in found}

    plant.work()
    assert inspected() == {"a": (10, 10), "b": (10, 10)}
    said = json.loads(
        plant.command("reset", plant.client, "--client", "a", "--to", "earliest", "--format", "json")
    )
    assert said["learnt_again"] == 20
    assert inspected() == {"a": (10, 10), "b": (10, 10)}
    plant.work()
    assert inspected() == {"a": (10, 10), "b": (10, 10)}
    assert sum(1 for _ in plant.bus.read("late.dead-letters")) == 0
