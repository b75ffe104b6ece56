"""Unreadable batches on a real broker: every compression is readable; at a damaged batch the worker stops and
says where.

The broker checks what producers send, so the test damages batches on its disk.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from broker import Broker
from command_line import run_command
from counting import CHANNELS, CountingRole, decode_number, number
from damage import DAMAGES, damage
from kafka import KafkaProducer
from streamfl_process import run_streamfl

from streamfl.configuration.settings import load_settings
from streamfl.contract.channels import Channels, Input, TopicSpec
from streamfl.contract.role import ConfigurationError
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Bus, Outgoing, Subscription, Unreadable, connect
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.repair import Repair
from streamfl.runtime.worker import Worker

pytestmark = pytest.mark.broker

SCHEMES = ["kafka", "kafka+librdkafka"]
CODECS = ["gzip", "snappy", "lz4", "zstd", None]


class Topics:
    """The counting role's topics with their own names, and the role's workers on a bus."""

    def __init__(self, broker: Broker, bus: Bus) -> None:
        self.broker = broker
        self.bus = bus
        self.name = uuid.uuid4().hex[:8]
        self.numbers, self.state, self.factor, self.letters = (
            f"{self.name}.{word}" for word in ("n", "state", "factor", "dead")
        )
        self.totals = f"{self.name}.totals"
        self.channels = Channels(
            inputs={"numbers": Input(self.numbers, decode_number)},
            tables={"factor": Input(self.factor, decode_number)},
            outputs={"totals": self.totals},
            changelogs={"state": self.state},
        )
        assert self.channels.inputs.keys() == CHANNELS.inputs.keys()
        bus.create(
            [
                TopicSpec(name, 2, compacted=name in (self.state, self.factor))
                for name in (self.numbers, self.state, self.factor)
            ]
            + [TopicSpec(name, 1, compacted=False) for name in (self.totals, self.letters)]
        )

    def write(
        self,
        topic: str,
        *values: bytes,
        codec: str | None = "zstd",
        partition: int = 0,
        key: bytes | None = b"k",
    ) -> None:
        """Writes the values as one batch."""
        producer = KafkaProducer(
            bootstrap_servers=self.broker.address, compression_type=codec, linger_ms=10_000, batch_size=10**6
        )
        for value in values:
            producer.send(topic, key=key, value=value, partition=partition)
        producer.flush(10)
        producer.close()

    def worker(self, kind: type[Any] = Worker, patience: float = 12.0) -> Any:
        group = Subscription(f"{self.name}.group", (self.numbers,), (self.factor,))
        return kind(
            CountingRole(),
            self.channels,
            self.bus,
            group,
            self.letters,
            commit_interval=0.05,
            restore_seconds=patience,
        )

    def work(self, until: Callable[[], bool]) -> None:
        """Let a worker run until ``until``. Raises the error that stops it."""
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


@pytest.fixture(name="own")
def _own(broker: Broker) -> Iterator[Topics]:
    """Only with kafka-python."""
    with closing(connect(broker.url)) as bus:
        yield Topics(broker, bus)


def test_every_compression_is_read(topics: Topics) -> None:
    """Protects a federation from its users' producers: each may choose its compression, and none stops the
    worker or is lost."""
    for turn, codec in enumerate(CODECS):
        topics.write(topics.numbers, *(number(3 * turn + one, 1) for one in (1, 2, 3)), codec=codec)
    topics.work(lambda: len(topics.read(topics.totals)) == 15)
    assert topics.read(topics.totals)[-1] == b"15 15"
    assert set(topics.bus.codecs()) == {"gzip", "snappy", "lz4", "zstd"}


CASES = [
    *(("kafka", kind, "gzip") for kind in DAMAGES if kind != "wild length"),
    ("kafka", "garbage inside", None),
    ("kafka+librdkafka", "bad checksum", None),
    ("kafka+librdkafka", "unknown codec", "snappy"),
    ("kafka+librdkafka", "unknown magic", "lz4"),
    # The library reports nothing at all about this.
    ("kafka+librdkafka", "garbage inside", None),
]


@pytest.mark.parametrize(("topics", "kind", "codec"), CASES, indirect=["topics"])
def test_a_damaged_batch_stops_the_worker_and_is_passed_over(
    topics: Topics, kind: str, codec: str | None
) -> None:
    """Protects against endless retries, against learning garbage, and against losing the records around the
    batch."""
    topics.write(topics.numbers, number(1, 1), number(2, 1))
    topics.write(topics.numbers, *(number(n, 100) for n in (3, 4, 5)), codec=codec)
    topics.write(topics.numbers, number(6, 1))
    spoilt = damage(topics.broker, topics.numbers, 0, 3, kind)
    with pytest.raises(Unreadable, match=rf"{topics.numbers}-0-\d cannot be read: .") as stopped:
        topics.work(lambda: False)
    # In a truncated batch the first records may be readable.
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
    assert (headers["topic"], headers["partition"], headers["offset"]) == (
        topics.numbers.encode(),
        b"0",
        b"%d" % place,
    )
    assert headers["error"] == b"unreadable"
    assert headers["text"]


def test_a_batch_that_says_a_wrong_length_is_no_silence(topics: Topics) -> None:
    """Protects against a green worker that gets no more records: even the broker cannot read past such a
    batch."""
    for one in (1, 2, 3, 4):
        topics.write(topics.numbers, number(one, 1))
    damage(topics.broker, topics.numbers, 0, 1, "wild length")
    with pytest.raises(
        Unreadable, match=rf"{topics.numbers}-0-1 cannot be read: the broker returns nothing from there on"
    ):
        topics.work(lambda: False)
    assert topics.read(topics.totals) == [b"1 1"]
    # Only the operator knows where the batch ends.
    with pytest.raises(ConfigurationError, match="it ends at 4"):
        topics.worker(Repair).skip(topics.numbers, 0, 1, 5)
    assert topics.worker(Repair).skip(topics.numbers, 0, 1, 4).following == 4
    topics.write(topics.numbers, number(5, 1))


def test_what_is_remembered_or_shared_stops_the_worker_too(topics: Topics) -> None:
    """Protects state and tables: a damaged changelog or table is not treated as an outage, nor as empty."""
    topics.write(topics.numbers, number(1, 1))
    topics.write(topics.factor, number(1, 2))
    topics.work(lambda: len(topics.read(topics.totals)) == 1)
    damage(topics.broker, topics.factor, 0, 0, "garbage inside")
    with pytest.raises(Unreadable, match=rf"{topics.factor}-0-0 cannot be read"):
        topics.work(lambda: False)
    # The repair of an input needs no table.
    with pytest.raises(ConfigurationError, match="there is nothing to be read"):
        topics.worker(Repair).skip(topics.numbers, 0, 1)
    # At a bad checksum there librdkafka's own assertion ends the whole process.
    damage(topics.broker, topics.state, 0, 0, "unknown codec")
    with pytest.raises(Unreadable, match=rf"{topics.state}-0-0 cannot be read"):
        topics.worker(Repair).skip(topics.numbers, 0, 1)


def test_only_what_comes_next_is_passed_over_and_by_one_alone(own: Topics) -> None:
    """Protects records from a mistyped offset, and workers from a position that changes while they run."""
    own.write(own.numbers, number(1, 1))
    own.work(lambda: len(own.read(own.totals)) == 1)
    own.write(own.numbers, number(2, 1))
    own.write(own.numbers, number(3, 1))
    repair = own.worker(Repair)
    for offset, told in (
        (0, "has already been read by this role: it continues at offset 1"),
        (2, "reads next at offset 1"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            repair.skip(own.numbers, 0, offset)
    with pytest.raises(ConfigurationError, match="there is no partition 2"):
        repair.skip(own.numbers, 2, 1)
    with pytest.raises(ConfigurationError, match="none of this role's inputs"):
        repair.skip(own.totals, 0, 1)
    assert repair.skip(own.numbers, 0, 1).following == 2
    assert own.read(own.letters) == [number(2, 1)]
    with closing(own.worker()) as other:
        for _ in range(100):
            other.step(0.1)
            if len(own.read(own.totals)) == 2:
                break
        assert own.read(own.totals)[-1] == b"3 2"
        # Some of the group's partitions would be enough for a change, but not for a role whose other part
        # goes on.
        with pytest.raises(ConfigurationError, match="run: stop them first"):
            own.worker(Repair, patience=3.0).skip(own.numbers, 0, 3)


def test_a_strangers_header_stops_nobody(topics: Topics) -> None:
    """Protects every worker from one record: brokers accept header names that are not text, and client
    libraries fail on them."""

    class Name(str):
        def encode(self, *_: Any) -> bytes:
            return b"\xff\xfe"

    good, bad, empty = ("yes", b"v"), (Name("no"), b"v"), (Name("no"), b"")
    producer = KafkaProducer(bootstrap_servers=topics.broker.address)
    # Repeated: Python changes how it calls a function after a few calls.
    for turn in range(100):
        headers = (
            [bad],
            [good, bad],
            [bad, good],
            [good, empty],
            [empty, good],
            [bad, bad],
            [good, bad, good],
        )[turn % 7]
        producer.send(topics.numbers, key=b"k", value=number(turn + 1, 1), partition=0, headers=headers)
    producer.flush(10)
    producer.close()
    topics.work(lambda: len(topics.read(topics.totals)) == 100)
    assert topics.read(topics.totals)[-1] == b"100 100"


def test_a_batch_that_expands_without_bound_is_not_read(own: Topics) -> None:
    """Protects memory: nine kilobytes that a topic accepts would become hundreds of megabytes. The worker
    stops before that."""
    for place, codec in enumerate(("gzip", "zstd", "lz4")):
        producer = KafkaProducer(
            bootstrap_servers=own.broker.address, compression_type=codec, max_request_size=10**9
        )
        producer.send(own.numbers, value=bytes(70 << 20), partition=0).get(60)
        producer.close()
        with pytest.raises(Unreadable, match="it expands to more than 64 MiB"):
            own.work(lambda: False)
        assert own.worker(Repair).skip(own.numbers, 0, place).following == place + 1


CONFIG = """
[federation]
name = "{name}"
clients = 5
[bus]
url = "{url}"
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}.readings"
client = "device"
features = ["x"]
[learning]
preset = "paper"
features_per_kernel = 4
"""


def test_an_operator_is_told_and_gets_past(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the operator: one line names the place and the command that helps. With it the stream goes on,
    and the letter stays."""
    name, config = f"plant-{uuid.uuid4().hex[:8]}", tmp_path / "client.toml"
    config.write_text(CONFIG.format(name=name, url=broker.url))
    readings = f"{name}.readings"

    def command(*words: str, code: int = 0) -> tuple[str, str]:
        ended, out, error = run_command(monkeypatch, capsys, *words)
        assert ended == code, error
        return out, error

    command("topics", str(config), "--create-inputs", "--partitions", "1")
    with closing(connect(broker.url)) as bus:
        for x in range(3):
            bus.write([Outgoing(readings, b"press", b'{"device": "press", "x": %d}' % x)])
        damage(broker, readings, 0, 1, "bad checksum")
        ended = run_streamfl("run", config)
        said = ended.stderr
        assert ended.returncode == 6, said
        assert "Traceback" not in said
        assert f"{readings}-0-1 cannot be read: its checksum does not match its content" in said
        rows = json.loads(command("check", str(config), "--format", "json", code=4)[0])["checks"]
        (row,) = (row for row in rows if row["check"] == f"records of {readings}")
        told = said[said.index("streamfl skip") :].split()[1:9]
        assert "streamfl " + " ".join(told) in row["remedy"]
        assert any(row["check"] == "compressions" and "zstd" in row["detail"] for row in rows)

        skipped = json.loads(command(*told, "--format", "json")[0])
        assert (skipped["offset"], skipped["following"], skipped["dead_letters"]) == (
            1,
            2,
            f"{name}.dead-letters",
        )
        _, said = command(*told, code=2)
        assert "has already been read by this role: it continues at offset 2" in said
        worker = build_worker(load_settings(config, PofmklSettings), bus)
        for _ in range(100):
            worker.step(0.1)
            if len(list(bus.read(f"{name}.predictions"))) == 2:
                break
        worker.close()
        assert len(list(bus.read(f"{name}.predictions"))) == 2
    replayed = json.loads(command("dead-letters", str(config), "--replay", "--format", "json")[0])
    assert (replayed["replayed"], replayed["not_replayed"]["unreadable"]) == (0, 1)
