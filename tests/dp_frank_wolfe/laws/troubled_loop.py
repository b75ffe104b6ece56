"""A federation whose members are killed at commits, polled in any order, and taken up again from what is left
of their state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from dp_frank_wolfe.proof.ledgers import made_up_ledger, made_up_secret

from streamfl.contract.role import Received, Record, Rejection, Send, StateChange, receive_at_once
from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.roles.partitioned_role import PartitionedRole

__all__ = ["S", "TroubledLoop", "settings_of"]

BEGIN = 1_000.0
MOST_STEPS = 5_000
S = "s"


def settings_of(
    folder: Path, member: str, parties: int = 2, columns: int = 3, **sections: dict[str, Any]
) -> DPFrankWolfeSettings:
    """Of "p1", "p2" … or the server "s". Each party's secret and ledger are made in the folder when they are
    asked for first."""
    names = [f"p{number + 1}" for number in range(parties)]
    content: dict[str, Any] = {
        "federation": {"name": "f", "seed": 5, "parties": names, "columns": dict.fromkeys(names, columns)},
        "role": {"kind": SERVER if member == S else PARTY},
        "window": {"rows": 20, "limit": 200, "patience_seconds": 1e6},
        "bounds": {"bound": 2.0, "label_bound": 2.0},
        "privacy": {"epsilon": 4.0, "delta": 1e-4},
        "learning": {"estimator": "frank-wolfe", "columns": 4, "iterations": 4, "sketch_rows": 6},
    }
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    if member != S:
        privacy = content["privacy"]
        ledger = privacy.get("ledger", f"patients-{member}")
        privacy |= {
            "ledger": ledger,
            "ledger_file": str(folder / ledger),
            "secret_file": str(folder / f"{member}.secret"),
        }
        made_up_secret(Path(privacy["secret_file"]), hashlib.sha256(member.encode()).digest())
        if not Path(privacy["ledger_file"]).exists():
            made_up_ledger(Path(privacy["ledger_file"]), ledger, member)
        content["party"] = {"name": member}
        content["samples"] = {
            "topic": f"{member}-samples",
            "features": [f"x{column}" for column in range(columns)],
        }
        content["labels"] = {"topic": "labels", "label": "y"}
    return DPFrankWolfeSettings.model_validate(content)


@dataclass
class Place:
    """A member.

    changes: all that it remembered, commit by commit. unread: what its inputs hold, by topic. heard: all
    batches and ticks."""

    name: str
    settings: DPFrankWolfeSettings
    role: PartitionedRole[Any]
    inputs: dict[str, Any]
    outputs: dict[str, str]
    changes: list[list[StateChange]] = field(default_factory=list)
    unread: dict[str, list[Record]] = field(default_factory=dict)
    rejections: list[Rejection] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def state(self, commits: int | None = None) -> dict[tuple[str, bytes], bytes]:
        """By channel and key, what its changelogs held after so many commits."""
        latest: dict[tuple[str, bytes], bytes] = {}
        for change in (one for commit in self.changes[:commits] for one in commit):
            latest.pop((change.channel, change.key), None)
            if change.value is not None:
                latest[change.channel, change.key] = change.value
        return latest


class TroubledLoop:
    """One partition. random: in which order topics are polled. committed: (time, from, topic, key, value) of
    each record."""

    def __init__(self, settings: Mapping[str, DPFrankWolfeSettings], seed: int = 0) -> None:
        self.now = BEGIN
        self.random = np.random.default_rng(seed)
        self.committed: list[tuple[float, str, str, bytes | None, bytes]] = []
        self.members: dict[str, Place] = {}
        for name, own in settings.items():
            channels = ROLES[own.role.kind].channels(own)
            inputs = {one.topic: (channel, one.decode) for channel, one in channels.inputs.items()}
            role = build(own)
            self.members[name] = Place(
                name, own, role, inputs, dict(channels.outputs), unread={topic: [] for topic in inputs}
            )

    def write(self, topic: str, key: bytes | None, value: bytes) -> None:
        """A record that everybody gets who reads the topic."""
        record = Record(topic, 0, len(self.committed), key, value, (), self.now)
        for member in self.members.values():
            if topic in member.unread:
                member.unread[topic].append(record)

    def write_row(self, name: str, row: int, columns: int = 3, sign: float = 1.0) -> None:
        """What all parties see of an entity, and its label; the same for the same row."""
        draws = np.random.default_rng(row)
        for party in (one for one in self.members if one != S):
            own = {
                f"x{column}": sign * float(value)
                for column, value in enumerate(draws.uniform(-1, 1, columns))
            }
            self.write(f"{party}-samples", name.encode(), msgspec.json.encode(own))
        self.write("labels", name.encode(), msgspec.json.encode({"y": sign * float(draws.uniform(-1, 1))}))

    def poll(self, name: str, most: int) -> list[Record]:
        """The next records: some of each topic, topics in any order; they stay unread."""
        member = self.members[name]
        found: list[Record] = []
        for topic in self.random.permutation(sorted(member.unread)):
            found += member.unread[str(topic)][: int(self.random.integers(0, most + 1))]
        return found

    def work(self, name: str, records: list[Record]) -> list[Send]:
        """A member takes these, and a tick if one is due. Nothing of it is committed."""
        member = self.members[name]
        messages = [
            Received(member.inputs[one.topic][0], member.inputs[one.topic][1](one), one) for one in records
        ]
        replies = receive_at_once(member.role, messages, self.now) if messages else []
        wake_at = member.role.wake_at
        if wake_at is not None and wake_at <= self.now:
            replies += receive_at_once(member.role, [], self.now)
        if member.role.trouble is not None:
            member.troubles.append(member.role.trouble)
        member.rejections += [reply for reply in replies if isinstance(reply, Rejection)]
        return [reply for reply in replies if isinstance(reply, Send)]

    def commit(self, name: str, records: list[Record], sends: list[Send]) -> None:
        member = self.members[name]
        member.changes.append(list(member.role.changed_state()))
        for record in records:
            member.unread[record.topic].remove(record)
        for send in sends:
            topic = member.outputs[send.channel]
            self.committed.append((self.now, name, topic, send.key, send.value))
            self.write(topic, send.key, send.value)

    def step(self, name: str, most: int = 50, lost: int = 0) -> bool:
        """One commit of a member. lost: so often the work is done in vain before that, each time on another
        poll."""
        for _ in range(lost):
            rejections = len(self.members[name].rejections)
            self.work(name, self.poll(name, most))
            del self.members[name].rejections[rejections:]
            self.restart(name)
        records = self.poll(name, most)
        sends = self.work(name, records)
        self.commit(name, records, sends)
        return bool(records or sends)

    def restart(
        self, name: str, commits: int | None = None, settings: DPFrankWolfeSettings | None = None
    ) -> None:
        """Another process takes the member up, with its state after so many commits; None: all of them."""
        member = self.members[name]
        member.role = build(settings or member.settings)
        for (channel, key), value in member.state(commits).items():
            member.role.restore(StateChange(channel, 0, key, value))

    def settle(self, most: int = 50, lost: int = 0) -> None:
        """Go on until nothing moves, and nothing is waited for that comes soon."""
        for _ in range(MOST_STEPS):
            moved = sum([self.step(name, most, lost) for name in self.members])
            self.now += 0.001
            if moved or any(own for member in self.members.values() for own in member.unread.values()):
                continue
            times = [at for one in self.members.values() if (at := one.role.wake_at) is not None]
            if not times or min(times) > self.now + 100:
                return
            self.now = max(self.now, min(times))
        raise AssertionError(f"no end after {MOST_STEPS} steps")

    def records(self, topic: str) -> Iterator[Record]:
        """What was committed to a topic."""
        for number, (at, _, where, key, value) in enumerate(self.committed):
            if where == topic:
                yield Record(topic, 0, number, key, value, (), at)

    read = records


def build(settings: DPFrankWolfeSettings) -> PartitionedRole[Any]:
    role = ROLES[settings.role.kind].build(settings)
    assert isinstance(role, PartitionedRole)
    role.open(0)
    return role
