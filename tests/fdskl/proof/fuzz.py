"""The fuzzer's federations of FDSKL, and what has to hold at the active party and at another one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
from msgspec import structs

from streamfl.contract.role import PeerError, Rejection, Role, Send, receive_at_once
from streamfl.contract.seeding import rng_for
from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.messages import (
    INCARNATION,
    PARTIAL_SUM,
    PHASES,
    REVISION,
    ROUND,
    TURN,
    FeatureRange,
    PartialSum,
    Prediction,
    Round,
    identity_of,
)
from streamfl.fdskl.worker.role import FdsklWorker
from streamfl.runtime.bus import Outgoing
from streamfl.testing.fuzz.federations import Corpus, Fuzzed, partition_of, some_of_each, users_message
from streamfl.testing.fuzz.member import NOW, PARTITIONS, FuzzedMember
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.resumed import MemoryFederation
from streamfl.testing.fuzz.targets import Decoder, Restored, RoleTarget, Target

__all__ = ["FDSKL", "FEDERATIONS", "PARTIES", "corpus", "member", "record", "recorded", "run", "state_of"]

corpus = Corpus(Path(__file__).parent / "corpus")
ACTIVE, OTHER = "press", "pump"
PARTIES = (ACTIVE, OTHER, "belt")
ENTITIES = ("e-1", "e-2", "ü-3")
ROUNDS = 24
# Share of the decoded messages that still repeat what was sent before.
STALE = 0.2
# One message in this many makes a member go on with what it has restored.
GOES_ON = 10
_encode = msgspec.msgpack.Encoder().encode
# State that no recorded run leads to.
SELDOM = (
    FuzzedRecord("state", b"headers/e-1", _encode([("traceparent", b"00-1")])),
    FuzzedRecord("state", b"rescaled", _encode(True)),
)

# Both solvers, every topology, mask and width of numbers, and two active parties.
FEDERATIONS: dict[str, dict[str, Any]] = {
    "fdskl-newton": {
        "samples": {"format": "json", "entity": "id", "features": ["t1", "t2", "t3"]},
        "labels": {"entity": "id"},
        "aggregation": {"topology": "tree"},
        "alignment": {"limit": 200},
    },
    "fdskl-sgd": {
        "samples": {"format": "msgpack", "features": "x", "dimension": 3, "input_norm": 2.0},
        "labels": {"format": "msgpack", "label_range": [-1.0, 1.0]},
        "learning": {"solver": "sgd", "loss": "square", "kernel": "laplacian"},
        "aggregation": {"topology": "star", "circle_bits": 64, "frequencies": "shared"},
    },
    "fdskl-paper": {
        "samples": {"format": "json", "features": "x", "dimension": 3},
        "labels": {},
        "learning": {"loss": "smooth-hinge", "kernel": "matern"},
        "aggregation": {"topology": "ring", "mask": "paper", "study": True},
    },
    "fdskl-several": {
        "active": [ACTIVE, OTHER],
        "samples": {"format": "json", "features": "x", "dimension": 3},
        "labels": {},
        "learning": {"solver": "sgd"},
        "aggregation": {"topology": "tree"},
    },
}


def actives(federation: str) -> list[str]:
    """The active parties' names."""
    names: list[str] = FEDERATIONS[federation].get("active", [ACTIVE])
    return names


@cache
def settings(federation: str, name: str) -> FdsklSettings:
    """The settings of the party of this name."""
    content = FEDERATIONS[federation]
    learning = {
        "bandwidth": 1.5,
        "block_instances": 2,
        "block_features": 2,
        "features_limit": 6,
        "window": 50,
        "sweeps": 2,
        "cache_bytes": 10_000,
    }
    labels = {"topic": "truths", "label": "y", **content["labels"]} if name in actives(federation) else None
    return FdsklSettings(
        federation={"name": "plant", "seed": 3, "parties": list(PARTIES), "active": actives(federation)},  # type: ignore[arg-type]
        role={"kind": WORKER},  # type: ignore[arg-type]
        party={"name": name},  # type: ignore[arg-type]
        samples={"topic": "readings", **content["samples"]},  # type: ignore[arg-type]
        labels=labels,  # type: ignore[arg-type]
        learning={**learning, **content.get("learning", {})},  # type: ignore[arg-type]
        aggregation={"round_seconds": 5.0, "rounds_in_flight": 4, **content["aggregation"]},  # type: ignore[arg-type]
        alignment={"reply_seconds": 1.0, "linger_ms": 0.0, **content.get("alignment", {})},  # type: ignore[arg-type]
        standardisation={"first_entities": 2},  # type: ignore[arg-type]
    )


def member(federation: str, name: str) -> FuzzedMember:
    """A new party."""
    found = FuzzedMember.of(settings(federation, name))
    always_alike(found.role)
    return found


def always_alike(role: Role) -> None:
    """Open the partitions again with keys that the recorded messages name: keys of a real party differ in each of its lives."""
    worker, lives = cast(FdsklWorker, role), count()
    name = worker.settings.required_party()
    worker.given = replace(
        worker.given,
        secret=rng_for(3, "fuzz", "secret", name).bytes(32),
        entropy=lambda: rng_for(3, "fuzz", "life", name, next(lives)).bytes(32),
    )
    for partition in PARTITIONS:
        worker.close(partition)
        worker.open(partition)


def sample(federation: str, entity: str, number: int) -> FuzzedRecord:
    """A party's sample of an entity, as its users would write it."""
    section = settings(federation, ACTIVE).samples
    assert section is not None
    inputs = [math.sin(number), math.cos(number / 3), number % 5 / 5]
    fields = section.features or ()
    named = {fields: inputs} if isinstance(fields, str) else dict(zip(fields, inputs, strict=True))
    return _users(section.format, "samples", section.entity, entity, named)


def label(federation: str, entity: str, number: int) -> FuzzedRecord:
    """An entity's label, as users would write it."""
    section = settings(federation, ACTIVE).labels
    assert section is not None
    return _users(section.format, "labels", section.entity, entity, {section.label: float(number % 2)})


def _users(format: str, channel: str, field: str | None, entity: str, content: dict[str, Any]) -> FuzzedRecord:
    return users_message(channel, format, entity, content if field is None else {field: entity, **content})


def record(federation: str) -> list[FuzzedRecord]:
    """Some messages of every kind from a small run of the federation's roles, each under "party/channel"."""
    parties = {name: member(federation, name) for name in PARTIES}
    heard: dict[str, list[FuzzedRecord]] = {name: [] for name in parties}
    found: list[FuzzedRecord] = []
    for number in range(ROUNDS):
        entity = f"{ENTITIES[number % len(ENTITIES)]}-{number // (2 * len(ENTITIES))}"
        for name, own in heard.items():
            # Some columns come anew, and one party's come late.
            own += [sample(federation, entity, number)] if name != PARTIES[-1] or number % 4 else []
        knows = actives(federation)
        heard[knows[number // 3 % len(knows)]] += [label(federation, entity, number)] if number % 3 else []
        for moment in range(12):
            for name, party in parties.items():
                told, heard[name] = heard[name], []
                now = NOW + 10 * number + moment / 2
                sends = receive_at_once(party.role, [party.decode(one, timestamp=now) for one in told], now) if told else []
                sends += receive_at_once(party.role, [], now)
                for one in _sent(sends):
                    channel, _, to = one.channel.partition("/")
                    for reader in knows if channel == "turns" else [to] if to else []:
                        heard[reader].append(FuzzedRecord(channel, one.key, one.value, one.partition or 0))
                found += [replace(one, channel=f"{name}/{one.channel}") for one in told]
                found += [
                    FuzzedRecord(f"{name}/state", one.key, one.value, one.partition)
                    for one in party.role.changed_state()
                    if one.value
                ]
    return [one for one in some_of_each(found) if not one.channel.startswith(PARTIES[-1])]


def _sent(replies: Sequence[Send | Rejection]) -> list[Send]:
    assert not [reply for reply in replies if isinstance(reply, Rejection)]
    return [reply for reply in replies if isinstance(reply, Send)]


def recorded(federation: str, name: str, *channels: str) -> tuple[FuzzedRecord, ...]:
    """The recorded messages of a party's channels."""
    found = corpus(federation, *(f"{name}/{channel}" for channel in channels))
    return tuple(replace(one, channel=one.channel.partition("/")[2]) for one in found)


def state_of(federation: str, name: str) -> tuple[FuzzedRecord, ...]:
    """What a party remembers, with every key that it may write."""
    return *recorded(federation, name, "state"), *SELDOM


def run(federation: str) -> MemoryFederation:
    """A federation of all parties, to be resumed from what they remember."""
    own = {}
    for name in PARTIES:
        chosen = settings(federation, name)
        assert chosen.samples is not None
        # Every party sees other columns of the same entities.
        samples = chosen.samples.model_copy(update={"topic": f"readings-{name}"})
        own[name] = chosen.model_copy(update={"samples": samples})

    def written(number: int) -> list[Outgoing]:
        entity = f"e-{number}"
        told = [(f"readings-{name}", sample(federation, entity, number + place)) for place, name in enumerate(PARTIES)]
        told += [("truths", label(federation, entity, number))] if number % 4 else []
        return [Outgoing(topic, one.key, one.value, one.partition) for topic, one in told]

    return MemoryFederation(own, written)


class FdsklTarget(RoleTarget):
    """A party of one of these federations."""

    role: FdsklWorker

    def __init__(self, name: str, messages: Sequence[FuzzedRecord], random: Random, federation: str, member: str) -> None:
        self.federation = federation
        self.chosen = settings(federation, member)
        # The last round that it knows of: its name, and the identity of its announcement.
        self.last: tuple[int, int, bytes] | None = None
        self._number = 1000
        self._good = 0
        super().__init__(name, messages, random, self.chosen)

    def begin(self) -> None:
        always_alike(self.role)

    def take(self, message: FuzzedRecord) -> str | None:
        """Repeated messages are ignored, so most are made new, whatever else is wrong with them."""
        if self.random.random() >= STALE:
            message = self._as_the_next(message)
        return super().take(message)

    def _as_the_next(self, message: FuzzedRecord) -> FuzzedRecord:
        try:
            if message.channel == "rounds":
                self._number += 1
                content = _encode(structs.replace(ROUND.decode(message.value), number=self._number))
                self.knows(content)
                return replace(message, value=content)
            if message.channel == "sums" and self.last is not None:
                incarnation, number, identity = self.last
                found = PARTIAL_SUM.decode(message.value)
                whole = structs.replace(found, incarnation=incarnation, number=number, round=identity)
                return replace(message, value=_encode(whole))
            if message.channel == "revisions":
                self._number += 1
                return replace(message, value=_encode(structs.replace(REVISION.decode(message.value), sequence=self._number)))
        except (PeerError, IndexError):
            pass
        return message

    def knows(self, content: bytes) -> None:
        """Note an announced round."""
        announced = ROUND.decode(content)
        root = PARTIES.index(announced.sender) if announced.sender in PARTIES else 0
        self.last = announced.incarnations[root], announced.number, identity_of(content, self.chosen.federation.name, 0)

    def good_entity(self) -> str:
        """An entity that no party knows."""
        self._good += 1
        return f"good-{self._good}"

    def let_time_pass(self) -> None:
        """Pass the time after which everything that can expire has expired."""
        self.now += self.chosen.alignment.expiry_seconds
        self.tick()

    def sent(self, send: Send) -> None:
        kind = send.channel.partition("/")[0]
        if kind == "predictions":
            prediction = msgspec.json.decode(send.value, type=Prediction)
            assert math.isfinite(prediction.score)
            assert math.isfinite(json.loads(send.value)["prediction"])
            assert send.key == prediction.entity.encode()
        elif kind == "rounds":
            self.knows(send.value)
        elif kind == "sums":
            said: PartialSum = PARTIAL_SUM.decode(send.value)
            assert max(said.known, default=0) <= len(said.contributors) <= len(PARTIES)
        else:
            codecs: dict[str, Any] = {"incarnations": INCARNATION, "revisions": REVISION, "turns": TURN}
            codecs[kind].decode(send.value)

    def finish(self) -> None:
        super().finish()
        assert all(math.isfinite(one.value) for one in self.role.measure())


class ActiveTarget(FdsklTarget):
    """The active party, with messages from its users and from the others."""

    def goes_on(self) -> None:
        self.let_time_pass()
        entity = self.good_entity()
        assert self.feed(sample(self.federation, entity, 1)) is None
        assert self.feed(label(self.federation, entity, 1)) is None
        self.now += self.chosen.aggregation.round_seconds
        self.tick()
        active = self.role.active_partition(partition_of(entity))
        found = active.forecasts.get(entity)
        assert found is None or found.label is not None, "a good label is not kept"
        assert found is None or (found.awaited and active.rounds.busy), "a good sample is neither predicted nor asked for"


class OtherTarget(FdsklTarget):
    """A party without labels, with messages from its users, the active party and the parties below it."""

    def goes_on(self) -> None:
        self.let_time_pass()
        entity, partition = self.good_entity(), partition_of("good-1")
        known = [one for one in self.messages if one.channel == "incarnations" and one.partition == partition]
        for one in known:
            assert self.feed(one) is None
        assert self.feed(replace(sample(self.federation, entity, 1), partition=partition)) is None
        said = [INCARNATION.decode(one.value) for one in known]
        task = self.role.partition(partition)
        own = self.role.settings
        lives = {one.sender: one.number for one in said} | {own.required_party(): task.peers.incarnation.number}
        self._number += 1
        fingerprint, numbers = own.fingerprint, [lives[name] for name in PARTIES]
        good = Round(1, fingerprint, ACTIVE, numbers, self._number, PHASES, 1.5, [FeatureRange(0, 2)], [entity])
        assert self.feed(FuzzedRecord("rounds", None, ROUND.encode(good), partition)) is None
        self.now += self.chosen.alignment.reply_seconds
        self.tick()
        pending = task.sums.pending.get((numbers[0], self._number))
        assert pending is None or pending.answered, "a good round is not answered"


class RestoredMember(Restored):
    """A party that goes on with what it restored from a damaged changelog."""

    def take(self, message: FuzzedRecord) -> str | None:
        reason = super().take(message)
        if self.random.randrange(GOES_ON) == 0:
            self.finish()
        return reason

    def finish(self) -> None:
        self.role.receive([], NOW + 1000)
        list(self.role.changed_state())
        list(self.role.measure())


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """By name, a function that makes the target."""
    make: dict[str, Callable[[str], Target]] = {}
    for kind, codec in (("incarnations", INCARNATION), ("rounds", ROUND), ("sums", PARTIAL_SUM), ("revisions", REVISION)):
        who = OTHER if kind == "rounds" else ACTIVE

        def decoder(name: str, kind: str = kind, codec: Any = codec, who: str = who) -> Target:
            return Decoder(name, recorded("fdskl-newton", who, kind), random, lambda message: codec.decode(message.value))

        make[f"decode fdskl {kind}"] = decoder
    make["decode fdskl turns"] = lambda name: Decoder(
        name, recorded("fdskl-several", ACTIVE, "turns"), random, lambda message: TURN.decode(message.value)
    )
    for federation in FEDERATIONS:
        heard = {
            ACTIVE: ("samples", "labels", "incarnations", "sums", "revisions"),
            OTHER: ("samples", "incarnations", "rounds", "sums"),
        }
        if len(actives(federation)) > 1:
            heard = {ACTIVE: (*heard[ACTIVE], "rounds", "turns"), OTHER: (*heard[OTHER], "labels", "turns")}
        for name, target in ((ACTIVE, ActiveTarget), (OTHER, OtherTarget)):
            common: dict[str, Any] = {"random": random, "federation": federation, "member": name}
            make[f"{WORKER} {name} {federation}"] = partial(target, messages=recorded(federation, name, *heard[name]), **common)
            make[f"restore {WORKER} {name} {federation}"] = partial(
                RestoredMember, messages=state_of(federation, name), random=random, settings=settings(federation, name)
            )
    return make


FDSKL = Fuzzed(corpus, tuple(FEDERATIONS), record, targets)
