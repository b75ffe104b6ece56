"""A federation of guest, hosts and coordinator that hear one another, any of which may end at any point and
be taken up again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from quasi_newton.makers import problem

from streamfl.contract.role import Headers, Received, Record, Rejection, Send, StateChange, receive_at_once
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.members.guest import GuestTask
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.messages import Message
from streamfl.quasi_newton.roles import ROLES
from streamfl.quasi_newton.rows.batches import secret_start
from streamfl.quasi_newton.tools.direct import Party, Trace, train
from streamfl.roles.partitioned_role import PartitionedRole

BEGIN = 1000.0
MOST_STEPS = 20_000


@dataclass
class Place:
    """A member.

    state: what its changelog holds.
    unread: what its inputs hold, in the order of writing.
    heard: all batches and ticks.
    """

    name: str
    settings: QuasiNewtonSettings
    role: PartitionedRole[Any]
    inputs: dict[str, Any]
    outputs: dict[str, str]
    state: dict[bytes, bytes] = field(default_factory=dict)
    unread: deque[tuple[str, Record]] = field(default_factory=deque)
    rejections: list[Rejection] = field(default_factory=list)
    heard: list[tuple[float, list[Received]]] = field(default_factory=list)


class ClosedLoop:
    """One partition, in which time passes as nothing moves any more.

    settings: by member's name.
    copies: how often each record is delivered.
    writes: every record that was sent, committed or not, as (from, topic, value).
    committed: the others left out.
    predicted: of all predictions that were committed, key and headers.
    """

    def __init__(self, settings: dict[str, QuasiNewtonSettings], copies: int = 1) -> None:
        self.now = BEGIN
        self.copies = copies
        self.writes: list[tuple[str, str, bytes]] = []
        self.committed: list[tuple[str, str, bytes]] = []
        self.predicted: list[tuple[bytes | None, Headers]] = []
        self.members: dict[str, Place] = {}
        for name, own in settings.items():
            channels = ROLES[own.role.kind].channels(own)
            inputs = {one.topic: (channel, one.decode) for channel, one in channels.inputs.items()}
            role = ROLES[own.role.kind].build(own)
            assert isinstance(role, PartitionedRole)
            role.open(0)
            self.members[name] = Place(name, own, role, inputs, dict(channels.outputs))

    def write(self, topic: str, key: str | None, value: bytes, headers: Headers = ()) -> None:
        """A record that everybody gets who reads the topic."""
        record = Record(
            topic, 0, len(self.writes), None if key is None else key.encode(), value, headers, self.now
        )
        for member in self.members.values():
            if topic in member.inputs:
                member.unread.extend([(topic, record)] * self.copies)

    def write_table(
        self, rows: int, columns: int, hosts: int, missing: int = 0, first: int = 0, whole: int | None = None
    ) -> None:
        """Entities with columns at every party and labels at the guest. missing: at each party another so
        many are not there.

        first, whole: the first of these rows, and of how many in all they are: so a table comes in pieces.
        """
        inputs, labels = problem(whole or rows, columns * (hosts + 1), seed=3)
        for number, party in enumerate(["g", *(f"h{one + 1}" for one in range(hosts))]):
            for row in range(first, rows):
                if missing and row // missing == number:
                    continue
                own = inputs[row, number * columns : (number + 1) * columns]
                content = {f"x{column}": float(value) for column, value in enumerate(own)}
                self.write(f"{party}-samples", f"customer {row}", msgspec.json.encode(content))
        for row in range(first, rows):
            self.write("labels", f"customer {row}", msgspec.json.encode({"y": int(labels[row] > 0)}))

    def step(self, name: str, most: int = 1000, lost: bool = False) -> bool:
        """A member takes so many messages, or a tick. lost: it ends before that is committed. Returns whether
        anything came."""
        member = self.members[name]
        batch = [member.unread.popleft() for _ in range(min(most, len(member.unread)))]
        messages = [
            Received(member.inputs[topic][0], member.inputs[topic][1](record), record)
            for topic, record in batch
        ]
        wake_at = member.role.wake_at
        replies = receive_at_once(member.role, messages, self.now) if messages else []
        member.heard += [(self.now, messages)] if messages else []
        if wake_at is not None and wake_at <= self.now and not lost:
            replies += receive_at_once(member.role, [], self.now)
            member.heard.append((self.now, []))
        sends = [reply for reply in replies if isinstance(reply, Send)]
        self.writes += [(name, member.outputs[send.channel], send.value) for send in sends]
        if lost:
            member.unread.extendleft(reversed(batch))
            self.restart(name)
            return True
        member.rejections += [reply for reply in replies if isinstance(reply, Rejection)]
        self._commit_with(name, sends)
        return bool(messages or replies)

    def step_again(self, name: str) -> bool:
        """A member takes a message, or columns and labels all at once, ends before that is committed, and
        takes them again."""
        most = 1000 if self.members[name].unread[0][0].endswith(("samples", "labels")) else 1
        self.step(name, most, lost=True)
        return self.step(name, most)

    def lose_tick(self, name: str) -> None:
        """A member's time passes, and it ends before what came of it is committed."""
        member = self.members[name]
        sends = [reply for reply in receive_at_once(member.role, [], self.now) if isinstance(reply, Send)]
        self.writes += [(name, member.outputs[send.channel], send.value) for send in sends]
        self.restart(name)

    def _commit_with(self, name: str, sends: list[Send]) -> None:
        member = self.members[name]
        self.commit(name)
        for send in sends:
            topic = member.outputs[send.channel]
            self.committed.append((name, topic, send.value))
            self.predicted += [(send.key, send.headers)] if send.channel == "predictions" else []
            self.write(topic, None if send.key is None else send.key.decode(), send.value, send.headers)

    def commit(self, name: str) -> None:
        member = self.members[name]
        for change in member.role.changed_state():
            member.state.pop(change.key, None)
            if change.value is not None:
                assert len(change.value) < 1_000_000
                member.state[change.key] = change.value

    def restart(self, name: str) -> None:
        """Another process takes the member up, with its state."""
        member = self.members[name]
        role = ROLES[member.settings.role.kind].build(member.settings)
        assert isinstance(role, PartitionedRole)
        member.role = role
        role.open(0)
        for key, value in member.state.items():
            role.restore(StateChange("state", 0, key, value))
        sends = [reply for reply in receive_at_once(role, [], self.now) if isinstance(reply, Send)]
        self.writes += [(name, member.outputs[send.channel], send.value) for send in sends]
        self._commit_with(name, sends)

    def settle(self, most: int = 1000, refused: bool = False) -> None:
        """Go on until nothing moves, and nothing is waited for that comes soon. refused: whether members
        refuse what others say; otherwise nothing was."""
        for _ in range(MOST_STEPS):
            if sum(self.step(name, most) for name in self.members):
                self.now += 0.001
                continue
            times = [at for one in self.members.values() if (at := one.role.wake_at) is not None]
            if not times or min(times) > self.now + 100:
                assert refused or self.rejections() == []
                return
            self.now = max(self.now + 0.001, min(times))
        raise AssertionError("the federation does not come to rest")

    def until(
        self, reached: Callable[[], object], order: Sequence[str] = (), most: int = 1000, wait: float = 5.0
    ) -> None:
        """Members go on, in this order, until it is so."""
        for _ in range(MOST_STEPS):
            if reached():
                return
            if not sum(self.step(name, most) for name in order or self.members):
                self.now += wait
        raise AssertionError("it never comes so far")

    def figures(self, name: str) -> dict[str, float]:
        """What a board has of a member."""
        return {one.name: one.value for one in self.members[name].role.measure()}

    def party(self, name: str) -> PartyTask:
        task = self.members[name].role.task(0)
        assert isinstance(task, PartyTask)
        return task

    def rejections(self) -> list[str]:
        return [str(one.error) for member in self.members.values() for one in member.rejections]

    def direct(self, starts: dict[str, Any] | None = None) -> Trace:
        """The same training without roles. starts: first weights, if not drawn."""
        return without_roles([self.party(name) for name in self.members if name != "c"], starts)


def refused(member: Place, record: Record, wrong: Iterable[tuple[str, Message]], now: float) -> Iterator[str]:
    """Give a member wrong messages in a record's place: each has to be refused for its reason, or one of
    several between bars, counted, and to change nothing. The reasons that were given."""
    channel = member.inputs[record.topic][0]
    for reason, one in wrong:
        before = member.role.refused.total()
        received = Received(channel, one, msgspec.structs.replace(record, value=msgspec.msgpack.encode(one)))
        (found,) = receive_at_once(member.role, [received], now)
        assert isinstance(found, Rejection), (one.kind, reason, found)
        assert found.error.reason in reason.split("|"), (one.kind, reason, str(found.error))
        assert list(member.role.changed_state()) == [], (one.kind, reason)
        assert member.role.refused.total() == before + 1
        yield found.error.reason


def without_roles(parties: Sequence[PartyTask], starts: dict[str, Any] | None = None) -> Trace:
    """The arithmetic alone, of the rows that the parties have come to, the guest first."""
    guest, given = parties[0], []
    assert isinstance(guest, GuestTask)
    for party in parties:
        inputs, muted = party.rows.learnt()
        given.append(
            Party(inputs, start_of(party) if starts is None else starts[party.settings.own_party], muted)
        )
    size = guest.rows.batches.size
    batches = np.arange(len(guest.rows.batches)).reshape(-1, size)
    learning = replace(guest.settings.learning.descent, batch=size)
    return train(given, guest.rows.signs, learning, batches, numbers=guest.settings.kinds)


def start_of(party: PartyTask) -> Any:
    """First weights, as the party drew them."""
    settings, columns = party.settings, len(party.iterates.model if party.iterates.model is not None else ())
    context = msgspec.msgpack.encode((settings.federation.name, party.progress.run, settings.own_party))
    return secret_start(party.given.secret, context, columns)
