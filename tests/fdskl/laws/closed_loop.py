"""A whole federation of roles that hear one another, any of which may end at any point and be taken up again
by another."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import msgspec
from fdskl.makers import lives, make_worker

from streamfl.contract.channels import Decode
from streamfl.contract.role import Received, Record, Rejection, Send, StateChange
from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.messages import TURN, Prediction, Turn
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.roles import ROLES
from streamfl.records.labels import Label
from streamfl.records.samples import Sample

BEGIN = 1000.0
MOST_STEPS = 4000


@dataclass
class Member:
    """A party. state: what its changelog holds. unread: what its inputs hold. masks: keys of all masks that
    it ever made."""

    settings: FdsklSettings
    number: int
    role: FdsklParty
    decode: dict[str, Decode]
    state: dict[bytes, bytes] = field(default_factory=dict)
    unread: deque[tuple[str, Record | Received]] = field(default_factory=deque)
    masks: Counter[bytes] = field(default_factory=Counter)
    lives: int = 1


class ClosedLoop:
    """One partition, in which time passes as nothing moves any more.

    settings: by party.
    """

    def __init__(self, settings: list[FdsklSettings]) -> None:
        self.now = BEGIN
        self.members: list[Member] = []
        self.predictions: list[Prediction] = []
        self.turn: Member | None = None
        # Of several active parties, who asked for a turn and who has learnt, in the log's order.
        self.log: list[Turn] = []
        for number, own in enumerate(settings):
            inputs = ROLES[WORKER].channels(own).inputs
            role = make_worker(own)
            role.open(0)
            self.members.append(Member(own, number, role, {name: one.decode for name, one in inputs.items()}))

    @property
    def active(self) -> FdsklParty:
        return self.members[0].role

    def write_sample(self, entity: str, number: float) -> None:
        """Every party gets columns of an entity."""
        for member in self.members:
            sample = Sample(entity, "s", (number + member.number, number * number), None)
            record = Record("samples", 0, 0, entity.encode(), b"", (), self.now)
            member.unread.append(("samples", Received("samples", sample, record)))

    def write_label(self, entity: str, label: float, to: int = 0) -> None:
        record = Record("labels", 0, 0, entity.encode(), b"", (), self.now)
        self.members[to].unread.append(("labels", Received("labels", Label(entity, entity, label), record)))

    def step(self, number: int, most: int, lost: bool = False) -> bool:
        """A party takes so many messages, or a tick. lost: it ends before that is committed. Returns whether
        anything came."""
        member = self.members[number]
        batch = [member.unread.popleft() for _ in range(min(most, len(member.unread)))]
        messages = [
            one if isinstance(one, Received) else Received(channel, member.decode[channel](one), one)
            for channel, one in batch
        ]
        self.turn = member
        wake_at = member.role.wake_at
        replies = list(member.role.receive(messages, self.now)) if messages else []
        if not lost and wake_at is not None and wake_at <= self.now:
            replies += member.role.receive([], self.now)
        if lost:
            member.unread.extendleft(reversed(batch))
            self.restart(number)
            return True
        for change in member.role.changed_state():
            member.state.pop(change.key, None)
            if change.value is not None:
                member.state[change.key] = change.value
        for reply in replies:
            assert not isinstance(reply, Rejection), reply
            assert isinstance(reply, Send)
            self._deliver(reply)
        return bool(messages or replies)

    def restart(self, number: int) -> None:
        """Another process takes the party up: with its state, and with another life."""
        member = self.members[number]
        member.role = make_worker(member.settings, lives(number, member.lives))
        member.lives += 1
        member.role.open(0)
        for key, value in member.state.items():
            member.role.restore(StateChange("state", 0, key, value))
        self.turn = member
        for reply in member.role.receive([], self.now):
            assert isinstance(reply, Send)
            self._deliver(reply)
        for change in member.role.changed_state():
            member.state.pop(change.key, None)
            if change.value is not None:
                member.state[change.key] = change.value

    def settle(self) -> None:
        """Go on until nothing moves, and nothing is waited for."""
        for _ in range(MOST_STEPS):
            if sum(self.step(number, 1000) for number in range(len(self.members))):
                self.now += 0.001
                continue
            wake_at = min((at for one in self.members if (at := one.role.wake_at) is not None), default=None)
            if wake_at is None or not any(one.role.waiting for one in self.members):
                return
            self.now = max(self.now + 0.001, wake_at)
        raise AssertionError("the federation does not come to rest")

    def _deliver(self, send: Send) -> None:
        if send.channel == "predictions":
            self.predictions.append(msgspec.json.decode(send.value, type=Prediction))
            return
        if send.channel == "turns":
            self.log.append(TURN.decode(send.value))
            for member in self.members:
                if "turns" in member.decode:
                    member.unread.append(("turns", Record("turns", 0, 0, send.key, send.value, (), self.now)))
            return
        kind, _, name = send.channel.partition("/")
        to = next(one for one in self.members if one.settings.own_party == name)
        to.unread.append((kind, Record(kind, 0, 0, send.key, send.value, (), self.now)))
