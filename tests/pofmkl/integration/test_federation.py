"""A federation of processes on a real broker: what an operator deploys, and what a crash leaves of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker import Broker
from command_line import make_topics
from identities import Keys
from streamfl_process import run_streamfl, start_streamfl

from streamfl.configuration.settings import load_settings
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import MARKER_KEY, SIGNED_KEY, SignedVersion, decode_model_record
from streamfl.pofmkl.tools.federation import Outcome, simulate
from streamfl.runtime.bus import Bus, Outgoing, connect

CLIENTS, ROWS = 40, 800

CONFIGURATION = """
[federation]
name = "{name}"
seed = 7
clients = {clients}
features = [{features}]
[bus]
url = "{url}"
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}.readings"
client = "device"
label = "lever"
label_range = [{low}, {high}]
input_norm = {norm}
[learning]
preset = "{preset}"
staleness = "lockstep"
round_timeout_seconds = 600
[uplink]
kernels_per_upload = 1
"""


class Deployment:
    """One federation: its settings file, its data file and its processes."""

    def __init__(
        self, folder: Path, url: str, inputs: np.ndarray, labels: np.ndarray, preset: str, keys: bool = False
    ) -> None:
        self.name = f"plant-{uuid.uuid4().hex[:8]}"
        self.configuration = folder / "federation.toml"
        self.data = folder / "rows.npz"
        self._log = (folder / "processes.log").open("ab")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._url = url
        names = [f"x{index}" for index in range(inputs.shape[1])]
        self.configuration.write_text(
            CONFIGURATION.format(
                name=self.name,
                clients=CLIENTS,
                preset=preset,
                url=url,
                features=", ".join(f'"{name}"' for name in names),
                low=float(labels.min()),
                high=float(labels.max()),
                norm=float(np.linalg.norm(inputs, axis=1).max()),
            )
        )
        np.savez(self.data, X=inputs, y=labels)
        self._keys: Keys | None = None
        if keys:
            self._keys = Keys(folder, self.name)
            for kind in ("pofmkl-client", "pofmkl-server"):
                self._keys.add(kind, kind, speaks_for=("*",))

    def command(self, *arguments: str, kind: str = "pofmkl-client") -> None:
        """A command that ends by itself, and has to end well."""
        command, *options = arguments
        run_streamfl(command, self.configuration, *options, env=self._environment(kind), check=True)

    def start(self, kind: str) -> subprocess.Popen[bytes]:
        process = start_streamfl(
            "run", self.configuration, env=self._environment(kind), stdout=self._log, stderr=self._log
        )
        self._processes.append(process)
        return process

    def stop(self) -> list[int]:
        """The exit codes of all processes that still ran, after SIGTERM."""
        deadline = time.monotonic() + 120
        # Before it says so, a process has no handler yet and SIGTERM ends it at once.
        while (
            len(re.findall("running +role=", self.log())) < len(self._processes)
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        try:
            return [process.wait(60) for process in running]
        finally:
            for process in self._processes:
                process.kill()
            self._log.close()

    def bus(self) -> Bus:
        return connect(self._url, {})

    def predictions(self, bus: Bus) -> list[dict[str, Any]]:
        return [json.loads(record.value or b"") for record in bus.read(f"{self.name}.predictions")]

    def wait(self, bus: Bus, count: int, seconds: float = 240.0) -> list[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.predictions(bus)
            if len(found) >= count:
                return found
            time.sleep(1.0)
        pytest.fail(
            f"{len(found)} of {count} predictions after {seconds} s; the processes "
            f"said:\n{self.log()[-5000:]}"
        )

    def applied(self, bus: Bus) -> tuple[int, int]:
        """The model's version and the updates it is made of."""
        records = [one for one in bus.read(f"{self.name}.model") if one.key in (MARKER_KEY, SIGNED_KEY)]
        found = decode_model_record(records[-1])
        last: Any = found.marker if isinstance(found, SignedVersion) else found
        return last.model_version, last.updates

    def assignments(self) -> int:
        """How often a worker was given partitions, by the workers' logs."""
        return len(re.findall(r"partitions moved +revoked=\[[^]]*\] assigned=\[\d", self.log()))

    def wait_for_assignments(self, count: int, seconds: float = 120.0) -> None:
        """Until workers were given partitions so often: who has just been started joins its group some time
        later."""
        deadline = time.monotonic() + seconds
        while (found := self.assignments()) < count:
            assert time.monotonic() < deadline, (
                f"{found} of {count} assignments; the processes said:\n{self.log()[-5000:]}"
            )
            time.sleep(0.2)

    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def simulated(self, inputs: np.ndarray, labels: np.ndarray) -> Outcome:
        settings = load_settings(self.configuration, PofmklSettings)
        rounds = len(labels) // CLIENTS
        return simulate(
            settings, inputs.reshape(rounds, CLIENTS, -1), labels.reshape(rounds, CLIENTS), local_only=False
        )

    def _environment(self, kind: str) -> dict[str, str]:
        environment = {**os.environ, "STREAMFL_ROLE__KIND": kind}
        if self._keys is None:
            return environment
        return environment | {
            "STREAMFL_FEDERATION__MEMBERS": str(self._keys.file),
            "STREAMFL_IDENTITY__KEY_FILE": str(self._keys.key_file(kind)),
        }


@pytest.fixture
def deployment(broker: Broker, tmp_path: Path) -> Iterator[Deployment]:
    """A federation of members with keys on librdkafka, its topics made."""
    made = Deployment(tmp_path, f"kafka+librdkafka://{broker.address}", *stream(), "paper", keys=True)
    make_topics(made.configuration)
    make_topics(made.configuration, kind="pofmkl-server")
    yield made
    made.stop()


def stream() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(ROWS, 5))
    return inputs, np.sin(inputs[:, 0]) + 0.5 * inputs[:, 1]


def check_predictions(
    found: list[dict[str, Any]], expected: Outcome, rows: int, low: float, high: float
) -> None:
    """Each sample once, made with the version it names, and what the memory bus predicts."""
    assert len(found) == rows
    assert len({prediction["sample"] for prediction in found}) == rows
    by_client: dict[str, list[dict[str, Any]]] = {}
    for prediction in found:
        by_client.setdefault(prediction["client"], []).append(prediction)
    assert len(by_client) == CLIENTS
    for client, predictions in by_client.items():
        # In lockstep sample t is predicted with the model of t rounds.
        assert [prediction["model_version"] for prediction in predictions] == list(range(rows // CLIENTS))
        column = int(client.removeprefix("client-"))
        scaled = [(prediction["prediction"] - low) / (high - low) for prediction in predictions]
        np.testing.assert_allclose(scaled, expected.predictions[:, column], rtol=0, atol=1e-4)


def test_killed_processes_lose_and_double_nothing(deployment: Deployment) -> None:
    """Protects the deployment as a whole: topics, replay, a server and two clients, and one prediction a
    sample, the right one. And exactly-once and the changelogs: after kill -9 of a client and of the server
    the run is as if never stopped. And seals and signatures, which a restart takes back: who has no key is
    refused.

    With kafka-python clients are killed where labels are late, and servers where shards move.
    """
    inputs, labels = stream()
    server = deployment.start("pofmkl-server")
    victim = deployment.start("pofmkl-client")
    deployment.start("pofmkl-client")
    deployment.command("replay", "--data", str(deployment.data))
    with closing(deployment.bus()) as bus:
        deployment.wait(bus, ROWS // 5)
        victim.kill()
        deployment.start("pofmkl-client")
        deployment.wait(bus, ROWS // 2)
        server.kill()
        one = next(iter(bus.read(f"{deployment.name}.updates")))
        bus.write([Outgoing(one.topic, one.key, one.value, one.partition)])
        deployment.start("pofmkl-server")
        found = deployment.wait(bus, ROWS)
        expected = deployment.simulated(inputs, labels)
        check_predictions(found, expected, ROWS, labels.min(), labels.max())
        deadline = time.monotonic() + 120
        letters: list[bytes] = []
        # The server may come to the copy only after all updates.
        while (deployment.applied(bus)[1] < ROWS or not letters) and time.monotonic() < deadline:
            time.sleep(0.5)
            found_letters = bus.read(f"{deployment.name}.dead-letters")
            letters = [dict(letter.headers)["error"] for letter in found_letters]
        assert deployment.applied(bus) == (ROWS // CLIENTS, ROWS)
        assert letters == [b"unsigned"]
    assert deployment.stop() == [0, 0, 0]
