"""Changes while no worker runs, on the memory bus: a change is a step like any other, and affects nothing
else."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from command_line import Command
from counting import TOPICS, CountingRole, counting_worker, drain, number

from streamfl.contract.role import ConfigurationError, StateChange
from streamfl.runtime.bus import BusUnavailable, CommitRefused, Outgoing, Step
from streamfl.runtime.memory_bus import MemoryBus, MemorySession
from streamfl.runtime.repair import Repair
from streamfl.runtime.worker import Worker


class ForgettingRole(CountingRole):
    """A role that can forget. Each partition begins with a mark that belongs to no client."""

    def open(self, partition: int) -> None:
        super().open(partition)
        self.changes.append(StateChange("state", partition, b"mark", number(0, 0)))

    def forget(self, name: str) -> bool:
        known = [partition for partition, totals in self.totals.items() if totals.pop(name.encode(), None)]
        self.changes += [StateChange("state", partition, name.encode(), None) for partition in known]
        return bool(known)


class Plant:
    """The counting role's topics, and its workers."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        bus.create(TOPICS)

    def worker(self, kind: type[Worker] = Worker) -> Worker:
        return counting_worker(self.bus, ForgettingRole(), kind, commit_interval=0, restore_seconds=0.3)

    def repair(self) -> Repair:
        made = self.worker(Repair)
        assert isinstance(made, Repair)
        return made

    def work(self, *records: tuple[bytes, bytes, int]) -> dict[bytes, bytes]:
        """Write (key, value, partition) and process them. Returns the last total of each key."""
        self.bus.write([Outgoing("numbers", key, value, partition) for key, value, partition in records])
        with closing(self.worker()) as worker:
            drain(worker)
        return {record.key or b"": record.value or b"" for record in self.bus.read("totals")}


@pytest.fixture(name="plant")
def _plant() -> Plant:
    return Plant(MemoryBus(clock=time.time))


def test_a_client_is_forgotten_in_every_partition_and_nobody_else(plant: Plant) -> None:
    """Protects the other clients: the forgotten name is as if it had never existed, also after a restart.
    Positions stay."""
    plant.work((b"a", number(5, 10), 0), (b"a", number(5, 10), 1), (b"b", number(5, 10), 1))
    assert plant.repair().forget("a") == [0, 1]
    assert plant.repair().forget("a") == []
    # A forgotten client's numbers count again from lower ones; b's are repetitions. Nothing is read again.
    totals = plant.work((b"a", number(1, 1), 0), (b"b", number(5, 99), 1), (b"b", number(6, 1), 1))
    assert totals == {b"a": b"1 1", b"b": b"6 11"}


def test_a_record_is_passed_over_once(plant: Plant) -> None:
    """Protects the neighbouring records: the skipped one is dead-lettered unchanged, and the role reads on
    after it."""
    plant.work((b"a", number(1, 1), 0))
    plant.bus.write(
        [Outgoing("numbers", b"a", number(n, 10 ** (n - 1)), 0, (("trace", b"7"),)) for n in (2, 3)]
    )
    skipped = plant.repair().skip("numbers", 0, 1)
    assert (skipped.offset, skipped.following, skipped.cause) == (1, 2, "")
    (letter,) = plant.bus.read("dead-letters")
    assert (letter.key, letter.value) == (b"a", number(2, 10))
    # Between them are the header names that consoles for Connect and Kafka Streams use.
    names = [name for name, _ in letter.headers]
    assert (names[0], names[-5:]) == ("trace", ["topic", "partition", "offset", "error", "text"])
    assert dict(letter.headers)["error"] == b"skipped"
    with pytest.raises(
        ConfigurationError, match="has already been read by this role: it continues at offset 2"
    ):
        plant.repair().skip("numbers", 0, 1)
    assert plant.work()[b"a"] == b"3 101"


def test_while_others_work_nothing_is_changed(plant: Plant) -> None:
    """Protects a role that still runs elsewhere: a change needs all of its partitions, and the command takes
    none from the worker before it refuses."""
    plant.work((b"a", number(1, 1), 0))
    with closing(plant.worker()) as other:
        other.step(0.0)
        other.step(0.0)
        role = other.role
        assert isinstance(role, ForgettingRole)
        known = dict(role.totals)
        with pytest.raises(ConfigurationError, match="1 worker of the group 'counters' run: stop them first"):
            plant.repair().forget("a")
        other.step(0.0)
        # A partition that was taken and given back has been restored into another dict.
        assert set(known) == {0, 1}
        assert all(role.totals[partition] is known[partition] for partition in known)
    assert plant.repair().forget("a") == [0]


def test_a_role_that_forgets_nobody_says_so_before_its_workers_are_stopped(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects a federation from an operator who stops a party, and learns then that it was in vain."""

    def refuse(role: ForgettingRole, name: str) -> bool:
        raise ConfigurationError(f"{name} cannot be forgotten")

    monkeypatch.setattr(ForgettingRole, "forget", refuse)
    with closing(plant.worker()) as other:
        other.step(0.0)
        with pytest.raises(ConfigurationError, match="a cannot be forgotten"):
            plant.repair().forget("a")


def test_a_refused_change_is_no_change(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects against half a change: without the commit nothing is visible, and the change can be
    repeated."""
    plant.work((b"a", number(1, 1), 0))
    commit = MemorySession.commit

    def refuse(session: MemorySession, step: Step) -> None:
        raise CommitRefused("somebody came")

    monkeypatch.setattr(MemorySession, "commit", refuse)
    with pytest.raises(BusUnavailable, match="nothing was changed, run the command again"):
        plant.repair().forget("a")
    monkeypatch.setattr(MemorySession, "commit", commit)
    assert plant.repair().forget("a") == [0]


CONFIG = """
[federation]
name = "plant"
clients = 4
[bus]
url = "memory://{name}"
connect_timeout_seconds = 0.5
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "device"
features = ["x"]
"""


def test_a_name_that_nobody_knows_is_told(tmp_path: Path, command: Command) -> None:
    """Protects an operator from a typing error: forgetting nobody is an error."""
    config = tmp_path / "client.toml"
    config.write_text(CONFIG.format(name=tmp_path.name))
    command("topics", config, "--create-inputs", "--partitions", 2)
    code, out, error = command("forget", config, "--client", "nobody", "--format", "json")
    assert (code, out) == (2, "")
    assert "'nobody': no partition of this pofmkl-client remembers it" in error
    code, out, error = command("skip", config, "--topic", "readings", "--partition", 1, "--offset", 0)
    assert (code, out) == (2, "")
    assert "readings-1-0 cannot be skipped: there is nothing to be read there" in error
