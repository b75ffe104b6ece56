"""The dashboard's panels, asked of a real Prometheus that has watched a federation through kills and restarts."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker import free_ports
from prometheus import Prometheus, running_prometheus

import streamfl
from streamfl.dashboard import CHOICES, Dashboard
from streamfl.pofmkl.lab.dashboard import DASHBOARD, DASHBOARDS
from streamfl.service_health import DASHBOARD as HEALTH

pytestmark = pytest.mark.long

NAME, DEVICES, RANGE, PARTITIONS = "plant", ("press-1", "press-2", "press-3", "press-4"), 10.0, 4
CONFIGURATION = """
[federation]
name = "{name}"
seed = 7
clients = 6
features = ["t1", "t2"]

[bus]
url = "sqlite://{folder}/plant.db"

[bus.options]
# Long enough for others to tell what waits for a dead worker, which they ask every 5 seconds.
session_timeout_seconds = 15

[role]
kind = "{kind}"
"""
SAMPLES = """
[samples]
topic = "readings"
client = "device"
label = "lever"
sample_id = "id"
label_range = [0.0, 10.0]

[challengers]
models = ["running-mean", "last-label"]

[uplink]
budget_bytes_per_second = 1e6
"""
FIRST = 100
# What waits where no worker of the group says that a partition is its own.
ORPHANED = (
    'max by (partition) (streamfl_group_lag_records{topic="readings"}) > 0 '
    'unless sum by (partition) (streamfl_consumer_lag_records{topic="readings"})'
)
# Scraped once a second: after this long, what was counted is in Prometheus.
SCRAPED_SECONDS = 2.5
WAIT_SECONDS = 120.0


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


class Plant:
    """A server and two client workers, each a process, on a bus in a file; and the Prometheus that watches them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(("server", "client-1", "client-2"), free_ports(3), strict=True))
        for kind, more in (("server", ""), ("client", SAMPLES)):
            text = CONFIGURATION.format(name=NAME, folder=folder, kind=f"pofmkl-{kind}") + more
            (folder / f"{kind}.toml").write_text(text)
        self.written = 0
        # When all of the first readings were counted, and how many seconds Prometheus had watched by then.
        self.before_kills = math.nan, math.nan
        # What the panel of lag says while some partitions' worker is dead.
        self.orphaned: list[tuple[Any, float]] = []
        self.command("topics", "client.toml", "--create-inputs", "--partitions", str(PARTITIONS))
        self.command("topics", "server.toml", "--create")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def command(self, *arguments: str) -> str:
        line = [sys.executable, "-m", "streamfl", *arguments]
        return subprocess.run(line, cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def start(self, worker: str) -> None:
        line = [sys.executable, "-m", "streamfl", "run", f"{worker.partition('-')[0]}.toml"]
        environment = {**os.environ, "STREAMFL_METRICS__PORT": str(self.ports[worker])}
        with (self.folder / f"{worker}.log").open("ab") as log:
            self.processes[worker] = subprocess.Popen(line, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def kill(self, worker: str) -> None:
        """In the middle of whatever it does."""
        process = self.processes.pop(worker)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for worker in [*self.processes]:
            self.kill(worker)

    def write(self, count: int) -> None:
        """So many readings of each press, and a line that is none."""
        readings: list[Any] = []
        for number in range(self.written, self.written + count):
            for place, device in enumerate(DEVICES):
                t1, t2 = math.sin(number / 7 + place), math.cos(number / 11)
                lever = 5 + 2 * t1 * t2 + place / 2 + (3.0 if number > 150 else 0.0)
                readings.append({"device": device, "t1": t1, "t2": t2, "lever": lever, "id": f"{device}-{number}"})
        self.written += count
        with streamfl.connect(f"sqlite://{self.folder}/plant.db") as bus:
            bus.write("readings", readings, key="device")
            bus.write("readings", [{"device": "press-1", "id": "none", "t1": "hot", "t2": 0.0, "lever": 1.0}], key="device")

    def rows(self, topic: str) -> list[Any]:
        with streamfl.connect(f"sqlite://{self.folder}/plant.db") as bus:
            return [message.value for message in bus.read(topic)]

    @property
    def predicted(self) -> int:
        return len(self.rows(f"{NAME}.predictions"))

    def drained(self) -> None:
        until(lambda: self.predicted == self.written * len(DEVICES), "all is predicted")
        time.sleep(SCRAPED_SECONDS)


def asked(prometheus: Prometheus, expression: str, seconds: float, at: float | None = None) -> list[tuple[Any, float]]:
    """A panel's query as Grafana sends it when everything is chosen, its rates over so many seconds until ``at``, or now."""
    chosen = expression.replace("$system", "pofmkl")
    for length in ("$__rate_interval", "$__range"):
        chosen = chosen.replace(length, f"{int(seconds)}s")
    for name in CHOICES:
        chosen = chosen.replace(f"${name}", ".*")
    assert "$" not in chosen, chosen
    return prometheus.ask(chosen, at)


def panel(title: str, board: Dashboard = DASHBOARD) -> dict[str, str]:
    """The queries of a panel, by their legend."""
    [found] = [panel for panel in board.panels if panel.title == title]
    return {query.legend: query.expression for query in found.queries}


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plant, Prometheus, float]]:
    """A plant that has lived through two kills and an idle restart, and the seconds since Prometheus began to watch."""
    folder = tmp_path_factory.mktemp("plant")
    plant = Plant(folder)
    with running_prometheus(list(plant.ports.values()), folder) as prometheus:
        begun = time.monotonic()
        try:
            for worker in plant.ports:
                plant.start(worker)
            held = 'sum(streamfl_partitions{federation="plant"}) or vector(0)'
            until(lambda: prometheus.value(held) == PARTITIONS + 1, "workers have all partitions, and the server the model's")
            time.sleep(SCRAPED_SECONDS)
            plant.write(FIRST)
            plant.drained()
            plant.before_kills = time.time(), time.monotonic() - begun
            plant.kill("client-1")
            plant.write(60)
            until(lambda: bool(prometheus.ask(ORPHANED)), "somebody says what waits in the dead worker's partitions")
            plant.orphaned = asked(prometheus, panel("Consumer lag")["{{group}} {{topic}} {{partition}}"], 60)
            plant.drained()
            plant.start("client-1")
            plant.write(60)
            until(lambda: plant.predicted > (FIRST + 70) * len(DEVICES), "some is predicted")
            plant.kill("client-2")
            plant.drained()
            # A worker that comes back and has nothing to do.
            plant.start("client-2")
            plant.kill("server")
            plant.start("server")
            time.sleep(SCRAPED_SECONDS)
            until(lambda: prometheus.value(held) == PARTITIONS + 1, "the dead server's place is taken")
            time.sleep(SCRAPED_SECONDS)
            yield plant, prometheus, time.monotonic() - begun
        finally:
            plant.close()


def squared_error(plant: Plant, readings: int) -> float:
    """The mean over the first readings of each press, on the learning scale, from the topics alone."""
    labels = {row["id"]: row["lever"] for row in plant.rows("readings") if row["t1"] != "hot"}
    told = {row["sample"]: row["prediction"] for row in plant.rows(f"{NAME}.predictions")}
    assert told.keys() == labels.keys()
    first = [name for name in labels if int(name.rpartition("-")[2]) < readings]
    return sum(((told[name] - labels[name]) / RANGE) ** 2 for name in first) / len(first)


def test_errors_and_regret_are_those_of_the_topics(watched: tuple[Plant, Prometheus, float]) -> None:
    """Protects whoever reads the board after a restart: error and regret are the topics', whoever was killed."""
    plant, prometheus, seconds = watched
    errors = panel("Mean squared error")
    [(_, whole)] = asked(prometheus, errors["whole life"], seconds)
    assert whole == pytest.approx(squared_error(plant, plant.written), rel=1e-6)
    # Prometheus extrapolates the two workers' sums by factors of their own.
    at, begun = plant.before_kills
    [(_, now)] = asked(prometheus, errors["now"], begun, at)
    assert now == pytest.approx(squared_error(plant, FIRST), rel=0.1)
    clients = json.loads(plant.command("inspect", "client.toml", "--format", "json"))["clients"]
    regret, labels = (sum(client[name] for client in clients) for name in ("regret", "labels"))
    assert labels == plant.written * len(DEVICES)
    [(_, found)] = asked(prometheus, panel("Regret per sample")["all workers"], seconds)
    assert found == pytest.approx(regret / labels, rel=1e-6)


def test_refused_records_are_seen_from_the_first_on(watched: tuple[Plant, Prometheus, float]) -> None:
    """Protects the alert on dead letters: each of three refused lines is a growth, the first one too."""
    _, prometheus, seconds = watched
    grown = f'sum by (reason) (increase(streamfl_dead_letters_total{{federation="plant"}}[{int(seconds)}s])) > 0.5'
    [(labels, count)] = prometheus.ask(grown)
    assert labels["reason"] == "not_numeric"
    assert 1.9 < count < 3.7


def test_partitions_of_a_dead_worker_have_a_lag(watched: tuple[Plant, Prometheus, float]) -> None:
    """Protects the alert on lag when it matters most: until another worker has them, a dead worker's partitions are told of."""
    plant, _, _ = watched
    told = {labels["partition"]: count for labels, count in plant.orphaned if labels["topic"] == "readings"}
    assert sorted(told) == [str(number) for number in range(PARTITIONS)]
    assert max(told.values()) >= 60


def test_tiles_are_what_is_so(watched: tuple[Plant, Prometheus, float]) -> None:
    """Protects who looks at the first row alone: workers, restarts, refused records and lag are counted right after kills."""
    _, prometheus, seconds = watched

    def shown(board: Dashboard, title: str) -> dict[str, float]:
        return {legend: value for legend, query in panel(title, board).items() for _, value in asked(prometheus, query, seconds)}

    for board in (HEALTH, *DASHBOARDS):
        assert shown(board, "Workers up") == {"up": 3, "of": 3}
        assert shown(board, "Records refused")["refused"] == pytest.approx(3, abs=1)
        assert shown(board, "Records waiting") == {"waiting": 0}
    assert shown(HEALTH, "Restarts") == {"restarts": 3}
    assert shown(HEALTH, "Workers not serving") == {"not serving": 0}
    clients = DASHBOARDS[1]
    assert shown(clients, "Clients") == {"clients": len(DEVICES)}
    assert shown(clients, "Clients that wait") == {"clients": 0}


def test_no_query_is_empty(watched: tuple[Plant, Prometheus, float]) -> None:
    """Protects panels from being empty, or NaN, on a federation that works: what is not there belongs to other settings."""
    _, prometheus, seconds = watched
    empty = {
        (one.title, query.legend)
        for board in (HEALTH, *DASHBOARDS)
        for one in board.panels
        for query in one.queries
        if not (found := asked(prometheus, query.expression, seconds)) or any(math.isnan(value) for _, value in found)
    }
    assert empty == {
        # With the logistic loss.
        ("Accuracy of yes and no", "right, {{instance}}"),
        ("Accuracy of yes and no", "area under the curve, {{instance}}"),
        ("Log loss", "{{instance}}"),
        # With labels on a topic of their own.
        ("Labels that wait for samples", "samples, {{instance}}"),
        ("Labels that wait for samples", "labels, {{instance}}"),
        ("Never learnt from", "samples, {{reason}}"),
        ("Never learnt from", "labels, {{reason}}"),
        ("Never learnt from", "labels again"),
        ("Samples again, and clients forgotten", "again"),
        # Nobody writes to the model's topic but the server.
        ("Model records refused", "{{group}} {{reason}}"),
    }
