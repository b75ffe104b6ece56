"""Checks of a record that both Kafka connectors make before they give it to their library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Outgoing

__all__ = [
    "REFUSED_TIME",
    "TOPIC",
    "check_records",
    "may_write_nothing",
    "most_bytes",
    "no_partition",
    "too_large",
]

REFUSED_TIME = (
    "a topic refuses the timestamp of a record. With predictions.event_time it is the sample's time: leave "
    "the topic's message.timestamp.before.max.ms at its default. Otherwise it is this machine's clock: check "
    "that it is right"
)

# Most bytes of a batch's header with a record's lengths and deltas, and most bytes of the lengths of one
# record header.
LARGEST_FRAME, LARGEST_HEADER_FRAME = 100, 10
# Most bytes of a character in UTF-8.
LARGEST_CHARACTER = 4
TOPIC, KEY, VALUE, PARTITION, HEADERS = map(attrgetter, ("topic", "key", "value", "partition", "headers"))


def check_records(
    records: Sequence[Outgoing],
    limits: Mapping[str, int],
    counts: Mapping[str, int],
    option: str,
    exact_bytes: Callable[[Outgoing], int] | None = None,
) -> None:
    """ConfigurationError if a record is empty, or larger than its topic allows, or its partition does not
    exist.

    limits: the largest record of each topic, in bytes.
    counts: the partitions of each topic.
    option: the library's own limit, as the configuration names it, for the text.
    exact_bytes: the size of a record, called only if :func:`most_bytes` is above the limit. None: that bound
    decides.
    """
    # Nearly always the largest key, value and headers of a topic's records fit together: then no record needs
    # a look of its own.
    if all(_all_fit(list(group), limits[topic], counts[topic]) for topic, group in groupby(records, TOPIC)):
        return
    for record in records:
        limit = limits[record.topic]
        size = most_bytes(record)
        if size > limit:
            if exact_bytes is None:
                raise too_large(record.topic, option, f"it takes up to {size} bytes, {limit} are allowed")
            size = exact_bytes(record)
            if size > limit:
                raise too_large(record.topic, option, f"it takes {size} bytes, {limit} are allowed")
        if record.key is None and record.value is None:
            raise ConfigurationError(f"a record for topic {record.topic!r} has neither a key nor a value")
        if record.partition is not None and not 0 <= record.partition < counts[record.topic]:
            raise no_partition(record.topic, record.partition, counts[record.topic])


def _all_fit(records: Sequence[Outgoing], limit: int, count: int) -> bool:
    """Whether records of one topic are certainly right. limit: the largest record. count: the topic's
    partitions."""
    keys, values, named = list(map(KEY, records)), list(map(VALUE, records)), list(map(HEADERS, records))
    headers = list(chain.from_iterable(named))
    size = (
        LARGEST_FRAME
        + max(map(len, filter(None, keys)), default=0)
        + max(map(len, filter(None, values)), default=0)
    )
    if headers:
        names, contents = zip(*headers, strict=True)
        largest = LARGEST_HEADER_FRAME + LARGEST_CHARACTER * max(map(len, names)) + max(map(len, contents))
        size += largest * max(map(len, named))
    partitions = {*map(PARTITION, records)} - {None}
    there = not partitions or (min(partitions) >= 0 and max(partitions) < count)
    return size <= limit and there and not (None in keys and None in values)


def most_bytes(record: Outgoing) -> int:
    """An upper bound of the record's size in its own batch, uncompressed: too large by at most 100 bytes, and
    10 per header."""
    size = LARGEST_FRAME + len(record.key or b"") + len(record.value or b"")
    for name, content in record.headers:
        size += LARGEST_HEADER_FRAME + len(name.encode()) + len(content)
    return size


def no_partition(topic: str, partition: int, count: int) -> ConfigurationError:
    """The error for a partition that the topic does not have."""
    return ConfigurationError(f"topic {topic!r} has {count} partitions, there is no partition {partition}")


def too_large(topic: str, option: str, reason: object) -> ConfigurationError:
    """The error for a record that the topic or the library's ``option`` does not allow."""
    return ConfigurationError(
        f"a record for topic {topic!r} is too large: raise max.message.bytes of the topic and {option} "
        f"({reason})"
    )


def may_write_nothing(topics: Iterable[str]) -> ConfigurationError:
    """The error if the cluster gives a producer no identity (InitProducerId, KIP-679): only one that may
    write a topic gets one."""
    named = " or ".join(repr(topic) for topic in sorted(topics))
    return ConfigurationError(
        f"writing: not authorised: an ACL must allow Write on topic {named}: at present no topic at all may "
        "be written (brokers before 2.8 want IdempotentWrite on the cluster, too)"
    )
