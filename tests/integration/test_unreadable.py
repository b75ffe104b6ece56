"""What cannot be read, on a real broker: every compression is, and where a batch is damaged the worker stops and says where.

The broker checks what producers give it, so batches are damaged where they lie on its disk.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from broker import Broker
from counting import CHANNELS, CountingRole, decode_number, number
from damage import DAMAGES, damage
from kafka import KafkaProducer

from streamfl.role import Channels, ConfigurationError, Input, TopicSpec
from streamfl.runtime.bus import Bus, Subscription, Unreadable, connect
from streamfl.runtime.repair import Repair
from streamfl.runtime.worker import Worker

pytestmark = pytest.mark.broker

SCHEMES = ["kafka", "kafka+librdkafka"]
CODECS = ["gzip", "snappy", "lz4", "zstd", None]


class Topics:
    """The counting role's topics under names of their own, and the role's workers on a bus."""

    def __init__(self, broker: Broker, bus: Bus) -> None:
        self.broker = broker
        self.bus = bus
        self.name = uuid.uuid4().hex[:8]
        self.numbers, self.state, self.factor, self.letters = (f"{self.name}.{word}" for word in ("n", "state", "factor", "dead"))
        self.totals = f"{self.name}.totals"
        self.channels = Channels(
            inputs={"numbers": Input(self.numbers, decode_number)},
            tables={"factor": Input(self.factor, decode_number)},
            outputs={"totals": self.totals},
            changelogs={"state": self.state},
        )
        assert self.channels.inputs.keys() == CHANNELS.inputs.keys()
        bus.create(
            [TopicSpec(name, 2, compacted=name in (self.state, self.factor)) for name in (self.numbers, self.state, self.factor)]
            + [TopicSpec(name, 1, compacted=False) for name in (self.totals, self.letters)]
        )

    def write(self, topic: str, *values: bytes, codec: str | None = "zstd", partition: int = 0, key: bytes | None = b"k") -> None:
        """The values as one batch."""
        producer = KafkaProducer(bootstrap_servers=self.broker.address, compression_type=codec, linger_ms=10_000, batch_size=10**6)
        for value in values:
            producer.send(topic, key=key, value=value, partition=partition)
        producer.flush(10)
        producer.close()

    def worker(self, kind: type[Any] = Worker, patience: float = 12.0) -> Any:
        group = Subscription(f"{self.name}.group", (self.numbers,), (self.factor,))
        return kind(CountingRole(), self.channels, self.bus, group, self.letters, commit_interval=0.05, restore_seconds=patience)

    def work(self, until: Callable[[], bool]) -> None:
        """Let a worker work until that is so; raises what stops it."""
        with closing(self.worker()) as worker:
            for _ in range(300):
                worker.step(0.1)
                if until():
                    return
        pytest.fail("it did not come to that")

    def read(self, topic: str) -> list[bytes]:
        return [record.value or b"" for record in self.bus.read(topic)]


@pytest.fixture(params=SCHEMES, name="topics")
def _topics(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Topics]:
    with closing(connect(f"{request.param}://{broker.address}", {"connect_timeout_seconds": 3})) as bus:
        yield Topics(broker, bus)


def test_every_compression_is_read(topics: Topics) -> None:
    """Protects a federation from its users' producers: each may choose its own compression, and none stops or is left out."""
    for turn, codec in enumerate(CODECS):
        topics.write(topics.numbers, *(number(3 * turn + one, 1) for one in (1, 2, 3)), codec=codec)
    topics.work(lambda: len(topics.read(topics.totals)) == 15)
    assert topics.read(topics.totals)[-1] == b"15 15"
    assert set(topics.bus.codecs()) == {"gzip", "snappy", "lz4", "zstd"}


CASES = [*((kind, "gzip") for kind in DAMAGES), ("bad checksum", None), ("garbage inside", None)]


@pytest.mark.parametrize(("kind", "codec"), CASES)
def test_a_damaged_batch_stops_the_worker_and_is_passed_over(topics: Topics, kind: str, codec: str | None) -> None:
    """Protects against endless retries, against garbage that is learnt, and against losing what lies before and behind."""
    topics.write(topics.numbers, number(1, 1), number(2, 1))
    topics.write(topics.numbers, *(number(n, 100) for n in (3, 4, 5)), codec=codec)
    topics.write(topics.numbers, number(6, 1))
    spoilt = damage(topics.broker, topics.numbers, 0, 3, kind)
    with pytest.raises(Unreadable, match=rf"{topics.numbers}-0-\d cannot be read: .") as stopped:
        topics.work(lambda: False)
    # Of a batch that is cut, the records in front may be whole.
    place = stopped.value.offset
    assert 2 <= place <= 4
    before = topics.read(topics.totals)
    assert before[:2] == [b"1 1", b"2 2"]
    assert len(before) == place
    with pytest.raises(Unreadable):
        topics.work(lambda: False)
    assert topics.read(topics.totals) == before

    skipped = topics.worker(Repair).skip(topics.numbers, 0, place)
    assert (skipped.offset, skipped.following) == (place, 5)
    topics.work(lambda: len(topics.read(topics.totals)) > place)
    last = int(topics.read(topics.totals)[-1].split()[1])
    assert last == 3 + 100 * (place - 2)
    (letter,) = topics.bus.read(topics.letters)
    assert letter.value == spoilt
    headers = dict(letter.headers)
    assert (headers["topic"], headers["partition"], headers["offset"]) == (topics.numbers.encode(), b"0", b"%d" % place)
    assert headers["error"] == b"unreadable"
    assert headers["text"]


def test_what_is_remembered_or_shared_stops_the_worker_too(topics: Topics) -> None:
    """Protects state and tables: a damaged changelog or table is no outage, and is never taken for an empty one."""
    topics.write(topics.numbers, number(1, 1))
    topics.write(topics.factor, number(1, 2))
    topics.work(lambda: len(topics.read(topics.totals)) == 1)
    damage(topics.broker, topics.factor, 0, 0, "garbage inside")
    with pytest.raises(Unreadable, match=rf"{topics.factor}-0-0 cannot be read"):
        topics.work(lambda: False)
    # Whoever repairs an input needs no table.
    with pytest.raises(ConfigurationError, match="there is nothing to be read"):
        topics.worker(Repair).skip(topics.numbers, 0, 1)
    damage(topics.broker, topics.state, 0, 0, "bad checksum")
    with pytest.raises(Unreadable, match=rf"{topics.state}-0-0 cannot be read"):
        topics.worker(Repair).skip(topics.numbers, 0, 1)


def test_only_what_comes_next_is_passed_over_and_by_one_alone(topics: Topics) -> None:
    """Protects records from a mistyped offset, and workers from a position that moves beneath them."""
    topics.write(topics.numbers, number(1, 1))
    topics.work(lambda: len(topics.read(topics.totals)) == 1)
    topics.write(topics.numbers, number(2, 1))
    topics.write(topics.numbers, number(3, 1))
    repair = topics.worker(Repair)
    for offset, told in ((0, "is behind this role: it reads on at offset 1"), (2, "reads next is at offset 1")):
        with pytest.raises(ConfigurationError, match=told):
            repair.skip(topics.numbers, 0, offset)
    with pytest.raises(ConfigurationError, match="there is no partition 2"):
        repair.skip(topics.numbers, 2, 1)
    with pytest.raises(ConfigurationError, match="none of this role's inputs"):
        repair.skip(topics.totals, 0, 1)
    assert repair.skip(topics.numbers, 0, 1).following == 2
    assert topics.read(topics.letters) == [number(2, 1)]
    with closing(topics.worker()) as other:
        for _ in range(100):
            other.step(0.1)
            if len(topics.read(topics.totals)) == 2:
                break
        assert topics.read(topics.totals)[-1] == b"3 2"
        # A part of the group's partitions would do for a change, but not for a role of which another part goes on.
        with pytest.raises(ConfigurationError, match="belong to other workers of the group"):
            topics.worker(Repair, patience=3.0).skip(topics.numbers, 0, 3)


def test_a_strangers_header_stops_nobody(topics: Topics) -> None:
    """Protects every worker from one record: brokers take header names that are no text, and client libraries fail at them."""

    class Name(str):
        def encode(self, *_: Any) -> bytes:
            return b"\xff\xfe"

    good, bad, empty = ("yes", b"v"), (Name("no"), b"v"), (Name("no"), b"")
    producer = KafkaProducer(bootstrap_servers=topics.broker.address)
    # Often: Python calls a function otherwise once it has called it a few times.
    for turn in range(100):
        headers = ([bad], [good, bad], [bad, good], [good, empty], [empty, good], [bad, bad], [good, bad, good])[turn % 7]
        producer.send(topics.numbers, key=b"k", value=number(turn + 1, 1), partition=0, headers=headers)
    producer.flush(10)
    producer.close()
    topics.work(lambda: len(topics.read(topics.totals)) == 100)
    assert topics.read(topics.totals)[-1] == b"100 100"


def test_a_batch_that_expands_without_bound_is_not_read(broker: Broker) -> None:
    """Protects memory: nine kilobytes that a topic takes become hundreds of megabytes; the worker stops before it has them."""
    with closing(connect(broker.url)) as bus:
        topics = Topics(broker, bus)
        for codec in ("gzip", "zstd", "lz4"):
            place = len(topics.read(topics.letters))
            producer = KafkaProducer(bootstrap_servers=broker.address, compression_type=codec, max_request_size=10**9)
            producer.send(topics.numbers, value=bytes(70 << 20), partition=0).get(60)
            producer.close()
            with pytest.raises(Unreadable, match="it expands to more than 64 MiB"):
                topics.work(lambda: False)
            assert topics.worker(Repair).skip(topics.numbers, 0, place).following == place + 1
