"""Hands records to a producer of kafka-python, a batch at a time.

For each record the library makes a future and looks for the last batch of its partition. That takes four
fifths of the time of sending. Records succeed or fail with their batch, so here the batch has the future.
This module uses the library's private parts, so the library is pinned to one exact version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count as counted
from typing import Any

from kafka import TopicPartition as KafkaPartition
from kafka import errors as kafka_errors
from kafka.errors import KafkaError
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecordsBuilder

from streamfl.runtime.bus import Outgoing
from streamfl_connectors.kafka.failures import kind_of
from streamfl_connectors.outgoing import check_records, may_write_nothing, too_large
from streamfl_connectors.partitioner import partition_of

__all__ = ["publish"]

NEWEST_FORMAT = 2
SIZE_OPTION = "bus.options.max_request_size"
_TURNS = counted()


def publish(producer: Any, records: Sequence[Outgoing], limits: Mapping[str, int], timeout: float) -> None:
    """Send records and wait until all are acknowledged; raises the error of the first one that failed.

    limits: the largest record of every topic, in bytes.

    ConfigurationError, before anything is sent, if a record is larger or empty, or its partition does not
    exist. Also if the client may write no topic at all.
    """
    if not records:
        return
    counts = {topic: len(producer.partitions_for(topic)) for topic in {record.topic for record in records}}
    # The library splits a batch with a refused record and retries. Its neighbours in flight then fail out of
    # sequence, and hide which record was refused.
    check_records(records, limits, counts, SIZE_OPTION, _size)
    deliveries: list[_Delivery] = []
    first: KafkaError | None = None
    try:
        for place, part in _by_place(records, counts).items():
            deliveries += _hand_over(producer, place, part)
    except KafkaError as error:
        # A transaction refuses every further record once one has failed. The deliveries know which one, and
        # why.
        first = error
    # The library splits a batch that is refused as too large, and flush takes that for an error. The
    # deliveries know how it ends.
    with suppress(kafka_errors.UnknownError):
        producer.flush(timeout)
    deadline = time.monotonic() + timeout
    for delivery in deliveries:
        try:
            delivery.wait(deadline)
        except (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError) as error:
            # Raised before all others: such a record makes its neighbours fail with errors that say nothing.
            raise too_large(delivery.topic, SIZE_OPTION, error) from error
        except KafkaError as error:
            first = first or error
    if first is not None:
        if issubclass(kind_of(first), kafka_errors.ClusterAuthorizationFailedError):
            raise may_write_nothing(counts) from first
        raise first


def _by_place(records: Sequence[Outgoing], counts: Mapping[str, int]) -> dict[KafkaPartition, list[Outgoing]]:
    """The records of each partition, in their order. A record that names no partition gets the producer's
    choice.

    counts: the partitions of each topic.
    """
    # Records without a key go to another partition with each call, so that a call fills few batches.
    keyless = next(_TURNS)
    parts: dict[tuple[str, int], list[Outgoing]] = {}
    for record in records:
        count, partition = counts[record.topic], record.partition
        if partition is None:
            partition = keyless % count if record.key is None else partition_of(record.key, count)
        part = parts.get((record.topic, partition))
        if part is None:
            part = parts[record.topic, partition] = []
        part.append(record)
    return {KafkaPartition(*place): part for place, part in parts.items()}


def _hand_over(producer: Any, place: KafkaPartition, records: Sequence[Outgoing]) -> Iterator[_Delivery]:
    """What the producer's ``send`` does, a batch at a time."""
    transactions, accumulator = producer._transaction_manager, producer._accumulator
    if transactions is not None and transactions.is_transactional():
        transactions.maybe_add_partition_to_transaction(place)
    begin = 0
    while begin < len(records):
        if accumulator._closed:
            raise kafka_errors.IllegalStateError("the producer is closed")
        accumulator._appends_in_progress.increment()
        try:
            with accumulator._tp_lock(place):
                # A new batch, so that its records are those of one call. The sender may take it once the lock
                # is free.
                settings = accumulator.config
                builder = MemoryRecordsBuilder(
                    NEWEST_FORMAT, settings["compression_attrs"], settings["batch_size"]
                )
                batch = _OutgoingBatch(place, builder)
                begin = batch.fill(records, begin)
                accumulator._batches[place].append(batch)
                accumulator._incomplete.add(batch)
        finally:
            accumulator._appends_in_progress.decrement()
        producer._sender.wakeup()
        yield batch.delivery


class _OutgoingBatch(ProducerBatch):  # type: ignore[misc]
    def __init__(self, place: KafkaPartition, records: MemoryRecordsBuilder) -> None:
        super().__init__(place, records)
        self.delivery = _Delivery(place.topic, self)
        # The library looks here for the records' futures when it splits the batch.
        self._record_futures = _Parts(self.delivery, self)

    def fill(self, records: Sequence[Outgoing], begin: int) -> int:
        """Take records from ``begin`` on, at least one, as many as there is room for. Returns where the next
        batch begins."""
        append, now, largest = self.records.append, time.time(), 0
        milliseconds = int(now * 1000)
        for place in range(begin, len(records)):
            record = records[place]
            at = milliseconds if record.timestamp is None else int(record.written_at(now) * 1000)
            taken = append(at, record.key, record.value, record.headers)
            if taken is None:
                break
            largest = max(largest, taken.size)
        else:
            place = len(records)
        self.max_record_size = largest
        return place

    def complete_exceptionally(
        self, top_level_exception: Exception, record_exceptions_fn: Callable[[int], Exception]
    ) -> bool:
        """Fail each record with what the batch failed for, where the library does not say it of the record:
        of several refused ones it says only that they are invalid, and of their neighbours not even that."""

        def error_of(place: int) -> Exception:
            error = record_exceptions_fn(place)
            says_nothing = type(error) in (KafkaError, kafka_errors.InvalidRecordError)
            return top_level_exception if says_nothing else error

        return bool(super().complete_exceptionally(top_level_exception, error_of))


class _Delivery:
    """The result of the records of one batch: together, or as several batches if the batch is split as too
    large for its topic."""

    def __init__(self, topic: str, batch: _OutgoingBatch) -> None:
        self.topic = topic
        self._batch = batch
        self._results: dict[Any, None] = {batch.produce_future: None}

    def moved(self, before: Any, now: Any) -> None:
        """Records of one batch are now in another: the first will never finish."""
        self._results[now] = None
        self._results.pop(before, None)
        before._latch.set()

    def wait(self, deadline: float) -> None:
        """Raises the error of a failed record, a too large one before all others; KafkaTimeoutError after the
        deadline."""
        while open_ones := [result for result in tuple(self._results) if not result.is_done]:
            if not open_ones[0].wait(max(0.0, deadline - time.monotonic())):
                raise kafka_errors.KafkaTimeoutError(
                    f"records for {self.topic!r} were not acknowledged in time"
                )
        errors = [
            error_of(place)
            for result in self._results
            for error_of in (result.value[2],)
            if error_of is not None
            for place in range(self._batch.record_count)
        ]
        large = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
        for error in sorted(errors, key=lambda error: not isinstance(error, large))[:1]:
            raise error


class _Parts:
    """Stands in for the futures of a batch's records. Each is made when the library asks for it, because it
    splits the batch."""

    def __init__(self, delivery: _Delivery, batch: _OutgoingBatch) -> None:
        self._delivery = delivery
        self._batch = batch

    def __len__(self) -> int:
        return int(self._batch.record_count)

    def __getitem__(self, place: int) -> _Part:
        return _Part(self._delivery, self._batch.produce_future)


class _Part:
    def __init__(self, delivery: _Delivery, result: Any) -> None:
        self._delivery = delivery
        self._result = result

    def rebind(self, result: Any, place: int) -> None:
        self._delivery.moved(self._result, result)
        self._result = result


def _size(record: Outgoing) -> int:
    """Bytes of the record in its own batch, which a topic's limit is about. Does not count on compression."""
    builder = DefaultRecordBatchBuilder
    return int(
        builder.HEADER_STRUCT.size + builder.size_in_bytes(0, 0, record.key, record.value, record.headers)
    )
