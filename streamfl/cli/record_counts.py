"""How many records lie between two offsets of a partition.

Offsets count more: each of Kafka's transactions ends with a control record, and compaction leaves gaps. Where
a transaction holds one record, there are twice as many offsets as records.
"""

from __future__ import annotations

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Bus, TopicPartition, Unreadable

__all__ = ["MOST", "records_between"]

# The most records that are read to be counted. A reader of a partition with millions must not read them all.
MOST = 300


def records_between(bus: Bus, place: TopicPartition, begin: int, end: int) -> int:
    """The committed records of a partition from one offset up to another.

    Beyond ``MOST`` records the number is an estimate: there are as many records an offset as in the first
    ones. What is damaged, or may not be read, counts by its offsets."""
    count, reached = 0, begin
    if begin >= end:
        return 0
    try:
        for record in bus.read_from(*place, begin):
            if record.offset >= end:
                return count
            count, reached = count + 1, record.offset + 1
            if count == MOST:
                return count + round((end - reached) * count / (reached - begin))
    except (Unreadable, ConfigurationError):
        return count + max(0, end - reached)
    return count
