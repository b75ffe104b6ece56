"""A role that receives messages without a worker."""

from __future__ import annotations

from dataclasses import dataclass

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import Channels, Received, Record, Role
from streamfl.runtime.kinds import find_kind
from streamfl.testing.fuzz.mutations import FuzzedRecord

__all__ = ["NOW", "PARTITIONS", "FuzzedMember"]

PARTITIONS = (0, 1)
NOW = 1_700_000_000.0


@dataclass
class FuzzedMember:
    """A role with open partitions, and the topics of its channels."""

    role: Role
    channels: Channels

    @classmethod
    def of(cls, settings: RoleSettings) -> FuzzedMember:
        kind = find_kind(settings.role.kind)
        role = kind.build(settings)
        for partition in PARTITIONS:
            role.open(partition)
        return cls(role, kind.channels(settings))

    def decode(self, message: FuzzedRecord, offset: int = 0, timestamp: float = NOW) -> Received:
        """Raises PeerError if the message cannot be decoded."""
        source = self.channels.inputs.get(message.channel) or self.channels.tables[message.channel]
        record = Record(source.topic, message.partition, offset, message.key, message.value, (), timestamp)
        return Received(message.channel, source.decode(record), record)
