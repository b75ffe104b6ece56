"""What the client library's failures mean: try again, restore and rejoin, or stop and tell the operator."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, cast

from kafka import errors as kafka_errors
from kafka.errors import KafkaError

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, CommitRefused, transactional_prefix
from streamfl_connectors.outage_log import ONE_LINE
from streamfl_connectors.outgoing import REFUSED_TIME

__all__ = [
    "FAILURES",
    "NOT_LET_IN",
    "Failure",
    "causes_logged",
    "kind_of",
    "named",
    "needed",
    "quieten",
    "translated",
]

Meaning = Literal["retry", "restore", "stop"]


@dataclass(frozen=True)
class Failure:
    """What some of the library's errors mean to a worker, and for ``stop`` the text for the operator.

    retry: BusUnavailable; health turns red, and the worker tries again with a new session for as long as it
    takes. restore: CommitRefused; the step is not made, and the partitions are restored from the changelog.
    stop: ConfigurationError. ``told`` may name the group, {group!r}, the prefix of its transactional ids,
    {prefix!r}, and the topics that the error names, {topics}.
    """

    errors: tuple[type[KafkaError], ...]
    meaning: Meaning
    told: str = ""


def needed(topic: str) -> str:
    """The rights on a topic that are missing."""
    return (
        "an ACL must allow Read (for inputs, tables and state) and Write (for outputs and state) on topic "
        f"{topic!r}"
    )


# The first that fits counts, so a derived error has to come before its base class.
FAILURES = (
    Failure(
        (kafka_errors.TransactionalIdAuthorizationFailedError,),
        "stop",
        "not authorised: an ACL must allow Write on transactional ids with the prefix {prefix!r}",
    ),
    Failure(
        (kafka_errors.GroupAuthorizationFailedError,),
        "stop",
        "not authorised: an ACL must allow Read on group {group!r}",
    ),
    Failure((kafka_errors.TopicAuthorizationFailedError,), "stop", "not authorised: {topics}"),
    Failure((kafka_errors.AuthorizationError,), "stop", "not authorised: {error}"),
    Failure(
        (kafka_errors.FencedInstanceIdError,),
        "stop",
        "another worker uses the same bus.options.group_instance_id: give each worker one of its own",
    ),
    Failure(
        (kafka_errors.InvalidSessionTimeoutError,),
        "stop",
        "the broker does not allow bus.options.session_timeout_ms: choose a value between its "
        "group.min.session.timeout.ms and group.max.session.timeout.ms",
    ),
    Failure(
        (kafka_errors.InvalidTransactionTimeoutError,),
        "stop",
        "the broker does not allow bus.options.transaction_timeout_ms: choose a value up to its "
        "transaction.max.timeout.ms",
    ),
    Failure((kafka_errors.InvalidTimestampError,), "stop", f"{REFUSED_TIME} ({{error}})"),
    Failure(
        (
            kafka_errors.CommitFailedError,
            kafka_errors.IllegalGenerationError,
            kafka_errors.RebalanceInProgressError,
            kafka_errors.UnknownMemberIdError,
        ),
        "restore",
    ),
    # The producer is unusable, too: the session makes another.
    Failure(
        (
            kafka_errors.InvalidProducerEpochError,
            kafka_errors.InvalidProducerIdMappingError,
            kafka_errors.InvalidTxnStateError,
            kafka_errors.ProducerFencedError,
            kafka_errors.UnknownProducerIdError,
        ),
        "restore",
    ),
    Failure((KafkaError,), "retry"),
)

# Errors that stop a worker while a client is made. Later a broker that starts may not know its users yet, and
# the worker waits.
NOT_LET_IN = (
    kafka_errors.IllegalSaslStateError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
)


@contextmanager
def translated(doing: str, group: str = "") -> Iterator[None]:
    """Turns the library's errors into the bus's errors, by :data:`FAILURES`. group: the one in question."""
    try:
        yield
    except KafkaError as error:
        kind = kind_of(error)
        failure = next(failure for failure in FAILURES if issubclass(kind, failure.errors))
        if failure.meaning == "restore":
            raise CommitRefused(f"{doing}: {error}") from error
        if failure.meaning == "retry":
            raise BusUnavailable(f"{doing}: {error}") from error
        about = error.args[0] if error.args and kind is type(error) else ()
        topics = [about] if isinstance(about, str) else sorted(about) if isinstance(about, Iterable) else []
        told = failure.told.format(
            group=group,
            prefix=transactional_prefix(group),
            topics="; ".join(map(needed, topics)) or error,
            error=error,
        )
        raise ConfigurationError(f"{doing}: {told}") from error


@contextmanager
def named(topics: Callable[[], Iterable[str]]) -> Iterator[None]:
    """If a right to a topic is refused and the library does not name the topic, names these. topics: called
    only then."""
    try:
        yield
    except KafkaError as error:
        refused = kafka_errors.TopicAuthorizationFailedError
        if issubclass(kind_of(error), refused) and not (isinstance(error, refused) and error.args):
            raise refused(set(topics())) from error
        raise


def kind_of(error: KafkaError) -> type[KafkaError]:
    """The error's class, or the class of the error that the library put into the text of a plain
    KafkaError."""
    hidden = re.search(r"\[Error (\d+)\]", str(error)) if type(error) is KafkaError else None
    return type(error) if hidden is None else cast(type[KafkaError], kafka_errors.for_code(int(hidden[1])))


# What the library logs as a warning or an error, and repairs by itself within moments: at the first start of
# a group, while partitions move, and when it closes. If it lasts the bus raises BusUnavailable, or
# CommitRefused, with the cause.
PUT_RIGHT = (
    # Offsets that another transaction still holds: the protocol at work.
    ("kafka.coordinator.consumer", "UnstableOffsetCommitError"),
    # The coordinator has moved or is still being made; it is looked up again.
    ("kafka.coordinator", "Marking the coordinator dead"),
    ("kafka.coordinator.heartbeat", "is either not started or not valid"),
    # Sent again, or sent while closing.
    ("kafka.coordinator", "Error sending "),
    # Under way while closing.
    ("kafka.cluster", "Metadata refresh: failed Cancelled"),
    # A rebalance went on without this member; it joins again.
    ("kafka.coordinator.heartbeat", "generation id is not"),
    ("kafka.coordinator.heartbeat", "local member_id was not recognized"),
    # The machine was busy for a tenth of a second.
    ("kafka.net.selector", "blocking the event loop"),
    # A connection was closed just before its next bytes were to be waited for.
    ("kafka.net.selector", "Invalid file descriptor: -1"),
    # Or just before they were to be read or written, or handed on.
    ("kafka.net.transport", "'NoneType' object has no attribute"),
    ("kafka.net.selector", "'NoneType' object has no attribute 'data_received'"),
)


class _PutRight(logging.Filter):
    """Hides one logger's messages of :data:`PUT_RIGHT`, unless ``log.level`` is debug."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._texts = [text for logger, text in PUT_RIGHT if logger == name]

    def filter(self, record: logging.LogRecord) -> bool:
        wanted = logging.getLogger("streamfl").isEnabledFor(logging.DEBUG)
        raised = str(record.exc_info[1]) if record.exc_info else ""
        return wanted or not any(text in record.getMessage() or text in raised for text in self._texts)


_FILTERS = {name: _PutRight(name) for name, _ in PUT_RIGHT}


class _OneLine(logging.Filter):
    """:data:`ONE_LINE`, except for what :func:`causes_logged` catches: these lines are not logged, and none
    may be missing."""

    def filter(self, record: logging.LogRecord) -> bool:
        return any(
            isinstance(handler, _Causes) for handler in logging.getLogger("kafka").handlers
        ) or ONE_LINE.filter(record)


_ONE_LINE = _OneLine()


def quieten() -> None:
    """Hide log lines that look like a failure and are none, and most lines of an outage.

    A filter is added once, however often this is called. It applies to its own logger only, so each of the
    library's has one."""
    for name, hiding in _FILTERS.items():
        logging.getLogger(name).addFilter(hiding)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("kafka."):
            logging.getLogger(name).addFilter(_ONE_LINE)


class _Causes(logging.Handler):
    def __init__(self, found: list[BaseException]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        # The exception already says that time ran out.
        self._found += [
            one
            for one in arguments
            if isinstance(one, BaseException) and not isinstance(one, kafka_errors.KafkaTimeoutError)
        ]


_LOG_LOCK = threading.Lock()


@contextmanager
def causes_logged() -> Iterator[list[BaseException]]:
    """Collects the errors that the library logs meanwhile, instead of logging them. Its exceptions are all
    the same; these errors say what happened.
    """
    found: list[BaseException] = []
    handler = _Causes(found)
    logger = logging.getLogger("kafka")
    with _LOG_LOCK:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield found
    finally:
        with _LOG_LOCK:
            logger.removeHandler(handler)
            logger.propagate = not any(isinstance(other, _Causes) for other in logger.handlers)
