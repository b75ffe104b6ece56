"""What is told of clients that are behind, or alone: by check, inspect, top, /readyz and the metrics."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clock import Clock
from command_line import run_command
from pofmkl.makers import new_client
from pofmkl.unit.test_catch_up import PATIENCE, figure, model
from pofmkl.unit.test_catch_up import role as role_with_backlog

from streamfl.cli.preflight import read_configuration
from streamfl.contract.role import Received, Record
from streamfl.kernels import SQUARE, FeatureMap, Kernel, frequencies
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.tools.standing import updates_of, without_a_model
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker


def role(late: bool = False, bytes_per_second: float | None = None) -> PofmklClient:
    """As for backlogs, with a second partition."""
    labels = {"expiry_seconds": 1000.0, "limit": 100} if late else None
    made = role_with_backlog(bytes_per_second=bytes_per_second, labels=labels)
    made.open(1)
    return made


def readings(name: str, numbers: range, partition: int = 0, label: bool = True) -> list[Received]:
    found = []
    for number in numbers:
        x = tuple(np.random.default_rng(number).normal(size=2).tolist())
        sample = Sample(name, str(number), x, x[0] if label else None)
        found.append(Received("samples", sample, Record("samples", partition, number, name.encode(), b"")))
    return found


def labels(name: str, numbers: range) -> list[Received]:
    return [
        Received("labels", Label(name, str(number), 0.5), Record("labels", 0, number, name.encode(), b""))
        for number in numbers
    ]


def restarted(made: PofmklClient, late: bool = False) -> PofmklClient:
    again = role(late)
    for change in made.changed_state():
        if change.value is not None:
            again.restore(change)
    return again


@pytest.mark.parametrize("late", [False, True], ids=["labels with samples", "labels on a topic of their own"])
def test_predictions_on_version_zero_are_counted_through_restarts(late: bool) -> None:
    """Protects who asks how much was predicted without a model: the share is of whole lives, as the other
    figures of clients."""
    made = role(late)
    made.unread({0: {"samples": 0, "labels": 0}, 1: {"samples": 0, "labels": 0}})
    for number in range(2):
        made.receive(readings("a", range(number, number + 1), label=not late), 1.0)
    made.receive(readings("b", range(2, 3), partition=1, label=not late), 1.0)
    again = restarted(made, late)
    again.unread({0: {"samples": 0, "labels": 0}, 1: {"samples": 0, "labels": 0}})
    again.receive(readings("a", range(3, 4), label=not late), 2.0)
    again.receive([model(1)], 3.0)
    again.receive(readings("a", range(4, 5), label=not late), 4.0)
    assert figure(again, "lifetime_predictions") == 5
    assert figure(again, "lifetime_version_zero_predictions") == 4
    assert (figure(again, "predictions"), figure(again, "version_zero_predictions")) == (2, 1), (
        "since this process began"
    )
    assert {key: one.on_version_zero for key, one in again.snapshot().items()} == {(0, "a"): 3, (1, "b"): 1}


def test_what_the_state_does_not_know_of_version_zero_is_not_called_none() -> None:
    """Protects who comes from release 0.1, whose state does not tell it: check said that 0 predictions were
    made without a model."""
    made = role()
    made.receive([model(7), *readings("a", range(1))], 1.0)
    assert [one.text for one in without_a_model(made)] == [
        "none of 1 is known of; release 0.1 did not count them"
    ]


def test_what_a_backlog_waits_for_is_told_and_how_much_is_there() -> None:
    """Protects who looks at a worker that predicts nothing for a while: it says why, and nothing when there
    is no backlog."""
    made = role()
    assert made.backlog is None
    made.unread({0: {"samples": 40}, 1: {"samples": 2}})
    made.receive([model(7), *readings("a", range(9))], 1.0)
    made.receive(readings("b", range(9, 11)), 1.0)
    told = made.backlog
    assert told is not None
    assert "42 records are unread, and 9 samples of 2 clients wait for a version of the model after 7" in told
    made.unread({0: {"samples": 0}, 1: {"samples": 0}})
    for version in range(8, 30):
        made.receive([model(version)], 2.0)
    assert made.backlog is None
    assert figure(made, "catch_up_labels") == 11


def test_labels_that_wait_are_told_as_labels() -> None:
    """Protects who has labels on a topic of their own from being told of samples: those were predicted."""
    made = role(late=True)
    made.unread({0: {"samples": 40, "labels": 0}, 1: {"samples": 0, "labels": 0}})
    made.receive([*readings("a", range(5), label=False), *labels("a", range(5))], 1.0)
    assert "4 labels of 1 clients" in str(made.backlog)


def test_who_goes_on_alone_is_counted_and_logged_once() -> None:
    """Protects a log from a line for each partition of one silence, and counts a second silence as a
    second."""
    made = role()
    made.receive(readings("a", range(5)), 100.0)
    made.receive(readings("b", range(5, 9), partition=1), 103.0)
    told = []
    for now in (100.0 + PATIENCE, 103.0 + PATIENCE, 200.0):
        made.receive([], now)
        told += [notice.reason for notice in made.notices() if notice.reason == "alone"]
    assert told == ["alone"]
    assert figure(made, "patience_spent") == 1
    assert "clients learn alone" in str(made.backlog)
    made.receive([model(9), *readings("a", range(10, 19))], 300.0)
    made.receive([], 300.0 + PATIENCE)
    assert figure(made, "patience_spent") == 2


@pytest.mark.parametrize(("most", "count"), [(1, 20), (3, 7), (16, 25)])
def test_the_updates_of_a_backlog_are_those_that_a_client_sends(most: int, count: int) -> None:
    """Protects the sentence of `check` from another ramp than the client's, whose steps are added up over a
    version."""
    features = FeatureMap(frequencies([Kernel("gaussian", 1.0)], 4, 2, seed=3))
    made = new_client(
        PaperLearner(features=features, learning_rate=0.1, regularisation=0.0, loss=SQUARE),
        clients=1,
        learning={"catch_up_samples": most, "catch_up_patience_seconds": PATIENCE},
        uplink={"kernels_per_upload": 1},
    )
    made.open(0)
    made.unread({0: {"samples": 1_000}})
    made.receive(readings("a", range(count)), 1.0)
    for version in range(1, 120):
        made.receive([model(version)], 1.0)
    assert figure(made, "labels") == count
    assert figure(made, "updates") == updates_of(count, most)


# ---- commands

FEDERATION = """
[federation]
name = "plant"
clients = 2
features = ["x"]
[bus]
url = "{url}"
connect_timeout_seconds = 0.5
[role]
kind = "pofmkl-{role}"
[learning]
features_per_kernel = 4
catch_up_patience_seconds = 5
"""
SAMPLES = """
[samples]
topic = "readings"
client = "device"
label = "y"
label_range = [0, 10]
"""
ROWS = "\n".join(json.dumps({"device": f"press-{n % 2}", "x": n / 10, "y": n % 7}) for n in range(120)) + "\n"


class Plant:
    """A federation with a history in its topic, and the command line."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], more: str
    ) -> None:
        self.run: Callable[..., tuple[int, str, str]] = lambda *arguments: run_command(
            monkeypatch, capture, *arguments
        )
        url = f"memory://{folder.name}"
        self.bus = MemoryBus.at(url)
        self.clock = Clock(1_000.0)
        self.bus.clock = self.clock
        monkeypatch.setattr("streamfl.pofmkl.tools.standing.time", SimpleNamespace(time=self.clock))
        self.client, self.server = folder / "client.toml", folder / "server.toml"
        self.client.write_text(FEDERATION.format(url=url, role="client") + SAMPLES + more)
        self.server.write_text(FEDERATION.format(url=url, role="server") + more)
        self.run("topics", self.client, "--create-inputs", "--partitions", 2)
        self.run("topics", self.server, "--create")
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(ROWS.encode())))
        self.run("write", self.client)

    def worker(self, path: Path) -> Worker:
        return build_worker(read_configuration(path).settings, self.bus, clock=self.clock)

    def told(self, command: str, *arguments: object) -> dict[str, Any]:
        code, out, error = self.run(command, self.client, *arguments, "--format", "json")
        assert code == 0, error + out
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def standing(self) -> list[dict[str, tuple[str, str]]]:
        """By respect what `check`, `inspect` and `top` say, with what to do."""
        checked = {one["check"]: (one["detail"], one["remedy"]) for one in self.told("check")["checks"]}
        others = [self.told("inspect")["standing"], self.told("top", "--count", 1)["standing"]]
        return [
            checked,
            *({one["respect"]: (one["text"], one["remedy"]) for one in other} for other in others),
        ]


@pytest.fixture(name="plant")
def _plant(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Plant:
    return Plant(tmp_path, monkeypatch, capsys, getattr(request, "param", ""))


def test_check_inspect_and_top_say_how_a_backlog_stands(plant: Plant) -> None:
    """Protects everybody who begins with history: that it waits, for what, that clients are alone, and how
    much was predicted without a model, is told by each of the three commands, and ends when the server comes.
    """
    for told in plant.standing():
        assert told["backlog"][0].startswith("120 records of readings are unread")
        assert "60 samples of each of 2 clients" in told["backlog"][0]
        assert told["model"] == ("the server has published no version yet", "")
        assert "alone" not in told
    with closing(plant.worker(plant.client)) as client:
        for _ in range(20):
            client.step(0.0)
        assert client.health.trouble is None, "it serves"
        assert "wait for a version of the model after 0" in str(client.health.backlog)
        for told in plant.standing():
            assert "alone" not in told
        checked, inspected, seen = plant.standing()
        assert checked["predictions on version 0"] == inspected["predictions on version 0"]
        assert checked["predictions on version 0"][0].startswith("2 of 2 (100%)")
        assert "118 samples wait" in checked["backlog"][0]
        assert "118 samples wait" in inspected["backlog"][0]
        assert seen["backlog"][0].startswith("no record is unread. streamfl inspect counts")
        plant.clock.now += 6.0
        for _ in range(60):
            client.step(0.0)
        checked, inspected, seen = plant.standing()
        assert checked["backlog"] == inspected["backlog"] == ("none: every record was processed", "")
        assert seen["backlog"][0].startswith("no record is unread. streamfl inspect counts those that")
        for told in (checked, inspected, seen):
            assert told["alone"][0].startswith("clients learn alone: ")
            assert told["alone"][1].startswith("start the pofmkl-server")
        assert "since 1970-01-01 00:16:40 UTC no new version" in checked["alone"][0]
        assert checked["alone"] == inspected["alone"]
        assert "2 updates have waited for a new version for 5 s" in seen["alone"][0]
        with closing(plant.worker(plant.server)) as server:
            for _ in range(20):
                server.step(0.0)
                client.step(0.0)
        plant.clock.now += 60.0
        for told in plant.standing():
            assert "alone" not in told
            assert told["model"][0].endswith("published 60 s ago")
        assert plant.standing()[0]["predictions on version 0"][0].startswith("120 of 120 (100%)")


def test_top_tells_the_share_of_predictions_on_version_zero(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects an operator's live picture: of what is predicted before their eyes, how much is without a
    model."""
    with closing(plant.worker(plant.client)) as client:
        work = lambda seconds: [client.step(0.0) for _ in range(20)] if seconds else None  # noqa: E731
        monkeypatch.setattr("streamfl.cli.top.time.sleep", work)
        found = plant.told("top", "--count", 2)
        assert (found["versioned_predictions"], found["predictions_on_version_zero"]) == (2, 2)
        shown = plant.run("top", plant.client, "--count", 1)[1]
        assert "backlog: " in shown


@pytest.mark.parametrize("plant", ["[uplink]\nbudget_bytes_per_second = 200\n"], indirect=True)
def test_check_says_what_a_budget_pays_of_a_backlog(plant: Plant) -> None:
    """Protects who sets a small byte budget and has history: most of it is learnt alone, and no more goes out
    than was said."""
    detail = {one["check"]: one["detail"] for one in plant.told("check")["checks"]}["backlog"]
    assert (
        "That takes 60 updates of a client. With uplink.budget_bytes_per_second = 200 catch-up sends at most "
        "1 " in detail
    )
    assert "the rest is learnt alone" in detail
    bytes_each = int(detail.partition(" bytes each")[0].rpartition("(")[2])
    with closing(plant.worker(plant.client)) as client, closing(plant.worker(plant.server)) as server:
        for _ in range(60):
            client.step(0.0)
            server.step(0.0)
        sent = list(plant.bus.read("plant.updates"))
        assert Counter(record.key for record in sent) == {b"press-0": 1, b"press-1": 1}
        assert all(len(record.value or b"") <= bytes_each for record in sent)
        assert len(list(plant.bus.read("plant.predictions"))) == 120, "nobody waits for bytes"
