"""The records of one partition of the memory bus."""

from __future__ import annotations

from bisect import bisect_left

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.assignment import partition_of
from streamfl.runtime.bus import Outgoing, TopicState

__all__ = ["MemoryTopic", "PartitionLog"]


class PartitionLog:
    """One partition. A compacted one deletes, from time to time, records that a later one of the same key has
    replaced."""

    RECENT = 5_000

    def __init__(self, topic: str, partition: int, compacted: bool) -> None:
        self.begin = 0
        self.end = 0
        self._topic = topic
        self._partition = partition
        self._compacted = compacted
        self._compact_at = 2 * self.RECENT
        self._records: list[Record] = []

    def append(self, record: Outgoing, now: float) -> None:
        at = now if record.timestamp is None else record.written_at(now)
        self._records.append(
            Record(self._topic, self._partition, self.end, record.key, record.value, record.headers, at)
        )
        self.end += 1
        if self._compacted and len(self._records) >= self._compact_at:
            self._compact()

    def since(self, offset: int, limit: int | None = None) -> list[Record]:
        start = bisect_left(self._records, offset, key=lambda record: record.offset)
        return self._records[start : None if limit is None else start + limit]

    def offset_at(self, at: float) -> int:
        """The offset of the first record of that time or later."""
        return next((record.offset for record in self._records if record.timestamp >= at), self.end)

    def drop(self, offset: int) -> None:
        """Delete the records before an offset."""
        self.begin = max(self.begin, min(offset, self.end))
        del self._records[: bisect_left(self._records, offset, key=lambda record: record.offset)]

    def edges(self, count: int) -> list[Record]:
        return (
            self._records
            if len(self._records) <= 2 * count
            else self._records[:count] + self._records[-count:]
        )

    def _compact(self) -> None:
        # Recent records are kept, so that a reader a little behind still gets every version and every
        # tombstone.
        last = {record.key: record.offset for record in self._records}
        old, recent = self._records[: -self.RECENT], self._records[-self.RECENT :]
        current = [record for record in old if last[record.key] == record.offset and record.value is not None]
        self._records = current + recent
        self._compact_at = 2 * len(self._records)


class MemoryTopic:
    def __init__(self, spec: TopicSpec, identity: str) -> None:
        self._spec = spec
        self._identity = identity
        self._keyless = 0
        self.partitions = [
            PartitionLog(spec.name, number, spec.compacted) for number in range(spec.partitions or 1)
        ]

    def state(self) -> TopicState:
        return TopicState(
            self._spec.name,
            len(self.partitions),
            self._spec.compacted,
            self._spec.options,
            identity=self._identity,
        )

    def log(self, partition: int) -> PartitionLog:
        logs = self.partitions
        if not 0 <= partition < len(logs):
            raise ConfigurationError(
                f"topic {self._spec.name!r} has {len(logs)} partitions, there is no partition {partition}"
            )
        return logs[partition]

    def partition_for(self, record: Outgoing) -> int:
        if record.partition is not None:
            return record.partition
        if record.key is not None:
            return partition_of(record.key, len(self.partitions))
        self._keyless += 1
        return self._keyless % len(self.partitions)
