"""Commands and workers of streamfl in a folder, as a user runs them."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# A worker that has partitions is one that serves.
SERVING = "partitions moved"


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


class Processes:
    """The processes that were started in ``folder``.

    program: the command ``streamfl``, which may be another checkout's.
    environment: what all of them have beside this process's own.
    """

    def __init__(self, folder: Path, program: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder, self._program = folder, program
        self._environment = {
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "COLUMNS": "400",
            **(environment or {}),
        }
        self._processes: dict[str, list[_Process]] = {}

    def command(self, *arguments: str) -> str:
        """What a command of streamfl prints; RuntimeError with what it said if it fails."""
        done = subprocess.run(
            [self._program, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env=self._environment,
        )
        if done.returncode:
            raise RuntimeError(
                f"streamfl {' '.join(arguments)} ended with code "
                f"{done.returncode}:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def running(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command that goes on beside this process."""
        return subprocess.Popen(
            [self._program, *arguments], cwd=self.folder, stderr=subprocess.DEVNULL, env=self._environment
        )

    def start(self, role: str) -> None:
        """Start one more worker with the file ``role``.toml."""
        started = self._processes.setdefault(role, [])
        log = self.folder / f"{role}-{len(started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [self._program, "run", f"{role}.toml"],
                cwd=self.folder,
                stdout=file,
                stderr=file,
                env=self._environment,
            )
        started.append(_Process(process, log))

    def wait_until_serving(self, seconds: float = 60.0) -> None:
        """Until every worker has partitions; RuntimeError if that does not come."""
        deadline = time.monotonic() + seconds
        for process in (one for started in self._processes.values() for one in started):
            while not process.says(SERVING):
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"after {seconds:g} s a worker has no partition: {process.log.read_text()[-3000:]}"
                    )
                time.sleep(0.05)

    def check(self, role: str) -> None:
        """RuntimeError if one of the role's workers has ended."""
        for process in self._processes.get(role, []):
            process.says("")

    def stop(self, role: str) -> float:
        """End the role's workers; the seconds of processor time that they took."""
        before = _processor_seconds()
        for one in self._processes.get(role, []):
            one.process.terminate()
        for one in self._processes.get(role, []):
            try:
                one.process.wait(20)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
        self._processes[role] = []
        return _processor_seconds() - before

    def close(self) -> None:
        """End every worker."""
        for role in list(self._processes):
            self.stop(role)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
