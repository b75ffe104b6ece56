"""Counts the members of a consumer group, with either protocol."""

from __future__ import annotations

from typing import Any

from kafka import errors as kafka_errors
from kafka.protocol.api_message import ApiMessage

from streamfl_connectors.kafka import schemas

__all__ = ["members"]


class ConsumerGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """The request to describe a group of KIP-848. kafka-python does not have it."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[misc,call-arg]
    """The response; the library finds this class by its number."""


def members(admin: Any, group: str) -> int:
    """The number of members at present. A group that the cluster does not know has none."""
    found = admin.describe_groups([group])[group]
    # A group with the protocol of KIP-848 is reported as Dead, too.
    if found["group_state"] == "Dead" and not found["members"]:
        return int(admin._manager.run(_members_of_the_new_protocol, admin, group))
    if found["error"]:
        # The library takes a refusal for a group without members. Its text holds the error's number.
        raise kafka_errors.KafkaError(found["error"])
    return len(found["members"])


async def _members_of_the_new_protocol(admin: Any, group: str) -> int:
    coordinator = await admin._find_coordinator_id(group)
    request = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
    try:
        answer = await admin._manager.send(request, node_id=coordinator)
    except kafka_errors.IncompatibleBrokerVersion:
        return 0
    (found,) = answer.groups
    error = kafka_errors.for_code(found.error_code)
    if error in (kafka_errors.NoError, kafka_errors.GroupIdNotFoundError):
        return len(found.members)
    raise error(found.error_message)
