"""Commands that write, read and look: on the bus alone, beside workers that they do not disturb."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from command_line import run_command
from rich.console import Console
from streamfl_process import run_streamfl

from streamfl.cli.check import as_list
from streamfl.cli.check_inputs import EXAMPLES
from streamfl.cli.findings import Finding
from streamfl.cli.preflight import read_configuration
from streamfl.cli.record_counts import records_between
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Outgoing, Polled
from streamfl.runtime.health import Health
from streamfl.runtime.health_server import HealthServer
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus, MemorySession
from streamfl.runtime.memory_log import PartitionLog
from streamfl.runtime.worker import Worker
from streamfl.terminal.console import print_list

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
# What is tried here needs no server, so that no backlog may wait for one.
catch_up_samples = 0
features_per_kernel = 4
preset = "{preset}"
staleness = "async"
"""
SAMPLES = """
[samples]
topic = "readings"
client = "device"
label = "y"
label_range = [0, 10]
"""


class Plant:
    """A federation on a memory bus, and the command line with a stdin of one's own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], preset: str
    ) -> None:
        self.monkeypatch, self._capture = monkeypatch, capture
        self.bus = MemoryBus.at(f"memory://{folder.name}")
        self.client, self.server = folder / "client.toml", folder / "server.toml"
        self.client.write_text(FEDERATION.format(name=folder.name, role="client", preset=preset) + SAMPLES)
        self.server.write_text(FEDERATION.format(name=folder.name, role="server", preset=preset))
        self.said("topics", self.client, "--create-inputs", "--partitions", 2)
        self.said("topics", self.server, "--create")

    def __call__(self, *arguments: object, stdin: str = "") -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin.encode())))
        return run_command(self.monkeypatch, self._capture, *arguments)

    def said(self, *arguments: object, stdin: str = "") -> str:
        code, out, error = self(*arguments, stdin=stdin)
        assert code == 0, error
        return out

    def lines(self, *arguments: object) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said(*arguments, "--format", "json").splitlines()]

    def worker(self, path: Path) -> Worker:
        return build_worker(read_configuration(path).settings, self.bus)

    def work(self) -> None:
        with closing(self.worker(self.client)) as clients, closing(self.worker(self.server)) as server:
            while clients.step(0.0) | server.step(0.0):
                pass


@pytest.fixture(name="plant")
def _plant(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Plant:
    return Plant(tmp_path, monkeypatch, capsys, getattr(request, "param", "default"))


ROWS = "\n".join(json.dumps({"device": f"press-{n % 2}", "x": n / 10, "y": n}) for n in range(10)) + "\n"


def test_a_key_that_no_field_gives_is_asked_for_by_its_option(plant: Plant) -> None:
    """Protects the first records of a role whose name is the record's key: a topic that is rekeyed by a
    process of its own is not what somebody needs who writes lines by hand."""
    plant.client.write_text(plant.client.read_text().replace('client = "device"\n', ""))
    code, _, error = plant("write", plant.client, stdin=ROWS)
    assert code == 5
    assert "--key FIELD" in error
    plant.said("write", plant.client, "--key", "device", stdin=ROWS)
    code, _, error = plant("write", plant.client, "--key", "device", stdin='{"device": "a", "x": "many"}')
    assert code == 5
    assert "--key" not in error


def test_lines_become_samples_and_predictions_become_lines(plant: Plant) -> None:
    """Protects whoever has no tool but this one: what is written is learnt from, and what is predicted can be
    read."""
    assert json.loads(plant.said("write", plant.client, "--format", "json", stdin=ROWS)) == {
        "topic": "readings",
        "records": 10,
    }
    plant.work()
    predictions = plant.lines("read", plant.client)
    assert len(predictions) == 10
    assert sorted(one["label"] for one in predictions) == list(range(10))
    assert {
        one["client"] for one in plant.lines("read", plant.client, "predictions", "--client", "press-1")
    } == {"press-1"}
    assert [
        one["label"]
        for one in plant.lines("read", plant.client, "predictions", "-n", 2, "--client", "press-1")
    ] == [7, 9]
    table = plant.said("read", plant.client, "predictions", "-n", 1)
    assert "prediction" in table
    assert "press-1" in table
    # What was read can be written again: the value is as it was.
    samples = plant.said("read", plant.client, "samples", "--format", "json")
    assert sorted(samples.splitlines()) == sorted(ROWS.splitlines())
    [first, *_] = plant.lines("read", plant.client, "samples", "--envelope", "--client", "press-0")
    assert (first["key"], first["offset"], first["value"]["y"]) == ("press-0", 0, 0)


def test_check_takes_back_what_a_worker_will_take_back(plant: Plant) -> None:
    """Protects from green before a start that ends: federation.features may be named later, and then no other
    features may take their place."""
    plant.said("write", plant.client, stdin=ROWS)
    plant.work()
    before = plant.server.read_text()
    other = before.replace('features = ["x"]', 'features = ["z"]')
    plant.server.write_text(other)
    code, out, _ = plant("check", plant.server, "--format", "json")
    refused = {one["check"]: one["detail"] for one in json.loads(out)["checks"] if not one["passed"]}
    assert code == 4
    assert 'federation.features was ["x"], is ["z"]' in refused["state in plant.pofmkl-server.state"]
    plant.server.write_text(before.replace("seed = 7", "seed = 8"))
    code, out, _ = plant("check", plant.server, "--format", "json")
    # What another finding says is not said again.
    assert (code, "restoring the state" in out) == (4, False)
    plant.server.write_text(before)
    assert plant("check", plant.server)[0] == 0


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


EVIL = "press\x1b]0;owned\x07\x9b31m\u202e\x7f\r\x00"
STRANGE = {
    "signs that steer a terminal": json.dumps({"device": EVIL, "client": EVIL, "x": EVIL, "y": 1}).encode(),
    "bytes as a key": msgspec.msgpack.encode({b"a": 1}),
    "a number as a key": msgspec.msgpack.encode({1: 2}),
    "a list as a key": b"\x81\x91\x01\x01",
    "bytes as a key within": msgspec.msgpack.encode({"client": "a", "x": {b"b": [1.5]}}),
    "a time": msgspec.msgpack.encode({"at": datetime(2026, 1, 1, tzinfo=UTC)}),
    "an extension": msgspec.msgpack.encode({"x": msgspec.msgpack.Ext(5, b"12")}),
    "no number": msgspec.msgpack.encode({"client": "a", "prediction": float("nan"), "label": 1.0}),
    "a large number": b'{"client":"a","prediction":1%s,"label":1}' % (b"0" * 400),
    "a number with 5,000 digits": b'{"client":1%s,"prediction":1,"label":1}' % (b"0" * 5000),
    "an object as a name": b'{"client":{"a":[1]},"prediction":1,"label":true}',
    "a list of versions": b'{"client":"a","model_version":[{}],"prediction":"1"}',
    "a deep list": b'{"client":"a","x":%s}' % deep(800),
    "a deep list of MessagePack": b"\x91" * 900 + b"\x01",
    "half a character": b'{"client":"\\ud800"}',
    "bytes": b"\xff\xfe\x00",
    "nothing": None,
}


@pytest.mark.long
@pytest.mark.parametrize("format", ["table", "json"])
def test_no_record_ends_a_command_with_a_traceback(plant: Plant, tmp_path: Path, format: str) -> None:
    """Protects the operator, who looks because something is wrong: whatever a stranger wrote into a topic is
    shown somehow, and steers no terminal. Samples may be in MessagePack, whose maps may have any keys."""
    plant.said("write", plant.client, stdin=ROWS)
    plant.work()
    real = time.sleep

    def write(seconds: float) -> None:
        """Between two looks of top, which shows what comes from its start on."""
        for topic in ("readings", "plant.predictions", "plant.updates", "plant.dead-letters"):
            plant.bus.write(
                [Outgoing(topic, key, value) for key in (b"a", EVIL.encode()) for value in STRANGE.values()]
            )
        real(0.0)

    write(0.0)
    plant.monkeypatch.setattr("streamfl.cli.top.time.sleep", write)
    text = plant.client.read_text()
    of_samples: list[tuple[object, ...]] = [
        ("read", plant.client, "samples", "-n", 50),
        ("check", plant.client),
    ]
    others: list[tuple[object, ...]] = [
        *(
            ("read", plant.client, what, "-n", 50)
            for what in ("predictions", "updates", "dead-letters", "model")
        ),
        ("read", plant.client, "predictions", "-n", 50, "--client", "a"),
        *((command, plant.client) for command in ("dead-letters", "inspect", "updates")),
        ("top", plant.client, "--count", "2", "--every", "0.2"),
    ]
    for samples, commands in (
        ("[samples]", [*of_samples, *others]),
        ('[samples]\nformat = "msgpack"', of_samples),
    ):
        plant.client.write_text(text.replace("[samples]", samples))
        for command in commands:
            code, out, error = plant(*command, "--format", format)
            assert code in (0, 4), (command, error)
            assert all(sign.isprintable() or sign == "\n" for sign in out + error), command
        plant.said("report", plant.client, "--out", tmp_path / "report.html")


@pytest.mark.parametrize("format", ["table", "json"])
def test_following_shows_what_is_there_and_what_comes(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Protects whoever watches predictions come: the newest first, then each that is written from then on,
    until Ctrl-C."""
    plant.said("write", plant.client, stdin=ROWS)
    plant.work()
    poll, late = MemorySession.poll, iter([None, plant.work, None, None])
    row = '{"device": "press-7", "x": 1, "y": 3}'

    def polled(session: MemorySession, timeout: float, most: int) -> Polled:
        if not session._subscription.group.startswith("streamfl-follow-"):
            return poll(session, timeout, most)
        try:
            step = next(late)
        except StopIteration:
            raise KeyboardInterrupt from None
        if step is not None:
            plant.bus.write([Outgoing("readings", b"press-7", row.encode())])
            step()
        return poll(session, 0.0, most)

    monkeypatch.setattr(MemorySession, "poll", polled)
    code, out, error = plant("read", plant.client, "predictions", "--follow", "-n", 2, "--format", format)
    assert code == 0, error
    lines = out.splitlines()
    assert len(lines) == 3
    assert ["press-7" in line for line in lines] == [False, False, True]


def test_a_forgotten_client_gives_its_place_free(plant: Plant) -> None:
    """Protects the way out of full seats: a name that was a mistake is forgotten, and another one is let
    in."""

    def predicted(*names: str) -> set[str]:
        """Those that were, once there is a sample of each of these names too."""
        rows = [json.dumps({"device": name, "x": 0.5, "y": 0.2}) for name in names]
        plant.said("write", plant.client, stdin="\n".join(rows))
        plant.work()
        return {one["client"] for one in plant.lines("read", plant.client)}

    known = {"a", "b", "c", "typo"}
    assert predicted(*known) == predicted("lathe") == known
    forget = ("forget", plant.client, "--client", "typo", "--format", "json")
    assert json.loads(plant.said(*forget))["client"] == "typo"
    assert plant(*forget)[0] == 2
    assert predicted("lathe") == {*known, "lathe"}


def test_records_are_keyed_by_client(plant: Plant) -> None:
    """Protects a client's state: all its samples lie in one partition, without anybody having said so."""
    plant.said("write", plant.client, stdin=ROWS)
    assert {record.key for record in plant.bus.read("readings")} == {b"press-0", b"press-1"}
    plant.said("write", plant.client, "--key", "y", stdin=ROWS.splitlines()[3])
    assert b"3" in {record.key for record in plant.bus.read("readings")}
    nested = '{"device": "a", "x": 1, "meta": {"site": "north"}}'
    plant.said("write", plant.client, "--key", "meta.site", stdin=nested)
    assert b"north" in {record.key for record in plant.bus.read("readings")}
    for wrong in ("meta.rack", "meta..site", "device.name"):
        assert plant("write", plant.client, "--key", wrong, stdin=nested)[0] == 5


def test_a_key_is_written_as_the_settings_read_it(plant: Plant) -> None:
    """Protects topics with binary keys: what is written can be read by the same settings, and a name that is
    no number is told."""
    plant.client.write_text(plant.client.read_text().replace('client = "device"', 'key = "int64"'))
    plant.said("write", plant.client, "--key", "device", stdin='{"device": 7, "x": 1, "y": 2}')
    assert [record.key for record in plant.bus.read("readings")] == [(7).to_bytes(8, "big")]
    plant.work()
    assert [one["client"] for one in plant.lines("read", plant.client)] == ["7"]
    assert plant("write", plant.client, "--key", "device", stdin='{"device": "a", "x": 1}')[0] == 5


def test_a_line_that_would_be_refused_is_told(plant: Plant) -> None:
    """Protects a first try: the mistake is told at the terminal with its line, those before it are written,
    others can be too."""
    code, _, error = plant(
        "write", plant.client, stdin='{"device": "a", "x": 1}\n\n{"device": "a"}\n{"device": "b", "x": 2}'
    )
    assert (code, "line 3: missing_field: x is missing" in error) == (5, True)
    assert "Of the lines before it 1 record came into" in error
    assert len(list(plant.bus.read("readings"))) == 1
    for text in ("{", "[1, 2]", '{"x": 1}'):
        code, _, error = plant("write", plant.client, stdin=text)
        assert (code, "line 1: " in error) == (5, True)
    plant.said("write", plant.client, "--as-they-are", stdin='{"device": "a"}')
    plant.work()
    assert "missing_field" in plant.said("read", plant.client, "dead-letters")
    code, _, error = plant("write", plant.client, "labels", stdin="{}")
    assert (code, "it reads samples" in error) == (2, True)


def test_updates_and_the_model_are_readable(plant: Plant) -> None:
    """Protects an operator's eye on what leaves a client: whose, made with what, how large; and any name of a
    topic is told."""
    plant.said("write", plant.client, stdin=ROWS)
    plant.work()
    updates = plant.lines("updates", plant.client, "--client", "press-1")
    assert [one["number"] for one in updates] == list(range(1, 1 + len(updates)))
    assert all(one["client"] == "press-1" and one["length"] >= 0 and one["kernels"] for one in updates)
    assert any(one.get("model_version") for one in plant.lines("read", plant.server, "model"))
    assert plant.lines("read", plant.client, "readings") == plant.lines("read", plant.client, "samples")
    assert plant.said("read", plant.client, "predictions", "--client", "nobody").endswith(
        ".predictions: none\n"
    )
    code, _, error = plant("read", plant.client, "nothing")
    assert (code, "there are" in error and "predictions" in error) == (2, True)


def test_inspecting_shows_what_is_remembered_and_disturbs_nobody(plant: Plant) -> None:
    """Protects an operator's picture: figures are those of the changelog, while a worker that runs goes
    on."""
    plant.said("write", plant.client, stdin=ROWS)
    settings = read_configuration(plant.client).settings
    with closing(build_worker(settings, plant.bus)) as worker:
        while worker.step(0.0):
            pass
        found = json.loads(plant.said("inspect", plant.client, "--format", "json"))
        assert found["workers"] == 1
        plant.said("write", plant.client, stdin=ROWS)
        while worker.step(0.0):
            pass
        # Nothing was revoked meanwhile: all of it was read and committed by the one worker.
        assert sum(plant.bus.committed(settings.group).values()) == 20
    by_client = {one["client"]: one for one in found["clients"]}
    assert by_client.keys() == {"press-0", "press-1"}
    told = plant.lines("read", plant.client, "--client", "press-1")
    errors = [(one["prediction"] - one["label"]) ** 2 for one in told]
    assert by_client["press-1"]["samples"] == 5
    assert by_client["press-1"]["rmse"] == pytest.approx((sum(errors[:5]) / 5) ** 0.5, rel=1e-5)
    assert sum(by_client["press-1"]["weights"].values()) == pytest.approx(1)
    assert by_client["press-1"]["last_seen"] > 1e9
    assert sum(place["behind"] for place in found["inputs"]) == 0
    assert "press-0" not in plant.said("inspect", plant.client, "--client", "press-1")
    assert plant("inspect", plant.client, "--client", "nobody")[0] == 2
    plant.work()
    shard = json.loads(plant.said("inspect", plant.server, "--format", "json"))["shards"][0]
    sent = plant.lines("updates", plant.server)
    assert shard["updates"] == len(sent)
    assert shard["members"] == sorted({one["client"] for one in sent})


def test_top_shows_what_is_behind_and_how_well_is_predicted(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects an operator's live picture: lag, rates and errors are of what happened between two looks."""
    plant.said("write", plant.client, stdin=ROWS)
    steps = iter([lambda: None, plant.work])
    monkeypatch.setattr("streamfl.cli.top.time.sleep", lambda _seconds: next(steps)())
    before, after = plant.lines("top", plant.client, "--count", 2)
    assert before["topics"][0] == {"topic": "readings", "records": 10, "per_second": 0.0, "behind": 10}
    assert after["topics"][0]["behind"] == 0
    assert after["topics"][1]["per_second"] > 0
    assert [(one["client"], one["predictions"]) for one in after["clients"]] == [
        ("press-0", 5),
        ("press-1", 5),
    ]
    assert all(one["rmse"] > 0 for one in after["clients"])
    monkeypatch.setattr("streamfl.cli.top.time.sleep", lambda _seconds: None)
    assert "no workers" in plant.said("top", plant.client, "--count", 1)


def test_the_first_look_of_top_has_the_rate_since_it_began_to_count(plant: Plant) -> None:
    """Protects whoever looks once: a record a second was shown as hundreds, because what came while top
    counted was divided by the time after that."""
    now = 0.0

    def counted(*place: Any) -> int:
        """A second's work, in which one record comes."""
        nonlocal now
        if now < 4.0:
            plant.bus.write([Outgoing("readings", b"a", b"{}", 0)])
        now += 1.0
        return records_between(*place)

    plant.monkeypatch.setattr("streamfl.cli.top.records_between", counted)
    clock = SimpleNamespace(monotonic=lambda: now, sleep=lambda _seconds: None)
    plant.monkeypatch.setattr("streamfl.cli.top.time", clock)
    (look,) = plant.lines("top", plant.client, "--count", 1)
    assert look["topics"][0]["records"] == 4
    assert 0 < look["topics"][0]["per_second"] <= 1


def test_top_goes_on_when_partitions_are_added(plant: Plant) -> None:
    """Protects an operator who adds partitions and watches: the look goes on, and counts what comes there."""
    plant.said("write", plant.client, stdin=ROWS)

    def grow() -> None:
        for name in ("readings", "plant.predictions"):
            plant.bus._topics[name].partitions.append(PartitionLog(name, 2, False))
        prediction = b'{"client":"late","prediction":1,"label":3}'
        plant.bus.write(
            [Outgoing("readings", b"a", b"{}", 2), Outgoing("plant.predictions", b"late", prediction, 2)]
        )

    steps = iter([lambda: None, grow])
    plant.monkeypatch.setattr("streamfl.cli.top.time.sleep", lambda _seconds: next(steps)())
    before, after = plant.lines("top", plant.client, "--count", 2)
    assert [one["topics"][0]["behind"] for one in (before, after)] == [10, 11]
    assert [(one["client"], one["rmse"]) for one in after["clients"]] == [("late", 2.0)]


def test_equal_reasons_are_told_once(plant: Plant) -> None:
    """Protects a reader of check: twelve records with the same mistake are one line, with their number and an
    example."""
    rows = (
        [{"device": "a", "x": f"{n},5"} for n in range(6)] + [{"device": "a"}] * 3 + [{"device": "a", "x": 1}]
    )
    plant.said(
        "write", plant.client, "--as-they-are", "--key", "device", stdin="\n".join(map(json.dumps, rows))
    )
    code, out, _ = plant("check", plant.client, "--format", "json")
    [found] = [one for one in json.loads(out)["checks"] if one["check"] == "records of readings"]
    assert code == 4
    readable, numeric, missing = found["detail"].split("; ")
    assert readable == "1 of 10 records readable"
    assert numeric.startswith("6 times, the first readings-")
    assert "not_numeric: x is" in numeric
    assert missing.startswith("3 times, the first readings-")
    assert EXAMPLES >= 2


def test_findings_fit_a_terminal() -> None:
    """Protects a terminal of 80 columns: no line is cut or longer, and what to do stands beneath what is
    wrong."""
    findings = [
        Finding("configuration", True, "fine"),
        Finding("a topic " + "x" * 150, False, "is wrong " * 30, "do " * 60),
    ]
    text = StringIO()
    print_list("Check of it", as_list(findings), Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "x" * 150 in "".join(line.strip() for line in lines).replace("a topic ", "")
    assert lines[1].split() == ["pass", "configuration:", "fine"]
    assert any(line.strip().startswith("To do: do do") for line in lines)


def test_a_second_worker_finds_a_port_of_its_own() -> None:
    """Protects the README's promise of as many workers as one likes: one file, one machine, a port each."""
    health = Health()
    with HealthServer("127.0.0.1", 0, health, bytes) as first:
        with HealthServer("127.0.0.1", first.port, health, bytes, others=5) as second:
            assert first.port < second.port <= first.port + 5
        with pytest.raises(ConfigurationError, match=f"metrics.port = {first.port}: "):
            HealthServer("127.0.0.1", first.port, health, bytes)


def test_a_shell_completes_commands_and_options() -> None:
    """Protects completion, which a shell asks for by the environment: commands are loaded late and have to be
    found."""
    asked = {"_STREAMFL_COMPLETE": "complete_bash", "COMP_WORDS": "streamfl read --fo", "COMP_CWORD": "2"}
    program = "from streamfl.cli import app; app(prog_name='streamfl')"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert set(ended.stdout.split()) == {"--follow", "--format"}


@pytest.mark.long
def test_a_pipe_gets_lines_until_its_reader_has_enough(tmp_path: Path) -> None:
    """Protects `streamfl top | head`: it printed nothing and never ended, because it drew only where a
    terminal can be drawn over. A reader that goes is no failure."""
    client = FEDERATION.format(name="", role="client", preset="default") + SAMPLES
    (tmp_path / "client.toml").write_text(client.replace('"memory://"', '"sqlite://plant.db"'))
    run_streamfl("topics", "client.toml", "--create-inputs", cwd=tmp_path, check=True)
    script = f"{sys.executable} -m streamfl top client.toml --every 0.1 | head -n 1"
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (ended.returncode, "pofmkl-client of plant" in ended.stdout) == (0, True), ended.stderr
    assert "Traceback" not in ended.stderr
