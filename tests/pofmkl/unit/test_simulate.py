"""Data that cannot be learnt from, and runs that come to nothing: an exit code and a reason, never a
traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_command
from streamfl_connectors.replay import ReplayTable

from streamfl.contract.role import ConfigurationError, DataError
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools import simulated_federation
from streamfl.pofmkl.tools.federation import simulate
from streamfl.pofmkl.tools.streams import deal
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.simulation.tables import client_names, numbers

CONFIG = """
[federation]
name = "plant"
seed = 7
clients = 2
[bus]
url = "memory://{name}"
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "device"
features = "inputs"
dimension = 2
label = "y"
[learning]
features_per_kernel = 4
"""


class Line:
    """The command line in this process, in a folder and on a memory bus of the test's own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch, self._capture = monkeypatch, capture
        self.folder = folder
        self.bus = MemoryBus.at(f"memory://{folder.name}")
        self.config = folder / "client.toml"
        self.config.write_text(CONFIG.format(name=folder.name))

    def __call__(self, command: str, *arguments: object) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of ``streamfl`` with the configuration and these arguments."""
        return run_command(self._monkeypatch, self._capture, command, self.config, *arguments)

    def csv(self, **columns: Any) -> Path:
        path = self.folder / "data.csv"
        pd.DataFrame(columns).to_csv(path, index=False)
        return path


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(tmp_path, monkeypatch, capsys)


def settings(**sections: Any) -> PofmklSettings:
    """Of the paper's preset, unless ``sections`` say otherwise."""
    content: dict[str, Any] = {
        "federation": {"name": "f", "clients": 2},
        "role": {"kind": "pofmkl-client"},
        "learning": {"features_per_kernel": 4},
        **sections,
    }
    content["learning"] = {"preset": "paper", **content["learning"]}
    return PofmklSettings.model_validate(content)


@pytest.mark.parametrize(("command", "data"), [("simulate", "river:WaterFlow"), ("replay", "only.csv")])
def test_data_with_nothing_to_learn_from_is_said_to_be(line: Line, command: str, data: str) -> None:
    """Protects whoever brings a series of labels alone from a message about concatenating arrays."""
    only = pd.DataFrame({"y": np.arange(20.0)})
    only.to_csv(line.folder / "only.csv", index=False)
    location = data if data.startswith("river:") else line.folder / data
    code, out, error = line(command, "--data", location, "--label", "y")
    assert (code, out) == (5, "")
    assert "no numeric column besides y" in error


@pytest.mark.parametrize(
    ("command", "shape"), [("simulate", (20, 0)), ("replay", (20, 2, 2)), ("simulate", ())]
)
def test_inputs_that_are_no_matrix_are_refused(line: Line, command: str, shape: tuple[int, ...]) -> None:
    """Protects against learning from the archive's other arrays in place of a matrix that was meant."""
    np.savez(line.folder / "data.npz", X=np.zeros(shape), y=np.arange(20.0), aside=np.arange(20.0))
    code, out, error = line(command, "--data", line.folder / "data.npz", "--label", "y")
    assert (code, out) == (5, "")
    assert "X must be 2-D" in error


@pytest.mark.parametrize("clients", [21])
def test_more_clients_than_rows_are_refused(line: Line, clients: int) -> None:
    """Protects a typing error from a message about array shapes."""
    data = str(line.csv(x=np.arange(20.0), y=np.arange(20.0)))
    with pytest.raises(DataError, match=f"20 usable rows are too few for {clients} clients"):
        deal(data, "y", clients, None)


@pytest.mark.parametrize(
    ("devices", "ending"),
    [
        ([3, 4, None], "csv"),
        (["pump", "valve", None], "parquet"),
        (["pump", "valve", None], "npz"),
        ([3, 4, None], "npz"),
    ],
)
def test_rows_without_a_client_are_left_out_and_counted(line: Line, devices: list[Any], ending: str) -> None:
    """Protects the figures from clients that are gaps in a file, one each, and the topic from a client called
    nan."""
    frame = pd.DataFrame({"x": np.arange(12.0), "device": devices * 4, "y": np.arange(12.0) % 5})
    data = line.folder / f"data.{ending}"
    if ending == "csv":
        frame.to_csv(data, index=False)
    elif ending == "parquet":
        frame.to_parquet(data)
    else:
        owners = (
            frame["device"].fillna("").to_numpy("U8")
            if devices[0] == "pump"
            else frame["device"].to_numpy(float)
        )
        np.savez(data, x=frame["x"], y=frame["y"], device=owners)
    names = [str(name) for name in devices[:2]]
    code, out, _ = line("simulate", "--data", data, "--client-column", "device", "--format", "json")
    found = json.loads(out)
    assert (code, found["samples"], found["dropped_rows"]) == (0, 8, 4)
    assert list(found["scaled_regret_per_client"]) == names
    code, _, error = line("simulate", "--data", data, "--client-column", "device", "--clients", "3")
    assert code == 5
    assert "device names 2 clients, 3 are asked for" in error
    line("topics", "--create-inputs")
    code, out, _ = line("replay", "--data", data, "--format", "json")
    found = json.loads(out)
    assert (code, found["records"], found["dropped"]) == (0, 8, 4)
    keys = [record.key for record in line.bus.read("readings")]
    assert sorted(map(str, keys)) == sorted([str(name.encode()) for name in names] * 4)


def test_rows_and_columns_that_are_not_used_are_told(line: Line) -> None:
    """Protects the reader of a figure: every row counts though clients have 3, 40 and 20; what is left out on
    request is told."""
    owners = ["short"] * 3 + ["long"] * 40 + ["middle"] * 20
    data = line.csv(x=np.arange(63.0), city=["Bern"] * 63, device=owners, y=np.arange(63.0) % 5)
    code, out, error = line(
        "simulate", "--data", data, "--client-column", "device", "--clients", "3", "--format", "json"
    )
    found = json.loads(out)
    assert (code, found["samples"], found["unused_rows"], found["unused_clients"]) == (0, 63, 0, 0)
    assert found["unread_columns"] == ["city"]
    assert "they are not numbers: city" in error
    code, out, error = line(
        "simulate", "--data", data, "--client-column", "device", "--clients", "2", "--format", "json"
    )
    found = json.loads(out)
    assert (code, found["samples"], found["unused_rows"], found["unused_clients"]) == (0, 60, 3, 1)
    assert list(found["scaled_regret_per_client"]) == ["long", "middle"]
    chosen = ("--clients", "2", "--methods", "local")
    code, out, _ = line("compare", "--data", data, "--client-column", "device", *chosen, "--format", "json")
    found = json.loads(out)
    assert (code, found["unused_rows"], found["unread_columns"]) == (0, 3, ["city"])
    code, out, _ = line(
        "simulate", "--data", data, "--client-column", "device", "--rounds", "5", "--format", "json"
    )
    assert (code, json.loads(out)["unused_rows"]) == (0, 50)
    code, _, error = line("simulate", "--data", data, "--client-column", "device", "--rounds", "41")
    assert code == 5
    assert "no client has more than 40 usable rows, 41 samples of each are asked for" in error


@pytest.mark.parametrize("command", ["simulate", "compare", "replay"])
def test_the_settings_say_which_columns_have_the_label_and_the_client(line: Line, command: str) -> None:
    """Protects a first hour: what ``init`` wrote into the file was asked for again, and without it "no column
    y" was the answer."""
    line.csv(device=["a", "b"] * 20, x0=np.arange(40.0) % 7, x1=np.arange(40.0) % 3, wear=np.arange(40.0) % 5)
    data = line.folder / "data.csv"
    line.config.write_text(line.config.read_text().replace('label = "y"', 'label = "wear"'))
    assert line("topics", "--create-inputs")[0] == 0
    code, out, error = line(command, "--data", data, "--format", "json")
    assert code == 0, error
    found = json.loads(out)
    assert found.get("samples", found.get("records", 0)) == 40 or found["clients"] == 2, found
    if command == "simulate":
        assert list(found["scaled_regret_per_client"]) == ["a", "b"]


def test_clients_keep_their_names_in_a_simulation(line: Line) -> None:
    """Protects whoever looks for a device's regret: clients are in the order of the file, and the trace's
    columns too."""
    generator = np.random.default_rng(1)
    owners = ["zeta", "alpha"] * 10
    data = line.csv(x=generator.normal(size=20), device=owners, y=generator.uniform(size=20))
    arguments = ("--data", data, "--client-column", "device", "--trace", line.folder, "--format", "json")
    code, out, _ = line("simulate", *arguments)
    regrets = json.loads(out)["scaled_regret_per_client"]
    assert code == 0
    assert list(regrets) == ["zeta", "alpha"]
    with np.load(line.folder / "trace.npz") as trace:
        errors = np.square(trace["predictions"] - trace["labels"]).sum(axis=0)
        kernels = np.square(trace["kernel_predictions"] - trace["labels"][..., None]).sum(axis=0)
    np.testing.assert_allclose(list(regrets.values()), errors - kernels.min(axis=1), atol=1e-6)


@pytest.mark.parametrize("command", ["simulate", "replay"])
@pytest.mark.parametrize(
    ("devices", "expected"),
    [(["a" * 257, "b"], "a name of 257 characters, at most 256"), ([["a"], ["b"]], "does not hold names")],
)
def test_clients_that_cannot_be_told_apart_are_refused(
    line: Line, command: str, devices: list[Any], expected: str
) -> None:
    """Protects two devices from being learnt as one, and a federation from names that its clients refuse."""
    column = np.empty(20, dtype=object)
    column[:] = devices * 10
    frame = pd.DataFrame({"x": np.arange(20.0), "device": column, "y": np.arange(20.0)})
    data = line.folder / "data.parquet"
    frame.to_parquet(data)
    code, out, error = line(command, "--data", data, "--client-column", "device")
    assert (code, out) == (5, "")
    assert expected in error


@pytest.mark.parametrize(
    ("values", "ending"),
    [
        ([[1], [2]], ""),
        (["yes", [1], "no"], "'yes'"),
        (["yes", "no", None], "'yes' and 'no' as 1 and 0"),
        # As a Parquet file has them.
        ([np.array([1.0, 2.0]), np.array([3.0])], ""),
        (["yes", np.array(["no", "yes"]), "no"], "'yes'"),
    ],
)
def test_a_column_of_lists_is_refused(values: list[Any], ending: str) -> None:
    """Protects whoever has a list in a field of a JSON file: it ended with a traceback."""
    column = np.empty(len(values), object)
    column[:] = values
    with pytest.raises(DataError, match=f"the column t1 does not hold numbers.*{ending}$"):
        numbers(ReplayTable({"t1": column}), ["t1"], "rows.jsonl")


def test_names_that_are_written_alike_are_refused() -> None:
    """Protects two devices from being learnt as one: a reader of another format may keep texts and numbers in
    one column."""
    table = ReplayTable({"device": np.array(["1", 1, None, 2], dtype=object)})
    with pytest.raises(DataError, match="different values that are both written 1"):
        client_names(table, "device", "data")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"x": [1e305, -1e305] * 10, "y": np.arange(20.0)}, "norm of a row is no finite number"),
        ({"x": np.arange(20.0), "y": [1.7e308, -1.7e308] * 10}, "at most 1e+300 is read"),
    ],
)
def test_numbers_too_large_to_scale_are_refused(line: Line, columns: dict[str, Any], expected: str) -> None:
    """Protects against figures of a federation all of whose inputs, or labels, had become zero."""
    code, out, error = line("simulate", "--data", line.csv(**columns, z=[1e305] * 20))
    assert (code, out) == (5, "")
    assert expected in error


@pytest.mark.parametrize(("unit", "staleness"), [(1.0, "async"), (1e299, "lockstep")])
def test_divergence_is_said_in_every_unit(
    line: Line, monkeypatch: pytest.MonkeyPatch, unit: float, staleness: str
) -> None:
    """Protects from a traceback: a prediction too large for the label's own unit is null in JSON."""
    generator = np.random.default_rng(1)
    data = line.csv(x=generator.normal(size=40), y=generator.uniform(size=40) * unit)
    monkeypatch.setenv("STREAMFL_LEARNING__STALENESS", staleness)
    monkeypatch.setenv("STREAMFL_LEARNING__PRESET", "paper")
    monkeypatch.setenv("STREAMFL_LEARNING__LEARNING_RATE", "1e5")
    code, out, error = line("simulate", "--data", data)
    assert (code, out) == (5, "")
    assert "the federation diverged" in error
    assert "learning.learning_rate = 100000" in error


def test_labels_in_a_huge_unit_have_figures(line: Line) -> None:
    """Protects the figures where the squared error in the label's own unit is beyond all numbers: its root is
    not."""
    generator = np.random.default_rng(1)
    data = line.csv(x=generator.normal(size=40), y=generator.uniform(size=40) * 1e200)
    code, out, _ = line("simulate", "--data", data, "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert 0 < found["mae"] < found["rmse"] < 1e200
    assert 0 < found["scaled_mse"] < 1


def test_a_refused_sample_ends_the_simulation_with_its_reason(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects whoever chose the wrong loss from being told to raise a budget that was never set."""
    data = line.csv(x=np.arange(20.0), y=[0.0, 0.25, 1.0, 0.5] * 5)
    monkeypatch.setenv("STREAMFL_LEARNING__LOSS", "logistic")
    code, out, error = line("simulate", "--data", data)
    assert (code, out) == (5, "")
    assert "client-1 was refused (label): label 0.25, 0 or 1 is expected with the logistic loss" in error
    assert "budget" not in error


@pytest.mark.parametrize("budget", [None, 5.0])
def test_what_stands_still_names_only_what_is_set(
    monkeypatch: pytest.MonkeyPatch, budget: float | None
) -> None:
    """Protects from advice about a budget where there is none; how far the run came is said in any case."""
    monkeypatch.setattr(simulated_federation, "_MOST_STEPS", 1)
    generator = np.random.default_rng(1)
    with pytest.raises(
        ConfigurationError, match=r"is stuck in round 0: \d of 2 samples are predicted, \d wait"
    ) as raised:
        simulate(
            settings(uplink={"budget_bytes_per_second": budget}),
            generator.normal(size=(3, 2, 1)),
            generator.uniform(size=(3, 2)),
        )
    assert ("uplink.budget_bytes_per_second = 5" in str(raised.value)) == (budget is not None)
    assert ("budget" in str(raised.value)) == (budget is not None)


def test_a_budget_is_said_to_pay_for_less_of_a_history(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects whoever has history and a budget from a promise that only live samples keep: catch-up is
    faster than the bytes."""
    data = line.csv(x=np.arange(20.0), y=[0.0, 0.25, 1.0, 0.5] * 5)
    told = "History in a topic is learnt faster, and the budget pays for fewer"
    assert told not in " ".join(line("simulate", "--data", data)[1].split())
    monkeypatch.setenv("STREAMFL_UPLINK__BUDGET_BYTES_PER_SECOND", "1e6")
    assert told in " ".join(line("simulate", "--data", data)[1].split())
    monkeypatch.setenv("STREAMFL_LEARNING__STALENESS", "lockstep")
    assert told not in " ".join(line("simulate", "--data", data)[1].split())


def test_what_workers_of_a_simulation_log_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Protects a newcomer's first minute: a round that is closed without a client whose rows are over is
    nothing to look into."""
    generator = np.random.default_rng(1)
    labels = generator.uniform(size=(12, 3))
    labels[6:, 2] = np.nan
    outcome = simulate(
        settings(learning={"staleness": "lockstep"}), generator.normal(size=(12, 3, 1)), labels
    )
    assert len(outcome.predictions) == 12
    assert caplog.messages == []
