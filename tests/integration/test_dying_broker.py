"""Workers, sessions and producers whose broker dies: none dies or hangs with it, every worker reports it,
with or without partitions, and all go on when it is back.

The tests of this file share a broker, because each start of one takes seconds of processor time.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any

import forked
import pytest
from broker import Broker
from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaTimeoutError
from plants import Plant, Voice
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_connectors.kafka.clients import complete, discard
from streamfl_connectors.kafka.options import PRODUCER_DEFAULTS
from streamfl_connectors.kafka.sending import publish

from streamfl.contract.role import Record
from streamfl.runtime.bus import BusUnavailable, Outgoing, Session, Step, Subscription, TopicSpec, connect
from streamfl.testing.bus_laws.members import eventually

SCHEMES = ["kafka+librdkafka", "kafka"]
# `make kill-brokers` kills a hundred times, under many workers.
CAMPAIGN = os.environ.get("STREAMFL_TEST_KILLS")
KILLS, WORKERS = (int(CAMPAIGN), 20) if CAMPAIGN else (1, 4)
PARTITIONS = 2
PATIENCE = 6
LONG_SECONDS = 600.0
OUTAGE_SECONDS = 90.0


OWN = {"the bus is unavailable", "the cluster does not describe this worker's topics and group"}


def from_libraries(voice: Voice) -> list[str]:
    """The log lines of the client libraries."""
    return [
        str(line["event"])
        for line in voice.lines()
        if line["level"] in ("warning", "error") and line["event"] not in OWN
    ]


class Workers:
    """Forks of one process that run a plant's settings file and look at the cluster every ``seconds``, within
    a ``with`` block."""

    def __init__(self, plant: Plant, count: int, seconds: float) -> None:
        self._command = [sys.executable, forked.__file__, str(plant.configuration), str(count), str(seconds)]
        self._ended = plant.configuration.with_suffix(".ended")
        self.voices = [Voice(plant.configuration, number) for number in range(count)]

    def __enter__(self) -> Workers:
        with self._ended.open("w") as ended:
            self._process = subprocess.Popen(self._command, stdout=ended, start_new_session=True)
        self.wait_until(lambda: all(one.begun() for one in self.voices))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def none_ended(self) -> None:
        told = self._ended.read_text()
        logs = [self.voices[int(line.split()[0])].log()[-2000:] for line in told.splitlines()]
        assert not told, (told, logs)
        assert self._process.poll() is None

    def wait_until(self, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONG_SECONDS
        while not look():
            self.none_ended()
            if time.monotonic() > deadline:
                os.killpg(self._process.pid, signal.SIGUSR1)
                time.sleep(5.0)
                pytest.fail("\n\n".join(f"{one.page('readyz')}: {one.log()[-5000:]}" for one in self.voices))
            time.sleep(0.5)


# The broker creates its groups topic at the first request.
ASK = """
import sys, time
from streamfl.runtime.bus import BusUnavailable, connect
bus = connect(sys.argv[1])
for _ in range(100):
    try:
        print(bus.committed("nobody"))
        break
    except BusUnavailable:
        time.sleep(0.2)
bus.close()
"""


@pytest.fixture(name="fresh", scope="module")
def _fresh() -> Iterator[tuple[Broker, subprocess.CompletedProcess[str]]]:
    """A new broker, and what became of the first question about a group."""
    with Broker() as running:
        command = [sys.executable, "-c", ASK, f"kafka+librdkafka://{running.address}"]
        yield running, subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(name="mortal")
def _mortal(fresh: tuple[Broker, subprocess.CompletedProcess[str]]) -> Broker:
    """The broker, running. A test may halt it."""
    fresh[0].start()
    return fresh[0]


def test_groups_are_asked_for_where_there_has_been_none(
    fresh: tuple[Broker, subprocess.CompletedProcess[str]],
) -> None:
    """Protects the first start on a new cluster: the library's own request ends the process with a
    segmentation fault."""
    _, asked = fresh
    assert (asked.stdout, asked.returncode) == ("{}\n", 0), asked.stderr


@pytest.mark.parametrize(
    ("scheme", "hangs"), [(SCHEMES[0], False), (SCHEMES[1], True)], ids=["librdkafka-killed", "kafka-hangs"]
)
def test_a_dying_broker_takes_no_worker_with_it_and_all_are_red(
    mortal: Broker, tmp_path: Path, scheme: str, hangs: bool
) -> None:
    """Protects workers from their client library: an admin call of librdkafka ended the process (SIGABRT)
    when its broker died. They query their cluster every second. The default of 5 seconds would put most
    deaths between two queries. The broker stays away for longer than the timeout of a query.

    Also protects an alert on dead brokers: a librdkafka standby used to stay green, and active workers named
    another reason. And the log: the client libraries get one line a broker and minute; there used to be
    thousands.
    """
    chance = random.Random(33)
    plant = Plant(tmp_path, mortal, scheme, partitions=PARTITIONS, patience=PATIENCE)
    with Workers(plant, WORKERS, 1.0) as workers:

        def standbys() -> int:
            return sum(one.page("readyz")[1].startswith("ok, standby") for one in workers.voices)

        def green() -> bool:
            ready = all(one.page("readyz")[0] == 200 for one in workers.voices)
            return ready and standbys() == WORKERS - PARTITIONS

        def red() -> bool:
            pages = [one.page("readyz") for one in workers.voices]
            return all(
                code == 503 and text.startswith("bus: no broker answers since ") for code, text in pages
            )

        for kill in range(1, KILLS):
            time.sleep(2 + 3 * chance.random())
            mortal.halt()
            time.sleep(PATIENCE + 3 * chance.random())
            workers.none_ended()
            mortal.start()
            print(f"{kill} kills", flush=True)
        workers.wait_until(green)
        if hangs:
            mortal.stall()
        else:
            mortal.halt()
        died = time.monotonic()
        before = [len(from_libraries(one)) for one in workers.voices]
        workers.wait_until(red)
        print(f"red after {time.monotonic() - died:.1f} s", workers.voices[0].page("readyz"), flush=True)
        if hangs:
            mortal.resume()
        else:
            mortal.start()
        back = time.monotonic()
        workers.wait_until(green)
        minutes = (time.monotonic() - died) / 60
        lines = [from_libraries(one)[told:] for one, told in zip(workers.voices, before, strict=True)]
        print(f"{[len(said) for said in lines]} lines in {minutes:.1f} minutes", flush=True)
        # A line that names no broker comes once for each kind, as the connections break. There used to be
        # thousands.
        assert all(len(said) <= 16 + minutes for said in lines), lines
        print(f"green again after {time.monotonic() - back:.1f} s", flush=True)


# What is under way while the broker dies, in three parts: until it dies, while it is away, and when it is
# back.
Parts = Generator[None, None, None]


def in_a_thread(commit: Callable[[], object]) -> list[BaseException]:
    """What the call raises. In a thread, so that a hang only fails this test."""
    outcome: list[BaseException] = []

    def call() -> None:
        try:
            commit()
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    return outcome


def poll(session: Session) -> list[Record]:
    """The first records that come, also while the cluster is away."""
    deadline = time.monotonic() + OUTAGE_SECONDS
    records: list[Record] = []
    while not records:
        assert time.monotonic() < deadline
        try:
            records = session.poll(0.2, 100).records
        except BusUnavailable:
            time.sleep(0.2)
    return records


def a_session(url: str, options: dict[str, Any]) -> Parts:
    """Guards against an endless wait for a coordinator that died inside a transaction, and against loss
    around it. librdkafka aborts the transaction that met the outage, and hangs in the next one."""
    samples, outputs, group = (f"{word}-{uuid.uuid4().hex[:8]}" for word in ("samples", "outputs", "group"))
    with closing(connect(url, options)) as bus:
        bus.create([TopicSpec(samples, 1, False), TopicSpec(outputs, 1, False)])
        bus.write([Outgoing(samples, None, b"a")])
        with closing(bus.session(Subscription(group, (samples,)))) as session:
            poll(session)
            session.commit(Step(outputs=[Outgoing(outputs, None, b"before")]))
            yield
            step = Step({(samples, 0): 1}, [Outgoing(outputs, None, b"x")])
            assert [type(error) for error in in_a_thread(lambda: session.commit(step))] == [BusUnavailable]
            yield
            assert [record.value for record in poll(session)] == [b"a"]
            assert in_a_thread(lambda: session.commit(step)) == []
            # A commit is decided before all partitions have its marker.
            eventually(lambda: [record.value for record in bus.read(outputs)], [b"before", b"x"])


def a_commit_between_two_records(url: str, options: dict[str, Any]) -> Parts:
    """Protects a worker from its own watchdog: within a transaction librdkafka only closes a producer once
    the cluster is back."""
    outputs, group = (f"{word}-{uuid.uuid4().hex[:8]}" for word in ("outputs", "group"))
    step = Step(outputs=[Outgoing(outputs, None, b"x")])
    written, dead = threading.Event(), threading.Event()
    with closing(connect(url, options)) as bus:
        bus.create([TopicSpec(outputs, 1, False)])
        session: Any
        with closing(bus.session(Subscription(group, ()))) as session:
            session.commit(step)
            writer = session.commits.writer
            settle = writer.settle

            def settle_before_and_after(timeout: float) -> None:
                settle(timeout)
                written.set()
                assert dead.wait(60)
                writer.send(step.outputs, timeout)
                settle(timeout)

            writer.settle = settle_before_and_after
            with ThreadPoolExecutor(1) as beside:
                outcome = beside.submit(in_a_thread, lambda: session.commit(step))
                assert written.wait(60)
                yield
                dead.set()
                assert [type(error) for error in outcome.result()] == [BusUnavailable]
            yield


def a_coordinator_inside_a_transaction(url: str) -> Parts:
    """Guards the commit against an outage between its records and its offsets: the library forgets the
    request, and only the connector's patched producer sends it again when the broker is back.
    """
    outputs, group = (f"{word}-{uuid.uuid4().hex[:8]}" for word in ("outputs", "group"))
    # Long: a broker that starts slowly must not abort the transaction meanwhile.
    bus = KafkaBus(url, {"transaction_timeout_ms": 300_000})
    bus.create([TopicSpec(outputs, 1, False)])
    session = bus.session(Subscription(group, ()))
    mended = session.commits.producer
    plain = bus.cluster.make(KafkaProducer, PRODUCER_DEFAULTS, transactional_id=f"plain-{group}")
    try:
        plain.init_transactions()
        results = []
        for producer, value in ((mended, b"mended"), (plain, b"plain")):
            producer.begin_transaction()
            publish(producer, [Outgoing(outputs, None, value)], bus.topics.limits([outputs]), 30)
        yield
        for producer in (mended, plain):
            offsets = {TopicPartition(outputs, 0): OffsetAndMetadata(1, "", -1)}
            results.append(producer._transaction_manager.send_offsets_to_transaction(offsets, group))
            producer._sender.wakeup()
        time.sleep(2)
        yield
        complete(mended, results[0], 60_000)
        complete(mended, mended._transaction_manager.begin_commit(), 60_000)
        with pytest.raises(KafkaTimeoutError):
            complete(plain, results[1], 3_000)
    finally:
        discard(plain)
        session.close()
        bus.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("_refused_connections")
def test_an_outage_is_reported_and_survived(mortal: Broker) -> None:
    """Protects whoever is at work when the broker dies: see each of these functions. They share one
    outage."""
    timeouts = {"connect_timeout_seconds": 5, "message.timeout.ms": 4000}
    url = f"kafka+librdkafka://{mortal.address}"
    parts = [
        a_coordinator_inside_a_transaction(mortal.url),
        a_session(
            mortal.url,
            {"connect_timeout_seconds": 5, "request_timeout_ms": 2000, "delivery_timeout_ms": 4000},
        ),
        a_session(url, timeouts),
        a_commit_between_two_records(url, {**timeouts, "socket.timeout.ms": 2_000}),
    ]
    with ExitStack() as stack:
        for one in parts:
            stack.enter_context(closing(one))
        together = stack.enter_context(ThreadPoolExecutor(len(parts)))
        for one in parts:
            next(one)
        mortal.halt()
        list(together.map(next, parts))
        mortal.start()
        assert list(together.map(lambda one: next(one, "over"), parts)) == ["over"] * len(parts)
