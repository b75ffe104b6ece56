"""What librdkafka's failures mean: try again, restore and rejoin, or stop and tell the operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, CommitRefused, transactional_prefix
from streamfl_connectors.outgoing import REFUSED_RECORDS, REFUSED_TIME, may_write_nothing

__all__ = ["NOT_LET_IN", "UNREADABLE", "cause_of", "told", "translated"]

NOT_LET_IN = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
    }
)

# Errors of a message: a wrong checksum, broken compressed content, an unknown codec or format; and an error
# from the broker.
UNREADABLE = frozenset(
    {
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError.INVALID_MSG,
        KafkaError._UNDERFLOW,
    }
)

REFUSED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.PRODUCER_FENCED,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)

# Every other code means that the cluster is unavailable: trying again may help.
MISTAKES = {
    KafkaError._INVALID_ARG: "bus.options holds a value that librdkafka does not accept",
    KafkaError._UNKNOWN_PARTITION: "topic {topic} has no such partition",
    KafkaError._UNKNOWN_TOPIC: "topic {topic} does not exist",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "topic {topic} does not exist",
    KafkaError.TOPIC_EXCEPTION: "{topic} is not a valid topic name",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "not authorised: an ACL must allow it on the cluster",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "not authorised: an ACL must allow Read on group {group!r}",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "not authorised: an ACL must allow Read (for inputs, tables and "
    "state) and Write (for outputs and state) on topic {topic}",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not authorised: an ACL must allow Write on "
    "transactional ids with the prefix {prefix!r}",
    KafkaError.FENCED_INSTANCE_ID: "another worker uses the same bus.options 'group.instance.id': give each "
    "worker one of its own",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "the group {group!r} has members with another connector: all of "
    "a group's workers need the same bus.url scheme",
    KafkaError.INVALID_SESSION_TIMEOUT: "the broker does not allow bus.options 'session.timeout.ms': choose "
    "a value between its group.min.session.timeout.ms and "
    "group.max.session.timeout.ms",
    KafkaError.INVALID_TIMESTAMP: REFUSED_TIME,
    KafkaError.INVALID_RECORD: REFUSED_RECORDS,
    KafkaError.UNSUPPORTED_VERSION: "the brokers do not support this request: leave out bus.options "
    "'group.protocol' if it is 'consumer'",
    KafkaError.MSG_SIZE_TOO_LARGE: "a record for topic {topic} is too large: raise max.message.bytes of the "
    "topic and bus.options 'message.max.bytes'",
}


# Words in the text of a fatal error, and the error that they mean.
FATAL = {
    "Cluster authorization failed": KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    "Transactional Id authorization failed": KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "API version not supported": KafkaError.UNSUPPORTED_VERSION,
    "same group.instance.id": KafkaError.FENCED_INSTANCE_ID,
}


def told(doing: str, error: KafkaError, group: str = "", *topics: str) -> Exception:
    """The library's error as one of the bus's errors. topics: those that it may be about."""
    code = error.code()
    if code == KafkaError._FATAL:
        # The library's client is unusable, and only its text says why.
        code = next((known for words, known in FATAL.items() if words in error.str()), code)
    if code in NOT_LET_IN:
        return ConfigurationError(
            f"{doing}: bus.options: connecting to the Kafka cluster failed: {error.str()}"
        )
    if code == KafkaError.CLUSTER_AUTHORIZATION_FAILED and topics:
        return may_write_nothing(topics)
    if code in MISTAKES:
        mistake = MISTAKES[code].format(
            topic=_listed(topics), group=group, prefix=transactional_prefix(group)
        )
        return ConfigurationError(f"{doing}: {mistake} ({error.str()})")
    if code in REFUSED:
        return CommitRefused(f"{doing}: {error.str()}")
    return BusUnavailable(f"{doing}: {error.str()}")


@contextmanager
def translated(doing: str, group: str = "", topics: Iterable[str] = ()) -> Iterator[None]:
    """Turns the library's exceptions into the bus's. topics: those that they may be about."""
    try:
        yield
    except (KafkaException, SystemError) as error:
        if (cause := cause_of(error)) is None:
            raise
        raise told(doing, cause, group, *sorted({*topics})) from error


def cause_of(raised: BaseException) -> KafkaError | None:
    """The library's error in an exception of one of its calls; None if there is none.

    A fatal error becomes an exception while the call goes on to its callbacks. If it calls one then, Python
    raises a SystemError with the library's exception as its cause.
    """
    found = raised.__cause__ if isinstance(raised, SystemError) else raised
    return found.args[0] if isinstance(found, KafkaException) else None


def _listed(topics: Iterable[str]) -> str:
    return " or ".join(repr(topic) for topic in topics if topic) or "(the cluster does not say which)"
