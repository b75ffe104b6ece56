"""``streamfl reset`` of clients and server, and what the page on backfills says of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pofmkl.unit.test_topics_at_hand import Plant as AtHand

from streamfl.runtime.bus import Outgoing


class Plant(AtHand):
    """It can write samples, and tells what came of them."""

    _written = 0

    def command(self, *arguments: object, code: int = 0) -> str:
        found, out, error = self(*arguments)
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

    def predicted(self) -> list[dict[str, Any]]:
        """The predictions that come of what clients and server work off."""
        before = sum(1 for _ in self.bus.read("plant.predictions"))
        self.work()
        return [json.loads(record.value or b"") for record in self.bus.read("plant.predictions")][before:]


@pytest.fixture(name="plant")
def _plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plant:
    return Plant(tmp_path, monkeypatch, capsys, "default")


def samples(predictions: list[dict[str, Any]]) -> Counter[str]:
    return Counter(one["sample"] for one in predictions)


def test_a_federation_begins_anew_from_history(plant: Plant) -> None:
    """Protects a backfill: after it every sample is predicted again, once, by a federation that knows
    nothing, as at first."""
    plant.write()
    first = plant.predicted()
    plant.command("reset", plant.client, "--all")
    plant.command("reset", plant.server, "--all")
    plant.command("check", plant.client)
    again = plant.predicted()
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
    plant.predicted()
    plant.command("reset", plant.server, "--all")
    plant.write(2)
    with closing(plant.worker(plant.client)) as clients:
        while clients.step(0.0):
            pass
    newest = json.loads([record.value or b"" for record in plant.bus.read("plant.predictions")][-1])
    assert newest["model_version"] == 0
    assert plant.predicted() == []


def test_a_time_is_where_it_begins(plant: Plant) -> None:
    """Protects a partial backfill: what is older stays unread, what is as late or later is read once."""
    plant.write()
    plant.predicted()
    before = plant.write(5)
    plant.predicted()
    plant.command("reset", plant.client, "--all", "--to", before)
    assert len(plant.predicted()) == 15
    assert plant.predicted() == []


def test_a_changed_setting_asks_for_a_reset_and_goes_on_after_it(plant: Plant) -> None:
    """Protects an operator who corrects label_range: the message offers the command, and the command is
    enough."""
    plant.write()
    plant.predicted()
    plant.client.write_text(plant.client.read_text().replace("label_range = [0, 10]", "label_range = [0, 2]"))
    assert "streamfl reset" in plant.command("check", plant.client, code=4)
    plant.command("reset", plant.client, "--all")
    plant.command("check", plant.client)
    assert len(plant.predicted()) == 60


def test_one_client_learns_its_history_again_and_others_stay(plant: Plant) -> None:
    """Protects the other clients of a partition: one is read again from the beginning, they neither lose nor
    repeat anything."""
    plant.write()
    plant.predicted()
    kept = plant.state_of(b"b")
    said = json.loads(
        plant.command("reset", plant.client, "--client", "a", "--to", "earliest", "--format", "json")
    )
    assert said["learnt_again"] == 20
    predictions = [json.loads(record.value or b"") for record in plant.bus.read("plant.predictions")][60:]
    assert Counter(one["client"] for one in predictions) == {"a": 20}
    assert plant.state_of(b"b") == kept
    assert plant.predicted() == []
    plant.write(3)
    assert Counter(one["client"] for one in plant.predicted()) == {"a": 3, "b": 3, "c": 3}


def test_one_client_is_forgotten(plant: Plant) -> None:
    """Protects whoever has one client begin anew from now on: nothing is read again, and a name that nobody
    knows is told."""
    plant.write()
    plant.predicted()
    plant.command("reset", plant.client, "--client", "a")
    assert plant.predicted() == []
    assert "remembers it" in plant.command("reset", plant.client, "--client", "a", code=2)


def test_a_dry_run_does_nothing(plant: Plant) -> None:
    """Protects whoever looks first."""
    plant.write()
    plant.predicted()
    said = plant.command("reset", plant.client, "--all", "--dry-run")
    assert "would read readings on from offset" in said
    assert plant.predicted() == []


def test_what_was_not_meant_is_refused(plant: Plant) -> None:
    """Protects what was learnt from half a command: nothing is forgotten unless it is said what."""
    for arguments in (
        (),
        ("--all", "--client", "a"),
        ("--all", "--to", "yesterday"),
        ("--client", "a", "--to", "1e20"),
    ):
        plant.command("reset", plant.client, *arguments, code=2)


def test_late_labels_are_learnt_again_with_their_samples(plant: Plant) -> None:
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
        plant.said("write", plant.client, what, stdin="\n".join(rows))

    def inspected() -> dict[str, tuple[int, int]]:
        found = json.loads(plant.command("inspect", plant.client, "--format", "json"))["clients"]
        return {one["client"]: (one["samples"], one["labels"]) for one in found}

    plant.predicted()
    assert inspected() == {"a": (10, 10), "b": (10, 10)}
    said = json.loads(
        plant.command("reset", plant.client, "--client", "a", "--to", "earliest", "--format", "json")
    )
    assert said["learnt_again"] == 20
    assert inspected() == {"a": (10, 10), "b": (10, 10)}
    plant.predicted()
    assert inspected() == {"a": (10, 10), "b": (10, 10)}
    assert sum(1 for _ in plant.bus.read("late.dead-letters")) == 0


def test_a_worker_that_runs_is_not_disturbed(plant: Plant) -> None:
    """Protects a worker that serves: it is told of before anything is tried, so that the group does not even
    rebalance."""
    plant.write()
    plant.work()
    with closing(plant.worker(plant.client)) as worker:
        while worker.step(0.0):
            pass
        assert "1 worker of the group" in plant.command("reset", plant.client, "--all", code=2)
    assert plant.predicted() == []


def test_a_pause_loses_and_doubles_nothing(plant: Plant) -> None:
    """Protects a weekend without workers: what came meanwhile is predicted once, by clients that know what
    they knew."""
    plant.write()
    plant.work()
    plant.write(5)
    predictions = plant.predicted()
    assert set(samples(predictions).values()) == {1}
    assert len(predictions) == 15
    assert all(one["model_version"] > 0 for one in predictions)


def test_after_a_long_pause_the_state_knows_where_to_go_on(plant: Plant) -> None:
    """Protects a group whose offsets the cluster forgot: nothing is read twice, for the state has its
    position with it."""
    plant.write()
    plant.work()
    plant.bus._groups["plant.pofmkl-client"].committed.clear()
    plant.write(2)
    assert len(plant.predicted()) == 6


def test_a_setting_that_may_change_is_taken_over(plant: Plant) -> None:
    """Protects a change of pace: it takes a restart and no reset, and check says so."""
    plant.write()
    plant.work()
    plant.client.write_text(plant.client.read_text() + "[uplink]\nbudget_bytes_per_second = 5000\n")
    assert "uplink.budget_bytes_per_second" in plant.command("check", plant.client)
    plant.write(2)
    assert len(plant.predicted()) == 6
