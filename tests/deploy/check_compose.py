"""compose.yaml without Docker: loaded by Compose's own library, and its services' commands run against its
own broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from broker import _libraries as libraries
from broker import free_ports
from image import ROOT
from overlays import built, pod_environment

from streamfl.runtime.bus import connect

DEPLOY = ROOT / "deploy"
HERE = Path(__file__).parent
WORKERS = ("server", "client-1", "client-2")
SECONDS = 60.0
# Number of rows of River's ChickWeights.
ROWS = 578


def services() -> dict[str, dict[str, Any]]:
    return cast(
        dict[str, dict[str, Any]],
        yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"],
    )


def loaded(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", "run", ".", str(path)], cwd=HERE / "compose_loader", capture_output=True, text=True
    )


def test_compose_loads_it(tmp_path: Path) -> None:
    """Protects `docker compose up`: Compose's own library decides on merges, profiles and dependencies."""
    done = loaded(DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stderr
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(
        (DEPLOY / "compose.yaml")
        .read_text()
        .replace("    depends_on: [prometheus]", "    depends_on: [promtheus]")
    )
    assert "promtheus" in loaded(wrong).stderr


class Stack:
    """The services of compose.yaml as processes of this machine.

    folder: for their logs.
    url: the broker's address.
    more: further environment variables.
    """

    def __init__(self, folder: Path, url: str, more: Mapping[str, str] | None = None) -> None:
        self._more = more or {}
        self.url = url
        self._folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = dict(zip(WORKERS, free_ports(len(WORKERS)), strict=True))

    def start(
        self, name: str, more: Mapping[str, str] | None = None, rate: str = "400"
    ) -> subprocess.Popen[bytes]:
        """A service's own command, with this machine's paths. more: further environment variables. rate:
        samples a second of a replay.
        """
        service = services()[name]
        words = [*service.get("entrypoint", ["streamfl"]), *service["command"]]
        if "--rate" in words:
            words[words.index("--rate") + 1] = rate
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}",
            "STREAMFL_BUS__URL": self.url,
            "STREAMFL_METRICS__PORT": str(self._ports.get(name, 0)),
            **self._more,
            **(more or {}),
        }
        command = [word.replace("/etc/streamfl", str(DEPLOY)) for word in words]
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self._folder)
        self.processes[name] = process
        return process

    def do(self, name: str) -> None:
        """Run a service that ends by itself."""
        assert self.start(name).wait(SECONDS) == 0, self.log(name)

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def ready(self, name: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[name]}/readyz", timeout=5):
                return True
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            pass
        return False

    def wait_for(self, what: str, found: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not found():
            logs = "\n".join(f"{name}:\n{self.log(name)}" for name in self.processes)
            assert time.monotonic() < deadline, f"{what}\n{logs}"
            time.sleep(0.2)

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(60)


@pytest.fixture(scope="module", name="broker")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker with the settings that Kafka's own image makes from the service's environment."""
    folder = tmp_path_factory.mktemp("broker")
    inside, outside, controller = free_ports(3)
    places = {"19092": str(inside), ":9092": f":{outside}", "29093": str(controller), "broker:": "127.0.0.1:"}
    environment = dict(os.environ)
    for name, value in services()["broker"]["environment"].items():
        for old, new in places.items():
            value = value.replace(old, new)
        environment[name] = value
    environment["KAFKA_LOG_DIRS"] = str(folder / "data")
    for name in ("default", "mounted", "final"):
        (folder / name).mkdir()
    for name in ("server.properties", "log4j2.yaml", "tools-log4j2.yaml"):
        (folder / "default" / name).touch()
    java = ["java", "-Xmx512m", "-cp", f"{libraries()}/*"]
    # The image's start script runs this before the broker: variables become settings, and the storage is
    # formatted.
    folders = [
        word
        for name in ("default", "mounted", "final")
        for word in (f"--{name}-configs-dir", str(folder / name))
    ]
    setup = [*java, "kafka.docker.KafkaDockerWrapper", "setup", *folders]
    done = subprocess.run(setup, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(folder / "final" / "server.properties")], stdout=log, stderr=log
        )
    yield f"127.0.0.1:{inside}"
    process.kill()
    process.wait()


def predicted(stack: Stack, federation: str) -> list[str]:
    """The samples of all predictions, in no order."""
    bus = connect(stack.url)
    try:
        return [json.loads(record.value or b"")["sample"] for record in bus.read(f"{federation}.predictions")]
    finally:
        bus.close()


def test_the_federation_of_compose_predicts(broker: str, tmp_path: Path) -> None:
    """Protects the first look at streamfl: its commands, in their order, on its broker, predict every
    sample."""
    stack = Stack(tmp_path, f"kafka://{broker}")
    try:
        stack.do("topics-create")
        for name in WORKERS:
            stack.start(name)
        stack.wait_for("workers are not ready", lambda: all(map(stack.ready, WORKERS)))
        stack.do("replay")
        stack.wait_for("samples are not predicted", lambda: len(predicted(stack, "chicks")) >= ROWS)
        found = predicted(stack, "chicks")
        assert len(found) == len(set(found)) == ROWS
    finally:
        stack.stop()


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_a_pod_that_comes_back_takes_nobody_elses_partitions(
    broker: str, scheme: str, tmp_path: Path
) -> None:
    """Protects a rolling update on Kubernetes: with the pods' environment a restart causes no rebalance, and
    loses no sample."""
    federation = f"pods-{scheme.partition('+')[2]}"
    stack = Stack(tmp_path, f"{scheme}://{broker}", {"STREAMFL_FEDERATION__NAME": federation})
    manifests = built("dev")
    pods = {
        name: {
            variable: value
            for variable, value in pod_environment(manifests, f"streamfl-{kind}", ordinal).items()
            if variable.startswith("STREAMFL_BUS__OPTIONS")
        }
        for name, kind, ordinal in (
            ("server", "server", 0),
            ("client-1", "client", 0),
            ("client-2", "client", 1),
        )
    }
    assert all(len(options) == 2 for options in pods.values())
    try:
        stack.do("topics-create")
        for name in WORKERS:
            stack.start(name, pods[name])
        stack.wait_for("workers are not ready", lambda: all(map(stack.ready, WORKERS)))
        stack.do("replay")
        moved = stack.log("client-2").count("partitions moved")
        stack.processes["client-1"].terminate()
        assert stack.processes["client-1"].wait(30) == 0
        stack.start("client-1", pods["client-1"])
        stack.wait_for("the pod is not ready again", lambda: all(map(stack.ready, WORKERS)))
        stack.wait_for("samples are not predicted", lambda: len(predicted(stack, federation)) >= ROWS)
        found = predicted(stack, federation)
        assert len(found) == len(set(found)) >= ROWS
        assert stack.log("client-2").count("partitions moved") == moved >= 1
    finally:
        stack.stop()
