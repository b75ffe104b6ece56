"""Commands and workers of streamfl in a folder, as a user runs them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

# A worker that has partitions is one that serves.
SERVING = "partitions moved"


class Processes:
    """The processes that were started in ``folder``. Each worker has a file of its own, and a log beside it.

    environment: what all of them have beside this process's own.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self._environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "400", **environment}
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def configure(self, worker: str, text: str, *make: str) -> None:
        """Write a worker's file, and make its topics and whatever these options say."""
        (self.folder / f"{worker}.toml").write_text(text, encoding="utf-8")
        self.command("topics", f"{worker}.toml", *make)

    def command(self, *arguments: str) -> str:
        """What a command of streamfl prints; RuntimeError with what it said if it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "streamfl", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env=self._environment,
        )
        if done.returncode:
            said = f"ended with code {done.returncode}:\n{done.stdout}{done.stderr}"
            raise RuntimeError(f"streamfl {' '.join(arguments)} {said}")
        return done.stdout

    def running(self, *arguments: str, log: str = "log") -> subprocess.Popen[bytes]:
        """A command that goes on beside this process."""
        with (self.folder / log).open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "streamfl", *arguments],
                cwd=self.folder,
                stdout=file,
                stderr=file,
                env=self._environment,
            )

    def start(self, worker: str, processors: Collection[int] | None = None) -> None:
        """Start a worker with its file, on these processors alone."""
        process = self.running("run", f"{worker}.toml", log=f"{worker}.log")
        self._workers[worker] = process
        if processors is not None:
            # Threads that a process starts later have its processors.
            os.sched_setaffinity(process.pid, processors)

    def log(self, worker: str) -> str:
        return (self.folder / f"{worker}.log").read_text(encoding="utf-8", errors="replace")

    def wait(self, is_so: Callable[[], bool], what: str, seconds: float, look_seconds: float) -> None:
        """Until something is so; RuntimeError if that does not come, or if a worker has ended."""
        deadline = time.monotonic() + seconds
        while not is_so():
            self.check()
            if time.monotonic() > deadline:
                said = "\n".join(self.log(worker)[-2000:] for worker in self._workers)
                raise RuntimeError(f"not so after {seconds:g} s: {what}. The workers said:\n{said}")
            time.sleep(look_seconds)

    def wait_until_serving(self) -> None:
        """Until every worker has partitions."""

        def all_serve() -> bool:
            return all(SERVING in self.log(worker) for worker in self._workers)

        self.wait(all_serve, "every worker serves", 60.0, 0.05)

    def check(self) -> None:
        """RuntimeError if a worker has ended."""
        for worker, process in self._workers.items():
            if process.poll() is not None:
                said = f"{worker} ended with code {process.returncode}"
                raise RuntimeError(f"{said}:\n{self.log(worker)[-3000:]}")

    def stop(self, worker: str, by: signal.Signals = signal.SIGTERM) -> float:
        """End a worker; the seconds of processor time that it took."""
        before, process = children_seconds(), self._workers.pop(worker)
        process.send_signal(by)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return children_seconds() - before

    def close(self) -> None:
        """End every worker."""
        for worker in list(self._workers):
            self.stop(worker)


def children_seconds() -> float:
    """Of processor time, by all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
