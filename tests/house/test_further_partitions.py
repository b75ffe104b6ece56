"""Partitions that somebody adds to a topic between members: Kafka removes none, so every role goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from house.channel_table import roles_of_the_code

from streamfl.cli.preflight import Configured, wrong_topics
from streamfl.contract.channel_table import ChannelTable
from streamfl.contract.channels import Channels, TopicSpec
from streamfl.contract.role import ConfigurationError
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import subscription_of
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.outputs import Outputs
from streamfl.testing.faults.systems import fault_simulations

ROLES = list(roles_of_the_code())
IDS = [f"{kind.name}-{number}" for number, (_, kind, _) in enumerate(ROLES)]
USED = 2


def plant(kind: RoleKind[Any], settings: Any, further: int, grown: set[str]) -> MemoryBus:
    """The role's topics, some of them with further partitions."""
    bus = MemoryBus()
    for spec in kind.topics(settings):
        number = (spec.partitions or USED) + (further if spec.name in grown else 0)
        bus.create([TopicSpec(spec.name, number, spec.compacted, {**spec.preferred, **spec.options})])
    return bus


@pytest.mark.parametrize(("system", "kind", "settings"), ROLES, ids=IDS)
def test_a_topic_between_members_may_grow(system: str, kind: RoleKind[Any], settings: Any) -> None:
    """Protects a federation from one command that cannot be undone: no member began again, and only another
    federation.name helped. A topic with fewer partitions, or a grown one of a user, is still told."""
    configured, placed = Configured(Path("a.toml"), kind, settings), kind.placed(settings)
    grown = plant(kind, settings, 3, placed)
    assert wrong_topics(configured, grown) == []
    channels = kind.channels(settings)
    subscription = subscription_of(settings, channels)
    session = grown.session(subscription)
    assert session.poll(0, 1).assigned == [*range(channels.partitions or USED)]
    session.close()
    several = {spec.name for spec in kind.topics(settings) if spec.partitions != 1}
    for topic in sorted(placed & several):
        assert any(topic in text for text in wrong_topics(configured, plant(kind, settings, -1, {topic})))
    users = {spec.name for spec in kind.topics(settings) if spec.users}
    for topic in sorted(users.intersection(subscription.inputs)):
        other = plant(kind, settings, 1, {topic})
        if len(users) > 1 or placed:
            assert wrong_topics(configured, other) != []
        if len(users.intersection(subscription.inputs)) > 1:
            with pytest.raises(ConfigurationError, match="same number of partitions"):
                other.session(subscription)


def test_every_federation_has_topics_that_may_grow() -> None:
    """Protects the test above from looking at nothing."""
    found = {system for system, kind, settings in ROLES if kind.placed(settings)}
    assert found == {"pofmkl", "vafl", "fdskl", "quasi-newton", "dp-frank-wolfe"}


@pytest.mark.parametrize("system", fault_simulations())
def test_whoever_writes_to_such_a_topic_names_the_partition(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects messages: one without a partition may come to a further partition, which nobody reads."""
    placed: set[str] = set()
    without: set[str] = set()
    written: set[str] = set()
    channels_of, records_of = ChannelTable.channels.fget, Outputs.records
    assert channels_of is not None

    def channels(table: ChannelTable) -> Channels:
        placed.update(table.placed)
        return channels_of(table)

    def records(outputs: Outputs, sends: Any) -> list[Outgoing]:
        found = records_of(outputs, sends)
        written.update(one.topic for one in found)
        without.update(one.topic for one in found if one.partition is None)
        return found

    monkeypatch.setattr(ChannelTable, "channels", property(channels))
    monkeypatch.setattr(Outputs, "records", records)
    assert fault_simulations()[system].simulate(300, "memory").failure is None
    assert placed & without == set()
    assert (placed & written != set()) is (system != "rekey")
