"""Fuzzing of VAFL: its federations, and the checks of a party and the coordinator."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from streamfl.contract.role import PeerError, Rejection, Send, receive_at_once
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.runtime.bus import Outgoing
from streamfl.testing.fuzz.federations import Corpus, Fuzzed, partition_of, some_of_each, users_message
from streamfl.testing.fuzz.member import NOW, FuzzedMember
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.resumed import MemoryFederation
from streamfl.testing.fuzz.targets import Decoder, Restored, RoleTarget, Target
from streamfl.vafl.config import COORDINATOR, PARTY, VaflSettings
from streamfl.vafl.messages import EMBEDDING, REPLY, Embedding, Reply, bounded_array

__all__ = ["FEDERATIONS", "VAFL", "WRONG", "corpus", "member", "run"]

corpus = Corpus(Path(__file__).parent / "corpus")
# Messages of the first two parties are mutated. The others send good messages, and have to get good answers all the same.
WRONG, GOOD = ("press", "pump"), ("good-1", "good-2")
ENTITIES = ("e-1", "e-2", "ü-3")
ROUNDS = 30
# The share of decodable messages that keep their old numbers.
STALE = 0.2
# On average after this many messages a restored member goes on with its state.
GOES_ON = 10
_encoder = msgspec.msgpack.Encoder()
_folder = TemporaryDirectory(prefix="streamfl-fuzz-")


def _own_file() -> str:
    """The secret of the recorded messages, in a file that only its owner may read."""
    path = Path(_folder.name, "secret")
    path.touch(0o600)
    path.write_text("what a fuzzed party draws its noise from\n")
    return str(path)


SECRET = _own_file()

# These cover both heads, every loss, every optimiser, both precisions, every delay rule, and noise.
FEDERATIONS: dict[str, dict[str, Any]] = {
    "vafl-sum-logistic": {
        "size": 1,
        "samples": {"format": "json", "entity": "id", "features": ["t1", "t2", "t3"]},
        "labels": {"entity": "id"},
        "alignment": {"limit": 40},
    },
    "vafl-network-softmax": {
        "size": 2,
        "precision": "float64",
        "samples": {"format": "msgpack", "features": "x", "dimension": 3, "input_norm": 2.0},
        "labels": {"format": "msgpack"},
        "embedding": {"hidden": [3], "standardise": False},
        "head": {"kind": "network", "hidden": [3], "activation": "tanh"},
        "learning": {"loss": "softmax", "classes": 3, "optimiser": "adam", "wait_for": 2},
        "alignment": {"quorum": 2, "keep": True},
    },
    "vafl-square-bounded": {
        "size": 1,
        "samples": {"format": "json", "entity": "id", "features": "x", "dimension": 3},
        "labels": {"entity": "id", "label_range": [-1.0, 1.0]},
        "embedding": {"standardise": False},
        "learning": {"loss": "square", "optimiser": "sgd-decay", "max_staleness": 0, "in_flight": 2, "regularisation": 0.01},
        "alignment": {"reply_seconds": 2.0, "revise": False},
    },
    "vafl-square-network": {
        "size": 2,
        "samples": {"format": "json", "features": ["t1", "t2", "t3"]},
        "labels": {},
        "embedding": {"hidden": [4], "activation": "tanh", "bias": False},
        "head": {"kind": "network"},
        "learning": {"loss": "square", "optimiser": "sgd"},
    },
    "vafl-embedding-noise": {
        "size": 1,
        "samples": {"format": "json", "features": ["t1", "t2", "t3"]},
        "labels": {},
        "privacy": {"embedding_norm": 1.0, "embedding_noise": 0.5, "secret_file": SECRET},
    },
    "vafl-private": {
        "size": 2,
        "samples": {"format": "json", "features": ["t1", "t2", "t3"]},
        "labels": {},
        "embedding": {"hidden": [4]},
        "head": {"kind": "network"},
        "privacy": {
            "embedding_norm": 1.0,
            "embedding_noise": 2.0,
            "gradient_norm": 1.0,
            "gradient_noise": 2.0,
            "hidden_noise": 0.1,
            "budget_mu": 4.0,
            "reply_noise": 0.5,
            "ledger_limit": 1000,
            "secret_file": SECRET,
        },
    },
}


@cache
def settings(federation: str, name: str) -> VaflSettings:
    """Settings of the party of this name, or of the coordinator."""
    content = {key: value for key, value in FEDERATIONS[federation].items() if key not in ("size", "precision")}
    learning = {"batch_size": 2, "learning_rate": 0.1, "seeded_start": True, **content.get("learning", {})}
    return VaflSettings(
        **{
            **content,
            "federation": {
                "name": "plant",
                "seed": 3,
                "parties": [*WRONG, *GOOD],
                "embedding_size": FEDERATIONS[federation]["size"],
                "precision": FEDERATIONS[federation].get("precision", "float32"),
            },
            "role": {"kind": COORDINATOR if name == COORDINATOR else PARTY},
            "party": None if name == COORDINATOR else {"name": name},
            "samples": {"topic": "readings", **content["samples"]},
            "labels": {"topic": "truths", "label": "y", **content["labels"]},
            "learning": learning,
        }
    )


def member(federation: str, name: str) -> FuzzedMember:
    """A new member without state."""
    return FuzzedMember.of(settings(federation, name))


def sample(federation: str, entity: str, number: int) -> FuzzedRecord:
    """A sample of an entity, as a party's users would write it."""
    section = settings(federation, WRONG[0]).samples
    assert section is not None
    inputs = [math.sin(number), math.cos(number / 3), number % 5 / 5]
    fields = section.features or ()
    named = {fields: inputs} if isinstance(fields, str) else dict(zip(fields, inputs, strict=True))
    return _users(section.format, "samples", section.entity, entity, named)


def label(federation: str, entity: str, number: int) -> FuzzedRecord:
    """The label of an entity, as users would write it."""
    section = settings(federation, COORDINATOR).labels
    assert section is not None
    return _users(section.format, "labels", section.entity, entity, {section.label: float(number % 2)})


def _users(format: str, channel: str, field: str | None, entity: str, content: dict[str, Any]) -> FuzzedRecord:
    return users_message(channel, format, entity, content if field is None else {field: entity, **content})


def record(federation: str) -> list[FuzzedRecord]:
    """Record some messages of every kind from a small run of the federation's roles."""
    coordinator, parties = member(federation, COORDINATOR), {name: member(federation, name) for name in (*WRONG, *GOOD)}
    heard: dict[str, list[FuzzedRecord]] = {name: [] for name in parties}
    found: list[FuzzedRecord] = []
    for number in range(ROUNDS):
        now = NOW + number
        entity = f"{ENTITIES[number % len(ENTITIES)]}-{number // (2 * len(ENTITIES))}"
        shown = [sample(federation, entity, number)]
        told = [label(federation, entity, number)] if number % 3 else []
        for name, party in parties.items():
            sends = receive_at_once(party.role, [party.decode(one) for one in (*heard[name], *shown)], now)
            told += [FuzzedRecord(f"embeddings/{name}", one.key, one.value, one.partition or 0) for one in _sent(sends)]
            # Parties are at most one round ahead of the replies, so that some replies ask for newer embeddings.
            heard[name] = []
        for one in _sent(receive_at_once(coordinator.role, [coordinator.decode(each) for each in told], now)):
            channel, _, name = one.channel.partition("/")
            if channel == "gradients":
                heard[name].append(FuzzedRecord("gradients", one.key, one.value, one.partition or 0))
        found += [*shown, *told, *heard[WRONG[0]]]
        for channel, role in ((COORDINATOR, coordinator.role), (PARTY, parties[WRONG[0]].role)):
            found += [FuzzedRecord(channel, one.key, one.value, one.partition) for one in role.changed_state() if one.value]
        for name in (*WRONG[1:], *GOOD):
            list(parties[name].role.changed_state())
    return [one for one in some_of_each(found) if not one.channel.endswith(GOOD)]


def _sent(replies: Sequence[Send | Rejection]) -> list[Send]:
    assert not [reply for reply in replies if isinstance(reply, Rejection)]
    return [reply for reply in replies if isinstance(reply, Send)]


def run(federation: str) -> MemoryFederation:
    """A federation of the coordinator and all parties, for tests of members that restart from their state."""
    own = {}
    for name in (COORDINATOR, *WRONG, *GOOD):
        chosen = settings(federation, name)
        assert chosen.samples is not None
        # Each party has its own topic of columns of the same entities.
        samples = chosen.samples.model_copy(update={"topic": f"readings-{name}"})
        own[name] = chosen.model_copy(update={"samples": samples})

    def written(number: int) -> list[Outgoing]:
        entity = f"e-{number}"
        told = [(f"readings-{name}", sample(federation, entity, number)) for name in (*WRONG, *GOOD)]
        told += [("truths", label(federation, entity, number))] if number % 3 else []
        return [Outgoing(topic, one.key, one.value, one.partition) for topic, one in told]

    return MemoryFederation(own, written)


class VaflTarget(RoleTarget):
    """A member of one of these federations."""

    def __init__(self, name: str, messages: Sequence[FuzzedRecord], random: Random, federation: str, member: str) -> None:
        self.federation = federation
        self.chosen = settings(federation, member)
        self.dtype: Any = np.float64 if self.chosen.federation.precision == "float64" else np.float32
        self.answers: list[Send] = []
        self._good = 0
        super().__init__(name, messages, random, self.chosen)

    def good_entity(self) -> str:
        """The name of a new entity."""
        self._good += 1
        return f"good-{self._good}"

    def measured(self, name: str) -> float:
        return sum(one.value for one in self.role.measure() if one.name == name)

    def let_time_pass(self) -> None:
        """Move the clock until every entity has expired."""
        self.now += self.chosen.alignment.expiry_seconds
        self.tick()

    def check_array(self, content: bytes, name: str) -> None:
        """PeerError for an array that a peer would refuse: members must not send one."""
        bounded_array(content, self.dtype, self.chosen.federation.embedding_size, name)


class PartyTarget(VaflTarget):
    """A party's role, which gets messages of its users and of the coordinator."""

    def begin(self) -> None:
        self._shown: dict[str, Embedding] = {}

    def take(self, message: FuzzedRecord) -> str | None:
        return super().take(self._to_the_last(message) if message.channel == "gradients" else message)

    def _to_the_last(self, message: FuzzedRecord) -> FuzzedRecord:
        """Most replies get the numbers of the last embedding, whatever else is wrong with them: a party ignores other replies."""
        try:
            reply = REPLY.decode(message.value)
        except PeerError:
            return message
        shown = self._shown.get(reply.entity)
        if shown is None or self.random.random() < STALE:
            return message
        return replace(message, value=_encoder.encode(structs.replace(reply, epoch=shown.epoch, sequence=shown.sequence)))

    def goes_on(self) -> None:
        while self.measured("waiting_samples"):
            before = self.measured("waiting_samples")
            self.let_time_pass()
            assert self.measured("waiting_samples") < before, "samples wait for ever"
        self.let_time_pass()
        entity = self.good_entity()
        self.answers = []
        assert self.feed(sample(self.federation, entity, 1)) is None
        (shown,) = [EMBEDDING.decode(one.value) for one in self.answers]
        assert shown.entity == entity
        reply = self._reply(shown)
        before = self.measured("gradients")
        assert self.feed(FuzzedRecord("gradients", entity.encode(), reply, partition_of(entity))) is None
        assert self.measured("gradients") == before + 1, "a good gradient was not taken"
        assert all(math.isfinite(one.value) for one in self.role.measure())

    def _reply(self, shown: Embedding) -> bytes:
        gradient = encode_array(np.full(self.chosen.federation.embedding_size, 0.5, self.dtype))
        return REPLY.encode(Reply(VERSION, shown.fingerprint, shown.entity, shown.epoch, shown.sequence, gradient))

    def sent(self, send: Send) -> None:
        embedding = EMBEDDING.decode(send.value)
        assert send.key == embedding.entity.encode()
        self.check_array(embedding.values, "embedding")
        self._shown[embedding.entity] = embedding
        self.answers.append(send)


class CoordinatorTarget(VaflTarget):
    """The coordinator's role, which gets messages of its users and of parties."""

    def begin(self) -> None:
        self._sequence = 1000

    def take(self, message: FuzzedRecord) -> str | None:
        return super().take(self._as_the_next(message) if message.channel.startswith("embeddings/") else message)

    def _as_the_next(self, message: FuzzedRecord) -> FuzzedRecord:
        """Most embeddings get new numbers: the coordinator ignores old ones, whatever else is wrong with them."""
        try:
            shown = EMBEDDING.decode(message.value)
        except PeerError:
            return message
        if self.random.random() < STALE:
            return message
        self._sequence += 1
        first = EMBEDDING.decode(self._real_embedding().value)
        return replace(message, value=_encoder.encode(structs.replace(shown, epoch=first.epoch, sequence=self._sequence)))

    def goes_on(self) -> None:
        self.let_time_pass()
        entity, number = self.good_entity(), self._good
        self.answers = []
        for name in GOOD:
            values = encode_array(np.full(self.chosen.federation.embedding_size, 0.25, self.dtype))
            fingerprint = EMBEDDING.decode(self._real_embedding().value).fingerprint
            shown = EMBEDDING.encode(Embedding(VERSION, fingerprint, entity, 1, number, 0, values))
            assert self.feed(FuzzedRecord(f"embeddings/{name}", entity.encode(), shown, partition_of(entity))) is None
        assert self.feed(label(self.federation, entity, 1)) is None
        # After this time the coordinator does not wait for the other parties, which send nothing of it.
        self.now += self.chosen.alignment.reply_seconds
        self.tick()
        answered = {one.channel for one in self.answers if one.key == entity.encode()}
        assert answered == {"predictions", *(f"gradients/{name}" for name in GOOD)}
        assert all(math.isfinite(one.value) for one in self.role.measure())

    def sent(self, send: Send) -> None:
        if send.channel == "predictions":
            content = json.loads(send.value)
            numbers = content["prediction"] if isinstance(content["prediction"], list) else [content["prediction"]]
            assert all(isinstance(number, float) for number in numbers), f"{numbers} is no prediction"
        else:
            reply = REPLY.decode(send.value)
            assert send.key == reply.entity.encode()
            if reply.gradient:
                self.check_array(reply.gradient, "gradient")
        self.answers.append(send)

    def _real_embedding(self) -> FuzzedRecord:
        return next(one for one in self.messages if one.channel.startswith("embeddings/"))


class RestoredMember(Restored):
    """A member that goes on with the state that it restored from a damaged changelog."""

    def take(self, message: FuzzedRecord) -> str | None:
        reason = super().take(message)
        if self.random.randrange(GOES_ON) == 0:
            self.finish()
        return reason

    def finish(self) -> None:
        self.role.receive([], NOW + 100)
        list(self.role.changed_state())
        list(self.role.measure())


def _decode_embedding(message: FuzzedRecord) -> None:
    bounded_array(EMBEDDING.decode(message.value).values, np.float32, 2, "embedding")


def _decode_reply(message: FuzzedRecord) -> None:
    gradient = REPLY.decode(message.value).gradient
    if gradient:
        bounded_array(gradient, np.float32, 2, "gradient")


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """The factories of all targets, by name."""
    channels = [f"embeddings/{name}" for name in WRONG]
    of_decoders = "vafl-square-network"
    make: dict[str, Callable[[str], Target]] = {
        "decode vafl embeddings": lambda name: Decoder(name, corpus(of_decoders, *channels), random, _decode_embedding),
        "decode vafl replies": lambda name: Decoder(name, corpus(of_decoders, "gradients"), random, _decode_reply),
    }
    for federation in FEDERATIONS:
        common: dict[str, Any] = {"random": random, "federation": federation}
        heard = {WRONG[0]: ("samples", "gradients"), COORDINATOR: ("labels", *channels)}
        for name, kind, target in ((WRONG[0], PARTY, PartyTarget), (COORDINATOR, COORDINATOR, CoordinatorTarget)):
            messages, remembered = corpus(federation, *heard[name]), corpus(federation, kind)
            make[f"{kind} {federation}"] = partial(target, messages=messages, member=name, **common)
            make[f"restore {kind} {federation}"] = partial(
                RestoredMember, messages=remembered, random=random, settings=settings(federation, name)
            )
    return make


VAFL = Fuzzed(corpus, tuple(FEDERATIONS), record, targets)
