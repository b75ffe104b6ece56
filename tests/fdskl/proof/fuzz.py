"""The fuzzer's federations of FDSKL, and what has to hold at the active party and at another one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any, cast

import msgspec
from msgspec import structs

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import BadRecord, Role, Send
from streamfl.contract.seeding import rng_for
from streamfl.fdskl.config import FdsklFederation, FdsklSettings
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
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.tools.simulated_members import members
from streamfl.testing.fuzz.entities import entity_label, entity_sample, settings_of
from streamfl.testing.fuzz.federations import FuzzedFederation, partition_of
from streamfl.testing.fuzz.member import build_role
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.targets import Decoder, Restored, RoleTarget, Target, member_targets

__all__ = ["FEDERATIONS", "PARTIES", "SELDOM", "targets"]

ACTIVE, OTHER = "press", "pump"
PARTIES = [ACTIVE, OTHER, "belt"]
ENTITIES = ("e-1", "e-2", "ü-3")
ROUNDS = 24
# Share of the decoded messages that still repeat what was sent before.
STALE = 0.2
_encode = msgspec.msgpack.Encoder().encode
# State that no recorded run leads to.
SELDOM = (
    FuzzedRecord("state", b"headers/e-1", _encode([("traceparent", b"00-1")])),
    FuzzedRecord("state", b"rescaled", _encode(True)),
)

# Both solvers, every topology, mask and width of numbers, and two active parties.
CONTENT: dict[str, dict[str, Any]] = {
    "fdskl-newton": {
        "columns": ["t1", "t2", "t3"],
        "samples": {"format": "json", "entity": "id"},
        "labels": {"format": "json", "entity": "id"},
        "aggregation": {"topology": "tree"},
        "alignment": {"limit": 200},
    },
    "fdskl-sgd": {
        "samples": {"input_norm": 2.0},
        "labels": {"label_range": (-1.0, 1.0)},
        "learning": {"solver": "sgd", "loss": "square", "kernel": "laplacian"},
        "aggregation": {"topology": "star", "circle_bits": 64, "frequencies": "shared"},
    },
    "fdskl-paper": {
        "samples": {"format": "json"},
        "labels": {"format": "json"},
        "learning": {"loss": "smooth-hinge", "kernel": "matern"},
        "aggregation": {"topology": "ring", "mask": "paper", "study": True},
    },
    "fdskl-several": {
        "active": [ACTIVE, OTHER],
        "samples": {"format": "json"},
        "labels": {"format": "json"},
        "learning": {"solver": "sgd"},
        "aggregation": {"topology": "tree"},
    },
}


def _federation(content: Mapping[str, Any]) -> FuzzedFederation:
    actives: list[str] = content.get("active", [ACTIVE])
    learning = {
        "bandwidth": 1.5,
        "block_instances": 2,
        "block_features": 2,
        "features_limit": 6,
        "window": 50,
        "sweeps": 2,
        "cache_bytes": 10_000,
    }
    given: dict[str, Any] = {
        "federation": {"name": "plant", "seed": 3, "parties": PARTIES, "active": actives},
        "learning": {**learning, **content.get("learning", {})},
        "aggregation": {"round_seconds": 5.0, "rounds_in_flight": 4, **content["aggregation"]},
        "alignment": {"reply_seconds": 1.0, "linger_ms": 0.0, **content.get("alignment", {})},
        "standardisation": {"first_entities": 2},
    }
    changed = {section: content[section] for section in ("samples", "labels")}
    who = members(FdsklFederation(**given["federation"]), dict.fromkeys(PARTIES, content.get("columns", 3)))
    own = settings_of(FdsklSettings, given, who, changed)

    def written(number: int) -> Iterator[tuple[str, FuzzedRecord]]:
        # Some columns come anew, and one party's come late.
        entity = f"{ENTITIES[number % len(ENTITIES)]}-{number // (2 * len(ENTITIES))}"
        for name in PARTIES if number % 4 else PARTIES[:-1]:
            yield name, sample(own[name], entity, number)
        if number % 3:
            knows = actives[number // 3 % len(actives)]
            yield knows, entity_label(own[knows], entity, float(number % 2))

    return FuzzedFederation(own, written, ROUNDS, moments=12, seconds=0.5, build=_build)


def _build(settings: RoleSettings) -> Role:
    """A party with keys that the recorded messages name: keys of a real party differ in each of its lives."""
    worker, lives = cast(FdsklParty, build_role(settings)), count()
    name = worker.settings.required_party()
    worker.given = replace(
        worker.given,
        secret=rng_for(3, "fuzz", "secret", name).bytes(32),
        entropy=lambda: rng_for(3, "fuzz", "life", name, next(lives)).bytes(32),
    )
    return worker


def sample(settings: FdsklSettings, entity: str, number: int) -> FuzzedRecord:
    """A party's sample of an entity, as its users would write it."""
    return entity_sample(settings, entity, [math.sin(number), math.cos(number / 3), number % 5 / 5])


FEDERATIONS = {name: _federation(content) for name, content in CONTENT.items()}


class FdsklTarget(RoleTarget):
    """A party of one of these federations."""

    role: FdsklParty

    settings: FdsklSettings
    # They also count refused messages.
    passing = frozenset({"_metrics"})

    def begin(self) -> None:
        # The last round that it knows of: its name, and the identity of its announcement.
        self.last: tuple[int, int, bytes] | None = None
        self._number = 1000
        super().begin()

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
                return replace(
                    message,
                    value=_encode(structs.replace(REVISION.decode(message.value), sequence=self._number)),
                )
        except (BadRecord, IndexError):
            pass
        return message

    def knows(self, content: bytes) -> None:
        """Note an announced round."""
        announced = ROUND.decode(content)
        root = PARTIES.index(announced.sender) if announced.sender in PARTIES else 0
        self.last = (
            announced.incarnations[root],
            announced.number,
            identity_of(content, self.settings.federation.name, 0),
        )

    def let_time_pass(self) -> None:
        """Pass the time after which everything that can expire has expired."""
        self.now += self.settings.alignment.expiry_seconds
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
        entity = self.good_name()
        assert self.feed(sample(self.settings, entity, 1)) is None
        assert self.feed(entity_label(self.settings, entity, 1.0)) is None
        self.now += self.settings.aggregation.round_seconds
        self.tick()
        active = self.role.active_partition(partition_of(entity))
        found = active.forecasts.get(entity)
        assert found is None or found.label is not None, "a good label is not kept"
        assert found is None or (found.awaited and active.rounds.busy), (
            "a good sample is neither predicted nor asked for"
        )


class OtherTarget(FdsklTarget):
    """A party without labels, with messages from its users, the active party and the parties below it."""

    def goes_on(self) -> None:
        self.let_time_pass()
        entity, partition = self.good_name(), partition_of("good-1")
        known = [one for one in self.messages if one.channel == "incarnations" and one.partition == partition]
        for one in known:
            assert self.feed(one) is None
        assert self.feed(replace(sample(self.settings, entity, 1), partition=partition)) is None
        said = [INCARNATION.decode(one.value) for one in known]
        task = self.role.partition(partition)
        own = self.role.settings
        lives = {one.sender: one.number for one in said} | {
            own.required_party(): task.peers.incarnation.number
        }
        self._number += 1
        fingerprint, numbers = own.fingerprint, [lives[name] for name in PARTIES]
        good = Round(
            1, fingerprint, ACTIVE, numbers, self._number, PHASES, 1.5, [FeatureRange(0, 2)], [entity]
        )
        assert self.feed(FuzzedRecord("rounds", None, ROUND.encode(good), partition)) is None
        self.now += self.settings.alignment.reply_seconds
        self.tick()
        pending = task.sums.pending.get((numbers[0], self._number))
        assert pending is None or pending.answered, "a good round is not answered"


class RestoredParty(Restored):
    """A party, with every key that it may write."""

    def __init__(self, name: str, random: Random, federation: FuzzedFederation, member: str) -> None:
        super().__init__(name, random, federation, member)
        self.messages = [*self.messages, *SELDOM]


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """By name, a function that makes the target."""
    made = member_targets(random, FEDERATIONS, {ACTIVE: ActiveTarget, OTHER: OtherTarget}, RestoredParty)
    codecs = {
        "incarnations": INCARNATION,
        "rounds": ROUND,
        "sums": PARTIAL_SUM,
        "revisions": REVISION,
        "turns": TURN,
    }
    for kind, codec in codecs.items():
        federation = FEDERATIONS["fdskl-several" if kind == "turns" else "fdskl-newton"]
        heard = partial(federation.heard, OTHER if kind == "rounds" else ACTIVE, kind)
        made[f"decode fdskl {kind}"] = partial(_decoder, random, heard, codec)
    return made


def _decoder(random: Random, heard: Callable[[], list[FuzzedRecord]], codec: Any, name: str) -> Target:
    return Decoder(name, heard(), random, lambda message: codec.decode(message.value))
