"""Fuzzing of VAFL: its federations, and the checks of a party and the coordinator."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from streamfl.contract.role import BadRecord, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.simulation.vertical.members import HEAD
from streamfl.testing.fuzz.entities import entity_label, entity_sample, settings_of
from streamfl.testing.fuzz.federations import FuzzedFederation, partition_of
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.targets import Decoder, RoleTarget, Target, member_targets
from streamfl.vafl.config import VaflFederation, VaflSettings
from streamfl.vafl.messages import EMBEDDING, REPLY, Embedding, Reply, bounded_array
from streamfl.vafl.tools.simulated_members import members

__all__ = ["FEDERATIONS", "WRONG", "targets"]

# Messages of the first two parties are mutated. The others send good messages, and have to get good answers
# all the same.
WRONG, GOOD = ("press", "pump"), ("good-1", "good-2")
PARTIES = [*WRONG, *GOOD]
ENTITIES = ("e-1", "e-2", "ü-3")
ROUNDS = 30
COLUMNS = ["t1", "t2", "t3"]
# The share of decodable messages that keep their old numbers.
STALE = 0.2
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
CONTENT: dict[str, dict[str, Any]] = {
    "vafl-sum-logistic": {
        "size": 1,
        "columns": COLUMNS,
        "samples": {"format": "json", "entity": "id"},
        "labels": {"format": "json", "entity": "id"},
        "alignment": {"limit": 40},
    },
    "vafl-network-softmax": {
        "size": 2,
        "precision": "float64",
        "samples": {"input_norm": 2.0},
        "labels": {},
        "embedding": {"hidden": [3], "standardise": False},
        "head": {"kind": "network", "hidden": [3], "activation": "tanh"},
        "learning": {"loss": "softmax", "classes": 3, "optimiser": "adam", "wait_for": 2},
        "alignment": {"quorum": 2, "keep": True},
    },
    "vafl-square-bounded": {
        "size": 1,
        "samples": {"format": "json", "entity": "id"},
        "labels": {"format": "json", "entity": "id", "label_range": (-1.0, 1.0)},
        "embedding": {"standardise": False},
        "learning": {
            "loss": "square",
            "optimiser": "sgd-decay",
            "max_staleness": 0,
            "in_flight": 2,
            "regularisation": 0.01,
        },
        "alignment": {"reply_seconds": 2.0, "revise": False},
    },
    "vafl-square-network": {
        "size": 2,
        "columns": COLUMNS,
        "samples": {"format": "json"},
        "labels": {"format": "json"},
        "embedding": {"hidden": [4], "activation": "tanh", "bias": False},
        "head": {"kind": "network"},
        "learning": {"loss": "square", "optimiser": "sgd"},
    },
    "vafl-embedding-noise": {
        "size": 1,
        "columns": COLUMNS,
        "samples": {"format": "json"},
        "labels": {"format": "json"},
        "privacy": {"embedding_norm": 1.0, "embedding_noise": 0.5, "secret_file": SECRET},
    },
    "vafl-private": {
        "size": 2,
        "columns": COLUMNS,
        "samples": {"format": "json"},
        "labels": {"format": "json"},
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


def _federation(content: Mapping[str, Any]) -> FuzzedFederation:
    size = content["size"]
    columns = content.get("columns", 3)
    changed = {key: content[key] for key in ("samples", "labels")}
    precision = content.get("precision", "float32")
    given = {"name": "plant", "seed": 3, "parties": PARTIES, "embedding_size": size, "precision": precision}
    learning = {"batch_size": 2, "learning_rate": 0.1, "seeded_start": True, **content.get("learning", {})}
    sections = {key: content[key] for key in ("embedding", "head", "alignment", "privacy") if key in content}
    who = members(VaflFederation.model_validate(given), dict.fromkeys(PARTIES, columns))
    own = settings_of(VaflSettings, {**sections, "federation": given, "learning": learning}, who, changed)

    def written(number: int) -> Iterator[tuple[str, FuzzedRecord]]:
        entity = f"{ENTITIES[number % len(ENTITIES)]}-{number // (2 * len(ENTITIES))}"
        yield from ((name, sample(own[name], entity, number)) for name in PARTIES)
        if number % 3:
            yield HEAD, entity_label(own[HEAD], entity, float(number % 2))

    return FuzzedFederation(own, written, ROUNDS)


def sample(settings: VaflSettings, entity: str, number: int) -> FuzzedRecord:
    """A sample of an entity, as a party's users would write it."""
    return entity_sample(settings, entity, [math.sin(number), math.cos(number / 3), number % 5 / 5])


FEDERATIONS = {name: _federation(content) for name, content in CONTENT.items()}


class VaflTarget(RoleTarget):
    """A member of one of these federations."""

    settings: VaflSettings

    def begin(self) -> None:
        self.dtype: Any = np.float64 if self.settings.federation.precision == "float64" else np.float32
        self.answers: list[Send] = []
        super().begin()

    def measured(self, name: str) -> float:
        return sum(one.value for one in self.role.measure() if one.name == name)

    def let_time_pass(self) -> None:
        """Move the clock until every entity has expired."""
        self.now += self.settings.alignment.expiry_seconds
        self.tick()

    def check_array(self, content: bytes, name: str) -> None:
        """BadRecord for an array that a peer would refuse: members must not send one."""
        bounded_array(content, self.dtype, self.settings.federation.embedding_size, name)


class PartyTarget(VaflTarget):
    """A party's role, which gets messages of its users and of the coordinator."""

    def begin(self) -> None:
        self._shown: dict[str, Embedding] = {}
        super().begin()

    def take(self, message: FuzzedRecord) -> str | None:
        return super().take(self._to_the_last(message) if message.channel == "gradients" else message)

    def _to_the_last(self, message: FuzzedRecord) -> FuzzedRecord:
        """Most replies get the numbers of the last embedding, whatever else is wrong with them: a party
        ignores other replies."""
        try:
            reply = REPLY.decode(message.value)
        except BadRecord:
            return message
        shown = self._shown.get(reply.entity)
        if shown is None or self.random.random() < STALE:
            return message
        return replace(
            message, value=_encoder.encode(structs.replace(reply, epoch=shown.epoch, sequence=shown.sequence))
        )

    def goes_on(self) -> None:
        while self.measured("waiting_samples"):
            before = self.measured("waiting_samples")
            self.let_time_pass()
            assert self.measured("waiting_samples") < before, "samples wait for ever"
        self.let_time_pass()
        entity = self.good_name()
        self.answers = []
        assert self.feed(sample(self.settings, entity, 1)) is None
        (shown,) = [EMBEDDING.decode(one.value) for one in self.answers]
        assert shown.entity == entity
        reply = self._reply(shown)
        before = self.measured("gradients")
        assert self.feed(FuzzedRecord("gradients", entity.encode(), reply, partition_of(entity))) is None
        assert self.measured("gradients") == before + 1, "a good gradient was not taken"
        assert all(math.isfinite(one.value) for one in self.role.measure())

    def _reply(self, shown: Embedding) -> bytes:
        gradient = encode_array(np.full(self.settings.federation.embedding_size, 0.5, self.dtype))
        return REPLY.encode(
            Reply(VERSION, shown.fingerprint, shown.entity, shown.epoch, shown.sequence, gradient)
        )

    def sent(self, send: Send) -> None:
        embedding = EMBEDDING.decode(send.value)
        assert send.key == embedding.entity.encode()
        self.check_array(embedding.values, "embedding")
        self._shown[embedding.entity] = embedding
        self.answers.append(send)


class CoordinatorTarget(VaflTarget):
    """The coordinator's role, which gets messages of its users and of parties."""

    def chosen(self, heard: list[FuzzedRecord]) -> list[FuzzedRecord]:
        return [one for one in super().chosen(heard) if not one.channel.endswith(GOOD)]

    def begin(self) -> None:
        self._sequence = 1000
        super().begin()

    def take(self, message: FuzzedRecord) -> str | None:
        return super().take(
            self._as_the_next(message) if message.channel.startswith("embeddings/") else message
        )

    def _as_the_next(self, message: FuzzedRecord) -> FuzzedRecord:
        """Most embeddings get new numbers: the coordinator ignores old ones, whatever else is wrong with
        them."""
        try:
            shown = EMBEDDING.decode(message.value)
        except BadRecord:
            return message
        if self.random.random() < STALE:
            return message
        self._sequence += 1
        first = EMBEDDING.decode(self._real_embedding().value)
        return replace(
            message, value=_encoder.encode(structs.replace(shown, epoch=first.epoch, sequence=self._sequence))
        )

    def goes_on(self) -> None:
        self.let_time_pass()
        entity, number = self.good_name(), self._good
        self.answers = []
        for name in GOOD:
            values = encode_array(np.full(self.settings.federation.embedding_size, 0.25, self.dtype))
            fingerprint = EMBEDDING.decode(self._real_embedding().value).fingerprint
            shown = EMBEDDING.encode(Embedding(VERSION, fingerprint, entity, 1, number, 0, values))
            assert (
                self.feed(FuzzedRecord(f"embeddings/{name}", entity.encode(), shown, partition_of(entity)))
                is None
            )
        assert self.feed(entity_label(self.settings, entity, 1.0)) is None
        # After this time the coordinator does not wait for the other parties, which send nothing of it.
        self.now += self.settings.alignment.reply_seconds
        self.tick()
        answered = {one.channel for one in self.answers if one.key == entity.encode()}
        assert answered == {"predictions", *(f"gradients/{name}" for name in GOOD)}
        assert all(math.isfinite(one.value) for one in self.role.measure())

    def sent(self, send: Send) -> None:
        if send.channel == "predictions":
            content = json.loads(send.value)
            numbers = (
                content["prediction"] if isinstance(content["prediction"], list) else [content["prediction"]]
            )
            assert all(isinstance(number, float) for number in numbers), f"{numbers} is no prediction"
        else:
            reply = REPLY.decode(send.value)
            assert send.key == reply.entity.encode()
            if reply.gradient:
                self.check_array(reply.gradient, "gradient")
        self.answers.append(send)

    def _real_embedding(self) -> FuzzedRecord:
        return next(one for one in self.messages if one.channel.startswith("embeddings/"))


def _decode_embedding(message: FuzzedRecord) -> None:
    bounded_array(EMBEDDING.decode(message.value).values, np.float32, 2, "embedding")


def _decode_reply(message: FuzzedRecord) -> None:
    gradient = REPLY.decode(message.value).gradient
    if gradient:
        bounded_array(gradient, np.float32, 2, "gradient")


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """The factories of all targets, by name."""
    decoded = FEDERATIONS["vafl-square-network"]
    embeddings = partial(decoded.heard, HEAD, *(f"embeddings/{name}" for name in WRONG))
    return {
        "decode vafl embeddings": lambda name: Decoder(name, embeddings(), random, _decode_embedding),
        "decode vafl replies": lambda name: Decoder(
            name, decoded.heard(WRONG[0], "gradients"), random, _decode_reply
        ),
        **member_targets(random, FEDERATIONS, {WRONG[0]: PartyTarget, HEAD: CoordinatorTarget}),
    }
