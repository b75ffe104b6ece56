"""``streamfl repartition`` as a command, for the state of `streamfl rekey`, and when nothing has to move."""

from __future__ import annotations

import json
import time
from itertools import count
from pathlib import Path

import pytest
from command_line import Command
from unit import test_rekey
from unit.test_rekey import ASSEMBLE, SITES, Plant, drain

from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.memory_log import PartitionLog

STATE = "plant.pofmkl-client.rekey-samples.state"
PIECES = "plant.pofmkl-client.rekey-samples.pieces"
counter = count(1_000)


@pytest.fixture(autouse=True)
def _own_buses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other module counts its buses too when it is imported under another name."""
    monkeypatch.setattr(test_rekey, "counter", counter)


def grow(bus: MemoryBus, partitions: int, *topics: str) -> None:
    """Give topics more partitions, as Kafka's own tools do."""
    for name in topics:
        topic = bus._topics[name]
        compacted = topic.state().compacted
        topic.partitions += [
            PartitionLog(name, number, compacted) for number in range(len(topic.partitions), partitions)
        ]
    for group in bus._groups.values():
        group._partitions = partitions


def test_what_is_being_put_together_moves_with_its_client(tmp_path: Path, command: Command) -> None:
    """Protects samples in several records: a sample begun before partitions were added is completed after it,
    once."""
    plant = Plant(tmp_path, ASSEMBLE.replace("expiry_seconds = 30", "expiry_seconds = 3000"), partitions=2)
    # The same clock as the command's.
    plant.now = time.time()

    def write(sensor: str, partition: int) -> None:
        for site in SITES:
            plant.write(
                {"meta": {"site": site}, "sensor": sensor, "value": 1.0, "ts": 100}, partition=partition
            )

    write("temp", 0)
    drain(worker := plant.worker())
    worker.close()
    grow(plant.bus, 4, "readings")
    code, out, _ = command("topics", plant.path)
    assert code == 4
    assert f"give it 4 partitions, and run streamfl repartition {plant.path} --stream samples" in " ".join(
        out.split()
    )
    code, _, error = command("repartition", plant.path, "--stream", "samples")
    assert (code, STATE in error, PIECES in error) == (2, True, True)
    grow(plant.bus, 4, STATE, PIECES)
    code, _, error = command("rekey", plant.path)
    assert (code, "streamfl repartition CONFIG --stream samples" in error) == (2, True)
    write("hum", 1)
    write("load", 3)
    code, out, error = command("repartition", plant.path, "--stream", "samples", "--format", "json")
    assert code == 0, error
    assert json.loads(out) == {
        "before": 2,
        "now": 4,
        "clients": 5,
        "moved": 3,
        "drained": 5,
        "dead_letters": {},
        "passed_over": {},
        "deleted_unread": {},
    }
    drain(worker := plant.worker())
    worker.close()
    assert {client: len(found) for client, found in plant.samples().items()} == dict.fromkeys(SITES, 1)
    assert all({"temp", "hum", "load"} <= found.keys() for (found,) in plant.samples().values())
    code, _, error = command("repartition", plant.path, "--stream", "samples")
    assert (code, "nothing to do" in error) == (0, True)


def test_what_is_not_carried_over_is_said(tmp_path: Path, command: Command) -> None:
    """Protects who moves a federation from a loss that only dead letters and metrics of a command that has
    ended would tell."""
    plant = Plant(tmp_path, ASSEMBLE, partitions=2)
    piece = {"meta": {"site": SITES[0]}, "sensor": "temp", "value": 1.0, "ts": 100}
    plant.write(piece, partition=0)
    drain(worker := plant.worker())
    worker.close()
    for value in (piece, {"meta": {}}, {"meta": {"site": 5}}):
        plant.write(value, partition=0)
    grow(plant.bus, 4, "readings", STATE, PIECES)
    code, _, error = command("repartition", plant.path, "--stream", "samples")
    assert code == 0, error
    assert "read 3 records" in error
    assert f"of these, 2 became dead letters (see streamfl dead-letters {plant.path}): " in error
    assert "passed over" not in error


def test_check_names_the_command_while_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Protects the first look: with all topics grown, `check` says that the state is in other partitions."""
    plant = Plant(tmp_path)
    for site in SITES:
        plant.write({"meta": {"site": site}, "id": 1, "temp": 1.0, "hum": 1.0, "load": 0.5}, partition=1)
    drain(rekeyed := plant.worker())
    rekeyed.close()
    own = build_worker(plant.configured.settings, plant.bus)
    drain(own)
    own.close()
    grow(plant.bus, 4, "by-site", "plant.pofmkl-client.state")
    with monkeypatch.context() as patch:
        # As with a topic that is gone, or that this principal may not see.
        seen = plant.bus.describe
        patch.setattr(plant.bus, "describe", lambda topics: seen([one for one in topics if one != "by-site"]))
        _, out, error = command("check", plant.path)
        assert "spread over" not in " ".join((out + error).split())
    code, out, error = command("check", plant.path)
    assert code == 4
    assert "spread over 2" in " ".join((out + error).split())
    assert "streamfl repartition CONFIG" in " ".join((out + error).split())
