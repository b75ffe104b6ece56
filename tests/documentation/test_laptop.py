"""The tutorial of a federation on a laptop: its files and commands, run as they stand there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "laptop.md").read_text(encoding="utf-8")
# An indented block of commands, one of code, or one of settings, with the text before it.
BLOCKS = re.compile(r"```(?P<kind>toml|python)\n(?P<code>.*?)```|^(?P<shell>(?:    [^\n]*\n)+)", re.DOTALL | re.MULTILINE)
SECONDS = 180.0


class Laptop:
    """A shell in an empty folder, where ``streamfl`` and ``python3`` are those of this test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        binaries = folder / "bin"
        binaries.mkdir()
        for name, command in (("streamfl", f"{sys.executable} -P -m streamfl"), ("python3", sys.executable)):
            (binaries / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (binaries / name).chmod(0o755)
        paths = os.pathsep.join([str(ROOT), str(ROOT / "connectors")])
        path = os.pathsep.join([str(binaries), os.environ["PATH"]])
        self._environment = os.environ | {"PYTHONPATH": paths, "PATH": path, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"}
        self._running: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "workers.log").open("wb")

    def shell(self, script: str) -> str:
        ended = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{script}\n{ended.stdout}\n{ended.stderr}\n{self.log}"
        return ended.stdout

    def start(self, command: str) -> None:
        arguments = command.removesuffix("&").split()
        self._running.append(
            subprocess.Popen(arguments, cwd=self.folder, env=self._environment, stdout=self._log, stderr=self._log)
        )

    def stop(self) -> None:
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        for process in self._running:
            process.wait(60)
        self._running = []

    def close(self) -> None:
        self.stop()
        self._log.close()

    @property
    def log(self) -> str:
        return (self.folder / "workers.log").read_text(errors="replace")

    def predicted(self) -> int:
        return len(self.shell("streamfl read client.toml --format json").splitlines())

    def wait_for(self, predictions: int) -> None:
        deadline = time.monotonic() + SECONDS
        while self.predicted() < predictions:
            assert time.monotonic() < deadline, self.log
            time.sleep(1)


@pytest.fixture(name="laptop")
def _laptop(tmp_path: Path) -> Iterator[Laptop]:
    laptop = Laptop(tmp_path)
    yield laptop
    laptop.close()


@pytest.mark.long
def test_the_tutorial_runs_as_it_stands(laptop: Laptop) -> None:
    """Protects the first hour of a new user: every file and command of the page does what it says, with real processes."""
    said: list[str] = []
    for block in BLOCKS.finditer(TEXT):
        if block["kind"] == "toml":
            (laptop.folder / ("client.toml" if "[samples]" in block["code"] else "server.toml")).write_text(block["code"])
        elif block["kind"] == "python":
            (laptop.folder / "look.py").write_text(block["code"])
            assert re.fullmatch(r"press-2 [\d.-]+\n", laptop.shell("python3 look.py"))
        else:
            script = "\n".join(line[4:] for line in block["shell"].splitlines())
            if "reset" in script:
                laptop.stop()
            if script.startswith("streamfl run"):
                for command in script.splitlines():
                    laptop.start(command)
                laptop.wait_for(180)
            else:
                said.append(laptop.shell(script))
    everything = "".join(said)
    assert "serving_on=" in laptop.log, "the second client's port"
    for word in ("press-1", "prediction", "last seen", "kernels", "a second"):
        assert word in everything, word
    assert "ACLs" not in everything
    for kind in ("server", "client", "client"):
        laptop.start(f"streamfl run {kind}.toml &")
    laptop.wait_for(2 * 182)
    assert laptop.shell("streamfl read client.toml dead-letters --format json") == ""
