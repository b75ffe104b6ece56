"""`streamfl run` while one EndTxn of it comes late, and what its topics say afterwards."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
from broker import Broker
from end_txn_proxy import Caught, EndTxnProxy, Fault, Moment
from kafka import IsolationLevel, KafkaAdminClient, OffsetSpec, TopicPartition
from kafka.admin import MemberToRemove
from kafka.errors import KafkaError
from pofmkl.soak import FEATURES, check_counters, sample
from soak.subject import PARTITIONS, Verdict, latest
from streamfl_process import start_streamfl

from streamfl.configuration.settings import load_settings
from streamfl.contract.role import Record
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Bus, Outgoing, connect, transactional_prefix
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.remembered_positions import POSITION_KEY

__all__ = ["SAMPLES", "Case", "Outcome", "cluster", "run"]

SAMPLES = 6_000
CLIENTS = 10
# For a machine that has much else to do.
PATIENCE_SECONDS = 240.0

CONFIGURATION = """
[federation]
name = "{name}"
clients = {clients}
shards = 1
[bus]
url = "{url}"
connect_timeout_seconds = 10
commit_interval_ms = 200
max_poll_records = 1500
[bus.options]
{options}
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}.readings"
features = "x"
dimension = {features}
label = "y"
label_range = [-2.0, 2.0]
input_norm = 5.0
[learning]
staleness = "async"
precision = "float64"
features_per_kernel = 20
[kernels]
bandwidths = [0.7, 2.8]
[uplink]
kernels_per_upload = 2
"""
# A request that is not answered, and a worker that is gone, are given up soon.
OPTIONS = {
    "kafka": "request_timeout_ms = 5000\nsession_timeout_ms = 6000",
    "kafka+librdkafka": '"socket.timeout.ms" = 5000\n"session.timeout.ms" = 6000',
}
_NUMBERS = count(1)


@dataclass(frozen=True)
class Case:
    """One fault. committed: a commit's EndTxn is caught, else an abort's. slow: one node's records are still
    on their way when it arrives. kill: the worker, by SIGKILL, when its EndTxn was caught, or when the late
    one was answered.
    """

    scheme: str
    fault: Fault = Fault.KEEP_AND_BREAK
    committed: bool = True
    slow: bool = False
    kill: Literal["", "caught", "answered"] = ""

    def __str__(self) -> str:
        words = [
            self.scheme,
            self.fault.value,
            "commit" if self.committed else "abort",
            self.slow and "slow node",
            self.kill,
        ]
        return ", ".join(word if word is not self.kill else f"kill -9 when {word}" for word in words if word)


@dataclass
class Outcome:
    """What became of the samples. error: the late EndTxn's answer, None if there was none. doubtful:
    transactions that began although an EndTxn of their epoch might have come. wrong: what else does not hold,
    in words.
    """

    samples: int = 0
    lost: int = 0
    doubled: int = 0
    caught: bool = False
    error: int | None = None
    sent_again: int = 0
    doubtful: int = 0
    starts: int = 1
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the fault happened and did no harm."""
        return self.caught and not (self.lost or self.doubled or self.doubtful or self.wrong)


@contextmanager
def cluster(nodes: int) -> Iterator[tuple[EndTxnProxy, str]]:
    """Brokers behind a proxy, and where clients find them."""
    with EndTxnProxy(nodes) as proxy, Broker(nodes=nodes, proxy=proxy) as broker:
        yield proxy, broker.address


def run(case: Case, proxy: EndTxnProxy, address: str, folder: Path, samples: int = SAMPLES) -> Outcome:
    """Have a worker process predict samples that are there already, and judge by the topics when it is
    through."""
    name = f"late{next(_NUMBERS)}"
    configuration, log = folder / f"{name}.toml", folder / f"{name}.log"
    url = f"{case.scheme}://{address}"
    configuration.write_text(
        CONFIGURATION.format(
            name=name, clients=CLIENTS, url=url, options=OPTIONS[case.scheme], features=FEATURES
        )
    )
    settings = load_settings(configuration, PofmklSettings)
    outcome = Outcome(samples)
    doubtful = len(proxy.doubtful)
    with (
        closing(connect(url, {})) as bus,
        closing(KafkaAdminClient(bootstrap_servers=address.split(","))) as admin,
    ):
        for kind in ("pofmkl-client", "pofmkl-server"):
            bus.create(
                [
                    replace(topic, partitions=topic.partitions or PARTITIONS)
                    for topic in find_kind(kind).topics(settings)
                ]
            )
        _write_samples(bus, name, samples)
        worker = _Worker(configuration, log)
        moment = Moment(slow_node=0) if case.slow else Moment(produce_requests=2)
        killed = worker.kill if case.kill == "answered" else lambda: None
        caught = proxy.catch(case.fault, case.committed, transactional_prefix(settings.group), moment, killed)
        begin = time.monotonic()
        try:
            worker.start()
            if not case.committed:
                _put_out(admin, settings.group, caught)
            outcome.caught = caught.kept.wait(PATIENCE_SECONDS)
            if case.kill == "caught":
                worker.kill()
            while not _done(admin, settings.group, samples):
                if time.monotonic() - begin > PATIENCE_SECONDS:
                    outcome.wrong.append(f"the worker was not through after {PATIENCE_SECONDS:g} s")
                    break
                worker.look_after()
                time.sleep(0.5)
            # What has not arrived by now comes when nothing is left to do.
            if case.fault is not Fault.LOSE_ANSWER and not caught.answered.is_set():
                proxy.deliver(caught)
            code = worker.leave()
        finally:
            worker.kill()
        outcome.seconds = time.monotonic() - begin
        outcome.starts = worker.starts
        names = ("readings", "predictions", "updates", "pofmkl-client.state")
        if not _decided(admin, [f"{name}.{one}" for one in names]):
            outcome.wrong.append(f"a transaction was still undecided after {PATIENCE_SECONDS:g} s")
        topics = {one: list(bus.read(f"{name}.{one}")) for one in names}
    if code != 0:
        outcome.wrong.append(f"the worker ended with {code}")
    outcome.error = caught.error
    outcome.sent_again = caught.sent_again
    outcome.doubtful = len(proxy.doubtful) - doubtful
    _judge(outcome, name, settings, topics)
    if outcome.lost or outcome.wrong:
        stuck = log.read_text(errors="replace").count("ends before the group")
        if stuck:
            outcome.wrong.append(f"'the changelog ends before the group's offsets' {stuck} times")
    return outcome


class _Worker:
    """A process that is started again when it ends, as a supervisor would."""

    def __init__(self, configuration: Path, log: Path) -> None:
        self.starts = 0
        self._configuration = configuration
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = start_streamfl("run", self._configuration, stdout=log, stderr=log)

    def look_after(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        # Signalled only: the proxy's thread may not wait.
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)

    def leave(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60)


def _write_samples(bus: Bus, name: str, samples: int) -> None:
    draws = np.random.default_rng(0)
    bus.write(
        [
            Outgoing(
                f"{name}.readings", b"client-%d" % (number % CLIENTS), sample(draws, number % CLIENTS, number)
            )
            for number in range(samples)
        ]
    )


def _put_out(admin: KafkaAdminClient, group: str, caught: Caught) -> None:
    """Put the group's members out until a step was refused for it, and with that aborted."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not caught.kept.wait(0.3) and time.monotonic() < deadline:
        with suppress(KafkaError):
            members = admin.describe_groups([group])[group]["members"]
            if members:
                admin.remove_group_members(group, [MemberToRemove(one["member_id"]) for one in members])


def _done(admin: KafkaAdminClient, group: str, samples: int) -> bool:
    """Whether the group has committed all of the samples' offsets, whatever became of their predictions."""
    try:
        return (
            sum(max(0, one.offset) for one in admin.list_group_offsets({group: None})[group].values())
            >= samples
        )
    except KafkaError:
        return False


def _decided(admin: KafkaAdminClient, topics: list[str]) -> bool:
    """Wait until no transaction is open: a killed worker's hides what comes after it, until the cluster
    aborts it in its time."""
    found = admin.describe_topics(topics)
    places = [
        TopicPartition(one["name"], part["partition_index"]) for one in found for part in one["partitions"]
    ]
    asked = dict.fromkeys(places, OffsetSpec.LATEST)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(KafkaError):
            visible, written = (
                admin.list_partition_offsets(asked, isolation_level=level)
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            if all(visible[place].offset >= written[place].offset for place in places):
                return True
        time.sleep(0.5)
    return False


def _judge(outcome: Outcome, name: str, settings: PofmklSettings, topics: dict[str, list[Record]]) -> None:
    expected = {f"{name}.readings-{record.partition}-{record.offset}" for record in topics["readings"]}
    found = Counter(json.loads(record.value or b"")["sample"] for record in topics["predictions"])
    outcome.lost = len(expected - found.keys())
    outcome.doubled = sum(found.values()) - len(found)
    verdict = Verdict()
    check_counters(verdict, settings, topics["readings"], topics["updates"], topics["pofmkl-client.state"])
    outcome.wrong += verdict.wrong
    positions = latest(topics["pofmkl-client.state"], positions=True)
    for partition in range(PARTITIONS):
        end = sum(record.partition == partition for record in topics["readings"])
        position = positions.get(
            (partition, POSITION_KEY + f"{name}.readings".encode()), struct.pack("<q", 0)
        )
        if position != struct.pack("<q", end):
            outcome.wrong.append(f"partition {partition}: the state reflects {position!r} of {end} samples")
