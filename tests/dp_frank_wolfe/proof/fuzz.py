"""Fuzz targets of DP Frank-Wolfe: its federations, and what must hold of party and server whatever they receive."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec

from streamfl.contract.role import PeerError, Rejection, Send, receive_at_once
from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import codec
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.roles.message_fragments import MARK
from streamfl.runtime.bus import Outgoing
from streamfl.testing.fuzz.federations import Corpus, Fuzzed, some_of_each, users_message
from streamfl.testing.fuzz.member import NOW, PARTITIONS, FuzzedMember
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.resumed import MemoryFederation
from streamfl.testing.fuzz.targets import COMPARED, Decoder, Restored, RoleTarget, Target, fingerprint

__all__ = ["DP_FRANK_WOLFE", "FEDERATIONS", "MEMBERS", "corpus", "member", "record", "recorded", "run", "settings"]

corpus = Corpus(Path(__file__).parent / "corpus")
CLINIC, INSURER, HUB = "clinic", "insurer", "hub"
PARTIES = (CLINIC, INSURER)
MEMBERS = (*PARTIES, HUB)
# The estimator of each federation, and whether it serves.
FEDERATIONS: Mapping[str, tuple[str, str]] = {
    "dp-frank-wolfe": ("frank-wolfe", "off"),
    "dp-frank-wolfe-two-round": ("two-round", "off"),
    "dp-frank-wolfe-serving": ("frank-wolfe", "private"),
}
ROWS = 12
# Entities that are in no window.
LEFT = 3
# When the records of entities that are only predicted come: the fit is over.
SERVED = 30
# One in ANEW messages makes the member begin anew, at another place of its fit.
ANEW = 100
# Share of messages that are the next at that place, with a wrong content.
NEXT = 0.4
# One in GOES_ON messages makes a member go on with its restored state.
GOES_ON = 10
USERS = ("samples", "labels")


@cache
def settings(federation: str, name: str) -> DPFrankWolfeSettings:
    estimator, serving = FEDERATIONS[federation]
    content: dict[str, Any] = {
        "federation": {"name": "study", "seed": 3, "parties": list(PARTIES), "columns": dict.fromkeys(PARTIES, 3)},
        "role": {"kind": SERVER if name == HUB else PARTY},
        "window": {"rows": ROWS, "limit": 100},
        "bounds": {"bound": 1.0, "label_bound": 1.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "insecure_test_noise": True},
        "learning": {"estimator": estimator, "columns": 4, "iterations": 4, "sketch_rows": 4},
        "serving": {"mode": serving},
    }
    if name != HUB:
        content |= {"party": {"name": name}, "samples": {"topic": "readings", "features": ["a", "b", "c"]}}
        content["labels"] = {"topic": "outcomes", "label": "y"}
        content["privacy"] |= {"ledger": "patients"}
    return DPFrankWolfeSettings.model_validate(content)


def member(federation: str, name: str) -> FuzzedMember:
    """A member, as good as new."""
    return FuzzedMember.of(settings(federation, name))


def sample(entity: str, number: int) -> FuzzedRecord:
    """A record of an entity's columns, as a party's users would write it."""
    content = {column: math.sin(number + place) for place, column in enumerate("abc")}
    return replace(users_message("samples", "json", entity, content), partition=0)


def label(entity: str, number: int) -> FuzzedRecord:
    """A record of an entity's label."""
    return replace(users_message("labels", "json", entity, {"y": math.cos(number)}), partition=0)


def record(federation: str) -> list[FuzzedRecord]:
    """All messages that each member receives in a small fit, in order, and some of its state, each under "member/channel"."""
    members = {name: member(federation, name) for name in MEMBERS}
    heard: dict[str, list[FuzzedRecord]] = {name: [] for name in MEMBERS}
    found: list[FuzzedRecord] = []
    for number in range(ROWS + LEFT):
        for party in PARTIES:
            heard[party] += [sample(f"e-{number}", number), label(f"e-{number}", number)]
    state: list[FuzzedRecord] = []
    for moment in range(60):
        now = NOW + moment
        if moment == SERVED and FEDERATIONS[federation][1] != "off":
            for party in PARTIES:
                heard[party] += [sample(f"e-{number}", number) for number in range(ROWS + LEFT, ROWS + 2 * LEFT)]
        for name, one in members.items():
            told, heard[name] = heard[name], []
            replies = receive_at_once(one.role, [one.decode(record, timestamp=now) for record in told], now) if told else []
            replies += receive_at_once(one.role, [], now)
            assert not [reply for reply in replies if isinstance(reply, Rejection)]
            for send in [reply for reply in replies if isinstance(reply, Send) and reply.channel not in ("predictions", "model")]:
                to, channel = _reader(name, send.channel)
                heard[to].append(FuzzedRecord(channel, send.key, send.value, send.partition or 0))
            found += [replace(record, channel=f"{name}/{record.channel}") for record in told]
            state += [
                FuzzedRecord(f"{name}/{change.channel}", change.key, change.value, 0)
                for change in one.role.changed_state()
                if change.value
            ]
    assert not any(heard.values())
    return found + some_of_each(state)


def _reader(name: str, channel: str) -> tuple[str, str]:
    """The member that reads what another sends on a channel, and its own channel for it."""
    kind, _, to = channel.partition("/")
    return (HUB, f"{kind}/{name}") if name != HUB else (to, kind)


def recorded(federation: str, name: str, *channels: str) -> tuple[FuzzedRecord, ...]:
    """The messages that a member received, in order; on the named channels alone, if any."""
    own = settings(federation, name)
    wanted = channels or tuple(ROLES[own.role.kind].channels(own).inputs)
    found = corpus(federation, *(f"{name}/{channel}" for channel in wanted))
    return tuple(replace(one, channel=one.channel.partition("/")[2]) for one in found)


def run(federation: str) -> MemoryFederation:
    """A federation of all members, for tests that restore their state."""
    own = {}
    for name in MEMBERS:
        chosen = settings(federation, name)
        if chosen.samples is not None:
            samples = chosen.samples.model_copy(update={"topic": f"readings-{name}"})
            chosen = chosen.model_copy(update={"samples": samples})
        own[name] = chosen

    def written(number: int) -> list[Outgoing]:
        found = []
        for place in range(ROWS * number, ROWS * (number + 1)):
            entity = f"e-{place}"
            told = [*((f"readings-{party}", sample(entity, place)) for party in PARTIES), ("outcomes", label(entity, place))]
            found += [Outgoing(topic, one.key, one.value, 0) for topic, one in told]
        return found

    return MemoryFederation(own, written)


class DPFrankWolfeTarget(RoleTarget):
    """A member at any place of a fit."""

    def __init__(self, name: str, messages: Sequence[FuzzedRecord], random: Random, federation: str, member: str) -> None:
        self.chosen = settings(federation, member)
        self.at = len(messages)
        self._places = [place for place, one in enumerate(messages) if one.channel not in USERS]
        self._codec = codec(self.chosen.message_bytes)
        self._good = 0
        self._begun = False
        super().__init__(name, messages, random, self.chosen)

    def greet(self) -> None:
        """Feeds the recorded messages, with the time between them."""
        self._begun = True
        self._begin_anew(len(self.messages))

    @property
    def told(self) -> Any:
        """The partition of the recorded fit."""
        return cast(Any, self.role).task(0)

    def take(self, message: FuzzedRecord) -> str | None:
        if self.random.randrange(ANEW) == 0:
            self._begin_anew(self.random.choice(self._places))
        if self.at < len(self.messages) and self.random.random() < NEXT:
            message = self._next(message)
        return super().take(message)

    def _begin_anew(self, at: int) -> None:
        """Resets the member to the place after the first ``at`` recorded messages."""
        for partition in PARTITIONS:
            self.role.close(partition)
            self.role.open(partition)
        self.state = {}
        self.at = at
        announced = False
        for message in self.messages[:at]:
            if not announced and message.channel not in USERS:
                self.tick()
                announced = True
            reason = self.feed(message)
            assert reason is None, f"a good message on {message.channel} is refused: {reason}"
        self.tick()

    def _next(self, wrong: FuzzedRecord) -> FuzzedRecord:
        """The next message, with a part of another message's content in its own."""
        message = self.messages[self.at]
        if message.channel in USERS or not message.value or message.value[:1] == MARK:
            return wrong
        whole = self._codec.decode(message.value)
        content = self._spoilt(whole.content, wrong.value or b"")
        return replace(message, value=self._codec.encode(msgspec.structs.replace(whole, content=content)))

    def _spoilt(self, content: bytes, other: bytes) -> bytes:
        random = self.random
        place, size = random.randrange(len(content) + 1), random.choice([1, 4, 16, 64])
        kind = random.randrange(4)
        if kind == 0:
            return content[:place]
        if kind == 1:
            return content[:place] + random.randbytes(size) + content[place + size :]
        if kind == 2:
            return content[:place] + random.choice([b"\0", b"\xff"]) * size + content[place + size :]
        return content[:place] + other[:size] + content[place + size * random.randrange(2) :]

    def feed(self, message: FuzzedRecord) -> str | None:
        """As for any role, but counts may change when a message is refused."""
        if not self._begun:
            return None
        self._offset += 1
        self.now += 0.01
        try:
            received = self._member.decode(message, self._offset, self.random.choice([0.0, self.now - 50, self.now]))
        except PeerError as error:
            return error.reason
        rejections = self._answered(receive_at_once(self.role, [received], self.now), received)
        if not rejections:
            return None
        if self.random.randrange(COMPARED) == 0:
            # The first time the role may have cached what follows from settings and frozen rows.
            before = self._held()
            again = self._answered(receive_at_once(self.role, [received], self.now), received)
            assert [one.error.reason for one in again] == [one.error.reason for one in rejections]
            assert self._held() == before, "a refused message changed what the role holds"
        return rejections[0].error.reason

    def _held(self) -> bytes:
        """A digest of what a refused message must not change: all but counts and the clock."""
        role = cast(Any, self.role)
        counts, tasks = vars(role.counts).copy(), list(role._tasks.values())
        moments = [getattr(task, "_now", None) for task in tasks]
        vars(role.counts).clear()
        for task in tasks:
            task._now = 0.0
        try:
            return fingerprint([*tasks, role._queue, role._awaited])
        finally:
            vars(role.counts).update(counts)
            for task, moment in zip(tasks, moments, strict=True):
                task._now = moment

    def sent(self, send: Send) -> None:
        if send.channel in ("predictions", "model"):
            # JSON has no infinity and no NaN: a number that is neither becomes null there.
            assert b"null" not in send.value
        elif send.value[:1] != MARK:
            self._codec.decode(send.value)

    def goes_on(self) -> None:
        """Checks that the member takes users' records, stays in its balls, and takes the whole fit anew."""
        # Noise that anybody can compute promises nothing: its epsilon is infinite.
        assert all(math.isfinite(one.value) for one in self.role.measure() if one.name not in ("epsilon", "rho"))
        if self.chosen.role.kind == PARTY:
            self._good += 1
            assert self.feed(sample(f"good-{self._good}", 1)) is None
        else:
            public = Public(self.chosen)
            norm = sum(float(abs(own).sum()) for own in self.told.estimator.weights.values())
            assert norm <= public.settings.learning.radius * (1 + 1e-9)
        self._begin_anew(len(self.messages))
        self._offset = 0


class RestoredMember(Restored):
    """A member that goes on with what it restored from a damaged changelog."""

    def take(self, message: FuzzedRecord) -> str | None:
        reason = super().take(message)
        if self.random.randrange(GOES_ON) == 0:
            self.finish()
        return reason

    def finish(self) -> None:
        try:
            self.role.receive([], NOW + 1000)
        except PeerError:
            # Pieces of one value do not fit together: their owner refuses them, and the member does not go on.
            for partition in PARTITIONS:
                self.role.close(partition)
                self.role.open(partition)
        list(self.role.changed_state())
        list(self.role.measure())


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """Functions that make each target, by name."""
    make: dict[str, Callable[[str], Target]] = {}
    for federation in FEDERATIONS:
        for name in (CLINIC, HUB):
            own = settings(federation, name)
            make[f"{own.role.kind} {federation}"] = partial(
                DPFrankWolfeTarget, messages=recorded(federation, name), random=random, federation=federation, member=name
            )
            channels = ("state", "ledger") if name == CLINIC else ("state",)
            make[f"restore {own.role.kind} {federation}"] = partial(
                RestoredMember, messages=recorded(federation, name, *channels), random=random, settings=own
            )
    reader = codec(settings("dp-frank-wolfe", CLINIC).message_bytes)
    make["decode dp-frank-wolfe messages"] = lambda name: Decoder(
        name, recorded("dp-frank-wolfe", HUB), random, lambda message: reader.decode(message.value)
    )
    return make


DP_FRANK_WOLFE = Fuzzed(corpus, tuple(FEDERATIONS), record, targets)
