"""A shell that runs a documentation page's commands unchanged."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from streamfl_process import run_streamfl, start_streamfl

from streamfl.runtime.bus import connect

ROOT = Path(__file__).parents[1]
SECONDS = 180.0


class Laptop:
    """A shell in an empty folder. ``streamfl`` and ``python3`` are those of this test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        binaries = folder / "bin"
        binaries.mkdir()
        for name, command in (("streamfl", f"{sys.executable} -P -m streamfl"), ("python3", sys.executable)):
            (binaries / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (binaries / name).chmod(0o755)
        paths = os.pathsep.join([str(ROOT), str(ROOT / "connectors")])
        path = os.pathsep.join([str(binaries), os.environ["PATH"]])
        self.environment = os.environ | {
            "PYTHONPATH": paths,
            "PATH": path,
            "OPENBLAS_NUM_THREADS": "1",
            "COLUMNS": "200",
        }
        self._running: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "workers.log").open("wb")

    def shell(self, script: str) -> str:
        """What a script says. It has to end well. Commands of streamfl that need no shell are forked, which
        is faster."""
        lines = script.splitlines()
        if all(line.startswith("streamfl ") and not set("|<>&$\\") & set(line) for line in lines):
            return "".join(self._command(shlex.split(line)[1:]) for line in lines)
        ended = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 0, f"{script}\n{ended.stdout}\n{ended.stderr}\n{self.log}"
        return ended.stdout

    def start(self, command: str) -> None:
        _streamfl, *arguments = command.removesuffix("&").split()
        self._running.append(
            start_streamfl(
                *arguments, cwd=self.folder, env=self.environment, stdout=self._log, stderr=self._log
            )
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

    def _command(self, arguments: list[str]) -> str:
        ended = run_streamfl(*arguments, cwd=self.folder, env=self.environment, timeout=SECONDS)
        assert ended.returncode == 0, f"{arguments}\n{ended.stdout}\n{ended.stderr}\n{self.log}"
        return str(ended.stdout)

    def predicted(self) -> int:
        with closing(connect(f"sqlite://{self.folder}/plant.db")) as bus:
            return sum(1 for _ in bus.read("plant.predictions"))

    def wait_for(self, predictions: int) -> None:
        deadline = time.monotonic() + SECONDS
        while self.predicted() < predictions:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.3)
