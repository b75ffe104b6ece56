"""Long work: meanwhile the worker stays in its group, answers and can be stopped, and it commits the result
once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from blocks import BLOCK_TOPICS, PART
from counting import bus_of, drain
from making import (
    MAKER_CHANNELS,
    PIECES,
    BlockMaker,
    end_the_process,
    fail,
    make_block,
    make_piece,
    make_slowly,
    no_bytes,
    order,
)
from prometheus_client.parser import text_string_to_metric_families

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import Received, Record, Rejection, Send, Work
from streamfl.roles.fragment_encoding import decoded_in_fragments
from streamfl.runtime.bus import Outgoing, Subscription
from streamfl.runtime.memory_bus import MemoryBus, MemorySession
from streamfl.runtime.pool import Inline, Pool, Processes, WorkFailed
from streamfl.runtime.worker import Worker

TOPICS = [*BLOCK_TOPICS, TopicSpec("orders", 2, compacted=False), TopicSpec("made", 2, compacted=True)]
SUBSCRIPTION = Subscription("makers", ("orders",))


@pytest.fixture(name="bus")
def _bus() -> MemoryBus:
    return bus_of(topics=TOPICS)


@pytest.fixture(name="pool", scope="module")
def _pool() -> Iterator[Processes]:
    with closing(Processes(2)) as pool:
        yield pool


def worker(bus: MemoryBus, role: BlockMaker | None = None, pool: Pool | None = None) -> Worker:
    return Worker(
        role or BlockMaker(),
        MAKER_CHANNELS,
        bus,
        SUBSCRIPTION,
        "dead-letters",
        lambda: 100.0,
        restore_seconds=0.0,
        pool=pool,
    )


def want(bus: MemoryBus, *numbers: int, partition: int = 0, key: bytes = b"pump") -> None:
    bus.write([Outgoing("orders", key, order(number), partition) for number in numbers])


def blocks(bus: MemoryBus, key: bytes = b"pump") -> list[bytes | None]:
    return [record.value for record in bus.read("blocks") if record.key == key]


def expected(*numbers: int, key: bytes = b"pump") -> list[bytes]:
    values = []
    for number in numbers:
        made = make_block(key, number)
        values += [made[begin : begin + PART] for begin in range(0, len(made), PART)]
    return values


def contents(values: Sequence[bytes | None]) -> list[bytes]:
    """The contents of the parts."""
    decode = decoded_in_fragments(lambda record: record)
    return [decode(Record("blocks", 0, 0, None, value)).content for value in values]


class SteppedPool:
    """Finishes one piece for each wait; ``meanwhile`` happens before."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.done = 0
        self.given_up = 0
        self.meanwhile = meanwhile
        self._work: Sequence[Work] = ()

    def start(self, work: Sequence[Work]) -> None:
        self.done, self._work = 0, work

    def wait(self, seconds: float) -> bool:
        self.meanwhile()
        self.done += 1
        return self.done >= len(self._work)

    def results(self) -> Sequence[bytes]:
        return [one.function(one.content) for one in self._work]

    def seconds(self) -> Sequence[float]:
        return [0.5] * len(self._work)

    def give_up(self) -> None:
        self.given_up += 1

    def close(self) -> None:
        pass


@pytest.mark.parametrize("kind", ["inline", "stepped", "processes"])
def test_results_come_in_the_order_of_the_work(bus: MemoryBus, pool: Processes, kind: str) -> None:
    """Protects law 1: whatever the order of processes, and without any, the same blocks are sent, each
    order's once."""
    chosen: Pool = {"inline": Inline(), "stepped": SteppedPool(), "processes": pool}[kind]
    want(bus, 1, 2, 3)
    want(bus, 1, partition=1, key=b"fan")
    drain(worker(bus, pool=chosen))
    assert contents(blocks(bus)) == expected(1, 2, 3)
    assert contents(blocks(bus, b"fan")) == expected(1, key=b"fan")


def test_a_pool_gives_the_results_of_each_piece_in_its_place(pool: Processes) -> None:
    """Protects requests for more work than there are processes."""
    work = [Work("piece", 0, b"", make_piece, b"%d" % number) for number in range(20)]
    pool.start(work)
    while not pool.wait(1.0):
        assert pool.done < 20
    assert list(pool.results()) == [make_piece(b"%d" % number) for number in range(20)]


@pytest.mark.parametrize("kind", ["inline", "stepped", "processes"])
def test_seconds_of_work_are_counted_by_what_is_computed(bus: MemoryBus, pool: Processes, kind: str) -> None:
    """Protects the question where time goes: each piece is counted once, under its function's name."""
    chosen: Pool = {"inline": Inline(), "stepped": SteppedPool(), "processes": pool}[kind]
    want(bus, 1, 2, 3)
    one = worker(bus, pool=chosen)
    drain(one)
    families = {
        family.name: family for family in text_string_to_metric_families(one.metrics.render().decode())
    }
    found = {
        sample.name: sample.value
        for sample in families["streamfl_work_seconds"].samples
        if "le" not in sample.labels
    }
    (name,) = {sample.labels["work"] for sample in families["streamfl_work_seconds"].samples}
    assert name == make_piece.__name__
    assert found["streamfl_work_seconds_count"] == 3 * PIECES
    assert found["streamfl_work_seconds_sum"] > 0
    if kind == "stepped":
        assert found["streamfl_work_seconds_sum"] == 0.5 * 3 * PIECES


def test_nothing_waits_for_work(bus: MemoryBus, pool: Processes, tmp_path: Path) -> None:
    """Protects heartbeats, metrics, readiness and SIGTERM: during long work the cluster is polled and metrics
    are served. The worker ends on request, with nothing committed.
    """

    class Slow(BlockMaker):
        def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
            return [Work("piece", 0, b"", make_slowly, str(tmp_path / "now").encode()) for received in batch]

    polls: list[float] = []

    class Counting(MemorySession):
        def poll(self, timeout: float, max_records: int) -> object:  # type: ignore[override]
            polls.append(time.monotonic())
            return super().poll(timeout, max_records)

    bus = bus_of(Counting, TOPICS)
    want(bus, 1)
    slow = worker(bus, Slow(), pool)
    stop = threading.Event()
    thread = threading.Thread(target=slow.run, args=(stop,))
    thread.start()
    while slow.health.reasons or not pool._work:
        time.sleep(0.01)
    before = len(polls)
    while len(polls) < before + 3:
        time.sleep(0.01)
    assert b"streamfl_ready 1.0" in slow.metrics.render()
    stop.set()
    # The piece of work waits for a file that nobody makes.
    thread.join(60)
    assert not thread.is_alive()
    assert bus.committed("makers") == {}
    assert bus.members("makers") == 0


def test_what_was_given_up_ends_its_process(pool: Processes, tmp_path: Path) -> None:
    """Protects the machine: no process keeps computing unwanted work, and the next work is done."""
    pool.start([Work("piece", 0, b"", make_slowly, str(tmp_path / "never").encode())])
    assert not pool.wait(0.2)
    ended = [hand.process.pid for hand in pool._hands if hand.number is not None]
    pool.give_up()
    for number in ended:
        assert number is not None
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)
    pool.start([Work("piece", 0, b"", make_piece, b"again")])
    while not pool.wait(1.0):
        pass
    assert list(pool.results()) == [make_piece(b"again")]


def test_a_process_that_was_killed_while_free_is_replaced(pool: Processes) -> None:
    """Protects the worker from a machine that is short of memory and kills idle processes: the next work is
    done."""
    for content in (b"first", b"second"):
        pool.start([Work("piece", 0, b"", make_piece, content)] * 2)
        while not pool.wait(1.0):
            pass
        for hand in pool._hands:
            hand.process.kill()
            hand.process.join()
    assert list(pool.results()) == [make_piece(b"second")] * 2


def test_a_signal_to_the_whole_group_is_a_stop(bus: MemoryBus, pool: Processes, tmp_path: Path) -> None:
    """Protects operators whose supervisor signals every process of a service: the worker stops without a
    failure."""

    class Slow(BlockMaker):
        def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
            return [
                Work("piece", 0, b"", make_slowly, str(tmp_path / "never").encode()) for received in batch
            ]

    want(bus, 1)
    stop = threading.Event()
    slow = worker(bus, Slow(), pool)

    def end() -> None:
        while not any(hand.number is not None for hand in pool._hands):
            time.sleep(0.05)
        for hand in pool._hands:
            hand.process.kill()
        stop.set()

    threading.Thread(target=end).start()
    slow.run(stop)
    assert bus.committed("makers") == {}


@pytest.mark.parametrize("function", [lambda content: content, no_bytes])
def test_work_that_is_no_function_of_bytes_is_told(function: Callable[[bytes], bytes]) -> None:
    """Protects the author of a role: a function that cannot be imported, or that returns no bytes, is an
    error that names it."""

    def done(own: Processes) -> None:
        own.start([Work("piece", 0, b"", function, b"")])
        while not own.wait(1.0):
            pass

    with closing(Processes(1)) as own, pytest.raises(WorkFailed, match=function.__name__):
        done(own)


@pytest.mark.parametrize(
    ("function", "said"),
    [(fail, "ValueError: no such thing"), (end_the_process, "ended its process with exit code 7")],
)
def test_work_that_cannot_be_done_ends_the_worker(
    bus: MemoryBus, function: Callable[[bytes], bytes], said: str
) -> None:
    """Protects against waiting for ever: the worker ends with the function's name in the error, and nothing
    is committed."""

    class Failing(BlockMaker):
        def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
            return [Work("piece", 0, b"", function, b"") for received in batch]

    want(bus, 1)
    with closing(Processes(1)) as own:
        failing = worker(bus, Failing(), own)
        with pytest.raises(WorkFailed, match=f"making.{function.__name__}, .*{said}"):
            drain(failing)
    assert bus.committed("makers") == {}


def test_a_partition_that_goes_meanwhile_is_left_to_its_new_owner(bus: MemoryBus) -> None:
    """Protects exactly-once: unfinished work of the lost partition is given up, the kept partition's is
    repeated, and nothing comes twice.
    """
    others: list[Worker] = []

    def share() -> None:
        if not others:
            others.append(worker(bus))
        others[0].step(0.0)

    pool = SteppedPool()
    first = worker(bus, pool=pool)
    drain(first)
    pool.meanwhile = share
    want(bus, 1, 2)
    want(bus, 1, 2, partition=1, key=b"fan")
    drain(first)
    pool.meanwhile = lambda: None
    assert pool.given_up == 1
    for _ in range(5):
        drain(first, *others)
    assert len(first._tasks) == len(others[0]._tasks) == 1
    assert contents(blocks(bus)) == expected(1, 2)
    assert contents(blocks(bus, b"fan")) == expected(1, 2, key=b"fan")
    want(bus, 3)
    want(bus, 3, partition=1, key=b"fan")
    drain(first, *others)
    assert contents(blocks(bus)) == expected(1, 2, 3)
    assert contents(blocks(bus, b"fan")) == expected(1, 2, 3, key=b"fan")


def test_a_partition_that_comes_meanwhile_is_opened_after(bus: MemoryBus) -> None:
    """Protects a worker that gets partitions while it waits: the step is committed, and then the partition is
    opened."""
    pool = SteppedPool()
    first, other = worker(bus, pool=pool), worker(bus)
    for _ in range(4):
        first.step(0.0)
        other.step(0.0)
    assert len(first._tasks) == 1
    own = next(iter(first._tasks))
    pool.meanwhile = other.close
    want(bus, 1, partition=own)
    want(bus, 1, partition=1 - own, key=b"fan")
    drain(first)
    pool.meanwhile = lambda: None
    drain(first)
    assert pool.given_up == 0
    assert len(first._tasks) == 2
    assert contents(blocks(bus)) == expected(1)
    assert contents(blocks(bus, b"fan")) == expected(1, key=b"fan")
