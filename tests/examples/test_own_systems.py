"""The examples of learning systems: once a package is installed it has everything that systems have."""

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
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from streamfl_process import run_streamfl, start_streamfl

from streamfl.runtime.bus import connect

ROOT = Path(__file__).parents[2]
# Each example's folder, and the name of its system.
EXAMPLES = {"own_system": "running-mean", "client_and_server": "shared-mean"}
# Wrong messages: whole rounds, 500 to each target, until 500 are sent.
TAKEN = {"running-mean": 1500, "shared-mean": 3500}
# Python that runs modules one after another, as `python -m` does.
ONE_BY_ONE = """
import json, runpy, sys
for words in json.loads(sys.argv[1]):
    sys.argv = words
    try:
        runpy.run_module(words[0], run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
"""
ONE_ROLE, TWO_ROLES = [
    pytest.mark.parametrize("example", [name], indirect=True, scope="module") for name in EXAMPLES
]
MOST_LINES = 150
ROWS = 30

Command = Callable[..., str]


@pytest.fixture(name="example", scope="module", params=EXAMPLES)
def _example(request: pytest.FixtureRequest) -> Path:
    return ROOT / "examples" / str(request.param)


@pytest.fixture(name="site", scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages, installed as by pip."""
    folder = tmp_path_factory.mktemp("packages")
    # pip leaves its build files beside the sources.
    sources = [shutil.copytree(ROOT / "examples" / name, folder / name) for name in EXAMPLES]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", folder / "site", *sources], check=True, timeout=300)
    return folder / "site"


@pytest.fixture(name="run")
def _run(example: Path, site: Path, tmp_path: Path) -> Command:
    """Runs a command with the package installed, beside its settings files and some data. Returns the
    output."""
    for file in set(example.glob("*.toml")) - {example / "pyproject.toml"}:
        shutil.copy(file, tmp_path)
    rows = "".join(f"{number},{number % 7 / 7}\n" for number in range(ROWS))
    (tmp_path / "data.csv").write_text(f"x,y\n{rows}")

    def run(*command: object) -> str:
        if command[0] == "streamfl":
            ended = run_streamfl(*command[1:], cwd=tmp_path, env=environment(site))
            assert ended.returncode == 0, ended.stdout + ended.stderr
            return str(ended.stdout)
        return python(site, tmp_path, "-m", *command)

    return run


def python(site: Path, folder: Path, *arguments: object) -> str:
    """The output of Python with the packages installed."""
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=environment(site),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def environment(site: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *filter(None, sys.path)])}


def test_it_says_no_more_than_its_page_counts(example: Path) -> None:
    """Protects authors of a system: what is derived for them does not become what they write."""
    counted = re.search(r"(\d+) lines of code", (example / "README.md").read_text(encoding="utf-8"))
    assert counted is not None
    paths = sorted(example.rglob("*.py"))
    written = sum(code_lines(path.read_text(encoding="utf-8")) for path in paths)
    assert written == int(counted[1])
    assert written <= MOST_LINES


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


@ONE_ROLE
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


@TWO_ROLES
def test_it_is_simulated_as_a_stream_is_learnt(run: Command) -> None:
    """Protects what simulate promises of a model that comes back: each sample is predicted by a model of all
    labels before it, not all of them by the first one."""
    found = json.loads(run("streamfl", "simulate", "client.toml", "--data", "data.csv", "--format", "json"))
    labels = [number % 7 / 7 for number in range(ROWS)]
    # The labels' range becomes 0 to 1.
    own, errors = defaultdict[int, list[float]](list), []
    for number, label in enumerate(label / max(labels) for label in labels):
        means = [sum(values) / len(values) for values in own.values() if values]
        shared = sum(means) / len(means) if means else 0.5
        told = own[number % 5]
        errors.append((sum(told) + 5 * shared) / (len(told) + 5) - label)
        told.append(label)
    assert found["rmse"] == pytest.approx(max(labels) * (sum(one**2 for one in errors) / ROWS) ** 0.5)


@TWO_ROLES
def test_its_members_learn_in_processes_of_their_own(run: Command, site: Path, tmp_path: Path) -> None:
    """Protects a deployment of such a system: what clients tell comes to the server, and its model back to
    them."""
    for member in ("client", "server"):
        run("streamfl", "topics", f"{member}.toml", "--create-inputs")
    run("streamfl", "replay", "client.toml", "--data", "data.csv")
    with worker("client", site, tmp_path), worker("server", site, tmp_path):
        wait_for_predictions(tmp_path / "shared.db", "shared", ROWS)
        wait_for_remembered(run, "server.toml", 5)
        # The model has come back before this sample is predicted.
        run("streamfl", "replay", "client.toml", "--data", "data.csv")
        wait_for_predictions(tmp_path / "shared.db", "shared", 2 * ROWS)
        assert max(learnt_from(run)) >= ROWS


@contextmanager
def worker(member: str, site: Path, folder: Path) -> Iterator[None]:
    """A member's worker, told to end at the end. It has to exit with success."""
    process = start_streamfl(
        "run", f"{member}.toml", cwd=folder, env=environment(site), stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def wait_for_predictions(file: Path, federation: str, count: int) -> None:
    deadline = time.monotonic() + 60
    with closing(connect(f"sqlite://{file}")) as bus:
        while sum(1 for _ in bus.read(f"{federation}.predictions")) < count:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def wait_for_remembered(run: Command, settings: str, records: int) -> None:
    """Until ``inspect`` shows so many."""
    deadline = time.monotonic() + 60
    while remembered(run, settings) != [records]:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def remembered(run: Command, settings: str, *options: str) -> list[int]:
    """How many records of each kind ``inspect`` shows."""
    shown = json.loads(run("streamfl", "inspect", settings, "--format", "json", *options))
    return [one["records"] for one in shown["remembered"]]


def learnt_from(run: Command) -> list[int]:
    """How many labels were in the model of each prediction."""
    lines = run("streamfl", "read", "client.toml", "--format", "json").splitlines()
    return [json.loads(line)["labels"] for line in lines]


@ONE_ROLE
def test_its_worker_predicts_what_is_replayed(run: Command, site: Path, tmp_path: Path) -> None:
    """Protects a deployment of such a system: topics, replay, run, check and read, on a bus between
    processes."""
    run("streamfl", "topics", "client.toml", "--create-inputs")
    run("streamfl", "replay", "client.toml", "--data", "data.csv")
    with worker("client", site, tmp_path):
        wait_for_predictions(tmp_path / "means.db", "means", ROWS)
        wait_for_remembered(run, "client.toml", 5)
        checked = run("streamfl", "check", "client.toml")
        assert "pass  state in means.running-mean.state" in checked
    assert remembered(run, "client.toml", "--client", "client-3") == [1]
    run("streamfl", "forget", "client.toml", "--client", "client-3")
    assert remembered(run, "client.toml") == [4]
    # It reads some records of each partition.
    assert re.search(r"(\d+) of \1 records readable", checked)
    assert "prediction" in json.loads(
        run("streamfl", "read", "client.toml", "--format", "json").partition("\n")[0]
    )


def test_their_scenarios_hold_and_wrong_messages_are_refused(site: Path, tmp_path: Path) -> None:
    """Protects their exactly-once behaviour: the fault simulator runs them by seed on both buses. And
    protects them from wrong records in their input and their changelog.
    """
    # One process, because it takes seconds to load what proves a system.
    faults, fuzz = "streamfl.testing.faults", "streamfl.testing.fuzz"
    commands = []
    for system in EXAMPLES.values():
        commands += [
            [faults, "--system", system, "--seeds", "4"],
            [faults, "--system", system, "--seeds", "2", "--bus", "sqlite"],
            [fuzz, "--only", system, "--messages", "500"],
        ]
    out = python(site, tmp_path, "-c", ONE_BY_ONE, json.dumps(commands))
    assert out.count("4 of 4 federations hold") == len(EXAMPLES), out
    assert out.count("2 of 2 federations hold") == len(EXAMPLES), out
    for count in TAKEN.values():
        assert f"{count} malformed messages" in out
    assert out.count(" 0 defects") == len(EXAMPLES), out


@ONE_ROLE
def test_it_has_a_dashboard_and_a_page(run: Command, tmp_path: Path) -> None:
    """Protects its operators: dashboard, alerts, and the page of settings and metrics are generated from its
    code."""
    assert json.loads(run("streamfl", "dashboards", "running-mean"))["title"] == "running-mean"
    run("streamfl.reference", "running-mean", "--root", "pages")
    alerts = (tmp_path / "pages" / "dashboards" / "alerts-running-mean.yaml").read_text()
    assert "alert: RunningMeanPredictionsStopped" in alerts
    page = (tmp_path / "pages" / "docs" / "reference" / "running-mean.md").read_text()
    assert ("streamfl_rmse" in page, "federation.clients" in page) == (True, True)


def test_their_roles_obey_the_laws(site: Path, tmp_path: Path) -> None:
    """Protects users who copy an example: it passes the laws, run as its page says."""
    pytest_alone = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    laws = [ROOT / "examples" / name / "test_laws.py" for name in EXAMPLES]
    out = python(site, tmp_path, *pytest_alone, "--rootdir", ROOT / "examples", *laws)
    assert re.search(r"^22 passed", out, re.MULTILINE), out
