"""What the client library's failures mean: try again, restore and rejoin, or stop and tell the operator."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import errors as kafka_errors
from kafka.errors import KafkaError

from streamfl.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, CommitRefused, Subscription

__all__ = ["NOT_LET_IN", "causes_logged", "needed", "quieten", "too_large", "translated"]

REFUSED = (
    kafka_errors.CommitFailedError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.InvalidProducerEpochError,
    kafka_errors.InvalidProducerIdMappingError,
    kafka_errors.InvalidTxnStateError,
    kafka_errors.ProducerFencedError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.UnknownProducerIdError,
)


NOT_LET_IN = (
    kafka_errors.IllegalSaslStateError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
)


@contextmanager
def translated(doing: str, subscription: Subscription | None = None) -> Iterator[None]:
    """The library's errors as the bus's."""
    try:
        yield
    except kafka_errors.AuthorizationError as error:
        raise ConfigurationError(f"{doing}: {_denied(error, subscription)}") from error
    except kafka_errors.FencedInstanceIdError as error:
        raise ConfigurationError(
            f"{doing}: another worker uses the same bus.options.group_instance_id: give each worker one of its own"
        ) from error
    except kafka_errors.InvalidSessionTimeoutError as error:
        raise ConfigurationError(
            f"{doing}: the broker does not allow bus.options.session_timeout_ms: choose a value between its "
            "group.min.session.timeout.ms and group.max.session.timeout.ms"
        ) from error
    except REFUSED as error:
        raise CommitRefused(f"{doing}: {error}") from error
    except (kafka_errors.NoOffsetForPartitionError, kafka_errors.OffsetOutOfRangeError) as error:
        raise ConfigurationError(
            f"{doing}: the position is not in the topic any more and bus.auto_offset_reset = 'error': "
            f"choose 'earliest' or 'latest' ({error})"
        ) from error
    except KafkaError as error:
        raise BusUnavailable(f"{doing}: {error}") from error


def _denied(error: KafkaError, subscription: Subscription | None) -> str:
    if isinstance(error, kafka_errors.TransactionalIdAuthorizationFailedError):
        group = subscription.group if subscription else ""
        return f"not authorised: an ACL must allow Write on transactional ids with the prefix {group!r}"
    if isinstance(error, kafka_errors.GroupAuthorizationFailedError):
        return f"not authorised: an ACL must allow Read on group {subscription.group if subscription else ''!r}"
    if isinstance(error, kafka_errors.TopicAuthorizationFailedError):
        found = error.args[0] if error.args else ()
        names = [found] if isinstance(found, str) else sorted(found or ())
        return "not authorised: " + "; ".join(needed(name) for name in names)
    return f"not authorised: {error}"


def needed(topic: str) -> str:
    return f"an ACL must allow Read (for inputs, tables and state) and Write (for outputs and state) on topic {topic!r}"


def too_large(topic: str, reason: object) -> ConfigurationError:
    return ConfigurationError(
        f"a record for topic {topic!r} is too large: raise max.message.bytes of the topic and "
        f"bus.options.max_request_size ({reason})"
    )


class _Unstable(logging.Filter):
    """Hides the library's errors about undecided offsets: that is the protocol holding them back, as it should."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "UnstableOffsetCommitError" not in record.getMessage()


_UNSTABLE = _Unstable()


def quieten() -> None:
    logging.getLogger("kafka.coordinator.consumer").addFilter(_UNSTABLE)


class _Causes(logging.Handler):
    def __init__(self, found: list[BaseException]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        # That time ran out is what the exception says already.
        self._found += [
            one for one in arguments if isinstance(one, BaseException) and not isinstance(one, kafka_errors.KafkaTimeoutError)
        ]


_LOG_LOCK = threading.Lock()


@contextmanager
def causes_logged() -> Iterator[list[BaseException]]:
    """The errors that the library logs meanwhile, instead of having them logged: its exceptions all say the same, these
    say what happened.
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
