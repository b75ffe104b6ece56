"""Finds missing rights on a cluster with access control, by asking and without trying anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from kafka import errors as kafka_errors
from kafka.errors import KafkaError

from streamfl.runtime.rights import Right
from streamfl_connectors.kafka.failures import translated
from streamfl_connectors.kafka.groups import described

__all__ = ["missing_rights"]

# A cluster that has just started makes its coordinators' topics when it is first asked, and coordinators move
# between brokers.
COORDINATOR_SECONDS = 5.0
PASSING = (
    kafka_errors.CoordinatorLoadInProgressError,
    kafka_errors.CoordinatorNotAvailableError,
    kafka_errors.NotCoordinatorError,
)


def missing_rights(admin: Any, rights: Sequence[Right]) -> list[Right]:
    """Those of these rights that the admin client's principal does not have, with just the operations that
    are missing.

    A right that the cluster does not report counts as granted: for a topic that does not exist, and with
    brokers without KIP-430."""
    with translated("asking for rights"):
        topics = [right.name for right in rights if right.resource == "topic"]
        described = (
            {found["name"]: found for found in admin.describe_topics(sorted(set(topics)))} if topics else {}
        )
        found = []
        for right in rights:
            if right.resource == "topic":
                lacking = _of_topic(right, described.get(right.name))
            elif right.resource == "group":
                lacking = _of_group(admin, right)
            else:
                lacking = _of_transactional_id(admin, right)
            if lacking:
                found.append(replace(right, operations=tuple(lacking)))
    return found


def _of_topic(right: Right, described: Any) -> Sequence[str]:
    if described is None:
        return ()
    if described.get("error_code") == kafka_errors.TopicAuthorizationFailedError.errno:
        return right.operations
    return _without(right.operations, described.get("authorized_operations"))


def _of_group(admin: Any, right: Right) -> Sequence[str]:
    def ask() -> Sequence[str]:
        return _without(right.operations, described(admin, right.name).get("authorized_operations"))

    return _asked(ask, kafka_errors.GroupAuthorizationFailedError, right)


def _of_transactional_id(admin: Any, right: Right) -> Sequence[str]:
    def ask() -> Sequence[str]:
        # The right to write includes the right to describe, so a principal that may not describe may not
        # write.
        admin.describe_transactions([f"{right.name}check"])
        return ()

    return _asked(ask, kafka_errors.TransactionalIdAuthorizationFailedError, right)


def _asked(ask: Callable[[], Sequence[str]], denied: type[KafkaError], right: Right) -> Sequence[str]:
    deadline = time.monotonic() + COORDINATOR_SECONDS
    while True:
        try:
            return ask()
        except denied:
            return right.operations
        except PASSING:
            if time.monotonic() > deadline:
                return ()
            time.sleep(0.1)
        except KafkaError:
            # No such group or id yet, or a broker that does not know the request.
            return ()


def _without(operations: Iterable[str], allowed: Sequence[str] | None) -> Sequence[str]:
    """The operations that are not allowed. allowed: in capitals, as the library names them; None: not
    known."""
    if allowed is None:
        return ()
    known = {name.replace("_", "").lower() for name in allowed}
    return [one for one in operations if one.lower() not in known and "all" not in known]
