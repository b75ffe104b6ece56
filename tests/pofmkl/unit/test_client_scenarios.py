"""Scenarios that follow from a system's members, where a member's inputs have a number of partitions of their
own."""

from __future__ import annotations

from typing import Any

from streamfl.pofmkl.tools.members import MEMBERS
from streamfl.testing.faults.clients import client_scenarios


def test_every_partition_of_each_member_has_to_have_an_owner() -> None:
    """Protects authors of a system with a server: its one partition is not counted as often as those of the
    samples. Otherwise every such scenario waits for owners of partitions that do not exist."""
    make, _ = client_scenarios(MEMBERS)
    chosen = [make(seed) for seed in range(12)]
    assert {one.partitions for one in chosen} == {1, 2, 3}
    for one in chosen:
        settings: Any = one.settings
        assert one.tasks == one.partitions + settings.federation.shards
