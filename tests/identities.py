"""Members with keys, in a test's own folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamfl.contract.role import Record
from streamfl.identity import (
    Identity,
    Member,
    Members,
    PrivateKey,
    make_key_file,
    read_key_file,
    read_members,
    write_members,
)
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.worker import Worker

__all__ = ["Keys", "again", "figure"]


@dataclass
class Keys:
    """The members' file of a federation, and the key file of every member."""

    folder: Path
    federation: str
    members: Members = field(init=False)

    def __post_init__(self) -> None:
        self.members = Members(self.federation)

    @property
    def file(self) -> Path:
        return self.folder / "members.toml"

    def key_file(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def add(self, name: str, *roles: str, speaks_for: tuple[str, ...] = ()) -> PrivateKey:
        """A new member with a new key."""
        key = make_key_file(self.key_file(name))
        self.change(Member(name, roles, (key.public.text,), speaks_for))
        return key

    def change(self, member: Member) -> None:
        self.members = self.members.replaced(member)
        write_members(self.file, self.members)

    def member(self, name: str) -> Member:
        found = self.members.named(name)
        assert found is not None
        return found

    def identity(self, name: str, kind: str) -> Identity:
        return Identity(read_key_file(self.key_file(name)), read_members(self.file), kind)

    def sections(self, name: str) -> dict[str, dict[str, Any]]:
        """The settings sections about a member's key and the other members."""
        return {"identity": {"key_file": str(self.key_file(name))}, "federation": {"members": str(self.file)}}


def figure(worker: Worker, name: str) -> float:
    """The value of a role's metric of this name, summed over labels."""
    return sum(one.value for one in worker.role.measure() if one.name == name)


def again(record: Record, topic: str | None = None, partition: int | None = None) -> Outgoing:
    """A copy of the record, in another topic and partition if given."""
    return Outgoing(
        topic or record.topic,
        record.key,
        record.value,
        record.partition if partition is None else partition,
        record.headers,
    )
