"""A federation of processes on a bus in a file, which a real Prometheus scrapes through kills and restarts.

Who takes part and what is written says the system's soak (:mod:`soak.subject`).
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker import free_ports
from prometheus import Prometheus, running_prometheus
from scraped import scraped
from soak.configuration import load_members
from soak.subject import Left, Plan, find_soaked

from streamfl.monitoring.dashboard import CHOICES, Dashboard
from streamfl.monitoring.service_health import DASHBOARD as HEALTH
from streamfl.role import Record
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import find_kind
from streamfl.system import parts_of_systems

__all__ = ["NOTHING_REFUSED", "TOLERANCE", "Watched", "federation", "replaced"]

BUS = """
[bus]
url = "sqlite://{folder}/bus.db"
[bus.options]
session_timeout_seconds = 2
"""
PARTITIONS = 2
INTERVAL = "1s"
# Prometheus extrapolates to the ends of the time that it is asked for.
TOLERANCE = 0.1
# Lines that are empty as long as nothing was refused.
NOTHING_REFUSED = {("Dead letters", "{{group}} {{reason}}"), ("Model records refused", "{{group}} {{reason}}")}
QUIET_SECONDS = 0.5
WAIT_SECONDS = 150.0


class Watched:
    """What runs, what was written, and what Prometheus has seen.

    system: its name.
    plan: of its soak.
    change: what a member's sections are, from its name and those of the soak.
    prometheus: scrapes every worker.
    calm: since when nothing was killed.
    started: processes, over time.
    marks: times that a test asks for.
    """

    def __init__(self, system: str, plan: Plan, folder: Path, change: Callable[[str, str], str]) -> None:
        _, self.soaked = find_soaked(system)
        self.system, self.plan, self.folder = system, plan, folder
        self.files: dict[str, Path] = {}
        for name, one in self.soaked.members(plan).items():
            self.files[name] = folder / f"{name}.toml"
            self.files[name].write_text(change(name, one.sections) + BUS.format(folder=folder))
        self.settings = load_members(self.files)
        self.ports = dict(zip(self.files, free_ports(len(self.files)), strict=True))
        self.bus: Bus = connect(f"sqlite://{folder}/bus.db")
        specs = [spec for one in self.settings.values() for spec in find_kind(one.role.kind).topics(one)]
        self.topics = {spec.name: replace(spec, partitions=spec.partitions or PARTITIONS) for spec in specs}
        self.bus.create(list(self.topics.values()))
        # Those of the system first: the board of service health has some panels of the same titles.
        self.boards: list[Dashboard] = [*parts_of_systems("dashboards")[system], HEALTH]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.prometheus: Prometheus
        self.begun = math.nan
        self.calm = math.nan
        self.started = 0
        self.marks: dict[str, float] = {}
        self._before: dict[str, int] = {}

    # ---- processes

    def start(self, *members: str) -> None:
        """Start these, or all."""
        for member in members or self.files:
            self.started += 1
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "STREAMFL_METRICS__PORT": str(self.ports[member])}
            line = [sys.executable, "-m", "streamfl", "run", str(self.files[member])]
            with (self.folder / f"{member}.log").open("ab") as log:
                self.processes[member] = subprocess.Popen(line, env=environment, stdout=log, stderr=log)

    def kill(self, member: str) -> None:
        """In the middle of whatever it does."""
        process = self.processes.pop(member)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def restart(self, member: str) -> None:
        """Kill it and start it again, and wait until it serves."""
        self.kill(member)
        self.start(member)
        self.ready()

    def ready(self) -> None:
        """Wait until every worker serves and has all partitions of its group, and Prometheus has seen that."""
        self.until(lambda: all(map(self._serves, self.processes)), "all serve")
        self._scraped()

    def _scraped(self) -> None:
        """Wait until Prometheus has asked every worker that runs again."""
        now, ports = time.time(), [self.ports[member] for member in self.processes]
        self.until(lambda: self.prometheus.has_scraped(ports, now), "all are scraped")

    def _serves(self, member: str) -> bool:
        """Whether it says that it is ready, and has all partitions."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[member]}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return False
        partitions = self.topics[self._inputs(self.settings[member])[0]].partitions
        return (scraped(text, "ready"), scraped(text, "partitions")) == (1, partitions)

    def close(self) -> None:
        for member in [*self.processes]:
            self.kill(member)
        self.bus.close()

    # ---- what they read and write

    def write(self, *parts: Sequence[Outgoing]) -> None:
        for part in parts:
            self.bus.write(part)

    def load(self, first: int, last: int) -> tuple[list[Outgoing], list[Outgoing]]:
        """Of these samples of the soak's load, the columns and the labels."""
        records = [record for number in range(first, last) for record in self.soaked.records(self.plan, number)]
        columns = [record for record in records if record.topic.startswith("samples-")]
        return columns, [record for record in records if not record.topic.startswith("samples-")]

    def rest(self) -> None:
        """Wait until everything was read and committed, nothing more is written, and Prometheus knows all of it."""
        before: Mapping[str, Mapping[int, int]] = {}

        def rests() -> bool:
            nonlocal before
            ends = {name: self.bus.offsets(name, math.inf) for name in self.topics}
            same, before = ends == before, ends
            if not same or self._waits(ends):
                time.sleep(QUIET_SECONDS)
                return False
            return True

        self.until(rests, "everything was read")
        lag = f'sum(last_over_time(streamfl_group_lag_records{{system="{self.system}"}}[15s])) or vector(0)'
        # Which workers look at now and then.
        self.until(lambda: self.prometheus.value(lag) == 0, "workers say that everything was read")
        self._scraped()

    def calm_from_now(self) -> None:
        """From now on nothing is killed: what a killed worker counted and nobody scraped is lost."""
        self._scraped()
        self.calm = time.time()
        # A scrape that comes late has the time at which it was due.
        self._scraped()
        self._before = {name: self.count(name) for name in self.topics}

    def written(self, topic: str) -> int:
        """Records of a topic since it has been calm."""
        return self.count(topic) - self._before[topic]

    def latest(self, topic: str) -> list[Record]:
        """Records of a topic since it has been calm."""
        return self._by_time(topic)[self._before[topic] :]

    def earlier(self, topic: str) -> list[Record]:
        """Records of a topic until then."""
        return self._by_time(topic)[: self._before[topic]]

    def _by_time(self, topic: str) -> list[Record]:
        return sorted(self.bus.read(topic), key=lambda one: one.timestamp)

    def _waits(self, ends: Mapping[str, Mapping[int, int]]) -> list[tuple[str, str, int]]:
        waiting = []
        for one in self.settings.values():
            committed = self.bus.committed(one.group)
            inputs = self._inputs(one)
            waiting += [
                (one.group, name, number)
                for name in inputs
                for number, end in ends[name].items()
                if committed.get((name, number), 0) < end
            ]
        return waiting

    def _inputs(self, settings: Any) -> list[str]:
        return [source.topic for source in find_kind(settings.role.kind).channels(settings).inputs.values()]

    def left(self) -> Left:
        """What lies in the topics."""
        return Left(self.plan, self.settings, {name: list(self.bus.read(name)) for name in self.topics})

    def count(self, topic: str) -> int:
        """Records of a topic."""
        return sum(1 for _ in self.bus.read(topic))

    def until_more(self, topic: str, records: int) -> None:
        """Wait until a topic has more records than these."""
        self.until(lambda: self.count(topic) > records, f"more than {records} records in {topic}")

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for it; a process that ended is told of."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not true():
            ended = [member for member, process in self.processes.items() if process.poll() is not None]
            assert not ended, f"{what}: {ended} ended: {self._said(ended)}"
            assert time.monotonic() < deadline, f"{what}: {self._said(self.files)}"
            time.sleep(0.1)

    def _said(self, members: Sequence[str] | Mapping[str, Path]) -> str:
        return "\n".join(f"{member}: {(self.folder / f'{member}.log').read_text()[-1500:]}" for member in members)

    # ---- what Prometheus has seen

    @property
    def seconds(self) -> int:
        """Since Prometheus began to watch."""
        return int(time.monotonic() - self.begun)

    def query(self, expression: str) -> str:
        """A panel's query as Grafana sends it when everything is chosen, its rates over all that was watched."""
        chosen = expression.replace("$system", self.system)
        for span in ("$__rate_interval", "$__range"):
            chosen = chosen.replace(span, f"{self.seconds}s")
        for name in CHOICES:
            chosen = chosen.replace(f"${name}", ".*")
        assert "$" not in chosen, chosen
        return chosen

    def ask(self, expression: str, at: float | None = None) -> dict[str, float]:
        """The series of a query by the labels that tell them apart, joined."""
        found = self.prometheus.ask(self.query(expression), at)
        return {" ".join(value for name, value in sorted(labels.items()) if name != "__name__"): value for labels, value in found}

    def counted(self, counter: str, role: str = ".*") -> float:
        """What workers of a role have counted since it has been calm; Prometheus' own growth would be extrapolated."""
        chosen = f'streamfl_{counter}{{system="{self.system}",role=~"{role}"}}'
        # On a busy machine a scrape is missed now and then, and a worker's series with it.
        last = self.prometheus.value(f"sum(last_over_time({chosen}[15s]))")
        # Then all had been scraped. What a killed worker had counted is not looked back at: a new one may have no such series.
        return last - self.prometheus.value(f"sum({chosen}) or vector(0)", self.calm)

    def value(self, title: str, legend: str = "", at: float | None = None) -> float:
        """Of a panel's line that has one series, on any of the system's boards. legend: what it begins with. at: then, not now."""
        panels = [panel for board in self.boards for panel in board.panels if panel.title == title]
        lines = [query.expression for panel in panels for query in panel.queries if query.legend.startswith(legend)]
        assert lines, f"no board of {self.system} has a panel {title!r} with a line {legend!r}"
        values = self.ask(lines[0], at)
        assert len(values) == 1, (title, legend, values)
        return next(iter(values.values()))

    def service(self) -> dict[str, float]:
        """What the tiles of service health say of all workers: how many there are and serve, what waits, what was started again."""
        tiles = {"up": ("Workers up", "up"), "of": ("Workers up", "of"), "idle": ("Workers not serving", "")}
        tiles |= {"restarts": ("Restarts", ""), "waiting": ("Records waiting", "")}
        return {name: self.value(*tile) for name, tile in tiles.items()}

    @property
    def resting(self) -> dict[str, float]:
        """The truth of that, once everything was read."""
        workers = len(self.files)
        return {"up": workers, "of": workers, "idle": 0, "restarts": self.started - workers, "waiting": 0}

    def empty(self) -> set[tuple[str, str]]:
        """Title and legend of every line of every board that has no series, or one that is NaN."""
        return {
            (panel.title, query.legend)
            for board in self.boards
            for panel in board.panels
            for query in panel.queries
            if not (values := self.ask(query.expression)) or any(math.isnan(one) for one in values.values())
        }

    def contents(self, topic: str) -> list[Any]:
        """The records of a topic, read as JSON."""
        return [json.loads(record.value or b"") for record in self.bus.read(topic)]

@contextmanager
def federation(
    system: str, plan: Plan, folder: Path, change: Callable[[str, str], str] = lambda _member, sections: sections
) -> Iterator[Watched]:
    """All members of a plan, running and ready; none is left behind. change: a member's sections, from its name and the soak's."""
    watched = Watched(system, plan, folder, change)
    with running_prometheus(list(watched.ports.values()), folder, INTERVAL) as prometheus:
        watched.prometheus, watched.begun = prometheus, time.monotonic()
        try:
            watched.start()
            watched.ready()
            yield watched
        finally:
            watched.close()


def replaced(text: str, parts: Mapping[str, str]) -> str:
    """The text with other parts; each has to be there."""
    for old, new in parts.items():
        assert old in text, old
        text = text.replace(old, new)
    return text
