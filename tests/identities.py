"""Members with keys, in a test's own folder, and a federation of them on the memory bus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from streamfl.configuration.settings import RoleSettings
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
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

__all__ = ["Keys", "SignedFederation", "again", "figure", "kind_of"]


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


def kind_of(record: Record) -> str:
    """The kind of a message between members of a partitioned role."""
    return str(msgspec.msgpack.decode(record.value or b"")[5])


class SignedFederation:
    """Members of the federation "f" with keys, on a memory bus whose topics have one partition.

    members: the role of each.
    speaks_for_nobody: the member that leads.
    settings: of a member, with these sections in them.
    keys: False: nobody signs.
    """

    def __init__(
        self,
        folder: Path,
        members: Mapping[str, str],
        speaks_for_nobody: str,
        settings: Callable[[str, dict[str, dict[str, Any]]], RoleSettings],
        keys: bool = True,
    ) -> None:
        self.keys = Keys(folder, "f")
        for member, kind in members.items():
            self.keys.add(member, kind, speaks_for=() if member == speaks_for_nobody else (member,))
        self.now = 1_700_000_000.0
        self.bus = MemoryBus(clock=lambda: self.now)
        self.dead_letters: dict[str, str] = {}
        self.workers: dict[str, Worker] = {}
        for member in members:
            sections = self.keys.sections(member) if keys else {}
            self._start(member, settings(member, {**sections, "bus": {"commit_interval_ms": 0}}))

    def _start(self, member: str, settings: RoleSettings) -> None:
        self.dead_letters[member] = settings.dead_letters
        specs = find_kind(settings.role.kind).topics(settings)
        known = self.bus.describe([spec.name for spec in specs])
        self.bus.create(
            [type(spec)(spec.name, 1, spec.compacted) for spec in specs if spec.name not in known]
        )
        self.workers[member] = build_worker(
            settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None
        )

    def settle(self, *without: str, rounds: int = 80) -> None:
        """Steps of all members but these."""
        for _ in range(rounds):
            self.now += 0.25
            for name, worker in self.workers.items():
                if name not in without:
                    worker.step(0.0)

    def said(self, topic: str) -> list[Record]:
        return list(self.bus.read(f"f.{topic}"))

    def refused(self, member: str) -> Counter[str]:
        """What a member refused, by reason."""
        return Counter(
            dict(letter.headers)["error"].decode() for letter in self.bus.read(self.dead_letters[member])
        )

    def check_all_signed(self, *topics: str) -> None:
        """Whatever lies in these topics is signed, and nobody has refused anything."""
        for topic in topics:
            found = self.said(topic)
            assert found
            assert all("seal" in dict(record.headers) for record in found), topic
        assert [self.refused(name) for name in self.workers] == [Counter()] * len(self.workers)

    def check_strangers_are_refused(self, topic: str, hears: str, kind: str, elsewhere: str) -> None:
        """Run until such a message is on its way, write it changed, unsigned and signed for another place,
        and run to the end.

        hears: the member that it is for.
        elsewhere: the topic that the third is from.
        """
        for _ in range(400):
            self.settle(hears, rounds=1)
            if any(kind_of(record) == kind for record in self.said(topic)):
                break
            self.workers[hears].step(0.0)
        genuine = next(record for record in reversed(self.said(topic)) if kind_of(record) == kind)
        value = genuine.value or b""
        changed = value[:-1] + bytes([value[-1] ^ 1])
        self.settle(hears, rounds=1)
        self.bus.write(
            [
                again(msgspec.structs.replace(genuine, value=changed)),
                Outgoing(genuine.topic, None, changed, genuine.partition),
                again(self.said(elsewhere)[0], topic=genuine.topic),
            ]
        )
        self.settle()
        refused = self.refused(hears)
        assert refused["unsigned"] == 1
        assert sum(refused.values()) == 3
        assert set(refused) <= {"unsigned", "forged", "not_a_member", "not_its_client"}
