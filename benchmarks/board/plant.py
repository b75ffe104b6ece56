"""A federation that runs and is watched by a real Prometheus, and what a dashboard's queries find there."""

from __future__ import annotations

import json
import math
import random
import signal
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import streamfl
from benchmarks.processes import Processes

ROOT = Path(__file__).resolve().parents[1]
WORKERS = ("client-1", "client-2", "server")
DEVICES, PARTITIONS, READINGS_A_SECOND = 8, 4, 3.0
STEP_SECONDS, RATE_SECONDS = 2, 20
CONFIGURATION = """
[federation]
name = "plant"
seed = 7
clients = 8
features = ["t1", "t2"]
[bus]
url = "sqlite://{folder}/plant.db"
[role]
kind = "pofmkl-{kind}"
[log]
progress_seconds = 0
[metrics]
port = {port}
"""
SAMPLES = """
[samples]
topic = "readings"
client = "device"
label = "lever"
sample_id = "id"
label_range = [0.0, 10.0]
[uplink]
budget_bytes_per_second = 80000
[challengers]
models = ["running-mean", "last-label", "linear"]
"""


class Plant(Processes):
    """A federation of three processes on a bus in a file. ports: of their metrics."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        super().__init__(folder)
        for worker, port in zip(WORKERS, ports, strict=True):
            kind = worker.partition("-")[0]
            text = CONFIGURATION.format(folder=folder, kind=kind, port=port)
            if kind == "client":
                self.configure(worker, text + SAMPLES, "--create-inputs", "--partitions", str(PARTITIONS))
            else:
                self.configure(worker, text, "--create")

    def feed(self, seconds: float) -> None:
        """Readings of all presses, so many a second, until the time is over; the events of the run stand in
        it."""
        generator, begun, number = random.Random(7), time.monotonic(), 0
        events: dict[float, Callable[[], object]] = {
            0.4: partial(self.stop, "client-2", signal.SIGKILL),
            0.5: partial(self.start, "client-2"),
        }
        with streamfl.connect(f"sqlite://{self.folder}/plant.db") as bus:
            while (gone := time.monotonic() - begun) < seconds:
                for share in [share for share in events if gone > share * seconds]:
                    events.pop(share)()
                readings = [
                    self._reading(generator, number, place, gone / seconds) for place in range(DEVICES)
                ]
                bus.write("readings", readings, key="device")
                number += 1
                time.sleep(max(0.0, begun + number / READINGS_A_SECOND - time.monotonic()))

    @staticmethod
    def _reading(generator: random.Random, number: int, place: int, share: float) -> dict[str, Any]:
        t1, t2 = math.sin(number / 9 + place), generator.uniform(-1, 1)
        law = 2.5 * t1 * t2 if share < 2 / 3 else 2.5 * t1 * t2 * t2 - 1.0
        lever = 5 + law + place / 4 + generator.gauss(0, 0.15)
        return {"device": f"press-{place}", "t1": t1, "t2": t2, "lever": lever, "id": f"{place}/{number}"}


Points = list[tuple[float, float | None]]


def series_of(url: str, expression: str, begin: float, end: float) -> list[tuple[Mapping[str, str], Points]]:
    """What Prometheus has of a query of the dashboard over the run, with every variable at All; None where it
    has nothing."""
    expression = expression.replace("$__rate_interval", f"{RATE_SECONDS}s").replace(
        "$__interval", f"{STEP_SECONDS}s"
    )
    expression = expression.replace("$__range", f"{int(end - begin)}s").replace("$system", "pofmkl")
    for name in ("job", "federation", "role", "group", "instance"):
        expression = expression.replace(f"${name}", ".*")
    query = urllib.parse.urlencode({"query": expression, "start": begin, "end": end, "step": STEP_SECONDS})
    with urllib.request.urlopen(f"{url}/api/v1/query_range?{query}", timeout=60) as answer:
        found = json.load(answer)["data"]["result"]
    moments = [begin + number * STEP_SECONDS for number in range(int((end - begin) / STEP_SECONDS) + 1)]
    series = []
    for one in found:
        values = {
            round(at - begin): float(value) for at, value in one["values"] if math.isfinite(float(value))
        }
        series.append((one["metric"], [(at, values.get(round(at - begin))) for at in moments]))
    return series


def watched(board: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The dashboard's panels with the series of each, of a federation that ran for so many seconds."""
    with _prometheus() as (plant, url):
        begin = time.time()
        plant.feed(seconds)
        end = time.time()
        panels = []
        for panel in board["panels"]:
            lines = []
            for target in panel.get("targets", ()):
                for labels, points in series_of(url, target["expr"], begin, end):
                    name = target.get("legendFormat", "")
                    for label, value in labels.items():
                        name = name.replace(f"{{{{{label}}}}}", value)
                    lines.append({"name": name, "points": points})
            panels.append({**panel, "series": lines})
    return {"title": board["title"], "panels": panels, "begin": begin, "end": end}


@contextmanager
def _prometheus() -> Iterator[tuple[Plant, str]]:
    # Prometheus is fetched by the tests that also need it; they are not installed.
    sys.path.insert(0, str(ROOT / "tests"))
    from broker import free_ports
    from prometheus import running_prometheus

    ports = free_ports(len(WORKERS))
    with (
        tempfile.TemporaryDirectory() as name,
        running_prometheus(ports, Path(name)) as prometheus,
        closing(Plant(Path(name), ports)) as plant,
    ):
        for worker in WORKERS:
            plant.start(worker)

        def serves() -> bool:
            return sum(value for _, value in prometheus.ask("streamfl_partitions")) > PARTITIONS

        plant.wait(serves, "the workers serve", 60.0, 0.5)
        yield plant, prometheus.url
