"""The dashboard's panels, asked of a real Prometheus that has watched a federation through kills and
restarts."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from broker import free_ports
from command_line import make_topics
from live.lines import Figures, wrong_lines
from pofmkl.live_truth import EMPTY, CalmPlant, truths
from prometheus import Prometheus, running_prometheus
from streamfl_process import run_streamfl, start_streamfl

import streamfl
from streamfl.contract.role import Record
from streamfl.monitoring.dashboard import CHOICES, Dashboard
from streamfl.monitoring.service_health import DASHBOARD as HEALTH
from streamfl.pofmkl.tools.dashboard import DASHBOARD, DASHBOARDS
from streamfl.runtime.bus import Bus, connect

pytestmark = pytest.mark.long

NAME, DEVICES, PARTITIONS = "plant", ("press-1", "press-2", "press-3", "press-4"), 4
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
FIRST, CALM, BUDGET = 100, 80, 1e6
# What waits where no worker of the group says that a partition is its own.
ORPHANED = (
    'max by (partition) (streamfl_group_lag_records{topic="readings"}) > 0 '
    'unless sum by (partition) (streamfl_consumer_lag_records{topic="readings"})'
)
# Prometheus scrapes once a second and takes a rate from scrape to scrape: this long, so that a second of it
# is little.
CALM_SECONDS = 16.0
WAIT_SECONDS = 120.0


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.4)


class Plant:
    """A server and two client workers, each a process, on a bus in a file; and the Prometheus that watches
    them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(("server", "client-1", "client-2"), free_ports(3), strict=True))
        for kind, more in (("server", ""), ("client", SAMPLES)):
            text = CONFIGURATION.format(name=NAME, folder=folder, kind=f"pofmkl-{kind}") + more
            (folder / f"{kind}.toml").write_text(text)
        self.written = 0
        # What the panel of lag says while some partitions' worker is dead.
        self.orphaned: list[tuple[Any, float]] = []
        make_topics(folder / "client.toml", PARTITIONS)
        make_topics(folder / "server.toml")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.at_rest: CalmPlant
        self.prometheus: Prometheus

    def has_orphans(self) -> bool:
        """Whether a partition without a worker has all records of the last writing before it. Keeps what the
        panel of lag says."""
        at = time.time()
        told = asked(self.prometheus, panel("Consumer lag")["{{group}} {{topic}} {{partition}}"], 60, at)
        if not self.prometheus.ask(ORPHANED, at) or max((count for _, count in told), default=0.0) < 60:
            return False
        self.orphaned = told
        return True

    def command(self, *arguments: str) -> str:
        return str(run_streamfl(*arguments, cwd=self.folder, check=True).stdout)

    def start(self, worker: str) -> None:
        file = f"{worker.partition('-')[0]}.toml"
        environment = {**os.environ, "STREAMFL_METRICS__PORT": str(self.ports[worker])}
        with (self.folder / f"{worker}.log").open("ab") as log:
            self.processes[worker] = start_streamfl(
                "run", file, cwd=self.folder, env=environment, stdout=log, stderr=log
            )

    def kill(self, worker: str) -> None:
        """In the middle of whatever it does."""
        process = self.processes.pop(worker)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for worker in [*self.processes]:
            self.kill(worker)

    def write(self, count: int, peculiar: bool = False) -> None:
        """So many readings of each press, and a line that is none. peculiar: some without a label."""
        readings: list[Any] = []
        for number in range(self.written, self.written + count):
            for place, device in enumerate(DEVICES):
                t1, t2 = math.sin(number / 7 + place), math.cos(number / 11)
                lever = 5 + 2 * t1 * t2 + place / 2 + (3.0 if number > 150 else 0.0)
                row = {"device": device, "t1": t1, "t2": t2, "lever": lever, "id": f"{device}-{number}"}
                if peculiar and number % 4 == place:
                    del row["lever"]
                readings.append(row)
        self.written += count
        lines = 3 if peculiar else 1
        none = {"device": "press-1", "id": "none", "t1": "hot", "t2": 0.0, "lever": 1.0}
        with streamfl.connect(f"sqlite://{self.folder}/plant.db") as bus:
            bus.write("readings", readings, key="device")
            bus.write("readings", [none] * lines, key="device")

    @contextmanager
    def bus(self) -> Iterator[Bus]:
        bus = connect(f"sqlite://{self.folder}/plant.db")
        try:
            yield bus
        finally:
            bus.close()

    def records(self, topic: str) -> list[Record]:
        """As they were written."""
        with self.bus() as bus:
            return sorted(bus.read(topic), key=lambda one: one.timestamp)

    @property
    def predicted(self) -> int:
        return len(self.records(f"{NAME}.predictions"))

    def figures(self) -> Figures:
        """What the workers say now."""
        texts, at = {}, time.time()
        for worker, port in self.ports.items():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                texts[worker] = answer.read().decode()
        return Figures(texts, at)

    def calm(self) -> CalmPlant:
        """Nobody is killed any more, and some readings come."""
        topics = ["readings", *(f"{NAME}.{name}" for name in ("predictions", "updates", "dead-letters"))]
        before, earlier = self.figures(), {topic: self.records(topic) for topic in topics}
        self.scraped()
        self.write(CALM, peculiar=True)
        self.drained()
        until(lambda: time.time() > before.at + CALM_SECONDS, "it was calm for long enough")
        self.scraped()
        after = self.figures()
        records = {topic: self.records(topic)[len(earlier[topic]) :] for topic in topics}
        clients = json.loads(self.command("inspect", "client.toml", "--format", "json"))["clients"]
        return CalmPlant(before, after, records, earlier, clients, BUDGET)

    def drained(self) -> None:
        until(lambda: self.predicted == self.written * len(DEVICES), "all is predicted")
        self.scraped()

    def scraped(self) -> None:
        """Wait until Prometheus has all that the workers counted until now."""
        ports = [self.ports[worker] for worker in self.processes]
        # A scrape that comes late has the time at which it was due: of two, the second is after now.
        for _ in range(2):
            until(partial(self.prometheus.has_scraped, ports, time.time()), "all are scraped")


def asked(
    prometheus: Prometheus, expression: str, seconds: float, at: float | None = None
) -> list[tuple[Any, float]]:
    """A panel's query as Grafana sends it when everything is chosen, its rates over so many seconds until
    ``at``, or now."""
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
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plant, Prometheus]]:
    """A plant that has lived through two kills and idle restarts and was calm then."""
    folder = tmp_path_factory.mktemp("plant")
    plant = Plant(folder)
    with running_prometheus(list(plant.ports.values()), folder) as prometheus:
        plant.prometheus = prometheus
        try:
            for worker in plant.ports:
                plant.start(worker)
            held = 'sum(streamfl_partitions{federation="plant"}) or vector(0)'
            until(
                lambda: prometheus.value(held) == PARTITIONS + 1,
                "workers have all partitions, and the server the model's",
            )
            plant.scraped()
            plant.write(FIRST)
            plant.drained()
            plant.kill("client-1")
            plant.write(60)
            until(plant.has_orphans, "somebody says what waits in the dead worker's partitions")
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
            plant.scraped()
            until(lambda: prometheus.value(held) == PARTITIONS + 1, "the dead server's place is taken")
            plant.scraped()
            plant.at_rest = plant.calm()
            yield plant, prometheus
        finally:
            plant.close()


def test_partitions_of_a_dead_worker_have_a_lag(watched: tuple[Plant, Prometheus]) -> None:
    """Protects the alert on lag when it matters most: until another worker has them, a dead worker's
    partitions are told of."""
    plant, _ = watched
    told = {labels["partition"]: count for labels, count in plant.orphaned if labels["topic"] == "readings"}
    assert sorted(told) == [str(number) for number in range(PARTITIONS)]


def test_every_line_shows_the_truth(watched: tuple[Plant, Prometheus]) -> None:
    """Protects every line of every board: it is there, and shows what the topics, the state and the workers
    say."""
    plant, prometheus = watched
    calm = plant.at_rest
    wrong = wrong_lines(
        (HEALTH, *DASHBOARDS),
        lambda expression: asked(prometheus, expression, calm.seconds, calm.after.at),
        truths(calm),
        empty=EMPTY,
        members={f"127.0.0.1:{port}": worker for worker, port in plant.ports.items()},
    )
    assert not wrong, "\n".join(wrong)
