"""``streamfl run`` on a real broker against the least that a transactional consumer has to do."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from benchmarks.broker import running_broker
from benchmarks.client_core import DIMENSION
from benchmarks.federation import sample_records
from benchmarks.figures import Figure, size
from benchmarks.processes import Processes
from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Bus, connect

CLIENTS, SAMPLES, PARTITIONS = size(1_000, 20), size(100_000, 500), 4
COMMIT_SECONDS, WAIT_SECONDS, LOOK_SECONDS = 0.1, 180.0, size(2.0, 1.0)

CONFIGURATION = """
[federation]
name = "{name}"
clients = {clients}
features = [{features}]
[bus]
url = "{url}"
processing_guarantee = "exactly_once"
[role]
kind = "pofmkl-client"
[samples]
topic = "samples"
label = "y"
[learning]
preset = "paper"
staleness = "async"
# No server runs: nobody is to wait for one.
catch_up_samples = 0
[uplink]
kernels_per_upload = 1
"""


def measure() -> Iterator[Figure]:
    with running_broker() as broker:
        bus = connect(broker.url)
        bus.create([TopicSpec("samples", PARTITIONS, False), TopicSpec("bare", PARTITIONS, False)])
        write_samples(bus)
        bare = bare_rate(broker.address, bus)
        streamfl = _client_rate("bench", broker.url, bus)
        on_librdkafka = _client_rate("librdkafka", f"kafka+librdkafka://{broker.address}", bus)
        bus.close()
    yield Figure("end to end: samples/s of a bare transactional loop", bare, "1/s")
    yield Figure("end to end: samples/s of streamfl run", streamfl, "1/s")
    yield Figure("end to end: samples/s of streamfl run on librdkafka", on_librdkafka, "1/s")
    yield Figure("end to end: streamfl run against the bare loop", streamfl / bare, "x", goal=0.7)


def write_samples(bus: Bus) -> None:
    """Write ``SAMPLES`` records to the topic ``samples``."""
    records = list(sample_records(SAMPLES, CLIENTS, DIMENSION))
    for start in range(0, SAMPLES, 10_000):
        bus.write(records[start : start + 10_000])


def configuration(name: str, url: str) -> str:
    """The file of the client that takes them."""
    features = ", ".join(f'"x{i}"' for i in range(DIMENSION))
    return CONFIGURATION.format(name=name, clients=CLIENTS, url=url, features=features)


def bare_rate(address: str, bus: Bus) -> float:
    """The records of ``samples`` are sent on to ``bare`` as they came."""

    def send_on(producer: KafkaProducer, records: list[Any]) -> None:
        for record in records:
            producer.send("bare", key=record.key, value=record.value)

    bare_loop(address, "samples", SAMPLES, send_on)
    return rate(bus, "bare", SAMPLES)


def bare_loop(
    address: str, topic: str, count: int, send: Callable[[KafkaProducer, list[Any]], None], most: int = 4000
) -> None:
    """Take so many records of a topic, at most so many a poll, and send what comes of them; offsets go with
    the transaction, one each 100 ms."""
    producer = KafkaProducer(
        bootstrap_servers=address, transactional_id="bare", linger_ms=5, max_request_size=4_000_000
    )
    producer.init_transactions()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id="bare",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    taken = 0
    while taken < count:
        positions: dict[TopicPartition, OffsetAndMetadata] = {}
        deadline = time.monotonic() + COMMIT_SECONDS
        producer.begin_transaction()
        while time.monotonic() < deadline:
            for place, records in consumer.poll(timeout_ms=20, max_records=most).items():
                send(producer, records)
                positions[place] = OffsetAndMetadata(records[-1].offset + 1, "", -1)
                taken += len(records)
        if positions:
            producer.send_offsets_to_transaction(positions, consumer.group_metadata())
        producer.commit_transaction()
    consumer.close()
    producer.close()


def _client_rate(name: str, url: str, bus: Bus) -> float:
    return streamfl_rate(f"{name}.predictions", [configuration(name, url)], bus)


def streamfl_rate(topic: str, configurations: Sequence[str], bus: Bus) -> float:
    """Records a second on ``topic``, one for each sample, of a process of ``streamfl run`` for each
    configuration."""
    with running(configurations) as wait:
        wait(lambda: _count(bus, topic) >= SAMPLES, "every sample was taken")
    return rate(bus, topic, SAMPLES)


@contextmanager
def running(
    configurations: Sequence[str], processors: Collection[int] | None = None
) -> Iterator[Callable[[Callable[[], bool], str], None]]:
    """A process of ``streamfl run`` for each configuration, on these processors alone, and what waits until
    something is so, which it names."""
    with tempfile.TemporaryDirectory() as folder, closing(Processes(Path(folder))) as own:
        for number, configuration in enumerate(configurations):
            own.configure(str(number), configuration, "--create-inputs")
        for number in range(len(configurations)):
            own.start(str(number), processors)
        yield lambda is_so, what: own.wait(is_so, what, WAIT_SECONDS, LOOK_SECONDS)


def _count(bus: Bus, topic: str) -> int:
    return sum(1 for _ in bus.read(topic))


def rate(bus: Bus, topic: str, expected: int) -> float:
    """Records a second from the first record's time to the last one's: joining the group and starting up are
    left out."""
    times = [record.timestamp for record in bus.read(topic)]
    if len(times) != expected:
        raise RuntimeError(f"{topic} has {len(times)} records, not {expected}: something was lost or doubled")
    return (len(times) - 1) / span(times)


def span(times: Sequence[float]) -> float:
    """Seconds from the first time to the last one. Kafka's times are whole milliseconds, and the records of
    one step share one: no span counts as shorter."""
    return max(max(times) - min(times), 0.001)
