"""A federation of processes on an SQLite bus, scraped by a real Prometheus through kills and restarts.

The system's soak (:mod:`soak.subject`) defines the members and the records.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
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
from streamfl_process import start_streamfl

from streamfl.contract.role import Record
from streamfl.contract.system import parts_of_systems
from streamfl.monitoring.dashboard import CHOICES, Dashboard
from streamfl.monitoring.service_health import DASHBOARD as HEALTH
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import find_kind

__all__ = ["NOTHING_REFUSED", "TOLERANCE", "Watched", "federation", "replaced"]

BUS = """
[bus]
url = "sqlite://{folder}/bus.db"
[bus.options]
session_timeout_seconds = 2
"""
PARTITIONS = 2
INTERVAL = "1s"
# Prometheus extrapolates to the ends of the time range.
TOLERANCE = 0.1
# Lines that are empty if nothing was refused.
NOTHING_REFUSED = {
    ("Dead letters", "{{group}} {{reason}}"),
    ("Model records refused", "{{group}} {{reason}}"),
}
QUIET_SECONDS = 0.5
WAIT_SECONDS = 150.0


class Watched:
    """The processes, the records, and Prometheus' view of them.

    system: its name.
    plan: of its soak.
    change: returns a member's sections, from its name and the soak's sections.
    prometheus: scrapes every worker.
    calm: since when nothing was killed.
    started: number of processes started so far.
    marks: times that a test stored.
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
        # The system's dashboards come first, because service health has some panels with the same titles.
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
        """Start these members, or all."""
        for member in members or self.files:
            self.started += 1
            environment = os.environ | {"STREAMFL_METRICS__PORT": str(self.ports[member])}
            with (self.folder / f"{member}.log").open("ab") as log:
                self.processes[member] = start_streamfl(
                    "run", self.files[member], env=environment, stdout=log, stderr=log
                )

    def kill(self, member: str) -> None:
        """Kill it at any point of its work."""
        process = self.processes.pop(member)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def restart(self, member: str) -> None:
        """Kill it and start it again, and wait until it serves."""
        self.kill(member)
        self.start(member)
        self.ready()

    def ready(self) -> None:
        """Wait until every worker serves, its group's partitions are all assigned, and Prometheus has seen
        that."""
        self.until(lambda: all(map(self._serves, self.processes)), "all serve")
        self._scraped()

    def _scraped(self) -> None:
        """Wait until Prometheus has scraped every running worker again."""
        now, ports = time.time(), [self.ports[member] for member in self.processes]
        self.until(lambda: self.prometheus.has_scraped(ports, now), "all are scraped")

    def _serves(self, member: str) -> bool:
        """Whether it is ready and has all of its partitions."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.ports[member]}/metrics", timeout=5
            ) as answer:
                text = answer.read().decode()
        except OSError:
            return False
        partitions = self.topics[self._inputs(self.settings[member])[0]].partitions
        return (scraped(text, "ready"), scraped(text, "partitions")) == (1, partitions)

    def close(self) -> None:
        for member in [*self.processes]:
            self.kill(member)
        self.bus.close()

    # ---- their input and output

    def write(self, *parts: Sequence[Outgoing]) -> None:
        for part in parts:
            self.bus.write(part)

    def load(self, first: int, last: int) -> tuple[list[Outgoing], list[Outgoing]]:
        """Columns and labels of these samples of the soak's load."""
        records = [
            record for number in range(first, last) for record in self.soaked.records(self.plan, number)
        ]
        columns = [record for record in records if record.topic.startswith("samples-")]
        return columns, [record for record in records if not record.topic.startswith("samples-")]

    def rest(self) -> None:
        """Wait until everything was read and committed, nothing more is written, and Prometheus has scraped
        that."""
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
        # Workers check this from time to time.
        self.until(lambda: self.prometheus.value(lag) == 0, "workers say that everything was read")
        self._scraped()

    def calm_from_now(self) -> None:
        """Nothing is killed from now on: counts of a killed worker that were never scraped are lost."""
        self._scraped()
        self.calm = time.time()
        # A late scrape gets the time at which it was due.
        self._scraped()
        self._before = {name: self.count(name) for name in self.topics}

    def written(self, topic: str) -> int:
        """Records of a topic since the calm began."""
        return self.count(topic) - self._before[topic]

    def latest(self, topic: str) -> list[Record]:
        """The latest record of each key of a topic since the calm began."""
        return self._by_time(topic)[self._before[topic] :]

    def earlier(self, topic: str) -> list[Record]:
        """Records of a topic before the calm."""
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
        """The records of all topics."""
        return Left(self.plan, self.settings, {name: list(self.bus.read(name)) for name in self.topics})

    def count(self, topic: str) -> int:
        """Number of records of a topic."""
        return sum(1 for _ in self.bus.read(topic))

    def until_more(self, topic: str, records: int) -> None:
        """Wait until a topic has more than this number of records."""
        self.until(lambda: self.count(topic) > records, f"more than {records} records in {topic}")

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for a condition. Reports a process that ended."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not true():
            ended = [member for member, process in self.processes.items() if process.poll() is not None]
            assert not ended, f"{what}: {ended} ended: {self._said(ended)}"
            assert time.monotonic() < deadline, f"{what}: {self._said(self.files)}"
            time.sleep(0.1)

    def _said(self, members: Sequence[str] | Mapping[str, Path]) -> str:
        return "\n".join(
            f"{member}: {(self.folder / f'{member}.log').read_text()[-1500:]}" for member in members
        )

    # ---- Prometheus' view

    @property
    def seconds(self) -> int:
        """Seconds since Prometheus began to scrape."""
        return int(time.monotonic() - self.begun)

    def query(self, expression: str) -> str:
        """A panel's query as Grafana sends it with everything chosen, with rates over the whole time."""
        chosen = expression.replace("$system", self.system)
        for span in ("$__rate_interval", "$__range"):
            chosen = chosen.replace(span, f"{self.seconds}s")
        for name in CHOICES:
            chosen = chosen.replace(f"${name}", ".*")
        assert "$" not in chosen, chosen
        return chosen

    def ask(self, expression: str, at: float | None = None) -> dict[str, float]:
        """The series of a query, by their joined distinguishing labels."""
        found = self.prometheus.ask(self.query(expression), at)
        return {
            " ".join(value for name, value in sorted(labels.items()) if name != "__name__"): value
            for labels, value in found
        }

    def counted(self, counter: str, role: str = ".*") -> float:
        """The growth of a counter over a role's workers since the calm began. Prometheus' own increase would
        extrapolate."""
        chosen = f'streamfl_{counter}{{system="{self.system}",role=~"{role}"}}'
        # On a busy machine a scrape is missed now and then, and so is a worker's series.
        last = self.prometheus.value(f"sum(last_over_time({chosen}[15s]))")
        # At that time every worker had been scraped. The query does not look back: a new worker may lack
        # series of a killed one.
        return last - self.prometheus.value(f"sum({chosen}) or vector(0)", self.calm)

    def value(self, title: str, legend: str = "", at: float | None = None) -> float:
        """The value of a panel's line with one series, on any of the system's dashboards. legend: its prefix.
        at: a past time."""
        panels = [panel for board in self.boards for panel in board.panels if panel.title == title]
        lines = [
            query.expression for panel in panels for query in panel.queries if query.legend.startswith(legend)
        ]
        assert lines, f"no board of {self.system} has a panel {title!r} with a line {legend!r}"
        values = self.ask(lines[0], at)
        assert len(values) == 1, (title, legend, values)
        return next(iter(values.values()))

    def service(self) -> dict[str, float]:
        """The values of the service health tiles for all workers: running and serving workers, lag, and
        restarts."""
        tiles = {"up": ("Workers up", "up"), "of": ("Workers up", "of"), "idle": ("Workers not serving", "")}
        tiles |= {"restarts": ("Restarts", ""), "waiting": ("Records waiting", "")}
        return {name: self.value(*tile) for name, tile in tiles.items()}

    @property
    def resting(self) -> dict[str, float]:
        """Their true values after everything was read."""
        workers = len(self.files)
        return {"up": workers, "of": workers, "idle": 0, "restarts": self.started - workers, "waiting": 0}

    def empty(self) -> set[tuple[str, str]]:
        """Title and legend of every dashboard line without a series, or with NaN."""
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
    system: str,
    plan: Plan,
    folder: Path,
    change: Callable[[str, str], str] = lambda _member, sections: sections,
) -> Iterator[Watched]:
    """All members of a plan, running and ready; all end with the block. change: returns a member's
    sections."""
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
    """The text with parts replaced; each part has to occur."""
    for old, new in parts.items():
        assert old in text, old
        text = text.replace(old, new)
    return text
