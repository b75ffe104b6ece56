"""The end of a fetched batch: records written during the answer are read, and an impossible offset is
reported."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.consumer.fetcher import IsolationLevel
from kafka.record import MemoryRecordsBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition
from streamfl_connectors.kafka.batches import _Batches, _PartitionRecords

# What Kafka 4.1.1 left of a transaction's end at offset 34056 after it compacted the topic.
EMPTIED_MARKER = bytes.fromhex(
    "00000000000085080000003100000000029d042501003000000000ffffffffffffffff000001a22a4e9e60"
    "00000000000000250001ffffffff00000000"
)


def answer(end: int, beyond: dict[Any, int], expected: int = 0) -> _Batches:
    """Two batches of one record each, offsets 0 and 1. ``end`` is the partition's end when the broker
    looked."""
    content = b""
    for offset in range(2):
        builder: Any = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=0)
        builder.append(timestamp=1, key=b"k", value=b"v", headers=[])
        builder.close()
        content += offset.to_bytes(8, "big") + bytes(builder.buffer())[8:]
    batches = _Batches(MemoryRecords(content))
    batches.expected, batches.end, batches.beyond, batches.place = expected, end, beyond, "t-0"
    return batches


def test_what_was_written_while_the_broker_answered_is_asked_for_again() -> None:
    """Protects a worker from stopping at a healthy batch: the answer's end is older than the broker's read of
    the log."""
    beyond: dict[Any, int] = {}
    first = answer(1, beyond)
    assert first.next_batch().base_offset == 0
    assert first.next_batch() is None
    second = answer(2, beyond, expected=1)
    assert second.next_batch().base_offset == 1
    assert second.next_batch() is None
    assert not beyond


def test_an_offset_beyond_the_end_twice_is_told() -> None:
    """Protects positions: a batch's offset is not covered by its checksum, and a wrong one would be
    committed."""
    beyond: dict[Any, int] = {}
    assert answer(0, beyond).next_batch() is None
    with pytest.raises(ValueError, match="offsets 0 to 0, which is impossible there"):
        answer(0, beyond).next_batch()


def test_what_lies_behind_an_emptied_marker_is_read() -> None:
    """Protects a worker's state: compaction removes the end of a transaction and leaves its batch while it is
    its producer's last. A changelog with such a batch was restored by no worker any more."""
    builder: Any = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=0, offset=0)
    builder.append(timestamp=1, key=b"k", value=b"v", headers=[])
    builder.close()
    content = EMPTIED_MARKER + (34057).to_bytes(8, "big") + bytes(builder.buffer())[8:]
    part = _PartitionRecords(
        34056, TopicPartition("t", 0), MemoryRecords(content), isolation_level=IsolationLevel.READ_COMMITTED
    )
    part.batches.expected, part.batches.end = 34056, 34058
    assert [(record.offset, record.value) for record in part.take(10)] == [(34057, b"v")]
