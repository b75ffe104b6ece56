"""What every use of the client library's producers and consumers needs, and what mends them.

This module reaches into the library's private parts, so the library is pinned to one version exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count as counted
from typing import Any

from kafka import TopicPartition as KafkaPartition
from kafka import errors as kafka_errors
from kafka.errors import KafkaError
from kafka.producer.transaction_manager import EndTxnHandler
from kafka.record.default_records import DefaultRecordBatchBuilder

from streamfl.role import ConfigurationError, Record
from streamfl.runtime.bus import BusUnavailable, Outgoing, TopicPartition
from streamfl_connectors.kafka_batches import gives_nothing
from streamfl_connectors.kafka_failures import too_large
from streamfl_connectors.partitioner import partition_of

__all__ = [
    "PendingFetches",
    "close_consumer",
    "complete",
    "discard",
    "end_once",
    "mend_joins",
    "publish",
    "read_to_end",
    "read_whole",
    "record_of",
    "wait_for_brokers",
]

# A batch's header and the lengths and deltas of a record take no more than the first, the lengths of each header than the other.
LARGEST_FRAME, LARGEST_HEADER_FRAME = 100, 10
LONGEST_REBALANCE_SECONDS = 60

_TURNS = counted()


def publish(producer: Any, records: Sequence[Outgoing], limits: Mapping[str, int], timeout: float) -> None:
    """Send records and wait until all are acknowledged; raises what the first failed one failed with.

    limits: the max.message.bytes of every topic. ConfigurationError, before anything is sent, if a record is larger.
    """
    if not records:
        return
    largest = int(producer.config["max_request_size"])
    for record in records:
        # The library splits a batch with a refused record and retries; neighbours in flight then fail out of sequence and hide
        # the one to blame.
        limit = min(limits[record.topic], largest)
        framed = LARGEST_FRAME
        for name, content in record.headers:
            framed += LARGEST_HEADER_FRAME + len(name.encode()) + len(content)
        if len(record.key or b"") + len(record.value or b"") > limit - framed:
            size = _size(record)
            if size > limit:
                raise too_large(record.topic, f"it takes {size} bytes, {limit} are allowed")
    futures: list[tuple[str, Any]] = []
    first: KafkaError | None = None
    try:
        for record, future in zip(records, _hand_over(producer, records), strict=True):
            futures.append((record.topic, future))
    except KafkaError as error:
        # A transaction refuses every further record once one has failed; the futures know which and why.
        first = error
    # A batch that is refused as too large is split, which flush takes for an error; the futures know how it ends.
    with suppress(kafka_errors.UnknownError):
        producer.flush(timeout)
    deadline = time.monotonic() + timeout
    for topic, future in futures:
        if future.succeeded():
            continue
        try:
            future.get(timeout=max(0.0, deadline - time.monotonic()))
        except (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError) as error:
            # Told before all others: one such record makes its neighbours fail with errors that say nothing.
            raise too_large(topic, error) from error
        except KafkaError as error:
            first = first or error
    if first is not None:
        raise first


def _hand_over(producer: Any, records: Sequence[Outgoing]) -> Iterator[Any]:
    """What the producer's ``send`` does, once a partition instead of once a record wherever that is the same: half of its time."""
    counts = {topic: len(producer.partitions_for(topic)) for topic in {record.topic for record in records}}
    # Records without a key go to another partition with each call, so that a call fills few batches.
    keyless = next(_TURNS)
    transactions = producer._transaction_manager
    places: dict[TopicPartition, KafkaPartition] = {}
    for record in records:
        count, partition = counts[record.topic], record.partition
        if partition is None:
            partition = keyless % count if record.key is None else partition_of(record.key, count)
        place = places.get((record.topic, partition))
        if place is None:
            if not 0 <= partition < count:
                raise ConfigurationError(f"topic {record.topic!r} has {count} partitions, there is no partition {partition}")
            place = places[record.topic, partition] = KafkaPartition(record.topic, partition)
            if transactions is not None and transactions.is_transactional():
                transactions.maybe_add_partition_to_transaction(place)
        if record.key is None and record.value is None:
            raise ConfigurationError(f"a record for topic {record.topic!r} has neither a key nor a value")
        future, full, new, _ = producer._accumulator.append(place, None, record.key, record.value, list(record.headers))
        if full or new:
            producer._sender.wakeup()
        yield future


def read_whole(consumer: Any, partitions: Sequence[Any], patience: float) -> Iterator[Record]:
    """All committed records of the partitions up to their ends as of now; the consumer then stands there.

    BusUnavailable if nothing moves for ``patience`` seconds; Unreadable if that is because of what lies there.
    """
    if not partitions:
        return
    consumer.assign(list(partitions))
    consumer.seek_to_beginning(*partitions)
    yield from read_to_end(consumer, partitions, patience)


def read_to_end(consumer: Any, partitions: Sequence[Any], patience: float) -> Iterator[Record]:
    """What is left to read of assigned partitions up to their ends as of now; errors as :func:`read_whole`."""
    ends = consumer.end_offsets(list(partitions), timeout_ms=int(patience * 1000))
    moved = time.monotonic()
    before: dict[Any, int | None] = {}
    while True:
        # By position and not by the last record's offset: markers of transactions end a partition, too.
        now = {partition: consumer.position(partition, timeout_ms=int(patience * 1000)) for partition in partitions}
        if all(now[partition] is not None and now[partition] >= ends[partition] for partition in partitions):
            return
        if now != before:
            before, moved = now, time.monotonic()
        elif time.monotonic() - moved > patience:
            for partition in partitions:
                if failure := gives_nothing(consumer, partition):
                    raise failure
            raise BusUnavailable(f"nothing could be read from {partitions[0].topic!r} for {patience:g} s")
        for batch in consumer.poll(timeout_ms=200, max_records=4000).values():
            yield from (record_of(found) for found in batch)


def read_edges(consumer: Any, partition: Any, count: int, patience: float) -> list[Record]:
    """The first and the last committed records of a partition, ``count`` of either at most, in order and each once.

    Of the last there are fewer where markers of transactions lie among them. BusUnavailable as :func:`read_whole`.
    """
    consumer.assign([partition])
    milliseconds = int(patience * 1000)
    begin = consumer.beginning_offsets([partition], timeout_ms=milliseconds)[partition]
    end = consumer.end_offsets([partition], timeout_ms=milliseconds)[partition]
    found: dict[int, Record] = {}
    for start, most in ((begin, count), (max(begin, end - count), end)):
        consumer.seek(partition, start)
        taken = 0
        moved = time.monotonic()
        while taken < most and (position := consumer.position(partition, timeout_ms=milliseconds)) < end:
            for record in map(record_of, consumer.poll(timeout_ms=200, max_records=count).get(partition, ())):
                if taken < most and record.offset < end:
                    found[record.offset] = record
                    taken += 1
            if consumer.position(partition, timeout_ms=milliseconds) != position:
                moved = time.monotonic()
            elif time.monotonic() - moved > patience:
                raise BusUnavailable(f"nothing could be read from {partition.topic!r} for {patience:g} s")
    return [found[offset] for offset in sorted(found)]


class PendingFetches:
    """Tells when a fetch is never answered.

    The library keeps a request back while its connection is being made, and no timeout counts there. When the broker goes away
    meanwhile the request may be forgotten: its partitions are not asked for again, and whoever polls waits for ever.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[int, tuple[Any, float]] = {}

    def check(self, consumers: Iterable[Any]) -> None:
        """BusUnavailable if one of these consumers' fetches has been waiting for more than ``patience`` seconds."""
        now = time.monotonic()
        # Each is held while it is watched, so that no other gets its number.
        pending = [fetch for consumer in consumers for fetch in tuple(consumer._fetcher._fetch_futures) if not fetch.is_done]
        self._since = {id(fetch): self._since.get(id(fetch), (fetch, now)) for fetch in pending}
        if any(now - since > self._patience for _, since in self._since.values()):
            raise BusUnavailable(f"a broker was asked for records and has not answered for {self._patience:g} s")


def discard(producer: Any) -> None:
    """Close a producer for good, whatever state it is in, in bounded time and without leaving its thread behind."""
    try:
        producer.close(timeout=2)
    except (KafkaError, AssertionError):
        # The first close may give up waiting and leave the thread running; forcing it fails what is left, and then
        # closing ends.
        producer._sender.force_close()
        producer._sender.join(5)
        with suppress(KafkaError, AssertionError):
            producer.close(timeout=1)


def close_consumer(consumer: Any) -> None:
    """Leave the group, if any, and close, in bounded time."""
    with suppress(KafkaError, RuntimeError, OSError):
        consumer.close(autocommit=False, timeout_ms=3000)


def record_of(found: Any) -> Record:
    return Record(
        found.topic,
        found.partition,
        found.offset,
        found.key,
        found.value,
        # A header may be null in a record that somebody else wrote; the client cannot write one again.
        tuple([(name, content or b"") for name, content in found.headers]) if found.headers else (),
        found.timestamp / 1000,
    )


def complete(producer: Any, result: Any, timeout_ms: float) -> None:
    producer._sender.wakeup()
    if not result.wait(timeout_ms=timeout_ms):
        raise kafka_errors.KafkaTimeoutError(f"the transaction coordinator did not answer in {timeout_ms / 1000:g} s")


def mend_joins(coordinator: Any) -> None:
    """Have a join that the cluster answered between two polls count, and a member that was put out begin from nothing.

    The library begins another join instead of taking the answer. With polls that are shorter than a rebalance that goes on for
    ever, and every new generation has the commits of all members refused. And a member that learns in the middle of a join that it
    was put out would go on with partitions that others have by now.

    The others wait for a member that shows signs of life but does not join, and the library for an answer that got lost, as long as
    a member may take between two polls, five minutes; here no longer than ``LONGEST_REBALANCE_SECONDS``, as Kafka Connect does.
    """
    longest = LONGEST_REBALANCE_SECONDS * 1000
    # Between polls the heartbeat counts, by a configuration of its own.
    coordinator.config["max_poll_interval_ms"] = min(coordinator.config["max_poll_interval_ms"], longest)
    join, complete, reset = coordinator._do_join_and_sync_async, coordinator._on_join_complete_async, coordinator.reset_generation
    answers: list[bytes] = []

    async def join_once() -> bytes:
        if not answers:
            answers.append(await join())
        return answers[0]

    async def complete_once(*arguments: Any) -> None:
        answers.clear()
        await complete(*arguments)

    def begin_anew(*arguments: Any, **named: Any) -> None:
        reset(*arguments, **named)
        answers.clear()
        # Else the next attempt leaves out what tells the listener.
        coordinator.rejoining = False

    coordinator._do_join_and_sync_async = join_once
    coordinator._on_join_complete_async = complete_once
    coordinator.reset_generation = begin_anew


def end_once(producer: Any) -> None:
    """Have a producer whose EndTxn was not answered die instead of sending it again.

    EndTxn ends a transaction. It says which producer and which epoch, and not which transaction (KAFKA-17754). The library sends it
    again when the connection breaks, and goes on when the second one is answered. The first one may be under way even then; it ends
    whatever transaction that epoch has begun by the time it arrives, with records missing, or records that were to be aborted. So
    no transaction may begin in such an epoch: a dead producer begins none, and the ``init_transactions`` of the next one has the
    cluster refuse the epoch from then on. An answer, an error as well, says that nothing is under way any more; what the library
    does about one is right.
    """
    transactions = producer._transaction_manager
    enqueue = transactions._enqueue_request

    def enqueue_once(handler: Any) -> None:
        # Also what the library sends again after an answer comes by here.
        if isinstance(handler, EndTxnHandler) and "on_complete" not in vars(handler):
            handler.on_complete = _fatal_unless_answered(handler.on_complete)
        enqueue(handler)

    transactions._enqueue_request = enqueue_once


def _fatal_unless_answered(take: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
    def on_complete(number: int, answer: Any) -> None:
        # Of all exceptions a lost connection alone makes the library send again; every other one is the end of the producer.
        lost = isinstance(answer, kafka_errors.KafkaConnectionError)
        take(number, KafkaError(f"the connection broke before EndTxn was answered ({answer})") if lost else answer)

    return on_complete


def wait_for_brokers(producer: Any) -> None:
    """Have a transactional request wait for a broker that is away.

    The library drops the request, and whoever waits for it waits for ever, when ``await_ready`` raises; it queues the
    request again when ``await_ready`` returns False.
    """
    client = producer._sender._client
    original = client.await_ready

    def await_ready(node: Any, timeout_ms: int = 30_000) -> bool:
        try:
            return bool(original(node, timeout_ms=timeout_ms))
        except KafkaError:
            time.sleep(0.1)
            return False

    client.await_ready = await_ready


def _size(record: Outgoing) -> int:
    """Bytes of the record in a batch of its own, which is what a topic's limit is about; compression is not counted on."""
    builder = DefaultRecordBatchBuilder
    return int(builder.HEADER_STRUCT.size + builder.size_in_bytes(0, 0, record.key, record.value, record.headers))
