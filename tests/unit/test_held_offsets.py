"""The partition with a group's offsets, and the message of a worker that may not read it."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import KafkaConnectionError
from streamfl_connectors.kafka.hanging import HeldOffsets, offsets_partition

from streamfl.runtime.bus import BusUnavailable


# Results of Java's String.hashCode: 97, 99162322, -2147483648 (which has no positive counterpart), and
# 1772899 for two surrogates.
@pytest.mark.parametrize(
    ("group", "partition"),
    [
        ("a", 97 % 50),
        ("hello", 99162322 % 50),
        ("polygenelubricants", 0),
        ("\U0001f600", 1772899 % 50),
        ("", 0),
    ],
)
def test_a_group_is_looked_for_where_the_broker_puts_it(group: str, partition: int) -> None:
    """Protects a group from being blamed for another's transactions: the partition is the one of Java's
    hash."""
    assert offsets_partition(group, 50) == partition


class Admin:
    def __init__(self, error_code: int = 0, failure: Exception | None = None) -> None:
        self._error_code, self._failure = error_code, failure

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        if self._failure is not None:
            raise self._failure
        return [{"error_code": self._error_code, "partitions": []}]

    def close(self) -> None:
        pass


class Cluster:
    def __init__(self, admin: Admin | None) -> None:
        self._admin = admin

    def make(self, client: Any, defaults: Any, **settings: Any) -> Admin:
        if self._admin is None:
            raise BusUnavailable("away")
        return self._admin


def test_a_worker_without_the_right_to_look_names_it() -> None:
    """Protects the operator of a cluster with ACLs: the text names the missing right."""
    denied: Any = Cluster(Admin(error_code=29))
    assert "An ACL that allows Read on topic '__consumer_offsets'" in HeldOffsets(denied, "g").release()


@pytest.mark.parametrize("admin", [None, Admin(failure=KafkaConnectionError("away"))], ids=["away", "going"])
def test_an_outage_stays_what_it_is(admin: Admin | None) -> None:
    """Protects the cause in the log: during an outage the text does not mention transactions, and no later
    error hides the first."""
    away: Any = Cluster(admin)
    assert HeldOffsets(away, "g").release() == ""
