"""A connector that stores every value compressed, on top of any other connector.

``deflate+sqlite:///plant.db`` is the bus at ``sqlite:///plant.db`` with values deflated by zlib. Keys and
headers stay as they are, for partitions and compaction depend on keys.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import Record
from streamfl.runtime.bus import (
    Bus,
    Outgoing,
    Polled,
    Session,
    Step,
    Subscription,
    TopicPartition,
    TopicState,
    Unreadable,
)
from streamfl.runtime.bus import connect as connect_to

__all__ = ["DeflatingBus", "DeflatingSession", "connect"]

SCHEME = "deflate+"


def connect(url: str, options: Mapping[str, Any]) -> DeflatingBus:
    """The bus at a URL that begins with "deflate+"; the rest of it and the options are the inner
    connector's."""
    return DeflatingBus(connect_to(url.removeprefix(SCHEME), options))


def deflated(records: Iterable[Outgoing]) -> list[Outgoing]:
    """The same records with smaller values. A missing value stays missing: it means "forget this key"."""
    return [
        record
        if record.value is None
        else msgspec.structs.replace(record, value=zlib.compress(record.value, 1))
        for record in records
    ]


def inflated(record: Record) -> Record:
    """The record as it was written; Unreadable if its value is not deflated, for then somebody else wrote
    it."""
    if record.value is None:
        return record
    try:
        return msgspec.structs.replace(record, value=zlib.decompress(record.value))
    except zlib.error as error:
        following = record.offset + 1
        raise Unreadable(
            record.topic, record.partition, record.offset, str(error), record.value, following
        ) from None


class DeflatingSession:
    """A worker's membership on the inner bus."""

    def __init__(self, inner: Session) -> None:
        self._inner = inner

    def poll(self, timeout: float, max_records: int) -> Polled:
        polled = self._inner.poll(timeout, max_records)
        tables = [inflated(record) for record in polled.tables]
        records = [inflated(record) for record in polled.records]
        return replace(polled, tables=tables, records=records)

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        return map(inflated, self._inner.restore(topic, partition))

    def attend(self) -> None:
        self._inner.attend()

    def commit(self, step: Step) -> None:
        self._inner.commit(replace(step, outputs=deflated(step.outputs), changelog=deflated(step.changelog)))

    def committed(self, topic: str, partition: int) -> int | None:
        return self._inner.committed(topic, partition)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self._inner.seek(topic, partition, offset)

    def pause(self, places: Iterable[TopicPartition]) -> None:
        self._inner.pause(places)

    def lag(self) -> Mapping[TopicPartition, int]:
        return self._inner.lag()

    def close(self) -> None:
        self._inner.close()


class DeflatingBus:
    """The inner bus with deflated values."""

    def __init__(self, inner: Bus) -> None:
        self._inner = inner

    def session(self, subscription: Subscription) -> DeflatingSession:
        return DeflatingSession(self._inner.session(subscription))

    def write(self, records: Sequence[Outgoing]) -> None:
        self._inner.write(deflated(records))

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        return map(inflated, self._inner.read(topic, limit))

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        return map(inflated, self._inner.read_from(topic, partition, offset))

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        return [inflated(record) for record in self._inner.peek(topic, partitions, count)]

    def offsets(self, topic: str, at: float) -> Mapping[int, int]:
        return self._inner.offsets(topic, at)

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        return self._inner.describe(topics)

    def members(self, group: str) -> int:
        return self._inner.members(group)

    def committed(self, group: str) -> Mapping[TopicPartition, int]:
        return self._inner.committed(group)

    def create(self, topics: Sequence[TopicSpec]) -> None:
        self._inner.create(topics)

    def partition_of(self, key: bytes, partitions: int) -> int:
        return self._inner.partition_of(key, partitions)

    def codecs(self) -> Sequence[str]:
        return self._inner.codecs()

    def close(self) -> None:
        self._inner.close()
