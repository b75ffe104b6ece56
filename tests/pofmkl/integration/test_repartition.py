"""Partitions added to a running federation's topics on a real broker: nothing is lost, doubled or begun
anew."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from broker import Broker
from command_line import make_topics
from confluent_kafka import Producer
from kafka import KafkaAdminClient
from streamfl_process import start_streamfl

from streamfl.configuration.settings import load_settings
from streamfl.contract.channels import TopicSpec
from streamfl.pofmkl.client.client_record import ClientRecord
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker

CLIENTS = [f"press-{number}" for number in range(16)]
BEFORE, NOW = 4, 8
# Samples that are written at once, some of each client.
EACH = 3
ROUND = EACH * len(CLIENTS)
SECONDS = 240.0

CONFIGURATION = """
[federation]
name = "{name}"
clients = 16
features = 1
[bus]
url = "{url}"
commit_interval_ms = 20
max_poll_records = 7
[bus.options]
{session} = 6000
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}-samples"
client = "client"
sample_id = "id"
features = ["x"]
[labels]
topic = "{name}-labels"
client = "client"
sample_id = "id"
label = "y"
[learning]
features_per_kernel = 4
catch_up_samples = 0
"""

Write = Callable[[str, Iterable[tuple[str, str]]], None]


class Plant:
    """A client process and those who write for it, each with its own idea of how many partitions there
    are."""

    def __init__(self, broker: Broker, scheme: str, folder: Path) -> None:
        self.name = f"plant-{uuid.uuid4().hex[:8]}"
        self.broker = broker
        self.librdkafka = scheme != "kafka"
        self.config = folder / "client.toml"
        url = broker.url.replace("kafka", scheme, 1)
        session = '"session.timeout.ms"' if self.librdkafka else "session_timeout_ms"
        self.config.write_text(CONFIGURATION.format(name=self.name, url=url, session=session))
        self.log = folder / "log"

    def writer(self) -> Write:
        """Writes of these clients and ids, with the partitions that there are when it writes first."""
        write = self._by_librdkafka() if self.librdkafka else self._by_the_bus()

        def content(topic: str, named: Iterable[tuple[str, str]]) -> None:
            write(
                topic,
                [
                    (client, {"client": client, "id": one, "x": len(one), "y": 0.1 * len(client)})
                    for client, one in named
                ],
            )

        return content

    def _by_the_bus(self) -> Callable[[str, list[tuple[str, dict[str, object]]]], None]:
        # It does not look again how many partitions there are.
        bus = connect(self.broker.url, {"metadata_max_age_ms": 600_000})
        return lambda topic, records: bus.write(
            [Outgoing(f"{self.name}-{topic}", key.encode(), json.dumps(one).encode()) for key, one in records]
        )

    def _by_librdkafka(self) -> Callable[[str, list[tuple[str, dict[str, object]]]], None]:
        # Its own choice of partitions is another than Kafka's.
        producer = Producer(
            {"bootstrap.servers": self.broker.address, "topic.metadata.refresh.interval.ms": -1}
        )

        def write(topic: str, records: list[tuple[str, dict[str, object]]]) -> None:
            for key, one in records:
                producer.produce(f"{self.name}-{topic}", json.dumps(one).encode(), key.encode())
            assert producer.flush(60) == 0

        return write

    def begin(self, bus: Bus) -> Write:
        """Make the topics, and write a round of samples before partitions are added. Returns the writer."""
        bus.create(
            [TopicSpec(f"{self.name}-{topic}", BEFORE, compacted=False) for topic in ("samples", "labels")]
        )
        make_topics(self.config)
        write = self.writer()
        write("samples", named(1))
        return write

    def add_partitions(self, broker: Broker) -> None:
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        for topic in ("-samples", "-labels", ".pofmkl-client.state"):
            admin.create_partitions({f"{self.name}{topic}": NOW})

    def command(self, *arguments: object) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return start_streamfl(*arguments, self.config, stdout=log, stderr=log)

    def home(self, bus: Bus, client: str) -> int:
        return (
            zlib.crc32(client.encode()) % NOW if self.librdkafka else bus.partition_of(client.encode(), NOW)
        )


class Patience:
    """Ends once nothing has changed for so long. On a busy machine a step of seven records takes seconds, and
    there are hundreds of them."""

    def __init__(self) -> None:
        self._seen: object = None
        self._until = time.monotonic() + SECONDS

    def check(self, seen: object) -> None:
        """seen: how far it has come."""
        if seen != self._seen:
            self._seen, self._until = seen, time.monotonic() + SECONDS
        assert time.monotonic() < self._until, seen


def wait_for(what: Callable[[], bool], so_far: Callable[[], object]) -> None:
    patience = Patience()
    while not what():
        patience.check(so_far())
        time.sleep(0.2)


def named(round: int) -> list[tuple[str, str]]:
    return [(client, f"{client}-{round}-{number}") for number in range(EACH) for client in CLIENTS]


def epochs(bus: Bus, plant: Plant) -> dict[tuple[int, str], int]:
    """When every client began, by where it is remembered: one that began anew has another."""
    found: dict[tuple[int, bytes], bytes | None] = {}
    for record in bus.read(f"{plant.name}.pofmkl-client.state"):
        found[record.partition, record.key or b""] = record.value
    return {
        (partition, key[7:].decode()): msgspec.msgpack.decode(value, type=ClientRecord).epoch
        for (partition, key), value in found.items()
        if key.startswith(b"client/") and value is not None
    }


def learnt(bus: Bus, plant: Plant, labels: int) -> dict[tuple[int, str], int]:
    """The labels of every client, by where it is remembered, once there are so many in all."""
    with closing(build_worker(load_settings(plant.config, PofmklSettings), bus)) as worker:
        assert isinstance(worker.role, PofmklClient)
        patience = Patience()
        while True:
            worker.step(0.2)
            found = {key: one.labels for key, one in worker.role.snapshot().items()}
            if sum(found.values()) >= labels and not worker.role.waiting:
                return found
            places = dict(worker._tasks.positions)
            patience.check((sum(found.values()), worker.role.waiting, worker.role.backlog, places))


@pytest.mark.parametrize("scheme", ["kafka+librdkafka"])
def test_partitions_are_added_under_load_and_every_client_goes_on(
    broker: Broker, scheme: str, tmp_path: Path
) -> None:
    """Protects what every client has learnt when partitions are added: each sample is predicted once, each
    label learnt once."""
    plant = Plant(broker, scheme, tmp_path)
    with closing(connect(broker.url)) as bus:
        stale = plant.begin(bus)
        stale("labels", named(1)[:1])

        def predicted() -> Counter[str]:
            return Counter(
                json.loads(record.value or b"")["sample"] for record in bus.read(f"{plant.name}.predictions")
            )

        def written() -> int:
            """How far the topic of predictions has come, which is cheaper to ask than to read it."""
            return sum(bus.offsets(f"{plant.name}.predictions", float("inf")).values())

        worker = plant.command("run")
        wait_for(lambda: len(predicted()) == ROUND, predicted)
        begun = {client: epoch for (_, client), epoch in epochs(bus, plant).items()}
        plant.add_partitions(broker)
        # It says so itself, before anything is begun in a new partition.
        assert worker.wait(SECONDS) == 2
        assert "streamfl repartition" in plant.log.read_text()
        # What lies unread in old partitions, and then in new ones.
        stale("samples", named(2))
        fresh = plant.writer()
        fresh("samples", named(3))
        kills = 0
        while True:
            before = written()
            process = plant.command("repartition")
            while kills < 2 and process.poll() is None:
                time.sleep(0.05)
                if written() > before:
                    process.kill()
                    kills += 1
                    break
            if process.wait(SECONDS) == 0:
                break
        assert kills > 0
        # Producers that have not noticed yet, labels that come late, and all of it while a worker is killed.
        stale("samples", named(4))
        worker = plant.command("run")
        wait_for(lambda: len(predicted()) > 3 * ROUND, predicted)
        worker.kill()
        worker.wait()
        fresh("samples", named(5))
        stale("labels", [*named(1)[1:], *named(3), *named(5)])
        fresh("labels", [*named(2), *named(4)])
        worker = plant.command("run")
        wait_for(lambda: len(predicted()) == 5 * ROUND, predicted)
        # Labels lie in old partitions too; a worker that was killed may not have come to say it.
        wait_for(lambda: "moved when partitions were added" in plant.log.read_text(), lambda: None)
        worker.terminate()
        assert worker.wait(SECONDS) == 0
        assert set(predicted().values()) == {1}
        homes = {(plant.home(bus, client), client) for client in CLIENTS}
        # A bus remembers how many partitions there are.
        with closing(connect(broker.url)) as later:
            assert learnt(later, plant, 5 * ROUND) == dict.fromkeys(homes, 5 * EACH)
            assert epochs(later, plant) == {place: begun[place[1]] for place in homes}, "nobody began anew"
        assert list(bus.read(f"{plant.name}.dead-letters")) == []
        assert plant.command("repartition").wait(SECONDS) == 0
        assert "nothing to do" in plant.log.read_text()


@pytest.mark.parametrize("scheme", ["kafka"])
def test_a_transaction_that_a_killed_command_left_open_hides_nothing(
    broker: Broker, scheme: str, tmp_path: Path
) -> None:
    """Protects what is learnt while old partitions are read: all of it moves, also where an open transaction
    hides it from readers of committed records."""
    plant = Plant(broker, scheme, tmp_path)
    with closing(connect(broker.url)) as bus:
        stale = plant.begin(bus)
        worker = plant.command("run")
        predictions = f"{plant.name}.predictions"
        wait_for(lambda: len(list(bus.read(predictions))) == ROUND, lambda: len(list(bus.read(predictions))))
        plant.add_partitions(broker)
        assert worker.wait(SECONDS) == 2
        stale("samples", named(2))
        stale("labels", [*named(1), *named(2)])
        left_open = Producer(
            {
                "bootstrap.servers": broker.address,
                "transactional.id": plant.name,
                "transaction.timeout.ms": 10_000,
            }
        )
        left_open.init_transactions()
        left_open.begin_transaction()
        for partition in range(BEFORE):
            left_open.produce(f"{plant.name}.pofmkl-client.state", b"", b"never committed", partition)
        assert left_open.flush(60) == 0
        assert plant.command("repartition").wait(SECONDS) == 0
        wait_for(lambda: not bus.undecided(f"{plant.name}.pofmkl-client.state"), lambda: None)
        homes = {(plant.home(bus, client), client) for client in CLIENTS}
        with closing(connect(broker.url)) as later:
            assert learnt(later, plant, 2 * ROUND) == dict.fromkeys(homes, 2 * EACH)
