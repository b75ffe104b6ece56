"""Ways in which learning stops, each told by a real Prometheus that watches real processes.

Its rules are those that users load, with a second for each minute of a quarter of an hour, and for three
minutes of longer times."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker import free_ports
from command_line import make_topics
from prometheus import Prometheus, running_prometheus
from streamfl_process import start_streamfl

from streamfl.runtime.bus import Bus, Outgoing, connect

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
RULES = [ROOT / "dashboards" / f"{name}.yaml" for name in ("alerts", "alerts-pofmkl")]
MINUTES = {"m": 1, "h": 60, "d": 24 * 60}
WAIT_SECONDS = 400.0
CONFIGURATION = """
[federation]
name = "{name}"
seed = 7
clients = 3
features = ["t1", "t2"]
[bus]
url = "sqlite://{folder}/bus.db"
[role]
kind = "pofmkl-{kind}"
[samples]
topic = "{name}-readings"
client = "device"
label = "lever"
label_range = [0.0, 10.0]
"""
# Not one update in two fits into it.
TIGHT = """
[uplink]
budget_bytes_per_second = 400.0
"""
LOSSES = {
    "StreamflSamplesGone",
    "StreamflLabelsGone",
    "StreamflClientSilent",
    "StreamflClientUnlabelled",
    "StreamflModelStands",
    "StreamflUpdatesGone",
    "StreamflPredictedWithoutModel",
    "StreamflDeadLetters",
}


def hurried(rules: Path, folder: Path) -> Path:
    """The same rules, with shorter times."""

    def shorter(found: re.Match[str]) -> str:
        minutes = int(found[1]) * MINUTES[found[2]]
        return f"{minutes if minutes <= 15 else minutes // 3}s"

    text = re.sub(r"\b(\d+)([mhd])\b", shorter, rules.read_text(encoding="utf-8"))
    path = folder / rules.name
    path.write_text(text, encoding="utf-8")
    return path


class Plant:
    """Two federations on a bus in a file; ``plant`` has a bytes budget that is never spent, ``tight`` one
    that always is.

    writing: the devices whose samples come. labelled: whether these have labels.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writing: tuple[str, ...] = ("press", "pump")
        self.labelled = True
        self.ports = dict(
            zip(("plant-client", "plant-server", "tight-client", "tight-server"), free_ports(4), strict=True)
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        for member in self.ports:
            name, _, kind = member.partition("-")
            text = CONFIGURATION.format(name=name, kind=kind, folder=folder) + (
                TIGHT if name == "tight" else ""
            )
            (folder / f"{member}.toml").write_text(text)
            make_topics(folder / f"{member}.toml", 1)
        self.bus: Bus = connect(f"sqlite://{folder}/bus.db")
        self._thread.start()

    def start(self, member: str) -> None:
        environment = {**os.environ, "STREAMFL_METRICS__PORT": str(self.ports[member])}
        with (self.folder / f"{member}.log").open("ab") as log:
            self._processes[member] = start_streamfl(
                "run", f"{member}.toml", cwd=self.folder, env=environment, stdout=log, stderr=log
            )

    def kill(self, member: str) -> None:
        process = self._processes.pop(member)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        for member in [*self._processes]:
            self.kill(member)
        self.bus.close()

    def _write(self) -> None:
        number = 0
        while not self._closed.wait(0.5):
            number += 1
            content: dict[str, Any] = {"t1": math.sin(number / 7), "t2": math.cos(number / 5)}
            label = {"lever": 5 + 3 * content["t1"]}
            records = []
            for device in self.writing:
                sample = {"device": device, **content, **(label if self.labelled else {})}
                records.append(Outgoing("plant-readings", device.encode(), json.dumps(sample).encode(), 0))
            records.append(
                Outgoing(
                    "tight-readings",
                    b"press",
                    json.dumps({"device": "press", **content, **label}).encode(),
                    0,
                )
            )
            self.bus.write(records)


class Watch:
    """What a Prometheus has told, of one federation."""

    def __init__(self, prometheus: Prometheus) -> None:
        self.prometheus = prometheus

    def firing(self, federation: str = "plant") -> set[str]:
        found = self.prometheus.ask(f'ALERTS{{alertstate="firing", federation="{federation}"}}')
        return {labels["alertname"] for labels, _ in found}

    def until(self, *names: str, federation: str = "plant", gone: bool = False) -> None:
        """Wait until these are told, or none of them is any more."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (firing := self.firing(federation) & {*names}) != (set() if gone else {*names}):
            assert time.monotonic() < deadline, f"{names}: {firing}"
            time.sleep(0.5)

    def until_unknown(self, expression: str) -> None:
        """Wait until the value is NaN."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not math.isnan(found := self.prometheus.value(expression)):
            assert time.monotonic() < deadline, f"{expression}: {found}"
            time.sleep(0.5)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Plant, Watch]]:
    folder = tmp_path_factory.mktemp("plant")
    rules = [hurried(one, folder) for one in RULES]
    plant = Plant(folder)
    try:
        with running_prometheus(list(plant.ports.values()), folder, rules=rules) as prometheus:
            yield plant, Watch(prometheus)
    finally:
        plant.close()


def test_each_way_in_which_learning_stops_is_told_and_none_is_while_it_goes_on(
    watched: tuple[Plant, Watch],
) -> None:
    """Protects from a federation that learns nothing under a board that is green: by no server, no labels, no
    client, a dead server, refused updates and a spent budget; and from alerts while all is well.
    """
    plant, watch = watched
    for member in ("plant-client", "tight-client", "tight-server"):
        plant.start(member)
    watch.until("StreamflPredictedWithoutModel")
    plant.start("plant-server")
    watch.until(*LOSSES, gone=True)
    plant.bus.write([Outgoing("plant.updates", b"press", b"nothing that a client writes", 0)])
    watch.until("StreamflDeadLetters")
    watch.until(*LOSSES, gone=True)
    # Long enough for it to be known what is usual.
    time.sleep(55)
    assert not watch.firing() & LOSSES
    # On a busy machine a scrape is missed now and then, and the series with it.
    windowed = 'last_over_time(streamfl_rmse_windowed{federation="plant"}[15s])'
    assert watch.prometheus.value(windowed) >= 0
    plant.labelled = False
    watch.until("StreamflLabelsGone", "StreamflClientUnlabelled")
    # The newest scrape may be older than the alert.
    watch.until_unknown(windowed)
    assert "StreamflSamplesGone" not in watch.firing()
    plant.labelled = True
    watch.until("StreamflLabelsGone", "StreamflClientUnlabelled", "StreamflUpdatesGone", gone=True)
    plant.writing = ("press",)
    watch.until("StreamflClientSilent")
    plant.writing = ("press", "pump")
    watch.until("StreamflClientSilent", gone=True)
    plant.kill("plant-server")
    watch.until("StreamflModelStands", "StreamflNoWorker")
    plant.start("plant-server")
    watch.until("StreamflModelStands", "StreamflNoWorker", gone=True)
    watch.until("StreamflBudgetExhausted", "StreamflBudgetNearlySpent", federation="tight")
    time.sleep(55)
    plant.writing = ()
    watch.until("StreamflSamplesGone", "StreamflUpdatesGone")
