"""Mistakes with keys and offsets on a real broker, made with Kafka's own partitioner and tools."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from broker import Broker
from command_line import run_command
from kafka import KafkaAdminClient, TopicPartition
from kafka.structs import OffsetAndMetadata
from scraped import scraped

from streamfl.configuration.settings import load_settings
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.worker import Worker

SITES = ("north", "south", "east", "west", "centre")
CONFIGURATION = """
[federation]
name = "{name}"
clients = 5
[bus]
url = "{url}"
commit_interval_ms = 0
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}-readings"
client = "site"
sample_id = "id"
features = ["x0", "x1"]
{labels}
[learning]
# What is tried here needs no server, so that no backlog may wait for one.
catch_up_samples = 0
features_per_kernel = 4
staleness = "async"
"""
LABELS = """
[labels]
topic = "{name}-results"
client = "site"
sample_id = "id"
label = "y"
"""


class Plant:
    """A client's configuration on the broker with all its topics, and the command line in this process."""

    def __init__(self, folder: Path, broker: Broker, labels: str) -> None:
        self.name = f"plant-{uuid.uuid4().hex[:8]}"
        self.config = folder / "client.toml"
        self.config.write_text(
            CONFIGURATION.format(name=self.name, url=broker.url, labels=labels.format(name=self.name))
        )
        self.settings = load_settings(self.config, PofmklSettings)

    def worker(self, bus: Bus) -> Worker:
        return build_worker(self.settings, bus)

    def sample(self, number: int, key: str, **more: float) -> Outgoing:
        content = {"site": SITES[number % 5], "id": f"r{number}", "x0": number % 7 / 7, "x1": 0.5, **more}
        return Outgoing(f"{self.name}-readings", key.encode(), json.dumps(content).encode())

    def label(self, number: int, key: str) -> Outgoing:
        content = {"site": SITES[number % 5], "id": f"r{number}", "y": 0.5}
        return Outgoing(f"{self.name}-results", key.encode(), json.dumps(content).encode())


def work(worker: Worker, records: int) -> None:
    """Run until the worker has read this many input records."""
    deadline = time.monotonic() + 60
    while scraped(worker.metrics.render().decode(), "records_total") != records:
        assert time.monotonic() < deadline, worker.metrics.render().decode()
        worker.step(0.2)


@pytest.mark.parametrize("which", ["samples", "labels"])
def test_keys_that_are_not_the_clients_are_told(
    which: str,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects five sites whose records have other keys, which Kafka's hash spreads over partitions: check
    and the worker both report it, and neither suggests more places.
    """
    plant = Plant(tmp_path, broker, LABELS if which == "labels" else 'label = "y"')
    command = ("topics", plant.config, "--create-inputs", "--partitions", 4)
    assert run_command(monkeypatch, capsys, *command)[0] == 0
    with closing(connect(broker.url)) as bus:
        if which == "samples":
            bus.write([plant.sample(number, f"r{number}", y=0.5) for number in range(60)])
            found, count = "not keyed by client", 60
        else:
            bus.write([plant.sample(number, SITES[number % 5]) for number in range(60)])
            bus.write([plant.label(number, f"r{number}") for number in range(60)])
            found, count = "labels keyed otherwise", 120
        code, out, _ = run_command(monkeypatch, capsys, "check", plant.config, "--format", "json")
        assert code == 4
        failed = {one["check"]: one["detail"] for one in json.loads(out)["checks"] if not one["passed"]}
        assert found in failed
        worker = plant.worker(bus)
        with closing(worker):
            work(worker, count)
            assert "partition" in (worker.role.trouble or "")
        letters = [dict(letter.headers)["text"] for letter in bus.read(f"{plant.name}.dead-letters")]
        assert not [text for text in letters if b"raise federation.clients" in text]


def test_offsets_that_were_reset_by_hand_are_told(
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Protects users who reset a group with Kafka's tools and wait for predictions that do not come: the log
    says that the state's position is used, and its remedy really begins again.
    """
    plant = Plant(tmp_path, broker, 'label = "y"')
    topics = ("topics", plant.config, "--create-inputs", "--partitions", 2)
    assert run_command(monkeypatch, capsys, *topics)[0] == 0
    places = [TopicPartition(f"{plant.name}-readings", partition) for partition in range(2)]
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    with closing(connect(broker.url)) as bus, closing(admin):
        bus.write([plant.sample(number, SITES[number % 5], y=0.5) for number in range(20)])
        with closing(plant.worker(bus)) as worker:
            work(worker, 20)
        admin.alter_group_offsets(
            plant.settings.group, {place: OffsetAndMetadata(0, "", -1) for place in places}
        )
        bus.write([plant.sample(number, SITES[number % 5], y=0.5) for number in range(20, 30)])
        assert "does not count" not in caplog.text
        code, out, _ = run_command(monkeypatch, capsys, "check", plant.config, "--format", "json")
        failed = {one["check"]: one["detail"] for one in json.loads(out)["checks"] if not one["passed"]}
        assert code == 4
        told = failed[f"offsets of {plant.settings.group}"]
        assert (
            f"ignored, because the changelog is ahead of them: {places[0].topic}-0: offset 0, taken up to"
            in told
        )
        with closing(plant.worker(bus)) as worker:
            work(worker, 10)
        assert "ignoring the committed offset: the changelog is ahead of it" in caplog.text
        state = f"{plant.name}.pofmkl-client.state"
        assert f"delete the topics {state}" in caplog.text
        admin.delete_topics([state])
        admin.delete_group_offsets(plant.settings.group, places)
        deadline = time.monotonic() + 30
        while bus.describe([state]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert run_command(monkeypatch, capsys, *topics)[0] == 0
    with closing(connect(broker.url)) as bus:
        with closing(plant.worker(bus)) as worker:
            work(worker, 30)
        assert len(list(bus.read(f"{plant.name}.predictions"))) == 60


@pytest.mark.parametrize("lost", [False, True], ids=["set ahead", "state lost"])
def test_offsets_ahead_of_the_state_are_told(
    lost: bool,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects users who set a group to the latest offset with Kafka's tools, or make a state topic again,
    from a check that passes where no worker begins; and its remedy loses no record.
    """
    plant = Plant(tmp_path, broker, 'label = "y"')
    topics = ("topics", plant.config, "--create-inputs", "--partitions", 1)
    assert run_command(monkeypatch, capsys, *topics)[0] == 0
    place, state = TopicPartition(f"{plant.name}-readings", 0), f"{plant.name}.pofmkl-client.state"
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    with closing(connect(broker.url)) as bus, closing(admin):
        bus.write([plant.sample(number, SITES[number % 5], y=0.5) for number in range(20)])
        with closing(plant.worker(bus)) as worker:
            work(worker, 20)
        bus.write([plant.sample(number, SITES[number % 5], y=0.5) for number in range(20, 30)])
        if lost:
            admin.delete_topics([state])
            deadline = time.monotonic() + 30
            while bus.describe([state]) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert run_command(monkeypatch, capsys, *topics)[0] == 0
        else:
            admin.alter_group_offsets(plant.settings.group, {place: OffsetAndMetadata(30, "", -1)})
        code, out, _ = run_command(monkeypatch, capsys, "check", plant.config, "--format", "json")
        failed = {one["check"]: one for one in json.loads(out)["checks"] if not one["passed"]}
        assert code == 4
        told = failed[f"offsets of {plant.settings.group}"]
        where = f"{place.topic}-0: offset {20 if lost else 30}, taken up to {0 if lost else 20}"
        assert f"ahead of the state, so that no worker begins: {where}" in told["detail"]
        assert f"delete the offsets of the group '{plant.settings.group}'" in told["remedy"]
        admin.delete_group_offsets(plant.settings.group, [place])
    with closing(connect(broker.url)) as bus:
        with closing(plant.worker(bus)) as worker:
            work(worker, 30 if lost else 10)
        assert len(list(bus.read(f"{plant.name}.predictions"))) == (50 if lost else 30)


def test_check_tells_of_an_input_that_was_made_again(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects users from a check that says that the state goes on, where a worker will refuse to."""
    plant = Plant(tmp_path, broker, 'label = "y"')
    topics = ("topics", plant.config, "--create-inputs", "--partitions", 2)
    assert run_command(monkeypatch, capsys, *topics)[0] == 0
    topic = f"{plant.name}-readings"
    with (
        closing(connect(broker.url)) as bus,
        closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin,
    ):
        bus.write([plant.sample(number, SITES[number % 5], y=0.5) for number in range(20)])
        with closing(plant.worker(bus)) as worker:
            work(worker, 20)
        admin.delete_topics([topic])
        deadline = time.monotonic() + 30
        while bus.describe([topic]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert run_command(monkeypatch, capsys, *topics)[0] == 0
        code, out, _ = run_command(monkeypatch, capsys, "check", plant.config, "--format", "json")
    told = {one["check"]: one for one in json.loads(out)["checks"]}[f"offsets of {plant.settings.group}"]
    assert (code, told["passed"]) == (4, False)
    assert told["detail"].startswith(f"{topic} was deleted and created again since it was last read")
    assert f"{plant.name}.pofmkl-client.state" in told["remedy"]
