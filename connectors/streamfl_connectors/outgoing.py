"""Checks of a record that both Kafka connectors make before they give it to their library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Outgoing

__all__ = [
    "REFUSED_RECORDS",
    "REFUSED_TIME",
    "check_records",
    "may_write_nothing",
    "most_bytes",
    "no_partition",
    "too_large",
]

_WHOSE_TIME = (
    "With predictions.event_time it is the sample's time: leave the topic's message.timestamp.before.max.ms "
    "at its default. Otherwise it is this machine's clock: check that it is right"
)
REFUSED_TIME = f"a topic refuses the timestamp of a record. {_WHOSE_TIME}"
# Of several refused records librdkafka does not say what is wrong with them. A compacted topic wants a key,
# and ours have one, so it is their time.
REFUSED_RECORDS = f"topic {{topic}} refuses several records, as it does for their timestamps. {_WHOSE_TIME}"

# Most bytes of a batch's header with a record's lengths and deltas, and most bytes of the lengths of one
# record header.
LARGEST_FRAME, LARGEST_HEADER_FRAME = 100, 10


def check_records(
    records: Iterable[Outgoing],
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
