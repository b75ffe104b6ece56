"""The example of a learning system: once its package is installed it has everything that systems have."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_system"
ROWS = 30

Command = Callable[..., str]


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, installed as by pip."""
    folder = tmp_path_factory.mktemp("own_system")
    # pip leaves its build files beside the sources.
    source = shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", folder / "site", source], check=True, timeout=300)
    return folder / "site"


@pytest.fixture(name="run")
def _run(site: Path, tmp_path: Path) -> Command:
    """Runs a command with the package installed, beside its settings file and some data. Returns the
    output."""
    shutil.copy(EXAMPLE / "client.toml", tmp_path)
    rows = "".join(f"{number},{number % 7 / 7}\n" for number in range(ROWS))
    (tmp_path / "data.csv").write_text(f"x,y\n{rows}")

    def run(*command: object) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", *map(str, command)],
            cwd=tmp_path,
            env=environment(site),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run


def environment(site: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)])}


def test_it_says_no_more_than_its_page_counts() -> None:
    """Protects authors of a system: what is derived for them does not become what they write."""
    counted = re.search(r"(\d+) lines of code", (EXAMPLE / "README.md").read_text(encoding="utf-8"))
    assert counted is not None
    paths = sorted(EXAMPLE.rglob("*.py"))
    assert sum(code_lines(path.read_text(encoding="utf-8")) for path in paths) == int(counted[1])


def code_lines(source: str) -> int:
    """Lines that are neither blank, nor a comment, nor of a docstring."""
    texts = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is not ...
    ]
    of_texts = {line for node in texts for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    code = {number for number, line in enumerate(source.splitlines(), 1) if line.partition("#")[0].strip()}
    return len(code - of_texts)


def test_it_is_simulated_and_shown(run: Command, tmp_path: Path) -> None:
    """Protects authors of a system: simulate and demo, and their help, include it."""
    found = json.loads(
        run(
            "streamfl",
            "simulate",
            "client.toml",
            "--data",
            "data.csv",
            "--trace",
            "trace",
            "--format",
            "json",
        )
    )
    assert found["samples"] == ROWS
    assert 0 < found["rmse"] < 1.4 * found["deviation"]
    assert (tmp_path / "trace" / "trace.npz").exists()
    assert (
        json.loads(run("streamfl", "demo", "running-mean", "--out", "means.png", "--format", "json"))["rmse"]
        < 0.14
    )
    assert (tmp_path / "means.png").stat().st_size > 10_000
    assert "running-mean" in run("streamfl", "demo", "--help")


def test_its_worker_predicts_what_is_replayed(run: Command, site: Path, tmp_path: Path) -> None:
    """Protects a deployment of such a system: topics, replay, run, check and read, on a bus between
    processes."""
    run("streamfl", "topics", "client.toml", "--create-inputs")
    run("streamfl", "replay", "client.toml", "--data", "data.csv")
    worker = subprocess.Popen(
        [sys.executable, "-m", "streamfl", "run", "client.toml"],
        cwd=tmp_path,
        env=environment(site),
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while "pass  state in means.running-mean.state" not in (
            checked := run("streamfl", "check", "client.toml")
        ):
            assert time.monotonic() < deadline, checked
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    inspect = ["streamfl", "inspect", "client.toml", "--format", "json"]
    assert [one["records"] for one in json.loads(run(*inspect))["remembered"]] == [5]
    assert [one["records"] for one in json.loads(run(*inspect, "--client", "client-3"))["remembered"]] == [1]
    run("streamfl", "forget", "client.toml", "--client", "client-3")
    assert [one["records"] for one in json.loads(run(*inspect))["remembered"]] == [4]
    # It reads some records of each partition.
    assert re.search(r"(\d+) of \1 records readable", checked)
    assert "prediction" in json.loads(
        run("streamfl", "read", "client.toml", "--format", "json").partition("\n")[0]
    )


def test_its_scenarios_run_with_faults(run: Command) -> None:
    """Protects its exactly-once behaviour: the fault simulator runs it by seed on both buses."""
    assert "20 of 20 federations hold" in run(
        "streamfl.testing.faults", "--system", "running-mean", "--seeds", 20
    )
    out = run("streamfl.testing.faults", "--system", "running-mean", "--seeds", 3, "--bus", "sqlite")
    assert "3 of 3 federations hold" in out


def test_it_is_given_wrong_messages(run: Command) -> None:
    """Protects it from wrong records in its input and its changelog."""
    out = run("streamfl.testing.fuzz", "--only", "running-mean", "--messages", 3000)
    assert "3000 malformed messages" in out
    assert " 0 defects" in out


def test_it_has_a_dashboard_and_a_page(run: Command, tmp_path: Path) -> None:
    """Protects its operators: dashboard, alerts, and the page of settings and metrics are generated from its
    code."""
    assert json.loads(run("streamfl", "dashboards", "running-mean"))["title"] == "running-mean"
    run("streamfl.reference", "running-mean", "--root", "pages")
    alerts = (tmp_path / "pages" / "dashboards" / "alerts-running-mean.yaml").read_text()
    assert "alert: RunningMeanPredictionsStopped" in alerts
    page = (tmp_path / "pages" / "docs" / "reference" / "running-mean.md").read_text()
    assert ("streamfl_rmse" in page, "federation.clients" in page) == (True, True)


def test_its_role_obeys_the_laws(run: Command) -> None:
    """Protects users who copy the example: it passes the laws, run as its page says."""
    assert "passed" in run(
        "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", EXAMPLE, EXAMPLE / "test_laws.py"
    )
