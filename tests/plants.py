"""Processes of ``streamfl run`` on a bus, for tests of their output and exit."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from broker import Broker
from command_line import make_topics
from kafka import KafkaAdminClient
from streamfl_process import start_streamfl

from streamfl.runtime.bus import Outgoing, connect

__all__ = ["PATIENCE", "Plant", "Process", "Voice", "eventually"]

PATIENCE = 90.0
CONFIGURATION = """
[federation]
name = "{name}"
clients = 3
[bus]
url = "{url}"
connect_timeout_seconds = {patience}
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}.readings"
features = ["t1"]
label = "lever"
[learning]
features_per_kernel = 4
round_timeout_seconds = 2
[metrics]
port = 0
[log]
format = "json"
progress_seconds = 2
"""


class Voice:
    """Output of a worker of a settings file: its JSON log, and its HTTP pages."""

    def __init__(self, configuration: Path, number: int) -> None:
        self._log = configuration.with_suffix(f".{number}.log")

    def lines(self) -> list[dict[str, object]]:
        # The last line may be incomplete.
        whole = self._log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def log(self) -> str:
        return self._log.read_text()

    def begun(self) -> bool:
        return self._log.exists() and any(line["event"] == "running" for line in self.lines())

    def page(self, path: str) -> tuple[int, str]:
        port = next((line["port"] for line in self.lines() if "port" in line), None)
        if port is None:
            return 0, ""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""


class Process(Voice):
    """A process of ``streamfl run`` for one role, and its output."""

    def __init__(self, configuration: Path, number: int) -> None:
        super().__init__(configuration, number)
        with self._log.open("wb") as log:
            self.process = start_streamfl("run", configuration, stderr=log)


class Plant:
    """A federation's topics on the broker, its settings file and its processes.

    patience: seconds that the processes wait for a cluster that does not answer.
    """

    def __init__(
        self, folder: Path, broker: Broker, scheme: str, partitions: int = 2, patience: int = 4
    ) -> None:
        self.name = f"plant-{uuid.uuid4().hex[:8]}"
        self.broker = broker
        self.configuration = folder / "client.toml"
        url = broker.url.replace("kafka://", f"{scheme}://")
        self.configuration.write_text(CONFIGURATION.format(name=self.name, url=url, patience=patience))
        self.processes: list[Process] = []
        make_topics(self.configuration, partitions)

    def start(self) -> Process:
        self.processes.append(Process(self.configuration, len(self.processes)))
        return self.processes[-1]

    def write(self, count: int, partition: int, value: bytes = b'{"t1": 1.0, "lever": 0.5}') -> None:
        with closing(connect(self.broker.url, {})) as bus:
            bus.write([Outgoing(f"{self.name}.readings", b"press", value, partition)] * count)

    def delete(self, topic: str) -> None:
        with closing(KafkaAdminClient(bootstrap_servers=self.broker.address)) as admin:
            admin.delete_topics([f"{self.name}.{topic}"])

    def stop(self) -> None:
        for one in self.processes:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGTERM)
        for one in self.processes:
            try:
                one.process.wait(20)
            finally:
                one.process.kill()


def eventually(process: Process, look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, process.log()
        time.sleep(0.1)
