"""A federation of processes under a steady load, observed from outside."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np
from broker import Broker, free_ports
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from soak.configuration import all_topics, load_members, write_configuration
from soak.subject import FEDERATION, PARTITIONS, Plan, SoakedSystem
from streamfl_process import run_streamfl, start_streamfl

from streamfl.runtime.bus import Outgoing

MOST_SECONDS_AHEAD = 30.0
# Longer than any commit interval, and than a chain of two answers.
QUIET_SECONDS, MOST_RESTLESS_SECONDS = 5.0, 120.0
ATTEMPTS = 5
# The proxy takes connections while the cluster is away, and closes them. The client counts that as success
# and does not wait longer the next time.
RECONNECT_MS = 500


class WorkerProcess:
    """One process of the deployment. When it ends it is started again, as by a supervisor."""

    def __init__(self, name: str, settings: Path, log: Path) -> None:
        self.name = name
        self.port = free_ports(1)[0]
        self._settings = settings
        self._environment = {**os.environ, "STREAMFL_METRICS__PORT": str(self.port)}
        self._log = log
        self.held = False
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return start_streamfl("run", self._settings, env=self._environment, stdout=log, stderr=log)

    def look_after(self) -> int | None:
        """The exit code of a process that has ended, after starting a new one; None if it still runs."""
        code = None if self.held else self.process.poll()
        if code is not None:
            self.process = self._start()
        return code

    @property
    def ready(self) -> bool:
        """Whether /readyz is green. A process that does not answer is not ready."""
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
        """Resident memory in MB; None for a process that is just ending."""
        try:
            found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        except OSError:
            return None
        return int(found[1]) / 1000 if found else None


class Federation:
    """All processes of a :class:`Plan` on a cluster, their load, and their predictions."""

    def __init__(self, system: SoakedSystem, plan: Plan, broker: Broker, folder: Path) -> None:
        self.system = system
        self.plan = plan
        self.broker = broker
        self.log = folder / "processes.log"
        self.url = f"{plan.scheme}://{broker.address}"
        self.files = write_configuration(system, plan, self.url, folder)
        self.exits: Counter[int] = Counter()
        self._stop = threading.Event()

    def __enter__(self) -> Federation:
        for path in self.files.values():
            _make_topics(path)
        self.workers = [
            WorkerProcess(f"{name}-{number}", self.files[name], self.log)
            for name, member in self.system.members(self.plan).items()
            for number in range(member.processes)
        ]
        self.seen = Seen(self.system, self.broker.address)
        self.load = Load(self.system, self.plan, self.broker.address, self.seen)
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._supervisor.join()
        self.load.close()
        self.seen.close()
        for worker in self.workers:
            worker.process.send_signal(signal.SIGCONT)
            worker.process.kill()
            worker.process.wait()

    def _supervise(self) -> None:
        while not self._stop.wait(1.0):
            for worker in self.workers:
                code = worker.look_after()
                if code is not None:
                    self.exits[code] += 1

    def hold(self, member: str) -> None:
        """End a member's processes as an operator would, and do not restart them."""
        for worker in self._of(member):
            worker.held = True
            worker.process.terminate()
            worker.process.wait(30)

    def release(self, member: str) -> None:
        """Start a member's processes again."""
        for worker in self._of(member):
            worker.held = False

    def ready(self, member: str) -> bool:
        """Whether all of a member's processes are ready."""
        return all(worker.ready for worker in self._of(member))

    def _of(self, member: str) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.name.rpartition("-")[0] == member]

    def rest(self) -> None:
        """Wait until nothing is written any more: consequences of answers, open rounds, and last commits."""
        topics = all_topics(load_members(self.files))
        places = [
            TopicPartition(name, number)
            for name, spec in topics.items()
            for number in range(spec.partitions or PARTITIONS)
        ]
        before, deadline = None, time.monotonic() + MOST_RESTLESS_SECONDS
        with closing(
            KafkaConsumer(bootstrap_servers=self.broker.address.split(","), group_id=None)
        ) as consumer:
            while time.monotonic() < deadline:
                ends = consumer.end_offsets(places)
                if ends == before:
                    return
                before = ends
                time.sleep(QUIET_SECONDS)

    def leave(self) -> list[int]:
        """End every process as an operator would. Returns their exit codes."""
        self._stop.set()
        self._supervisor.join()
        for worker in self.workers:
            worker.process.terminate()
        return [worker.process.wait(30) for worker in self.workers]


@dataclass
class Load:
    """Writes numbered samples at a steady rate until it is stopped, and stores the cluster's
    acknowledgements.

    It pauses when predictions are ``MOST_SECONDS_AHEAD`` behind, so that a slow machine also finishes.

    written: samples so far.
    acknowledged: topic, partition and offset of their records.
    failures: errors of records that were given up.
    """

    system: SoakedSystem
    plan: Plan
    address: str
    seen: Seen
    written: int = 0
    acknowledged: list[tuple[str, int, int]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        # It waits through any fault: a sample with an unknown result would have to count both as written and
        # as missing.
        self._producer = KafkaProducer(
            bootstrap_servers=self.address.split(","),
            enable_idempotence=True,
            acks="all",
            delivery_timeout_ms=3_600_000,
            request_timeout_ms=10_000,
            reconnect_backoff_ms=RECONNECT_MS,
            reconnect_backoff_max_ms=1_000,
            linger_ms=20,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def write_first(self) -> None:
        """Write the records that come before the load."""
        for record in self.system.first(self.plan):
            self._send(record)
        self._producer.flush(60)

    def start(self) -> None:
        """Begin to write samples."""
        self._thread.start()

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stop.wait(max(0.0, begin + self.written / self.plan.rate - time.monotonic())):
            for _ in range(self.system.turn):
                for record in self.system.records(self.plan, self.written):
                    self._send(record)
                self.written += 1
            while self.written - len(
                self.seen.samples
            ) > self.plan.rate * MOST_SECONDS_AHEAD and not self._stop.wait(0.1):
                begin += 0.1

    def _send(self, record: Outgoing) -> None:
        future = self._producer.send(record.topic, key=record.key, value=record.value)
        future.add_callback(
            lambda answer: self.acknowledged.append((answer.topic, answer.partition, answer.offset))
        )
        future.add_errback(lambda error: self.failures.append(repr(error)))

    def end(self) -> None:
        """Stop writing, and wait for pending records."""
        self._stop_writing()
        self._producer.flush(60)

    def close(self) -> None:
        self._stop_writing()
        self._producer.close(timeout=5)

    def _stop_writing(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()


class Seen:
    """Predictions, read by a user's consumer.

    times: at which they came.
    samples: the samples with a prediction.
    """

    def __init__(self, system: SoakedSystem, address: str) -> None:
        self.times: list[float] = []
        self.samples: set[str] = set()
        self._predicted = system.predicted
        self._stop = threading.Event()
        self._consumer = KafkaConsumer(
            bootstrap_servers=address.split(","),
            group_id=None,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            reconnect_backoff_ms=RECONNECT_MS,
            reconnect_backoff_max_ms=1_000,
            # Only a restarted broker's metadata show its new address for a partition.
            metadata_max_age_ms=5_000,
        )
        places = [TopicPartition(f"{FEDERATION}.predictions", number) for number in range(PARTITIONS)]
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
            records = [record for batch in batches.values() for record in batch]
            self.samples.update(self._predicted(json.loads(record.value)) for record in records)
            self.times += [now] * len(records)

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time in seconds without a new prediction, among the gaps that touch begin..end."""
        within = [begin, *(at for at in list(self.times) if begin <= at <= end), end]
        return float(max(np.diff(within)))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close(timeout_ms=3_000)


def _make_topics(path: Path) -> None:
    """RuntimeError with the command's output if it fails. With several brokers, some may not know a new topic
    yet."""
    for _ in range(ATTEMPTS):
        ended = run_streamfl("topics", path, "--create-inputs", "--partitions", PARTITIONS)
        if ended.returncode == 0:
            return
        time.sleep(2)
    raise RuntimeError(
        f"{path.name}: streamfl topics ended with {ended.returncode}: "
        f"{ended.stdout[-1000:]}{ended.stderr[-1000:]}"
    )
