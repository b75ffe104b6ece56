"""Fuzzing of quasi-Newton: its federations, and what must hold for guest, host and coordinator whatever messages they get."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
from quasi_newton.proof import made_up_secrets
from quasi_newton.proof.made_up_secrets import made_up_files

from streamfl.contract.role import PeerError, Rejection, Send, receive_at_once
from streamfl.quasi_newton.config import COORDINATOR, GUEST, HOST, QuasiNewtonSettings
from streamfl.quasi_newton.members.coordinator import TRAINED as DECIDED
from streamfl.quasi_newton.members.coordinator import CoordinatorTask
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.members.training_progress import TRAINED
from streamfl.quasi_newton.messages import Message, codec, place_of
from streamfl.roles.message_fragments import MARK
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import find_kind
from streamfl.testing.fuzz.federations import Corpus, Fuzzed, some_of_each, users_message
from streamfl.testing.fuzz.member import NOW, PARTITIONS, FuzzedMember
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.resumed import MemoryFederation
from streamfl.testing.fuzz.targets import Decoder, Restored, RoleTarget, Target, fingerprint

__all__ = ["FEDERATIONS", "MEMBERS", "QUASI_NEWTON", "corpus", "member", "record", "recorded", "run", "settings"]

corpus = Corpus(Path(__file__).parent / "corpus")
GUEST_NAME, HOST_NAME, COORDINATOR_NAME = "bank", "shop", "centre"
MEMBERS = (GUEST_NAME, HOST_NAME, COORDINATOR_NAME)
KINDS = {GUEST_NAME: GUEST, HOST_NAME: HOST, COORDINATOR_NAME: COORDINATOR}
# The federation in which the host answers for no version of the model.
CLOSED = "quasi-newton-closed"
FEDERATIONS = ("quasi-newton-plain", "quasi-newton-paillier", CLOSED)
BATCH = 40
# Entities that fill no batch. The model is judged by them, except the first entity, which the host does not know.
HELD_OUT = 8
# On average one in this many messages restarts the member at another place of its training.
ANEW = 100
# Share of messages that are the expected next one at that place, but with wrong content.
NEXT = 0.4
# On average after one in this many messages a member goes on with its restored state.
GOES_ON = 10


@cache
def settings(federation: str, name: str) -> QuasiNewtonSettings:
    """The settings of the member ``name``."""
    kind, encryption = KINDS[name], {"precision": "plain", "study": True}
    if federation == "quasi-newton-paillier":
        encryption = {"key_bits": made_up_secrets.KEY_BITS, "key_fingerprint": made_up_secrets.fingerprint(), "study": True}
        if kind == COORDINATOR:
            encryption["key_file"] = made_up_secrets.key_path()
        else:
            link = made_up_secrets.path("link", HOST_NAME)
            encryption |= {"secret_file": made_up_secrets.path(name), "link_secret_file": link}
    content: dict[str, Any] = {
        "federation": {"name": "plant", "seed": 3, "parties": [GUEST_NAME, HOST_NAME]},
        "role": {"kind": kind},
        "learning": {"batch": BATCH, "min_batch": BATCH, "min_support": 1, "curvature_every": 1, "memory": 2, "epochs": 3},
        "alignment": {"entities": BATCH, "settle_seconds": 1.0, "limit": 200, "held_out": 0.0},
        "encryption": encryption,
        # The guest asks once: the next question, about entities that are never common, comes long after.
        "scoring": {"quantum": 1 / 8, "interval_seconds": 1e6, "calibration_entities": 2},
    }
    if federation == CLOSED:
        content["learning"]["epochs"] = 1
        content["scoring"]["versions"] = 0
    if kind != COORDINATOR:
        content |= {"party": {"name": name}, "samples": {"topic": "readings", "features": ["t"]}}
    if kind == GUEST:
        content["labels"] = {"topic": "truths", "label": "y"}
    return QuasiNewtonSettings.model_validate(content)


def member(federation: str, name: str) -> FuzzedMember:
    """A new member without state."""
    with made_up_files():
        return FuzzedMember.of(settings(federation, name))


def sample(entity: str, number: int) -> FuzzedRecord:
    """A record of a party's columns of an entity, as a user would write it."""
    return replace(users_message("samples", "json", entity, {"t": math.sin(number)}), partition=0)


def label(entity: str, number: int) -> FuzzedRecord:
    """A record of an entity's label."""
    return replace(users_message("labels", "json", entity, {"y": float(number % 3 > 0)}), partition=0)


def record(federation: str) -> list[FuzzedRecord]:
    """All messages that each member receives in a small training, in order, and some of its state, under "member/channel"."""
    members = {name: member(federation, name) for name in MEMBERS}
    heard: dict[str, list[FuzzedRecord]] = {name: [] for name in MEMBERS}
    found: list[FuzzedRecord] = []
    for number in range(BATCH + HELD_OUT):
        entity = f"e-{number}"
        heard[GUEST_NAME] += [sample(entity, number), label(entity, number)]
        heard[HOST_NAME] += [sample(entity, number + 1)] if number else []
    state: list[FuzzedRecord] = []
    for moment in range(100):
        now = NOW + 10.0 * moment
        for name, one in members.items():
            told, heard[name] = heard[name], []
            replies = receive_at_once(one.role, [one.decode(record, timestamp=now) for record in told], now) if told else []
            replies += receive_at_once(one.role, [], now)
            assert not [reply for reply in replies if isinstance(reply, Rejection)]
            for send in [reply for reply in replies if isinstance(reply, Send) and reply.channel != "predictions"]:
                to, channel = _reader(name, send.channel)
                heard[to].append(FuzzedRecord(channel, send.key, send.value, send.partition or 0))
            found += [replace(record, channel=f"{name}/{record.channel}") for record in told]
            state += [
                FuzzedRecord(f"{name}/state", change.key, change.value, 0) for change in one.role.changed_state() if change.value
            ]
    assert not any(heard.values())
    return found + some_of_each(state)


def _reader(name: str, channel: str) -> tuple[str, str]:
    """The member that reads what ``name`` sends on a channel, and the reader's channel."""
    kind, _, to = channel.partition("/")
    if kind == "uploads":
        return COORDINATOR_NAME, f"uploads/{name}"
    if kind == "decisions":
        return to, "decisions"
    return (GUEST_NAME, f"{kind}/{name}") if kind in ("outputs", "answers") else (to, kind)


def recorded(federation: str, name: str, *channels: str) -> tuple[FuzzedRecord, ...]:
    """The messages that a member received, in order. channels: only on these; none: on all inputs."""
    own = find_kind(KINDS[name]).channels(settings(federation, name))
    wanted = channels or tuple(own.inputs)
    found = corpus(federation, *(f"{name}/{channel}" for channel in wanted))
    return tuple(replace(one, channel=one.channel.partition("/")[2]) for one in found)


def run(federation: str) -> MemoryFederation:
    """A federation of all members, for tests that resume from its state."""
    own = {}
    for name in MEMBERS:
        chosen = settings(federation, name)
        if chosen.samples is not None:
            samples = chosen.samples.model_copy(update={"topic": f"readings-{name}"})
            chosen = chosen.model_copy(update={"samples": samples})
        own[name] = chosen

    def written(number: int) -> list[Outgoing]:
        found = []
        for place in range(20 * number, 20 * (number + 1)):
            entity = f"e-{place}"
            told = [(f"readings-{GUEST_NAME}", sample(entity, place)), (f"readings-{HOST_NAME}", sample(entity, place + 1))]
            found += [Outgoing(topic, one.key, one.value, 0) for topic, one in (*told, ("truths", label(entity, place)))]
        return found

    return MemoryFederation(own, written)


class QuasiNewtonTarget(RoleTarget):
    """A member at any place of a training, or of the scoring after it."""

    def __init__(self, name: str, messages: Sequence[FuzzedRecord], random: Random, federation: str, member: str) -> None:
        self.chosen = settings(federation, member)
        self.at = len(messages)
        self._places = [place for place, one in enumerate(messages) if one.channel not in ("samples", "labels")]
        self._codec = codec(self.chosen.message_bytes)
        self._good = 0
        with made_up_files():
            super().__init__(name, messages, random, self.chosen)

    def greet(self) -> None:
        """Feed the recorded messages again, with the time that has to pass between them."""
        self._begin_anew(len(self.messages))

    @property
    def told(self) -> PartyTask | CoordinatorTask:
        """The partition of the recorded training."""
        task: PartyTask | CoordinatorTask = cast(Any, self.role).task(0)
        return task

    def take(self, message: FuzzedRecord) -> str | None:
        if self.random.randrange(ANEW) == 0:
            self._begin_anew(self.random.choice(self._places))
        if self.at < len(self.messages) and self.random.random() < NEXT:
            message = self._next(message)
        return super().take(message)

    def _begin_anew(self, at: int) -> None:
        """Put the member in the state after the first ``at`` recorded messages."""
        for partition in PARTITIONS:
            self.role.close(partition)
            self.role.open(partition)
        self.state = {}
        self.at = at
        ready = asked = False
        for message in self.messages[:at]:
            if not ready and message.channel not in ("samples", "labels"):
                self._settle()
                ready = True
            if not asked and message.channel.startswith("answers/"):
                # The guest asks only when time passes.
                self._settle()
                asked = True
            reason = self.feed(message)
            assert reason is None, f"a good message on {message.channel} is refused: {reason}"
        self._settle()

    def _settle(self) -> None:
        """Let time pass until a party that knows enough reports ready, and a guest with a model asks its hosts."""
        self.now += 2 * self.chosen.alignment.settle_seconds
        self.tick()

    def _next(self, wrong: FuzzedRecord) -> FuzzedRecord:
        """The expected next message, correctly sealed, but with its content damaged, perhaps by part of another message."""
        message = self.messages[self.at]
        if message.channel in ("samples", "labels") or not message.value or message.value[:1] == MARK:
            return wrong
        whole = self._codec.decode(message.value)
        content = self._spoilt(self._opened(whole, message.channel), wrong.value or b"")
        wrong_content = msgspec.structs.replace(whole, content=self._sealed(whole, message.channel, content))
        return replace(message, value=self._codec.encode(wrong_content))

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

    def _link(self, channel: str) -> tuple[Any, str] | None:
        """The link of a channel that the member reads, and its topic; None if the channel is not sealed."""
        task = self.told
        if isinstance(task, CoordinatorTask) or channel == "decisions":
            return None
        other = channel.partition("/")[2] or GUEST_NAME
        return task.given.links[other], task.settings.linked(other, channel.partition("/")[0])

    def _opened(self, message: Message, channel: str) -> bytes:
        found = self._link(channel)
        header = place_of(msgspec.structs.replace(message, content=b""))
        return message.content if found is None else found[0].open(message.content, found[1], header)

    def _sealed(self, message: Message, channel: str, content: bytes) -> bytes:
        found = self._link(channel)
        header = place_of(msgspec.structs.replace(message, content=b""))
        return content if found is None or not content else found[0].seal(content, found[1], header)

    def held(self) -> bytes:
        """A fingerprint of all state but the clock, and but the counts, which also count refusals."""
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
        if send.channel == "predictions":
            # JSON has no infinity and no NaN: such a number becomes null.
            assert math.isfinite(msgspec.json.decode(send.value)["output"])
        elif send.value[:1] != MARK:
            self._codec.decode(send.value)

    def goes_on(self) -> None:
        """Check that the member still takes users' records, and then the whole training again."""
        # There is no loss before the first epoch.
        assert all(math.isfinite(one.value) for one in self.role.measure() if one.name != "loss")
        if isinstance(self.told, PartyTask):
            self._good += 1
            assert self.feed(sample(f"good-{self._good}", 1)) is None
            assert f"good-{self._good}" in self.told.table._entries, "a good sample is not kept"
        self._begin_anew(len(self.messages))
        task = self.told
        phase, end = (task.progress.phase, TRAINED) if isinstance(task, PartyTask) else (task.run.phase, DECIDED)
        assert phase == end, f"a training of good messages ends in phase {phase}"
        self._offset = 0


class RestoredMember(Restored):
    """A member that goes on with state restored from a damaged changelog."""

    def __init__(self, name: str, messages: Sequence[FuzzedRecord], random: Random, settings: QuasiNewtonSettings) -> None:
        with made_up_files():
            super().__init__(name, messages, random, settings)

    def take(self, message: FuzzedRecord) -> str | None:
        reason = super().take(message)
        if self.random.randrange(GOES_ON) == 0:
            self.finish()
        return reason

    def finish(self) -> None:
        try:
            # With the background work that it asks for: a member that waits for a result processes nothing else.
            receive_at_once(self.role, [], NOW + 1000)
        except PeerError:
            # Restored fragments that do not fit together: the member refuses them, and does not go on.
            for partition in PARTITIONS:
                self.role.close(partition)
                self.role.open(partition)
        list(self.role.changed_state())
        list(self.role.measure())


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """The functions that make each fuzz target, by its name."""
    make: dict[str, Callable[[str], Target]] = {}
    for federation in FEDERATIONS:
        for name in MEMBERS:
            own = settings(federation, name)
            make[f"{own.role.kind} {federation}"] = partial(
                QuasiNewtonTarget, messages=recorded(federation, name), random=random, federation=federation, member=name
            )
            make[f"restore {own.role.kind} {federation}"] = partial(
                RestoredMember, messages=recorded(federation, name, "state"), random=random, settings=own
            )
    reader = codec(settings(FEDERATIONS[0], GUEST_NAME).message_bytes)
    make["decode quasi-newton messages"] = lambda name: Decoder(
        name,
        recorded(FEDERATIONS[0], COORDINATOR_NAME),
        random,
        lambda message: reader.decode(message.value),
    )
    return make


QUASI_NEWTON = Fuzzed(corpus, FEDERATIONS, record, targets)
