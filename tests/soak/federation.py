"""A federation of processes under a steady load, and what is seen of it from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from broker import Broker, free_ports
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

FEATURES = 5
PARTITIONS = 4
KINDS = ("pofmkl-client", "pofmkl-server")
SESSION_SECONDS = 6.0
TRANSACTION_SECONDS = 10.0
MOST_SECONDS_AHEAD = 30.0

CONFIGURATION = """
[federation]
name = "soak"
seed = {seed}
clients = {clients}
shards = {shards}
features = {features}
[bus]
url = "{url}"
connect_timeout_seconds = 10
[bus.options]
{options}
[role]
kind = "pofmkl-client"
[samples]
topic = "soak.readings"
features = "x"
label = "y"
label_range = [-2.0, 2.0]
input_norm = 5.0
[learning]
staleness = "{staleness}"
# Batches differ from run to run, and with them how sums are rounded.
precision = "float64"
features_per_kernel = 20
round_timeout_seconds = 86400
[kernels]
bandwidths = [0.7, 2.8]
[uplink]
kernels_per_upload = 2
"""
# The shortest session that a broker allows by default, and a cluster that is away noticed soon.
OPTIONS = {
    "session_timeout_ms": round(SESSION_SECONDS * 1000),
    "transaction_timeout_ms": round(TRANSACTION_SECONDS * 1000),
    "request_timeout_ms": 5_000,
    "delivery_timeout_ms": 10_000,
}


SPELLINGS = {
    "session_timeout_ms": "session.timeout.ms",
    "transaction_timeout_ms": "transaction.timeout.ms",
    "request_timeout_ms": "socket.timeout.ms",
    "delivery_timeout_ms": "message.timeout.ms",
}


@dataclass(frozen=True)
class Plan:
    """What runs. rate: samples a second, of all clients. nodes: of the cluster."""

    scheme: str = "kafka"
    staleness: str = "lockstep"
    nodes: int = 1
    seed: int = 0
    clients: int = 10
    rate: float = 50.0
    client_processes: int = 2
    server_processes: int = 1


def configuration_of(plan: Plan, url: str) -> str:
    """The settings file of all processes."""
    spelled = {name if plan.scheme == "kafka" else f'"{SPELLINGS[name]}"': value for name, value in OPTIONS.items()}
    return CONFIGURATION.format(
        seed=plan.seed,
        clients=plan.clients,
        shards=plan.server_processes,
        url=url,
        options="\n".join(f"{name} = {value}" for name, value in spelled.items()),
        features=FEATURES,
        staleness=plan.staleness,
    )


def sample(draws: np.random.Generator, client: int, number: int) -> bytes:
    """The value of one sample."""
    inputs = draws.normal(size=FEATURES)
    label = float(np.clip(np.sin(inputs[0]) + 0.5 * inputs[1] + 0.1 * client, -2, 2))
    return json.dumps({"n": number, "x": inputs.tolist(), "y": label}).encode()


class WorkerProcess:
    """One place in the deployment: whatever process runs there is started again when it ends, as a supervisor would."""

    def __init__(self, name: str, kind: str, command: list[str], log: Path) -> None:
        self.name = name
        self.port = free_ports(1)[0]
        self._command = command
        self._environment = {
            **os.environ,
            "STREAMFL_ROLE__KIND": kind,
            "STREAMFL_METRICS__PORT": str(self.port),
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._log = log
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)

    def look_after(self) -> int | None:
        """The exit code of a process that has ended, with a new one in its place; None if it still runs."""
        code = self.process.poll()
        if code is not None:
            self.process = self._start()
        return code

    @property
    def ready(self) -> bool:
        """Whether /readyz is green; a process that does not answer is not."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as answer:
            answer.close()
            return False
        except OSError:
            return False

    @property
    def memory(self) -> float | None:
        """Resident memory in MB; None of a process that is just ending."""
        try:
            found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        except OSError:
            return None
        return int(found[1]) / 1000 if found else None


class Federation:
    """All processes of a :class:`Plan` on a cluster, the load on them, and the predictions that come of it."""

    def __init__(self, plan: Plan, broker: Broker, folder: Path) -> None:
        self.plan = plan
        self.broker = broker
        self.log = folder / "processes.log"
        self.configuration = folder / "soak.toml"
        self.url = f"{plan.scheme}://{broker.address}"
        self.configuration.write_text(configuration_of(plan, self.url))
        self.exits: Counter[int] = Counter()
        self._stop = threading.Event()

    def __enter__(self) -> Federation:
        for kind in KINDS:
            command = [*self._command("topics"), "--create-inputs", "--partitions", str(PARTITIONS)]
            subprocess.run(command, env={**os.environ, "STREAMFL_ROLE__KIND": kind}, check=True, timeout=120, capture_output=True)
        counts = dict(zip(KINDS, (self.plan.client_processes, self.plan.server_processes), strict=True))
        self.workers = [
            WorkerProcess(f"{kind}-{number}", kind, self._command("run"), self.log)
            for kind, count in counts.items()
            for number in range(count)
        ]
        self.seen = Seen(self.broker.address)
        self.load = Load(self.plan, self.broker.address, self.seen)
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._supervisor.join()
        self.load.close()
        self.seen.close()
        for worker in self.workers:
            worker.process.send_signal(signal.SIGCONT)
            worker.process.kill()
            worker.process.wait()

    def _command(self, command: str) -> list[str]:
        return [sys.executable, "-m", "streamfl", command, str(self.configuration)]

    def _supervise(self) -> None:
        while not self._stop.wait(1.0):
            for worker in self.workers:
                code = worker.look_after()
                if code is not None:
                    self.exits[code] += 1

    def leave(self) -> list[int]:
        """End every process as an operator would; their exit codes."""
        self._stop.set()
        self._supervisor.join()
        for worker in self.workers:
            worker.process.terminate()
        return [worker.process.wait(30) for worker in self.workers]


@dataclass
class Load:
    """Writes numbered samples, one of every client a turn, until told to end; remembers what the cluster acknowledged.

    It waits when predictions are ``MOST_SECONDS_AHEAD`` behind, so that a slow machine, too, gets to the end.
    """

    plan: Plan
    address: str
    seen: Seen
    written: int = 0
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        # Whatever happens to the cluster it is waited for: a sample whose fate is unknown would have to be counted as both.
        self._producer = KafkaProducer(
            bootstrap_servers=self.address.split(","),
            enable_idempotence=True,
            acks="all",
            delivery_timeout_ms=3_600_000,
            request_timeout_ms=10_000,
            reconnect_backoff_max_ms=1_000,
            linger_ms=20,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        draws = np.random.default_rng(self.plan.seed)
        begin, turn = time.monotonic(), 0
        while not self._stop.wait(max(0.0, begin + turn * self.plan.clients / self.plan.rate - time.monotonic())):
            for client in range(self.plan.clients):
                value = sample(draws, client, self.written)
                future = self._producer.send("soak.readings", key=b"client-%d" % client, value=value)
                future.add_callback(lambda answer: self.acknowledged.append((answer.partition, answer.offset)))
                future.add_errback(lambda error: self.failures.append(repr(error)))
                self.written += 1
            turn += 1
            while self.written - len(self.seen.times) > self.plan.rate * MOST_SECONDS_AHEAD and not self._stop.wait(0.1):
                begin += 0.1

    def end(self) -> None:
        """Write no more, and wait for what is on its way."""
        self._stop.set()
        self._thread.join()
        self._producer.flush(60)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close(timeout=5)


class Seen:
    """Predictions as a user's consumer sees them, with the times at which they came."""

    def __init__(self, address: str) -> None:
        self.times: list[float] = []
        self._stop = threading.Event()
        self._consumer = KafkaConsumer(
            bootstrap_servers=address.split(","),
            group_id=None,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            reconnect_backoff_max_ms=1_000,
            # The broker tells by its start only that it has another address for a partition.
            metadata_max_age_ms=5_000,
        )
        places = [TopicPartition("soak.predictions", number) for number in range(PARTITIONS)]
        self._consumer.assign(places)
        self._consumer.seek_to_beginning(*places)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                batches = self._consumer.poll(timeout_ms=100)
            except KafkaError:
                time.sleep(0.1)
                continue
            now = time.monotonic()
            self.times += [now] * sum(map(len, batches.values()))

    def longest_gap(self, begin: float, end: float) -> float:
        """Seconds, the longest without a new prediction of those that touch begin..end."""
        within = [begin, *(at for at in list(self.times) if begin <= at <= end), end]
        return float(max(np.diff(within)))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close(timeout_ms=3_000)


