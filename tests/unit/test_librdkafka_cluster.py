"""How long a group waits for a missing member, with librdkafka."""

from __future__ import annotations

from typing import Any

import pytest
from streamfl_connectors.librdkafka.cluster import LibrdkafkaCluster


@pytest.mark.parametrize(
    ("options", "milliseconds"),
    [({}, 60_000), ({"session.timeout.ms": 30_000}, 60_000), ({"session.timeout.ms": 90_000}, 90_000)],
)
def test_a_group_waits_a_minute_for_a_member_that_is_gone(options: dict[str, Any], milliseconds: int) -> None:
    """Protects a federation whose cluster was killed: with a missing member the group used to stop for five
    minutes.

    The library refuses a wait that is shorter than the session timeout.
    """
    assert LibrdkafkaCluster(["h:1"], options).longest_rebalance == milliseconds
