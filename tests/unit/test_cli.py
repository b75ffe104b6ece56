"""The command line: exit codes, one JSON object on stdout, and the effect of each command on the memory
bus."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command

from streamfl.configuration.settings import load_settings
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import BadRecord
from streamfl.kernels import frequencies, paper_dictionary
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.memory_bus import MemoryBus

CONFIG = """
[federation]
name = "plant"
seed = 7
clients = 4
[bus]
url = "memory://{name}"
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "device"
features = ["x0", "x1"]
label = "y"
[learning]
features_per_kernel = 4
"""


class Line:
    """The command line in this process, with a memory bus and a data file of the test."""

    def __init__(self, folder: Path, command: Command) -> None:
        self._command = command
        self.url = f"memory://{folder.name}"
        self.bus = MemoryBus.at(self.url)
        self.config = folder / "client.toml"
        self.config.write_text(CONFIG.format(name=folder.name))
        self.data = folder / "data.npz"
        matrix = np.random.Generator(np.random.PCG64(1)).normal(size=(41, 2))
        matrix[5, 0] = np.nan
        np.savez(self.data, X=matrix, y=np.nan_to_num(matrix[:, 0]))

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        return self._command(*arguments)

    def json(self, *arguments: object) -> tuple[int, dict[str, Any]]:
        code, out, _ = self(*arguments, "--format", "json")
        assert out.count("\n") == 1
        return code, json.loads(out)


@pytest.fixture
def line(tmp_path: Path, command: Command) -> Line:
    return Line(tmp_path, command)


def test_errors_become_exit_codes_without_a_traceback(line: Line) -> None:
    """Scripts and orchestrators decide by the exit code; people read one line."""
    for arguments, expected in (
        (("run", "nothing.toml"), 2),
        (("bogus",), 2),
        (("run", line.config), 2),
        (("replay", line.config, "--data", "nothing.csv"), 5),
        (("simulate", line.config, "--data", line.data, "--clients", "100"), 5),
        (("check", line.config), 4),
        (("topics", line.config), 4),
    ):
        code, _, error = line(*arguments)
        assert code == expected, arguments
        assert "Traceback" not in error


def test_check_passes_only_when_all_is_there_and_writes_nothing(line: Line) -> None:
    """A preflight that passes a broken deployment, or that changes anything, is worse than none."""
    code, before = line.json("check", line.config)
    assert (code, before["ok"]) == (4, False)
    assert line.bus.describe(["readings"]) == {}
    assert line.json("topics", line.config, "--create-inputs")[0] == 0
    line.bus.write([Outgoing("readings", b"k", b'{"x0": 1, "x1": 2, "device": "a", "y": 0.5}')])
    code, after = line.json("check", line.config)
    assert (code, after["ok"]) == (0, True)
    assert list(line.bus.read("plant.predictions")) == []
    line.bus.write([Outgoing("readings", b"k", b'{"x0": "one"}')])
    code, broken = line.json("check", line.config)
    failed = [found for found in broken["checks"] if not found["passed"]]
    assert code == 4
    assert [found["check"] for found in failed] == ["records of readings"]
    assert "missing_field" in failed[0]["detail"]


def test_topics_refuses_what_is_wrong(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state topic that is not co-partitioned would restore one client's state on another worker."""
    _, made = line.json("topics", line.config, "--create-inputs", "--partitions", 3)
    assert {topic["name"]: topic["partitions"] for topic in made["topics"]}["plant.pofmkl-client.state"] == 3
    assert set(made["created"]) >= {"readings", "plant.model", "plant.updates"}
    monkeypatch.setenv("STREAMFL_FEDERATION__SHARDS", "2")
    code, found = line.json("topics", line.config)
    assert code == 4
    problems = {topic["name"] for topic in found["topics"] if topic["problem"]}
    assert problems == {"plant.updates", "plant.model"}


def test_a_topic_that_is_made_again_has_the_partitions_of_its_state(line: Line) -> None:
    """Protects who deleted an input by mistake: with another number of partitions nothing would fit it, and
    no topic gets fewer."""
    line.json("topics", line.config, "--create-inputs", "--partitions", 3)
    del line.bus._topics["readings"]
    code, made = line.json("topics", line.config, "--create-inputs")
    assert (code, made["created"]) == (0, ["readings"])
    assert topic_of(made, "readings")["partitions"] == 3


def topic_of(result: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [topic for topic in result["topics"] if topic["name"] == name]
    return dict(found)


def test_the_users_topic_is_the_users_whatever_its_name(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects users whose topics have the same prefix as the federation."""
    monkeypatch.setenv("STREAMFL_SAMPLES__TOPIC", "plant.readings")
    line.bus.create([TopicSpec("plant.readings", 2, compacted=True)])
    _, result = line.json("topics", line.config)
    assert topic_of(result, "plant.readings")["problem"] is None


@pytest.mark.parametrize(
    ("name", "needed", "policy"),
    [
        ("plant.model", "compact", "compact"),
        ("plant.model", "compact", "delete"),
        ("plant.model", "compact", "compact,delete"),
        ("plant.updates", "delete", "compact,delete"),
        ("plant.updates", "delete", "delete"),
    ],
)
def test_state_that_would_be_deleted_with_time_is_refused(
    line: Line, name: str, needed: str, policy: str
) -> None:
    """Under compact,delete a model that did not change within the retention time would be deleted
    silently. The policy that is shown is the topic's own."""
    line.bus.create([TopicSpec(name, 1, policy == "compact", {"cleanup.policy": policy})])
    line.json("topics", line.config, "--create-inputs")
    _, result = line.json("topics", line.config)
    found = topic_of(result, name)
    assert (found["cleanup"], found["cleanup_needed"]) == (policy, needed)
    assert ("cleanup.policy" in (found["problem"] or "")) is (policy != needed)
    assert found["remedy"] == ("" if policy == needed else f"set cleanup.policy={needed} on the topic")
    _, table, _ = line("topics", line.config)
    [row] = [row for row in table.splitlines() if f" {name} " in row]
    assert [cell.strip() for cell in row.split("│")][3] == policy


def test_a_seed_beyond_64_bits_is_a_mistake_of_the_command_line(line: Line, tmp_path: Path) -> None:
    """The demo is the first command that people try: its mistakes are explained like those of other
    commands."""
    for seed in (99999999999999999999999, -(2**63) - 1):
        code, _, error = line("demo", "--seed", seed, "--out", tmp_path / "demo.png")
        assert code == 2
        assert "--seed" in error
        assert "Traceback" not in error


def test_replay_writes_rows_as_the_settings_say(line: Line) -> None:
    """Every usable row once, dealt to the clients in turn, with their keys, and readable by the role."""
    line("topics", line.config, "--create-inputs")
    code, result = line.json("replay", line.config, "--data", line.data, "--rate", 100000)
    assert (code, result["records"], result["dropped"]) == (0, 40, 1)
    written = list(line.bus.read("readings"))
    contents = [json.loads(record.value or b"") for record in written]
    assert len(written) == 40
    assert {content["device"] for content in contents} == {f"client-{number}" for number in range(4)}
    assert all(content.keys() == {"x0", "x1", "device", "y"} for content in contents)
    assert all(
        record.key == content["device"].encode() for record, content in zip(written, contents, strict=True)
    )


def test_features_are_those_of_the_clients(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program without streamfl has to get the clients' exact frequencies, whatever the preset."""
    code, result = line.json("features", line.config, "--out", tmp_path / "default.npz")
    views = load_settings(line.config, PofmklSettings).views
    assert (code, len(views), result["arrays"].keys()) == (0, 4, {f"frequencies_{view}" for view in views})
    with np.load(tmp_path / "default.npz") as archive, np.load(_trace(line, tmp_path)) as trace:
        assert set(archive.files) == set(result["arrays"])
        for name in archive.files:
            np.testing.assert_array_equal(archive[name], trace[name])
            assert archive[name].shape[1:] == (4, 4 if name.endswith("lags") else 2)
    monkeypatch.setenv("STREAMFL_LEARNING__PRESET", "paper")
    code, result = line.json("features", line.config, "--out", tmp_path / "f.npz")
    assert (code, result["arrays"]) == (0, {"frequencies": {"shape": [51, 4, 2], "dtype": "float32"}})
    with np.load(tmp_path / "f.npz") as archive:
        np.testing.assert_array_equal(archive["frequencies"], frequencies(paper_dictionary(), 4, 2, seed=7))


def _trace(line: Line, folder: Path) -> Path:
    """The random draws of a federation's clients."""
    code, _, error = line(
        "simulate", line.config, "--data", line.data, "--rounds", 2, "--trace", folder / "trace"
    )
    assert code == 0, error
    return folder / "trace" / "trace.npz"


def test_simulate_deals_rows_and_scales_them_over_the_file(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others recompute a run from its trace: row t K + k is sample t of client k, without gaps, scaled over
    the file."""
    monkeypatch.setenv("STREAMFL_LEARNING__PRESET", "paper")
    code, result = line.json(
        "simulate",
        line.config,
        "--data",
        line.data,
        "--clients",
        4,
        "--rounds",
        6,
        "--trace",
        tmp_path / "trace",
    )
    assert code == 0
    assert (result["samples"], result["clients"], result["rounds"], result["dropped_rows"]) == (24, 4, 6, 1)
    assert result["learning_rate"] == pytest.approx(6**-0.5)
    with np.load(line.data) as archive:
        usable = np.isfinite(archive["X"]).all(axis=1)
        inputs, labels = archive["X"][usable], archive["y"][usable]
    scaled = inputs / np.linalg.norm(inputs, axis=1).max()
    with np.load(tmp_path / "trace" / "trace.npz") as trace:
        np.testing.assert_allclose(trace["inputs"], scaled[:24].reshape(6, 4, 2), rtol=1e-6)
        minimum, maximum = labels.min(), labels.max()
        np.testing.assert_allclose(
            trace["labels"].ravel(), (labels[:24] - minimum) / (maximum - minimum), atol=1e-12
        )
        errors = np.square(trace["predictions"] - trace["labels"])
        assert result["scaled_mse"] == pytest.approx(errors.mean())
    assert result["rmse"] == pytest.approx((maximum - minimum) * errors.mean() ** 0.5)
    assert result["mae"] == pytest.approx((maximum - minimum) * np.sqrt(errors).mean())


@pytest.mark.long
def test_a_tiny_budget_takes_simulated_time_only(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of a byte a day is slow in virtual time only, and it is kept."""
    monkeypatch.setenv("STREAMFL_LEARNING__STALENESS", "lockstep")
    monkeypatch.setenv("STREAMFL_UPLINK__BUDGET_BYTES_PER_SECOND", "1e-5")
    code, found = line.json("simulate", line.config, "--data", line.data, "--rounds", 3)
    assert (code, found["samples"]) == (0, 12)
    assert np.isfinite(found["rmse"])
    monkeypatch.setenv("STREAMFL_UPLINK__BUDGET_BYTES_PER_SECOND", "1e-320")
    code, out, error = line("simulate", line.config, "--data", line.data, "--rounds", 6)
    assert (code, out) == (2, "")
    assert "uplink.budget_bytes_per_second" in error


@pytest.mark.parametrize("name", ["simulate", "features"])
def test_bandwidths_below_single_precision_are_refused(
    line: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Frequencies that overflow make every prediction NaN. The message names the setting."""
    monkeypatch.setenv("STREAMFL_KERNELS__BANDWIDTHS", "[1e-40, 1.0]")
    arguments = ["--data", line.data] if name == "simulate" else ["--out", tmp_path / "f.npz"]
    code, _, error = line(name, line.config, *arguments)
    assert code == 2
    assert "kernels.bandwidths: 1e-40" in error


def test_a_state_that_is_found_useless_late_ends_with_a_remedy(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects an operator from a traceback at each start: a value of several records is decoded when a role
    needs it, not when it is restored."""

    def damaged(role: PofmklClient, batch: object, now: float) -> None:
        raise BadRecord("malformed", "a model of 5 bytes")

    monkeypatch.setattr(PofmklClient, "receive", damaged)
    line("topics", line.config, "--create-inputs")
    line.bus.write([Outgoing("readings", b"a", b'{"x0": 1, "x1": 2, "device": "a"}')])
    code, out, error = line("run", line.config)
    assert (code, out) == (2, "")
    where = "the role's state in plant.pofmkl-client.state cannot be used: malformed: a model of 5 bytes"
    assert where in error
    assert "run streamfl reset CONFIG --all" in error


def test_run_predicts_and_leaves_when_told(line: Line) -> None:
    """SIGTERM ends a worker after its step with code 0, so that a rolling update loses nothing. No timer
    remains."""
    line("topics", line.config, "--create-inputs")
    line.bus.write([Outgoing("readings", b"a", b'{"x0": 1, "x1": 2, "device": "a"}')])
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def stop_when_predicted() -> None:
        while not list(line.bus.read("plant.predictions")):
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=stop_when_predicted, daemon=True)
    watcher.start()
    try:
        code, out, _ = line("run", line.config)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (code, out) == (0, "")
    timers = [
        one for one in threading.enumerate() if isinstance(one, threading.Timer) and not one.finished.is_set()
    ]
    assert "streamfl.cli.run" not in {one.function.__module__ for one in timers}
    prediction = json.loads(next(iter(line.bus.read("plant.predictions"))).value or b"")
    assert prediction["client"] == "a"
    assert prediction["label"] is None
