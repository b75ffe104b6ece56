"""A federation of parties and server that hear one another, any of which may end at any point and be taken up
again."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from dp_frank_wolfe.federations import COLUMNS, ROWS, SERVER_MEMBER, parties_of, settings_of
from dp_frank_wolfe.problems import divided
from dp_frank_wolfe.proof.equal_shares import marginal, two_round
from dp_frank_wolfe.proof.observed_messages import names_by_window

from streamfl.contract.role import Headers, Received, Record, Rejection, Send, StateChange, receive_at_once
from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.role import PartyTask
from streamfl.dp_frank_wolfe.party.window import Window
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.dp_frank_wolfe.server.role import ServerTask
from streamfl.dp_frank_wolfe.tools import direct
from streamfl.dp_frank_wolfe.tools.centring import Centred, centre_for
from streamfl.dp_frank_wolfe.tools.estimators import Estimate
from streamfl.roles.partitioned_role import PartitionedRole

BEGIN = 1000.0
MOST_STEPS = 20_000
DELTA = 1e-3


@dataclass
class Seat:
    """A member.

    state: what its changelogs hold.
    unread: what its inputs hold, in the order of writing.
    """

    name: str
    settings: DPFrankWolfeSettings
    role: PartitionedRole[Any]
    inputs: dict[str, Any]
    outputs: dict[str, str]
    state: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    unread: deque[tuple[str, Record]] = field(default_factory=deque)
    rejections: list[Rejection] = field(default_factory=list)


class ClosedLoop:
    """One partition, in which time passes as nothing moves any more.

    settings: by member's name.
    copies: how often each record is delivered.
    away: members that take no turns.
    writes: every record that was sent, committed or not, as (from, topic, key, value).
    committed: the others left out.
    predicted: of all predictions that were committed, key and headers.
    """

    def __init__(self, settings: dict[str, DPFrankWolfeSettings], copies: int = 1) -> None:
        self.now = BEGIN
        self.copies = copies
        self.away: Collection[str] = ()
        self.writes: list[tuple[str, str, str | None, bytes]] = []
        self.committed: list[tuple[str, str, str | None, bytes]] = []
        self.predicted: list[tuple[bytes | None, Headers]] = []
        self.members: dict[str, Seat] = {}
        self.rows: dict[str, tuple[Any, float]] = {}
        for name, own in settings.items():
            kind = ROLES[own.role.kind]
            channels = kind.channels(own)
            inputs = {one.topic: (channel, one.decode) for channel, one in channels.inputs.items()}
            role = kind.build(own)
            assert isinstance(role, PartitionedRole)
            role.open(0)
            self.members[name] = Seat(name, own, role, inputs, dict(channels.outputs))
        self.public = Public(self.members[SERVER_MEMBER].settings)

    @property
    def parties(self) -> list[str]:
        return self.public.parties

    @property
    def server(self) -> ServerTask:
        task = self.members[SERVER_MEMBER].role.task(0)
        assert isinstance(task, ServerTask)
        return task

    def party(self, name: str) -> PartyTask:
        task = self.members[name].role.task(0)
        assert isinstance(task, PartyTask)
        return task

    # ---- what users write

    def write(self, topic: str, key: str | None, value: bytes, headers: Headers = ()) -> None:
        """A record that everybody gets who reads the topic."""
        record = Record(
            topic, 0, len(self.writes), None if key is None else key.encode(), value, headers, self.now
        )
        for member in self.members.values():
            if topic in member.inputs:
                member.unread.extend([(topic, record)] * self.copies)

    def write_rows(self, names: Sequence[str], seed: int = 0) -> None:
        """Entities with columns at every party, and labels."""
        random = np.random.default_rng(seed)
        features = random.uniform(-1, 1, (len(names), COLUMNS * len(self.parties)))
        labels = np.clip(
            features[:, 1] * 0.6 - features[:, -2] * 0.3 + 0.1 * random.normal(size=len(names)), -1, 1
        )
        for name, row, label in zip(names, features, labels.tolist(), strict=True):
            self.rows[name] = row, label
            self.write_columns(name, row)
            self.write("labels", name, msgspec.json.encode({"y": label}))

    def write_columns(self, name: str, row: Any) -> None:
        """An entity's columns at every party."""
        for number, party in enumerate(self.parties):
            own = row[number * COLUMNS : (number + 1) * COLUMNS].tolist()
            content = {f"x{column}": value for column, value in enumerate(own)}
            self.write(f"{party}-samples", name, msgspec.json.encode(content))

    # ---- turns

    def step(self, name: str, most: int = 1000, lost: bool = False) -> bool:
        """A member takes so many messages, or a tick. lost: it ends before that is committed. Returns whether
        anything came."""
        member = self.members[name]
        batch = [member.unread.popleft() for _ in range(min(most, len(member.unread)))]
        messages = [
            Received(member.inputs[topic][0], member.inputs[topic][1](record), record)
            for topic, record in batch
        ]
        replies = receive_at_once(member.role, messages, self.now) if messages else []
        wake_at = member.role.wake_at
        ticks = wake_at is not None and wake_at <= self.now
        if ticks:
            replies += receive_at_once(member.role, [], self.now)
        sends = self._note(member, replies)
        if lost:
            member.unread.extendleft(reversed(batch))
            self.restart(name)
            return True
        member.rejections += [reply for reply in replies if isinstance(reply, Rejection)]
        self._commit_with(member, sends)
        return bool(messages or replies)

    def restart(self, name: str) -> None:
        """Another process takes the member up, with its state."""
        member = self.members[name]
        role = ROLES[member.settings.role.kind].build(member.settings)
        assert isinstance(role, PartitionedRole)
        member.role = role
        role.open(0)
        for channel in sorted({place for place, _ in member.state}):
            for (place, key), value in member.state.items():
                if place == channel:
                    role.restore(StateChange(channel, 0, key, value))
        self._commit_with(member, self._note(member, receive_at_once(role, [], self.now)))

    def turn(self, most: int = 1000) -> bool:
        """Everybody who is there takes one step. Returns whether anything moved."""
        moved = [self.step(name, most) for name in self.members if name not in self.away]
        self.now += 0.001
        return any(moved)

    def settle(self, most: int = 1000) -> None:
        """Go on until nothing moves, and nothing is waited for that comes soon."""
        for _ in range(MOST_STEPS):
            if self.turn(most):
                continue
            times = [
                at
                for name, one in self.members.items()
                if name not in self.away and (at := one.role.wake_at) is not None
            ]
            if not times or min(times) > self.now + 1000:
                return
            self.now = max(self.now, min(times))
        raise AssertionError("the federation does not come to rest")

    def _note(self, member: Seat, replies: list[Send | Rejection]) -> list[Send]:
        sends = [reply for reply in replies if isinstance(reply, Send)]
        self.writes += [
            (member.name, member.outputs[one.channel], _text(one.key), one.value) for one in sends
        ]
        return sends

    def _commit_with(self, member: Seat, sends: list[Send]) -> None:
        for change in member.role.changed_state():
            member.state.pop((change.channel, change.key), None)
            if change.value is not None:
                assert len(change.value) < 1_000_000
                member.state[change.channel, change.key] = change.value
        for send in sends:
            topic = member.outputs[send.channel]
            self.committed.append((member.name, topic, _text(send.key), send.value))
            self.predicted += [(send.key, send.headers)] if send.channel == "predictions" else []
            self.write(topic, _text(send.key), send.value, send.headers)

    # ---- what came of it

    def rejections(self) -> list[str]:
        return [str(one.error) for member in self.members.values() for one in member.rejections]

    def models(self) -> dict[str, Any]:
        """x by party, as each has it."""
        return {party: self.party(party).model.weights for party in self.parties}

    def published(self, kind: str) -> list[Any]:
        """What users were told."""
        return [msgspec.json.decode(value) for _, topic, _, value in self.committed if topic == f"f.{kind}"]

    def manifests(self) -> list[list[str]]:
        """The names of each window."""
        decode, party = self.server.codec.decode, next(iter(self.parties))
        said = [
            (topic, decode(value)) for _, topic, _, value in self.committed if topic.startswith(f"f.{party}.")
        ]
        asks, releases = (
            [one for topic, one in said if topic.endswith(kind)] for kind in ("asks", "releases")
        )
        found = names_by_window(asks, releases, self.public.settings.window.rows)
        return [found[window] for window in sorted(found)]

    def windows(self, names: Sequence[str]) -> dict[str, Window]:
        """What parties freeze of these."""
        rows = [self.rows[name] for name in names]
        return divided(
            np.array([row for row, _ in rows]), np.array([label for _, label in rows]), len(self.parties)
        )

    def centred(self, window: int = 1) -> Centred:
        """The same as the parties fit them."""
        windows = self.windows(self.manifests()[window - 1])
        return centre_for(self.public, windows, lambda party: self._place(party, window, b""))

    def direct(self, window: int = 1, absent: Any = lambda iteration, party: False) -> direct.Fit:
        """The same fit without roles."""
        public, learning = self.public, self.public.settings.learning
        plans = {party: public.fit_plan(party, window) for party in public.parties}
        return direct.fit(
            self.centred(window).windows,
            public.sampling,
            learning.iterations,
            public.sketch(window),
            plans,
            delta=DELTA,
            window=window,
            candidates=learning.candidates,
            absent=absent,
            until_gap=learning.tolerance or -1.0,
            places=self._place,
        )

    def estimate(self, window: int = 1) -> Estimate:
        """The same selection without roles."""
        learning = self.public.settings.learning
        call = marginal if learning.estimator == "marginal" else two_round
        windows = self.centred(window).windows
        cost = self.public.estimator_cost(self.parties[0]) * len(self.parties)
        return call(
            windows, cost, learning.columns, learning.radius, delta=DELTA, window=window, place=self._place
        )

    def _place(self, party: str, window: int, secret: bytes) -> ReleaseContext:
        return self.party(party).given.place(self.party(party).settings, window)


def federation(parties: int = 2, folder: Path | None = None, **sections: dict[str, Any]) -> ClosedLoop:
    names = [*parties_of(parties), SERVER_MEMBER]
    return ClosedLoop({name: settings_of(name, parties, folder, **sections) for name in names})


def names_of(count: int = ROWS, first: int = 0) -> list[str]:
    return [f"person {number:03d}" for number in range(first, first + count)]


def fitted(parties: int = 2, folder: Path | None = None, **sections: dict[str, Any]) -> ClosedLoop:
    loop = federation(parties, folder, **sections)
    loop.write_rows(names_of())
    loop.settle()
    return loop


def assert_is(loop: ClosedLoop, x: dict[str, Any]) -> None:
    """To the last bit but for the sign of a 0, and nobody was refused."""
    assert loop.rejections() == []
    for party, own in loop.models().items():
        np.testing.assert_array_equal(own, x[party])


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode()
