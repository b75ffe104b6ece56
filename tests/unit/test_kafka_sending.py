"""Records passed to kafka-python a batch at a time: the result of each record is reported whatever happens to
its batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from kafka import TopicPartition, errors
from kafka.partitioner.default import murmur2
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.record.memory_records import MemoryRecords
from streamfl_connectors.kafka.sending import _by_place, _hand_over

from streamfl.runtime.bus import Outgoing

PLACE = TopicPartition("outputs", 0)


class Producer:
    """The part of the library's producer that is used, without a cluster."""

    def __init__(self, batch_size: int = 1 << 17) -> None:
        self._accumulator = RecordAccumulator(batch_size=batch_size, message_version=2)
        self._transaction_manager = None
        self._sender = self

    def wakeup(self) -> None:
        pass

    def batches(self) -> list[Any]:
        return list(self._accumulator._batches[PLACE])

    def split(self, batch: Any) -> list[Any]:
        """Splits a batch as the library's sender does when the broker finds it too large."""
        self._accumulator._batches[PLACE].remove(batch)
        batch.records.close()
        before = self.batches()
        self._accumulator.split_and_reenqueue(batch)
        return [one for one in self.batches() if one not in before]


def values(batch: Any) -> list[bytes]:
    batch.records.close()
    return [record.value for part in MemoryRecords(batch.records.buffer()) for record in part]


def records(count: int) -> list[Outgoing]:
    return [Outgoing("outputs", b"k%d" % number, b"v%d" % number, 0) for number in range(count)]


def ended(deliveries: Sequence[Any]) -> str:
    """The results of all records so far."""
    try:
        for delivery in deliveries:
            delivery.wait(time.monotonic())
    except errors.KafkaError as error:
        return type(error).__name__
    return "acknowledged"


def test_batches_hold_all_records_in_order() -> None:
    """Protects sent records: each once, in its partition's order, over as many batches as necessary."""
    producer = Producer(batch_size=1_000)
    deliveries = list(_hand_over(producer, PLACE, records(200)))
    batches = producer.batches()
    assert len(deliveries) == len(batches) >= 3
    assert [value for batch in batches for value in values(batch)] == [one.value for one in records(200)]
    assert all(batch.max_record_size > 0 for batch in batches)


def test_a_record_larger_than_a_batch_has_one_of_its_own() -> None:
    """Protects large models: a batch's size limits its number of records, but always allows one."""
    producer = Producer(batch_size=1_000)
    large = Outgoing("outputs", b"k", bytes(50_000), 0)
    list(_hand_over(producer, PLACE, [*records(2), large, *records(2)]))
    assert [len(values(batch)) for batch in producer.batches()] == [2, 1, 2]


def test_records_go_where_the_producer_would_send_them() -> None:
    """Protects co-partitioning: the library chooses a key's partition, and a named partition is kept."""
    named = [Outgoing("outputs", b"k%d" % number, b"") for number in range(20)]
    parts = _by_place([*named, Outgoing("outputs", b"x", b"", 2)], {"outputs": 3})
    found = {record.key: place.partition for place, part in parts.items() for record in part}
    assert found == {one.key: (murmur2(one.key) & 0x7FFFFFFF) % 3 for one in named} | {b"x": 2}


def test_records_end_with_their_batch() -> None:
    """Protects a commit from counting records that are still on their way, or were refused, as sent."""
    for how, expected in (
        (lambda batch: None, "KafkaTimeoutError"),
        (lambda batch: batch.complete(7, -1), "acknowledged"),
        (lambda batch: batch.abort(errors.ProducerFencedError()), "ProducerFencedError"),
    ):
        producer = Producer()
        deliveries = list(_hand_over(producer, PLACE, records(5)))
        how(*producer.batches())
        assert ended(deliveries) == expected


def test_a_record_that_is_too_large_is_told_before_its_neighbours() -> None:
    """Protects the operator: only the error about the size names the topic, so it is reported before the
    batch's others."""
    producer = Producer()
    deliveries = list(_hand_over(producer, PLACE, records(5)))
    (batch,) = producer.batches()
    found = {3: errors.MessageSizeTooLargeError("3")}
    batch.complete_exceptionally(
        errors.InvalidRecordError(), lambda place: found.get(place, errors.InvalidRecordError())
    )
    assert ended(deliveries) == "MessageSizeTooLargeError"


@pytest.mark.parametrize("lost", [None, 0, 1, 2])
def test_records_of_a_batch_that_is_split_end_with_its_parts(lost: int | None) -> None:
    """Protects at-least-once: a batch above the topic's limit is sent in parts, one of them split again; each
    part counts."""
    producer = Producer()
    deliveries = list(_hand_over(producer, PLACE, records(10)))
    first, second = producer.split(producer.batches()[0])
    parts = [*producer.split(first), second]
    assert [value for part in parts for value in values(part)] == [one.value for one in records(10)]
    assert ended(deliveries) == "KafkaTimeoutError"
    for place, part in enumerate(parts):
        assert ended(deliveries) in ("KafkaTimeoutError", "NotLeaderForPartitionError")
        if place == lost:
            error = errors.NotLeaderForPartitionError()
            part.complete_exceptionally(error, lambda _, error=error: error)
        else:
            part.complete(7, -1)
    assert ended(deliveries) == ("acknowledged" if lost is None else "NotLeaderForPartitionError")
