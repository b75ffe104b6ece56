"""Commands in the README and the documents print what the text says. Runs the README's own commands without a
broker."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from streamfl_process import run_streamfl

from streamfl.cli import main
from streamfl.pofmkl.tools.comparison import method_names

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.strip() for line in re.findall(r"(?:^    |`)streamfl (\w+ [^`#\n]+)", README, re.MULTILINE)]

FIGURES = {
    "samples",
    "clients",
    "rounds",
    "preset",
    "learning_rate",
    "regularisation",
    "exploration_rate",
    *(f"{error}{whose}" for error in ("rmse", "mae") for whose in ("", "_running_mean", "_local_only")),
    "rmse_best_kernel",
    "challengers",
    "scaled_mse",
    "log_loss",
    "accuracy",
    "auc",
    "scaled_regret_mean",
    "scaled_regret_per_client",
    "uplink_bytes",
    "uplink_bytes_per_sample",
    "record_bytes",
    "uplink_budget_bytes",
    "downlink_bytes",
    "seconds",
}
ROWS = [
    "federation",
    "each client on its own",
    "each client's running mean",
    "each client's best kernel, known afterwards",
]
CHALLENGERS = [
    "last-label: the client's last label",
    "linear: River's linear regression",
    "knn: River's nearest neighbours",
    "hoeffding: River's decision tree",
]

Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the README's two files and samples as it describes, on a memory bus of its own."""
    for block in re.findall(r"```toml\n(.*?)```", README, re.DOTALL):
        role = re.search(r'kind = "pofmkl-(\w+)"', block)
        assert role
        (tmp_path / f"{role[1]}.toml").write_text(block)
    generator = np.random.default_rng(1)
    inputs = generator.uniform(20, 40, size=(160, 3))
    rows = np.column_stack([inputs, inputs[:, 0] / 5 + generator.normal(size=160)])
    np.savetxt(tmp_path / "readings.csv", rows, delimiter=",", header="t1,t2,flow,lever", comments="")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMFL_BUS__URL", f"memory://{tmp_path.name}")
    return tmp_path


@pytest.fixture(name="run")
def _run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(command: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of ``streamfl`` with these arguments."""
        monkeypatch.setattr(sys, "argv", ["streamfl", *command.split()])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        return int(code), *capsys.readouterr()

    return run


def shown(beginning: str) -> str:
    """The README's command with this beginning."""
    [command] = [command for command in COMMANDS if command.startswith(beginning)]
    return command


def table(text: str) -> list[list[str]]:
    """The cells of a printed table, without its header."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in text.splitlines()
        if line.startswith("│")
    ]


def as_json(text: str) -> Any:
    """One JSON object on one line, without numbers that JSON does not have."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is no JSON")

    assert text.endswith("}\n")
    assert text.count("\n") == 1
    return json.loads(text, parse_constant=refuse)


def test_every_command_of_the_readme_is_tried() -> None:
    """Protects this file from falling behind: a new command in the README has to be added here."""
    tried = ["init", "topics", "topics", "check", "run", "run", "simulate", "compare"]
    assert [command.split()[0] for command in COMMANDS] == tried


def test_the_demo_prints_what_it_is_to_be_judged_by(run: Run, folder: Path) -> None:
    """Protects the first output that people see: the table's rows, the picture, and the same figures as
    JSON."""
    code, out, error = run("demo")
    rows = table(out)
    assert code == 0
    assert [row[0] for row in rows] == [*ROWS, *CHALLENGERS]
    notes = " ".join(out.splitlines()[-3:])
    assert re.search(
        r"sent [\d.]+ MB: [\d,]+ bytes a sample\. The record itself, which stays with its client, has \d+\.",
        notes,
    )
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "demo.png" in error
    code, out, _ = run("demo --format json")
    found = as_json(out)
    assert code == 0
    assert found.keys() == FIGURES | {"picture"}
    for row, whose in zip(rows, ("", "_local_only", "_running_mean"), strict=False):
        figures = [found[f"{error}{whose}"] for error in ("rmse", "mae")]
        assert [float(cell) for cell in row[1:3]] == pytest.approx(figures, rel=1e-3)
    change = f"{1 - found['mae'] / found['mae_local_only']:.0%}"
    assert re.search(
        rf"is {found['mae']:.3f} points off, .* {found['mae_local_only']:.3f}: .* {change} smaller", notes
    )
    assert found["rmse"] < min(
        found["rmse_local_only"], *(one["rmse"] for one in found["challengers"].values())
    )
    # The README's text about it.
    for told in (
        *(f"{found[f'mae{whose}']:.3f} points" for whose in ("", "_local_only", "_running_mean")),
        f"{change} less off",
    ):
        assert told in README
    assert f"{found['record_bytes']} bytes" in README
    assert f"{round(found['uplink_bytes_per_sample'], -2):,.0f} bytes" in README


def test_simulate_prints_one_object(run: Run) -> None:
    """Protects scripts that read the figures, and the README's command line on data as it describes."""
    command = shown("simulate").replace("--rounds 300", "--rounds 4")
    code, out, _ = run(command)
    found = as_json(out)
    assert code == 0
    assert found.keys() == FIGURES | {"dropped_rows", "unused_rows", "unused_clients", "unread_columns"}
    assert (found["samples"], found["clients"], found["rounds"]) == (160, 40, 4)
    assert found["uplink_bytes"] > 0
    assert found["uplink_budget_bytes"] is None, "the README's example sets no budget"
    assert found["scaled_regret_per_client"].keys() == {f"client-{number}" for number in range(40)}
    _, out, _ = run(command.removesuffix(" --format json"))
    assert [row[0] for row in table(out)] == ROWS


def test_compare_puts_every_method_in_one_table(run: Run, folder: Path) -> None:
    """Protects users who choose a method with the README's command line: every method has its error and its
    bytes, best first."""
    command = shown("compare").replace("--rounds 300", "--rounds 4")
    code, out, _ = run(command)
    rows = table(out)
    assert code == 0
    assert {row[0] for row in rows} == set(method_names(every=False))
    assert all(len(row[1].split()) > 1 for row in rows), "each is said in words"
    errors = [math.inf if row[2] == "diverged" else float(row[2]) for row in rows]
    assert errors == sorted(errors)
    assert all(row[4] == "nothing" or float(row[4].replace(",", "")) > 0 for row in rows)
    assert re.search(r"RMSE, units of lever.*MAE, units of lever.*bytes sent a sample \(a record: \d+\)", out)
    assert {row[0] for row in table(run(f"{command} --all")[1])} == set(method_names())
    assert run(f"{command} --all --methods default")[0] == 2
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_topics_and_check_lead_to_a_federation_that_can_run(run: Run) -> None:
    """Protects the README's way to a running federation: check says what is missing, topics creates it."""
    check = shown("check")
    code, out, _ = run(check)
    assert code == 4
    missing = out.split("\nFAIL  ")[1:]
    assert missing
    assert all("To do: " in text and "streamfl topics client.toml --create" in text for text in missing)
    for command in (command for command in COMMANDS if command.startswith("topics")):
        # The README has readings already; here there are none yet.
        code, out, _ = run(command.replace("client.toml --create", "client.toml --create-inputs"))
        assert code == 0
        assert {row[3] for row in table(out)} == {"ok"}
    code, out, _ = run(check)
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()[1:]} == {"pass"}
    found = as_json(run(f"{check} --format json")[1])
    assert found["ok"] is True
    told = [one["check"] + (f": {one['detail']}" if one["detail"] else "") for one in found["checks"]]
    assert told == [line.removeprefix("pass  ") for line in out.splitlines()[1:]]


def test_features_say_what_was_written(run: Run, folder: Path) -> None:
    """Protects users who compute without streamfl: the file's arrays are those that the line and the object
    describe."""
    code, out, error = run("features client.toml --out f.npz")
    assert (code, out) == (0, "")
    assert error.startswith("wrote f.npz: frequencies_standardised (6, 100, 3) float32, ")
    found = as_json(run("features client.toml --out f.npz --format json")[1])
    assert found["path"] == "f.npz"
    with np.load(folder / "f.npz") as archive:
        written = {
            name: {"shape": list(archive[name].shape), "dtype": str(archive[name].dtype)}
            for name in archive.files
        }
    assert found["arrays"] == written
    assert len(written) == 4


@pytest.mark.parametrize("beginning", ["check", "init client", "topics client", "run client"])
def test_without_a_broker_commands_say_so(folder: Path, beginning: str) -> None:
    """Protects the first try on Kafka: without a broker, every command that needs one ends with exit code 3
    and a line."""
    environment = os.environ | {
        "STREAMFL_BUS__URL": "kafka://127.0.0.1:1",
        "STREAMFL_BUS__CONNECT_TIMEOUT_SECONDS": "1",
    }
    command = shown(beginning).split()
    if beginning.startswith("init"):
        # The command writes this file and never overwrites one; its bus is an argument.
        (folder / "client.toml").unlink()
        command = [part.replace("localhost:9092", "127.0.0.1:1") for part in command] + ["--seconds", "1"]
    ended = run_streamfl(*command, cwd=folder, env=environment, timeout=120)
    assert ended.returncode == 3
    assert "Traceback" not in ended.stderr
    assert "127.0.0.1:1" in ended.stderr + ended.stdout
