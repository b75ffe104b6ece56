"""Describes a consumer group, and counts its members with either protocol."""

from __future__ import annotations

from typing import Any

from kafka import errors as kafka_errors
from kafka.errors import KafkaError
from kafka.protocol.api_message import ApiMessage

from streamfl_connectors.kafka import schemas
from streamfl_connectors.kafka.failures import kind_of

__all__ = ["described", "members"]


class ConsumerGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """The request to describe a group of KIP-848. kafka-python does not have it."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """The response; the library finds this class by its number."""


def described(admin: Any, group: str) -> dict[str, Any]:
    """The group by the older protocol, with what the principal may do. Raises the error that stands in the
    answer.

    The library takes a refusal for a group without members, and puts the error's number and name into a text.
    """
    found: dict[str, Any] = admin.describe_groups([group], include_authorized_operations=True)[group]
    if found["error"]:
        error = kind_of(KafkaError(found["error"]))
        raise error(found["error"].partition(": ")[2])
    return found


def members(admin: Any, group: str) -> int:
    """The number of members at present. A group that the cluster does not know has none."""
    try:
        found = described(admin, group)
        is_unknown = found["group_state"] == "Dead" and not found["members"]
    except kafka_errors.GroupIdNotFoundError:
        is_unknown = True
    # A group with the protocol of KIP-848 is reported as unknown, too.
    return (
        int(admin._manager.run(_members_of_the_new_protocol, admin, group))
        if is_unknown
        else len(found["members"])
    )


async def _members_of_the_new_protocol(admin: Any, group: str) -> int:
    coordinator = await admin._find_coordinator_id(group)
    request = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
    try:
        answer = await admin._manager.send(request, node_id=coordinator)
    except kafka_errors.IncompatibleBrokerVersion:
        return 0
    (found,) = answer.groups
    error = kafka_errors.for_code(found.error_code)
    # Kafka 3.7 to 3.9 know the request and refuse it, unless the new protocol was switched on.
    if error in (
        kafka_errors.NoError,
        kafka_errors.GroupIdNotFoundError,
        kafka_errors.UnsupportedVersionError,
    ):
        return len(found.members)
    raise error(found.error_message)
