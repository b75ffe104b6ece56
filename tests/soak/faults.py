"""Faults for a federation, by seed, and how long its predictions stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from end_txn_proxy import EndTxnProxy, Moment
from end_txn_proxy import Fault as EndTxn
from soak.configuration import SESSION_SECONDS, TRANSACTION_SECONDS
from soak.federation import Federation
from soak.verdict import left_by

# The longest time that a federation may take to catch up, on a busy machine.
PATIENCE_SECONDS = 240.0
# The longest time until its first predictions, before any fault: a first training is hundreds of messages in
# sequence.
START_SECONDS = 900.0
SETTLING_SECONDS = 3.0
# A pending commit has to fail first.
READINESS_SECONDS = 90.0
# While samples come, every worker commits many times a second.
CAUGHT_SECONDS = 60.0
LATE_SECONDS = 10.0


class NotRecovered(Exception):
    """The federation did not recover."""


@dataclass
class Fault:
    """One fault.

    lasted: its seconds.
    stall: the longest time without a prediction until the federation had caught up.
    """

    kind: str
    victim: str
    at: float
    lasted: float = 0.0
    stall: float = 0.0


@dataclass
class Outage:
    """Observations of every process before, during and after an outage of the whole cluster. One of them is
    killed at its begin, and started again while nobody answers.

    seconds: until the cluster was started again.
    before, during, after: memory in MB.
    red_after: seconds until /readyz was red.
    """

    seconds: float
    before: dict[str, float] = field(default_factory=dict)
    during: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    red_after: dict[str, float] = field(default_factory=dict)
    green_after: list[str] = field(default_factory=list)


class Killer:
    """Chooses faults and victims by seed. Every kind comes before one is repeated."""

    def __init__(self, federation: Federation, proxy: EndTxnProxy, outage_seconds: float) -> None:
        self.faults: list[Fault] = []
        self.outages: list[Outage] = []
        self._federation = federation
        self._proxy = proxy
        self._draws = np.random.default_rng(federation.plan.seed)
        self._outage_seconds = outage_seconds
        self._begin = time.monotonic()
        self.kinds: dict[str, Callable[[], str]] = {
            "worker killed": self._kill_worker,
            "worker stopped past its session": lambda: self._stop_worker(SESSION_SECONDS + 2),
            "worker stopped past its transaction": lambda: self._stop_worker(TRANSACTION_SECONDS + 4),
            "cluster killed": self._kill_cluster,
            "cluster and worker killed": self._kill_cluster_and_worker,
            "EndTxn late and connection broken": lambda: self._hold_end(EndTxn.KEEP_AND_BREAK),
            "EndTxn late": lambda: self._hold_end(EndTxn.KEEP),
            "EndTxn late and worker killed": lambda: self._hold_end(EndTxn.KEEP_AND_BREAK, kill=True),
            "EndTxn's answer lost": lambda: self._hold_end(EndTxn.LOSE_ANSWER),
            "disk full": self._fill_disk,
        }
        if federation.plan.nodes > 1:
            self.kinds["EndTxn late and a broker slow"] = lambda: self._hold_end(
                EndTxn.KEEP_AND_BREAK, slow=True
            )
            self.kinds["broker killed"] = self._kill_node
            self.kinds["broker and worker killed"] = self._kill_node_and_worker

    def begin(self) -> None:
        """Begin the load once everything that it needs is there, and wait until it is predicted. Raises
        NotRecovered if it never is.
        """
        federation, deadline = self._federation, time.monotonic() + START_SECONDS
        federation.load.write_first()
        while not federation.system.begun(left_by(federation)):
            if time.monotonic() > deadline:
                said = federation.log.read_text(errors="replace")[-5000:]
                raise NotRecovered(f"what the load needs did not come within {START_SECONDS:g} s\n{said}")
            time.sleep(0.5)
        federation.load.start()
        self.catch_up("the start", START_SECONDS)

    def kinds_by_seed(self) -> Iterator[str]:
        while True:
            yield from self._draws.permutation(sorted(self.kinds)).tolist()

    def strike(self, kind: str) -> None:
        """Inject one fault, and wait until everything that was written by its end is predicted. Raises
        NotRecovered if it never is."""
        do = self._outage if kind == "outage" else self.kinds[kind]
        federation, begin = self._federation, time.monotonic()
        fault = Fault(kind, "", begin - self._begin)
        self.faults.append(fault)
        fault.victim = do()
        fault.lasted = time.monotonic() - begin
        self.catch_up(kind)
        fault.stall = federation.seen.longest_gap(begin, time.monotonic())
        if kind == "outage":
            outage = self.outages[-1]
            outage.after = self._memory()
            outage.green_after = self._green()
        time.sleep(float(self._draws.uniform(2, 5)))

    def _green(self) -> list[str]:
        """The processes that are ready: all of them, in time. One without part in catching up may be ready a
        little later."""
        workers, deadline = self._federation.workers, time.monotonic() + READINESS_SECONDS
        while (
            len(green := [worker.name for worker in workers if worker.ready]) < len(workers)
            and time.monotonic() < deadline
        ):
            time.sleep(0.5)
        return green

    def catch_up(self, after: str, patience: float = PATIENCE_SECONDS) -> None:
        """Wait until all samples of now and a little later are predicted, because a fault may not stop
        predictions at once."""
        federation, deadline = self._federation, time.monotonic() + patience
        time.sleep(SETTLING_SECONDS)
        wanted = federation.load.written
        while len(federation.seen.samples) < wanted:
            if time.monotonic() > deadline:
                raise NotRecovered(
                    f"{len(federation.seen.samples)} of {wanted} samples predicted {patience:g} s after: "
                    f"{after}\n{federation.log.read_text(errors='replace')[-5000:]}"
                )
            time.sleep(0.2)

    def _worker(self) -> Any:
        return self._federation.workers[int(self._draws.integers(len(self._federation.workers)))]

    def _kill_worker(self) -> str:
        worker = self._worker()
        worker.process.kill()
        return str(worker.name)

    def _stop_worker(self, seconds: float) -> str:
        worker = self._worker()
        process = worker.process
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        return str(worker.name)

    def _kill_cluster(self, seconds: float = 3.0) -> str:
        self._federation.broker.halt()
        time.sleep(seconds)
        self._federation.broker.start()
        return "all brokers"

    def _kill_cluster_and_worker(self) -> str:
        self._federation.broker.halt()
        victim = self._kill_worker()
        self._federation.broker.start()
        return f"all brokers, {victim}"

    def _kill_node(self) -> str:
        node = int(self._draws.integers(self._federation.plan.nodes))
        self._federation.broker.halt(node)
        time.sleep(float(self._draws.uniform(3, 10)))
        self._federation.broker.start()
        return f"broker {node}"

    def _kill_node_and_worker(self) -> str:
        node = int(self._draws.integers(self._federation.plan.nodes))
        self._federation.broker.halt(node)
        victim = self._kill_worker()
        time.sleep(float(self._draws.uniform(3, 10)))
        self._federation.broker.start()
        return f"broker {node}, {victim}"

    def _hold_end(self, fault: EndTxn, kill: bool = False, slow: bool = False) -> str:
        """Delays a request to end a transaction, or its answer. It arrives during a later transaction, if
        there is one."""
        nodes = self._federation.plan.nodes
        requests = 1 + int(self._draws.integers(3))
        moment = (
            Moment(slow_node=int(self._draws.integers(nodes))) if slow else Moment(produce_requests=requests)
        )
        caught = self._proxy.catch(fault, deliver=None if fault is EndTxn.LOSE_ANSWER else moment)
        if not caught.kept.wait(CAUGHT_SECONDS) or caught.request is None:
            raise NotRecovered(f"no EndTxn came within {CAUGHT_SECONDS:g} s")
        if kill:
            self._kill_worker()
        # After a kill nobody continues under that id; then the request arrives by itself in the end.
        if fault is not EndTxn.LOSE_ANSWER and not caught.answered.wait(LATE_SECONDS):
            self._proxy.deliver(caught)
        return caught.request.transactional_id

    def _fill_disk(self) -> str:
        """Stops the growth of all files of one broker, like a full disk. It reports that and ends, or is
        ended, and restarts with space.
        """
        broker, node = self._federation.broker, int(self._draws.integers(self._federation.plan.nodes))
        broker.limit_files(node)
        time.sleep(float(self._draws.uniform(5, 10)))
        broker.halt(node)
        broker.start()
        return f"broker {node}"

    def _outage(self) -> str:
        federation, outage = self._federation, Outage(self._outage_seconds)
        self.outages.append(outage)
        outage.before = self._memory()
        federation.broker.halt()
        victim = self._kill_worker()
        begin = time.monotonic()
        while (away := time.monotonic() - begin) < self._outage_seconds or (
            len(outage.red_after) < len(federation.workers)
            and away < self._outage_seconds + READINESS_SECONDS
        ):
            for name, used in self._memory().items():
                outage.during[name] = max(used, outage.during.get(name, 0.0))
            for worker in federation.workers:
                if worker.name not in outage.red_after and not worker.ready:
                    outage.red_after[worker.name] = round(time.monotonic() - begin, 1)
            time.sleep(0.5)
        outage.seconds = round(away, 1)
        federation.broker.start()
        return f"all brokers, {victim}"

    def _memory(self) -> dict[str, float]:
        used = {worker.name: worker.memory for worker in self._federation.workers}
        return {name: memory for name, memory in used.items() if memory is not None}
