"""A role that receives messages without a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.channels import Channels
from streamfl.contract.role import Received, Record, Role
from streamfl.runtime.kinds import find_kind
from streamfl.testing.fuzz.mutations import FuzzedRecord

__all__ = ["NOW", "PARTITIONS", "FuzzedMember", "build_role"]

PARTITIONS = (0, 1)
NOW = 1_700_000_000.0


def build_role(settings: RoleSettings) -> Role:
    """The role that these settings describe, with no partition open."""
    return find_kind(settings.role.kind).build(settings)


@dataclass
class FuzzedMember:
    """A role with open partitions, and the topics of its channels."""

    settings: RoleSettings
    role: Role
    channels: Channels

    @classmethod
    def of(cls, settings: RoleSettings, build: Callable[[RoleSettings], Role] = build_role) -> FuzzedMember:
        member = cls(settings, build(settings), find_kind(settings.role.kind).channels(settings))
        for partition in PARTITIONS:
            member.role.open(partition)
        return member

    def begin_anew(self, partition: int) -> None:
        """Open a partition again, without state."""
        self.role.close(partition)
        self.role.open(partition)

    def decode(self, message: FuzzedRecord, offset: int = 0, timestamp: float = NOW) -> Received:
        """Raises BadRecord if the message cannot be decoded."""
        source = self.channels.inputs.get(message.channel) or self.channels.tables[message.channel]
        record = Record(source.topic, message.partition, offset, message.key, message.value, (), timestamp)
        return Received(message.channel, source.decode(record), record)
