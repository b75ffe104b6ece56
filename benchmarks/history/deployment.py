"""A federation of worker processes as a user sets it up: files by ``init``, topics by ``topics``, records by ``replay``."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.history.tables import CLIENT, LABEL
from streamfl.runtime.bus import connect

__all__ = ["Deployment", "Predicted"]

NAME = "plant"
ROLES = ("server", "client")
LOOK_SECONDS = 0.25
# A worker that has partitions is one that serves.
SERVING = "partitions moved"


class Predicted(msgspec.Struct):
    """What is read of a prediction. ``prediction`` is None where it is too large for JSON."""

    client: str
    prediction: float | None
    model_version: int
    label: float | None
    at: float = 0.0


@dataclass
class _Process:
    process: subprocess.Popen[bytes]
    log: Path

    def says(self, text: str) -> bool:
        """Whether it stands in the log. RuntimeError if the process has ended."""
        said = self.log.read_text(encoding="utf-8", errors="replace")
        if self.process.poll() is not None:
            raise RuntimeError(f"a worker has ended with code {self.process.returncode}:\n{said[-3000:]}")
        return text in said


class Deployment:
    """One federation on one bus, in a folder of its own.

    program: the command ``streamfl``, which may be another checkout's.
    settings: keys as ``init --set`` takes them.
    partitions: of the topic of the samples.
    """

    def __init__(
        self, folder: Path, table: Path, url: str, program: Path, settings: Sequence[str], partitions: int, seed: int
    ) -> None:
        self.folder, self._program, self._table = folder, program, table
        self._bus = connect(url)
        self._processes: dict[str, list[_Process]] = {role: [] for role in ROLES}
        self._read: dict[int, int] = {}
        self.predictions: list[Predicted] = []
        common = ["--from-file", str(table), "--url", url, "--federation", NAME, "--client", CLIENT, "--label", LABEL]
        for setting in (f"federation.seed={seed}", *settings):
            common += ["--set", setting]
        self.command("init", "client.toml", *common)
        self.command("init", "server.toml", *common, "--role", "pofmkl-server")
        self.command("topics", "client.toml", "--create-inputs", "--partitions", str(partitions))
        self.command("topics", "server.toml", "--create")

    def command(self, *arguments: str) -> str:
        """What a command of streamfl prints; RuntimeError with what it said if it fails."""
        done = subprocess.run([self._program, *arguments], cwd=self.folder, capture_output=True, text=True, env=_environment())
        if done.returncode:
            raise RuntimeError(f"streamfl {' '.join(arguments)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def write(self, limit: int | None = None) -> None:
        """Write the table's rows to the topic, as fast as they go."""
        self.command("replay", "client.toml", "--data", str(self._table), *([] if limit is None else ["--limit", str(limit)]))

    def writing(self, rate: float) -> subprocess.Popen[bytes]:
        """A process that writes so many rows a second."""
        arguments = ["replay", "client.toml", "--data", str(self._table), "--rate", str(rate)]
        return subprocess.Popen([self._program, *arguments], cwd=self.folder, stderr=subprocess.DEVNULL, env=_environment())

    def start(self, role: str) -> None:
        """Start one more worker of the role."""
        started = self._processes[role]
        log = self.folder / f"{role}-{len(started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [self._program, "run", f"{role}.toml"], cwd=self.folder, stdout=file, stderr=file, env=_environment()
            )
        started.append(_Process(process, log))

    def wait_until_serving(self, seconds: float = 60.0) -> None:
        """Until every worker has partitions; RuntimeError if that does not come."""
        deadline = time.monotonic() + seconds
        for process in (one for started in self._processes.values() for one in started):
            while not process.says(SERVING):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"after {seconds:g} s a worker has no partition: {process.log.read_text()[-3000:]}")
                time.sleep(0.05)

    def look(self) -> int:
        """Read the predictions that came since; how many there are by now. RuntimeError if a worker has ended."""
        for process in self._processes["client"]:
            process.says("")
        topic = f"{NAME}.predictions"
        for partition in range(self._bus.describe([topic])[topic].partitions):
            for record in self._bus.read_from(topic, partition, self._read.get(partition, 0)):
                self._read[partition] = record.offset + 1
                found = msgspec.json.decode(record.value or b"", type=Predicted)
                found.at = record.timestamp
                self.predictions.append(found)
        return len(self.predictions)

    def stop(self, role: str) -> float:
        """End the role's workers; the seconds of processor time that they took."""
        before = _processor_seconds()
        for one in self._processes[role]:
            one.process.terminate()
        for one in self._processes[role]:
            try:
                one.process.wait(20)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
        self._processes[role] = []
        return _processor_seconds() - before

    def close(self) -> None:
        """End every worker."""
        for role in ROLES:
            self.stop(role)
        self._bus.close()


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, Any]:
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "400"}
