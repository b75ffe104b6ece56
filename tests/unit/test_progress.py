"""Progress of long commands, and their output at Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import Command
from interrupting import interrupt_at
from streamfl_process import start_streamfl

import streamfl
from streamfl.terminal import progress as shown
from streamfl.terminal.progress import progress

CLIENT = """
[federation]
name = "plant"
clients = 4
[bus]
url = "{url}"
connect_timeout_seconds = 2
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "site"
features = ["a", "b"]
label = "y"
"""
SYSTEMS = {
    "vafl": '[federation]\nname = "f"\nparties = ["bank", "shop"]\nembedding_size = 1\n[role]\nkind = '
    '"vafl-coordinator"\n',
    "fdskl": '[federation]\nname = "f"\nparties = ["bank", "shop"]\n[role]\nkind = '
    '"fdskl-worker"\n[learning]\n'
    "block_instances = 32\nblock_features = 8\nbandwidth = 2.0\n",
    "quasi-newton": '[federation]\nname = "f"\nparties = ["bank", "shop"]\n[role]\nkind = '
    '"quasi-newton-guest"\n[encryption]\nprecision = "plain"\n[learning]\nbatch = '
    "100\nmin_batch = 50\ntolerance = 0.0\nepochs = 6\n",
    "dp-frank-wolfe": '[federation]\nname = "f"\nparties = ["bank", "shop"]\ncolumns = {bank = 1, shop = 1}\n'
    '[role]\nkind = "dp-frank-wolfe-server"\n[bounds]\nbound = 4.0\nlabel_bound = 1.0\n[window]\nrows = 50\n'
    "[privacy]\nepsilon = inf\ndelta = 0.001\ninsecure_test_noise = true\n[learning]\niterations = 5\nradius "
    "= 1.0\ncolumns = 2\n"
    'sketch = "identity"\n',
}


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Tests in a shell's background ignore SIGINT, and so would the processes that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a broker that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def table(folder: Path, rows: int) -> Path:
    """A file with two columns, a label of two classes and the site, one of four."""
    draws = np.random.default_rng(1)
    columns = {name: draws.normal(size=rows) for name in "ab"}
    frame = pd.DataFrame(
        {**columns, "y": (columns["a"] > columns["b"]).astype(int), "site": np.arange(rows) % 4}
    )
    frame.to_csv(folder / "data.csv", index=False)
    return folder / "data.csv"


def client(folder: Path, url: str) -> Path:
    (folder / "client.toml").write_text(CLIENT.format(url=url))
    return folder / "client.toml"


def test_what_is_done_soon_shows_nothing_and_what_takes_long_shows_how_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects both readers: a log gets a progress line now and then, and a quick command prints none."""
    lines: list[str] = []
    with progress("rows", write=lines.append) as work:
        work(1, 2)
    assert lines == []
    written = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        if line.startswith("rows written: 1,500"):
            written.set()

    monkeypatch.setattr(shown, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(shown, "LINE_SECONDS", 0.001)
    with progress("reading", write=write), progress("rows written") as work:
        work(1_500, 6_000)
        assert written.wait(60)
    assert re.fullmatch(r"rows written: 1,500 of 6,000, 25%, \d+ s, about \d+ s left", lines[-1])


def test_a_terminal_shows_a_bar() -> None:
    """Protects people at a terminal: a bar with unchanged names, also with brackets, on stderr; stdout only
    has the result."""
    program = """
from streamfl.terminal import progress as shown
shown.SILENT_SECONDS = 0.0
with shown.progress("reading [bold]one[/bold]") as work:
    work(1, 4)
    input()
    print("result")
"""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        seen = b""
        while b"25%" not in seen:
            seen += os.read(ours, 4096)
        assert "reading [bold]one[/bold] ━" in re.sub(
            r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode(errors="replace")
        )
        out, _ = process.communicate(b"\n", timeout=60)
    os.close(ours)
    assert out == b"result\n"


@pytest.mark.parametrize(
    "words",
    [
        ["check"],
        ["reset", "--all"],
        ["replay", "--data"],
        ["init", "--from-topic", "readings", "--seconds", "2", "--url"],
    ],
)
def test_a_silent_broker_is_waited_for_aloud(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Command,
    silent: str,
    words: list[str],
) -> None:
    """Protects the first minute of a user who mistypes a port: the command says what it waits for."""
    monkeypatch.setattr(shown, "SILENT_SECONDS", 0.0)
    config = client(tmp_path, f"kafka://{silent}")
    more = {"replay": [table(tmp_path, 40)], "init": [f"kafka://{silent}"]}.get(words[0], [])
    given = tmp_path / "new.toml" if words[0] == "init" else config
    code, _, told = command(words[0], given, *words[1:], *more)
    assert code == 3
    assert re.search(rf"^(asking|reading readings of) kafka://{silent}, \d s$", told, re.MULTILINE), told


@pytest.mark.long
def test_a_check_that_is_interrupted_prints_what_it_found(tmp_path: Path, silent: str) -> None:
    """Protects a partial answer: settings that were found correct are reported although the broker never
    answered."""
    config = client(tmp_path, f"kafka://{silent}")
    config.write_text(config.read_text().replace("= 2\n[role]", "= 600\n[role]"))
    with start_streamfl(
        "check", config, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "asking kafka://" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"pass +configuration", out)
    assert re.search(r"FAIL +interrupted", out)
    assert told.startswith("interrupted: asking kafka://")


@pytest.mark.long
def test_a_simulation_that_is_interrupted_prints_what_it_learnt(tmp_path: Path) -> None:
    """Protects minutes of waiting: a process that gets SIGINT ends with the figures so far, its progress, and
    exit code 130."""
    config, data = client(tmp_path, "memory://"), table(tmp_path, 40_000)
    program = """
from streamfl.cli import main
from streamfl.terminal import progress
progress.SILENT_SECONDS, progress.LINE_SECONDS = 0.0, 0.05
main()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, "simulate", config, "--data", data, "--client-column", "site"],
        env={**os.environ, "COLUMNS": "132"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if re.match(r"federation: [\d,]+ of 40,000, \d+%", line):
                break
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    found = re.match(
        r"Federation on .*data\.csv, interrupted at ([\d,]+) of 40,000 samples ", " ".join(out.split())
    )
    assert found is not None, out
    assert 0 < int(found[1].replace(",", "")) < 40_000
    assert re.search(r"│ federation +│ 0\.\d+", out)
    assert re.search(r"│ each client on its own +│ not run", out)


def test_a_second_interruption_ends_at_once() -> None:
    """Protects users who do not want to wait for the end of a step."""
    with progress("rows", stops=True) as work:
        signal.raise_signal(signal.SIGINT)
        assert work(1, 2)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_job_in_the_background_of_a_shell_is_not_meant() -> None:
    """Protects scripts: a process that a shell started with Ctrl-C ignored keeps ignoring it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with progress("rows", stops=True) as work:
        signal.raise_signal(signal.SIGINT)
        assert not work(1, 2)


@pytest.mark.long
def test_a_worker_says_in_its_log_what_it_waits_for(tmp_path: Path, silent: str) -> None:
    """Protects users who start `streamfl rekey` before the cluster: log lines in the usual form, and Ctrl-C
    ends it as before."""
    config = client(tmp_path, f"kafka://{silent}")
    text = config.read_text().replace("= 2\n[role]", "= 600\n[role]")
    config.write_text(f'{text}[samples.rekey]\ntopic = "raw"\n[log]\nformat = "json"\n')
    with start_streamfl("rekey", config, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"].startswith(f"connecting to kafka://{silent}, "):
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_program_that_is_interrupted_gets_no_half_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects scripts and notebooks: code after a simulation must not take its first part for the whole."""
    interrupt_at(monkeypatch, 0.5)
    steps = {"x": [step % 10 / 10 for step in range(200)], "y": [step % 10 / 5 for step in range(200)]}
    with pytest.raises(KeyboardInterrupt):
        streamfl.simulate(steps, clients=2)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_ends_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, system: str
) -> None:
    """Protects Ctrl-C in a simulation of parties: the figures cover what was learnt, and say that the run is
    incomplete."""
    (tmp_path / "f.toml").write_text(SYSTEMS[system])
    # Three fits first read all rows, which is half of the work.
    interrupt_at(monkeypatch, 0.6 if system == "dp-frank-wolfe" else 0.5)
    more = ("--windows", 3) if system == "dp-frank-wolfe" else ()
    arguments = (tmp_path / "f.toml", "--data", table(tmp_path, 400), "--split", "bank=a,shop=b", *more)
    code, out, told = command("simulate", *arguments, "--format", "json")
    assert code == 130, told
    found = json.loads(out)
    assert re.fullmatch(r"(entities|labels|iterations|fits): \d\d%", found["interrupted"])
    learnt = {
        "vafl": lambda: 0 < found["uploads"] < 2 * found["entities"],
        "fdskl": lambda: 0 < found["iterations"] < found["entities"] // 32,
        "quasi-newton": lambda: 0 < found["epochs"] < 6,
        "dp-frank-wolfe": lambda: found["windows"] == 1,
    }
    assert learnt[system]()


def test_fits_of_which_none_is_over_end_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Protects Ctrl-C before there is a figure: the last line reports the progress."""
    (tmp_path / "f.toml").write_text(SYSTEMS["dp-frank-wolfe"] + 'estimator = "frank-wolfe"\n')
    interrupt_at(monkeypatch, 0.1)
    arguments = (tmp_path / "f.toml", "--data", table(tmp_path, 400), "--split", "bank=a,shop=b")
    code, out, told = command("simulate", *arguments)
    assert (code, out) == (130, "")
    assert told.splitlines()[-1].startswith("interrupted: iterations, stopping: ")


def test_a_demo_ends_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Protects the first command that people try."""
    interrupt_at(monkeypatch, 0.1)
    code, out, _ = command("demo", "--out", tmp_path / "demo.png")
    assert code == 130
    assert re.search(r"interrupted at \d+ of 1,001 samples", out)


def test_a_comparison_prints_the_methods_that_were_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Protects finished work: methods that were run are reported although the next one was interrupted."""
    interrupt_at(monkeypatch, 0.5)
    arguments = (
        client(tmp_path, "memory://"),
        "--data",
        table(tmp_path, 40),
        "--methods",
        "default,last-label",
    )
    code, out, told = command("compare", *arguments, "--format", "json")
    assert code == 130, told
    found = json.loads(out)
    assert (found["interrupted"], [one["method"] for one in found["methods"]]) == (
        "1 of 2 methods",
        ["default"],
    )


def test_a_replay_says_how_many_rows_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Protects users who continue from there: the topic holds exactly the reported rows."""
    url = f"sqlite://{tmp_path}/bus.db"
    with closing(streamfl.connect(url)) as connection:
        connection.create("readings")
    interrupt_at(monkeypatch, 0.3)
    arguments = (client(tmp_path, url), "--data", table(tmp_path, 4_000), "--format", "json")
    code, out, told = command("replay", *arguments)
    assert code == 130, told
    found = json.loads(out)
    assert (found["interrupted"], found["records"]) == ("2,000 of 4,000 rows", 2_000)
    with closing(streamfl.connect(url)) as connection:
        assert sum(1 for _ in connection.read("readings")) == 2_000
