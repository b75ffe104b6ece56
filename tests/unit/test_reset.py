"""A role that begins again: its state and its positions change in one step, or not at all."""

from __future__ import annotations

import math
import struct
from contextlib import closing

import pytest
from counting import bus_of, counting_worker, drain, number

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, CommitRefused, Outgoing, Step
from streamfl.runtime.input_topics import EPOCH
from streamfl.runtime.memory_bus import MemorySession
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.runtime.reset import Reset
from streamfl.runtime.worker import Worker
from streamfl.state.state_settings import StateSettings


class Plant:
    """The counting role's topics, and its workers."""

    def __init__(self) -> None:
        self.bus = bus_of()

    def worker(self, kind: type[Worker] = Worker, unit: str = "mm") -> Worker:
        settings = StateSettings.of({"unit": unit}, ())
        return counting_worker(
            self.bus, kind=kind, commit_interval=0, restore_seconds=0.3, state_settings=settings
        )

    def reset(self, at: float = -math.inf, unit: str = "mm") -> int:
        made = self.worker(Reset, unit)
        assert isinstance(made, Reset)
        return made.begin_anew({"numbers": self.bus.offsets("numbers", at)})

    def work(self, unit: str = "mm") -> list[bytes]:
        """Let a worker process the present records. Returns its output."""
        before = len(list(self.bus.read("totals")))
        with closing(self.worker(unit=unit)) as worker:
            drain(worker)
        return [record.value or b"" for record in self.bus.read("totals")][before:]


@pytest.fixture(name="plant")
def _plant() -> Plant:
    plant = Plant()
    plant.bus.write([Outgoing("numbers", b"a", number(n, 10), 0) for n in (1, 2)])
    plant.bus.write([Outgoing("numbers", b"b", number(1, 5), 1)])
    plant.work()
    return plant


def test_all_is_read_again_by_a_role_that_knows_nothing(plant: Plant) -> None:
    """Protects a backfill: the same records give the same outputs as before, each once."""
    assert plant.reset() > 0
    assert sorted(plant.work()) == [b"1 10", b"1 5", b"2 20"]
    assert plant.work() == []


def test_the_end_is_a_place_to_begin_too(plant: Plant) -> None:
    """Protects users who want to forget without learning history again: only later records count."""
    plant.reset(math.inf)
    assert plant.work() == []
    plant.bus.write([Outgoing("numbers", b"a", number(1, 7), 0)])
    assert plant.work() == [b"1 7"]


def test_what_was_known_of_the_topics_goes_with_the_positions(plant: Plant) -> None:
    """Protects who begins at the end: with the epoch of an earlier leader the new position looks as if the
    log had been cut, and all between would be read after all."""
    remembered = POSITION_KEY + (EPOCH + "numbers").encode()
    plant.bus.write([Outgoing("state", remembered, struct.pack("<q", 1), 0)])
    plant.reset(math.inf)
    left = {record.key: record.value for record in plant.bus.read("state") if record.partition == 0}
    assert left[remembered] is None
    assert left[POSITION_KEY + b"numbers"] == struct.pack("<q", 2)


def test_state_of_other_settings_can_be_left(plant: Plant) -> None:
    """Protects a change of settings: a state that does not fit stops the worker, so the reset must not need
    to read it."""
    with pytest.raises(ConfigurationError, match=r"unit .*streamfl reset CONFIG --all"):
        plant.work("inch")
    plant.reset(unit="inch")
    assert sorted(plant.work("inch")) == [b"1 10", b"1 5", b"2 20"]


def test_state_and_offsets_change_together_or_not_at_all(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects against half a reset: an uncommitted partition goes on as before, and the command can be
    repeated."""
    commit, refused = MemorySession.commit, []

    def refuse(session: MemorySession, step: Step) -> None:
        if refused or any(partition == 1 for _, partition in step.positions):
            refused.append(step)
            raise CommitRefused("somebody came")
        commit(session, step)

    monkeypatch.setattr(MemorySession, "commit", refuse)
    with pytest.raises(BusUnavailable, match="run the command again"):
        plant.reset()
    monkeypatch.setattr(MemorySession, "commit", commit)
    assert sorted(plant.work()) == [b"1 10", b"2 20"]
    plant.reset()
    assert sorted(plant.work()) == [b"1 10", b"1 5", b"2 20"]


def test_while_a_worker_runs_nothing_is_forgotten(plant: Plant) -> None:
    """Protects a running worker: its state would be deleted while it works."""
    with closing(plant.worker()) as other:
        other.step(0.0)
        other.step(0.0)
        with pytest.raises(ConfigurationError, match="stop them first"):
            plant.reset()
    assert plant.work() == []
