"""A federation of real processes on one SQLite file."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from command_line import make_topics
from streamfl_process import start_streamfl

from streamfl.contract.role import Record
from streamfl.pofmkl.messages import MARKER_KEY, SHARD_VERSION
from streamfl.runtime.bus import Bus, Outgoing, connect

__all__ = ["CLIENTS", "SqliteFederation"]

CLIENTS, EACH = 3, 40
SECONDS = 300.0

CONFIGURATION = """
[federation]
name = "upgraded"
seed = 3
clients = {clients}
features = 3
[bus]
url = "{url}"
commit_interval_ms = 20
[bus.options]
session_timeout_seconds = 3
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
features = ["t1", "t2", "t3"]
sample_id = "id"
label = "y"
[learning]
staleness = "async"
features_per_kernel = 8
[uplink]
kernels_per_upload = 2
"""


class SqliteFederation:
    """Servers and clients, named like server-0 and client-1."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite://{folder}/bus.db"
        # Further environment variables, by process.
        self.more: dict[str, dict[str, str]] = {}
        self._configuration = folder / "federation.toml"
        self._configuration.write_text(CONFIGURATION.format(url=url, clients=CLIENTS))
        self._log = (folder / "log.txt").open("wb")
        self._log_path = folder / "log.txt"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for kind in ("pofmkl-client", "pofmkl-server"):
            make_topics(self._configuration, 2, kind)
        self.bus: Bus = connect(url)
        self.written = self._started = 0

    def run(self, who: str) -> None:
        """Start a process, or restart it with SIGTERM as an operator does."""
        if (running := self.processes.pop(who, None)) is not None:
            self._wait_for_handlers()
            running.send_signal(signal.SIGTERM)
            assert running.wait(120) == 0, self.said
        kind = f"pofmkl-{who.partition('-')[0]}"
        environment = os.environ | {"STREAMFL_ROLE__KIND": kind} | self.more.get(who, {})
        self._started += 1
        self.processes[who] = start_streamfl(
            "run", self._configuration, env=environment, stdout=self._log, stderr=self._log
        )

    def _wait_for_handlers(self) -> None:
        """Wait until every process has logged that it runs. Before that SIGTERM ends it at once."""
        deadline = time.monotonic() + SECONDS
        while (
            len(re.findall(r"\] running .*role=", self._log_path.read_text(errors="replace"))) < self._started
        ):
            assert time.monotonic() < deadline, self.said
            time.sleep(0.1)

    def work(self) -> int:
        """Write samples of every client and wait until all are predicted and learnt. Returns the model's
        version."""
        self.write()
        return self.finish()

    def write(self) -> None:
        rows = []
        for number in range(self.written, self.written + EACH):
            for client in range(CLIENTS):
                t1, t2, t3 = math.sin(number + client), math.cos(number / 3), number % 5 / 5
                content = {"id": f"{client}/{number}", "t1": t1, "t2": t2, "t3": t3, "y": 0.5 + 0.4 * t1 * t2}
                rows.append(Outgoing("readings", f"client-{client}".encode(), json.dumps(content).encode()))
        self.written += EACH
        self.bus.write(rows)

    def finish(self) -> int:
        self.wait(lambda: len(self.predicted()) >= CLIENTS * self.written)
        self.wait(lambda: self.applied() == len(list(self.bus.read("upgraded.updates"))))
        return self.version()

    def wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not done():
            ended = {
                who: process.returncode
                for who, process in self.processes.items()
                if process.poll() is not None
            }
            assert not ended, f"{ended}: {self.said}"
            assert time.monotonic() < deadline, (
                f"{len(self.predicted())} of {CLIENTS * self.written} predicted: {self.said}"
            )
            time.sleep(0.2)

    def predicted(self) -> list[str]:
        return [json.loads(record.value or b"")["sample"] for record in self.bus.read("upgraded.predictions")]

    def applied(self) -> int:
        return max((SHARD_VERSION.decode(one.value).updates for one in self._markers()), default=0)

    def version(self) -> int:
        return max((SHARD_VERSION.decode(one.value).model_version for one in self._markers()), default=0)

    def _markers(self) -> list[Record]:
        return [one for one in self.bus.read("upgraded.model") if one.key == MARKER_KEY]

    @property
    def said(self) -> str:
        return self._log_path.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.bus.close()
        self._log.close()
