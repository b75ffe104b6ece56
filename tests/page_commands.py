"""Runs a tutorial's files and commands unchanged: each member in its own folder, all topics in one file."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_command
from streamfl_process import start_streamfl

from streamfl.runtime.bus import connect

__all__ = ["PageCommands", "credit_history", "page_text", "put_credit", "try_credit"]

ROOT = Path(__file__).parents[1]
# A file's block: the last file name before the block is its name.
FILES = re.compile(r"`([\w-]+\.toml)`(?:(?!`[\w-]+\.toml`|```).)*?\n\n```toml\n(.*?)```", re.DOTALL)
SECONDS = 120.0


def page_text(page: str, section: str = "") -> str:
    """A page of docs, or what stands there under a heading of the second level."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if not section:
        return text
    _, found, rest = text.partition(f"\n## {section}\n")
    assert found, f"{page} has no section {section!r}"
    return rest.partition("\n## ")[0]


class PageCommands:
    """Runs the commands of ``text`` in ``folder``. ``STREAMFL_BUS__URL`` replaces the page's broker with
    SQLite."""

    def __init__(
        self, folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self._monkeypatch, self._capture = folder, monkeypatch, capture
        self._url = f"sqlite://{folder}/topics.db"
        monkeypatch.setenv("STREAMFL_BUS__URL", self._url)
        monkeypatch.setenv("STREAMFL_METRICS__PORT", "0")
        self.files = dict(FILES.findall(text))
        self.commands = [
            line.partition("  #")[0].strip()
            for line in re.findall(r"^    streamfl (.*)$", text, re.MULTILINE)
        ]
        for name, content in self.files.items():
            (folder / Path(name).stem).mkdir()
            (folder / Path(name).stem / name).write_text(content)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def put(self, name: str, content: str) -> None:
        """Write a file into every member's folder."""
        for member in self.files:
            (self.folder / Path(member).stem / name).write_text(content)

    def take(self, beginning: str) -> list[str]:
        """Take the page's next commands with this beginning. They are not run again."""
        taken = [command for command in self.commands if command.startswith(beginning)]
        assert taken, f"{beginning}: {self.commands}"
        self.commands = [command for command in self.commands if command not in taken]
        return taken

    def do(self, beginning: str, *more: str) -> str:
        """Output of the commands with this beginning, each run in its member's folder, with ``more``
        arguments that a test needs."""
        return "".join(self._run(shlex.split(command) + list(more)) for command in self.take(beginning))

    def _run(self, arguments: list[str]) -> str:
        [config, *_] = [argument for argument in arguments if argument in self.files]
        self._monkeypatch.chdir(self.folder / Path(config).stem)
        code, out, error = run_command(self._monkeypatch, self._capture, *arguments)
        assert code == 0, f"{arguments}: {out}{error}{self.logs()}"
        return out

    def start(self) -> None:
        """Start every ``streamfl run`` of the page as a process."""
        for command in self.take("run "):
            config = command.split()[1]
            home = self.folder / Path(config).stem
            with (home / "log").open("ab") as log:
                self._running[config] = start_streamfl(*command.split(), cwd=home, stderr=log)

    def wait_for(self, topic: str, records: int) -> None:
        """Wait until ``topic`` has this many records."""
        deadline = time.monotonic() + SECONDS
        with closing(connect(self._url)) as bus:
            while sum(1 for _ in bus.read(topic)) < records:
                assert time.monotonic() < deadline, self.logs()
                assert all(process.poll() is None for process in self._running.values()), self.logs()
                time.sleep(0.2)

    def stop(self) -> None:
        """Stop the processes as an operator does. Each has to exit with success.

        One that is still loading Python modules would be ended by the signal. Others may do the work without
        it.
        """
        deadline = time.monotonic() + SECONDS
        while any("[info     ] running" not in log.read_text() for log in self.folder.glob("*/log")):
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        codes = {config: process.wait(60) for config, process in self._running.items()}
        self._running = {}
        assert set(codes.values()) <= {0}, f"{codes}{self.logs()}"

    def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def logs(self) -> str:
        return "".join(f"\n{path}\n{path.read_text(errors='replace')}" for path in self.folder.glob("*/log"))


def credit_history(rows: int) -> pd.DataFrame:
    """The customers of the pages about a bank and a shop: five columns, and whether they defaulted."""
    values = np.random.default_rng(4).normal(size=(rows, 5)).round(3)
    history = pd.DataFrame(values, columns=["age", "income", "debts", "visits", "returns"])
    history["defaulted"] = (values.sum(axis=1) > 0).astype(int)
    return history


def put_credit(page: PageCommands, history: pd.DataFrame) -> None:
    """Write the bank's and the shop's files, with the customers' names."""
    history.insert(0, "customer", [f"customer-{number}" for number in range(len(history))])
    page.put("history.csv", history.to_csv(index=False))
    page.put("baskets.csv", history[["customer", "visits", "returns"]].to_csv(index=False))


def try_credit(page: PageCommands, rows: int) -> None:
    """Run a page about a bank and a shop that score each customer: from the simulation to the predictions of
    processes."""
    history = credit_history(rows)
    # The simulated data has no column of names, which would be used as an input.
    page.put("history.csv", history.to_csv(index=False))
    assert "Accuracy" in page.do("simulate")
    put_credit(page, history)
    assert "--allow-principal" not in page.do("topics")
    page.do("replay")
    page.do("check")
    page.start()
    page.wait_for("credit.predictions", rows)
    page.stop()
