"""A worker that adds up numbers on topics of its own, on any bus, for tests of records that are lost or
deleted."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Literal, NamedTuple

from broker import Broker
from counting import CHANNELS, TOPICS, CountingRole, number
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaPartition

from streamfl.contract.channels import Channels
from streamfl.runtime.bus import Bus, Outgoing, Subscription
from streamfl.runtime.worker import Worker
from streamfl.testing.bus_laws.members import eventually

__all__ = ["Place", "channels_of_its_own", "counted", "delete_records", "place_on", "totals_to", "work"]


class Place(NamedTuple):
    """A bus with its own channels, and a function that deletes a partition's records before an offset."""

    bus: Bus
    channels: Channels
    delete: Callable[[str, int, int], None]
    group: str

    def send(self, first: int, last: int) -> None:
        topic = self.channels.inputs["numbers"].topic
        self.bus.write([Outgoing(topic, b"pump", number(one, 1), 0) for one in range(first, last + 1)])

    def delete_before(self, offset: int) -> None:
        self.delete(self.channels.inputs["numbers"].topic, 0, offset)

    def worker(self, reset: Literal["earliest", "latest", "error"] = "earliest") -> Worker:
        topics = [source.topic for source in self.channels.inputs.values()]
        tables = tuple(table.topic for table in self.channels.tables.values())
        subscription = Subscription(self.group, tuple(topics), tables, auto_offset_reset=reset)
        return Worker(CountingRole(), self.channels, self.bus, subscription, self.channels.outputs["totals"])

    def totals(self) -> list[str]:
        return [(record.value or b"").decode() for record in self.bus.read(self.channels.outputs["totals"])]


def channels_of_its_own(suffix: str) -> Channels:
    """The counting role's channels, with this suffix on each topic's name."""
    names = {spec.name: f"{spec.name}-{suffix}" for spec in TOPICS}
    return Channels(
        inputs={name: replace(one, topic=names[one.topic]) for name, one in CHANNELS.inputs.items()},
        tables={name: replace(one, topic=names[one.topic]) for name, one in CHANNELS.tables.items()},
        outputs={name: names[topic] for name, topic in CHANNELS.outputs.items()},
        changelogs={name: names[topic] for name, topic in CHANNELS.changelogs.items()},
    )


def place_on(bus: Bus, delete: Callable[[str, int, int], None]) -> Place:
    """Creates topics of its own on a bus."""
    suffix = uuid.uuid4().hex[:8]
    bus.create([replace(spec, name=f"{spec.name}-{suffix}") for spec in TOPICS])
    return Place(bus, channels_of_its_own(suffix), delete, f"counters-{suffix}")


def delete_records(broker: Broker, topic: str, partition: int, offset: int) -> None:
    """Deletes records on Kafka as retention does, but at once."""
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
        admin.delete_records({KafkaPartition(topic, partition): offset})


def work(worker: Worker, done: Callable[[], object], expected: object) -> None:
    def look() -> object:
        worker.step(0.2)
        return done()

    eventually(look, expected)


def totals_to(last: int) -> list[str]:
    return [f"{one} {one}" for one in range(1, last + 1)]


def counted(worker: Worker, topic: str, metric: str = "streamfl_deleted_unread_records_total") -> float:
    line = f'{metric}{{topic="{topic}"}} '
    text = worker.metrics.render().decode()
    return float(text.split(line)[1].split("\n")[0]) if line in text else 0.0
