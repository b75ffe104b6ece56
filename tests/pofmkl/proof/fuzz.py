"""POF-MKL's federations for the fuzzer, and what has to hold for a client and a server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
import numpy as np

from streamfl.contract.role import ConfigurationError, Send, StateChange
from streamfl.encoding.wire import decode_array
from streamfl.pofmkl.config import KernelsSection, PofmklSettings, UplinkSection
from streamfl.pofmkl.messages import UPDATE, KernelParameters, decode_model
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.pofmkl.state import BOOK
from streamfl.records.formats import format_of
from streamfl.records.samples import SamplesSection
from streamfl.runtime.bus import Outgoing
from streamfl.testing.fuzz.federations import Corpus, Fuzzed, some_of_each, users_message
from streamfl.testing.fuzz.member import NOW, PARTITIONS, FuzzedMember
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.resumed import MemoryFederation
from streamfl.testing.fuzz.targets import Arrays, Decoder, Restored, RoleTarget, Samples, Target

__all__ = ["FEDERATIONS", "POFMKL", "corpus", "member", "run"]

corpus = Corpus(Path(__file__).parent / "corpus")
GOOD_CLIENT = "the-good-one"
CLIENTS = ("press-1", "press-2", "pümpe")
ROUNDS = 12

NAMED = {"client": "device", "sample_id": "id", "features": ["t1", "t2", "t3"], "label": "y", "label_range": [-1.0, 1.0]}
LISTED = {"features": "x", "dimension": 3, "label": "y"}

# Both presets, every staleness, every step of the server, both losses, both precisions, labels of both kinds, and a model of a
# user's own.
FEDERATIONS: dict[str, dict[str, Any]] = {
    "paper-lockstep": {
        "samples": {"format": "json", **NAMED},
        "learning": {"preset": "paper", "staleness": "lockstep"},
        "uplink": {"kernels_per_upload": 2},
    },
    "paper-async-logistic": {
        "samples": {"format": "msgpack", **LISTED},
        "learning": {"preset": "paper", "staleness": "async", "loss": "logistic", "precision": "float64"},
    },
    "default-lockstep": {"samples": {"format": "json", **LISTED, "input_norm": 2.0}, "learning": {"staleness": "lockstep"}},
    "default-async": {"samples": {"format": "msgpack", **NAMED}, "learning": {"staleness": "async"}},
    "default-bounded-adagrad": {
        "samples": {"format": "json", **NAMED},
        "learning": {"staleness": "bounded", "max_staleness": 3, "server_step": "adagrad"},
    },
    "default-async-gradient": {
        "samples": {"format": "json", **LISTED},
        "learning": {"staleness": "async", "server_step": "gradient", "loss": "logistic"},
        "challengers": {"models": ["last-label"]},
    },
    "default-late-labels": {
        "samples": {"format": "json", **NAMED, "label": None},
        "labels": {"topic": "truths", "client": "device", "sample_id": "id", "label": "y"},
        "learning": {"staleness": "async"},
    },
    "default-own-models": {
        "samples": {"format": "json", **NAMED},
        "learning": {"staleness": "async"},
        "experts": {"river": ["line"]},
        "challengers": {"models": ["line"]},
        "models": {"line": {"make": "guest_models:line"}},
    },
}
SECTIONS: dict[str, dict[str, Any]] = {
    "named": {"features": ["t1", "t2", "t3"], "client": "device", "sample_id": "id"},
    "listed": {"features": "x", "dimension": 3, "label_range": (-5.0, 1e6)},
}


@cache
def settings(federation: str, kind: str) -> PofmklSettings:
    content = FEDERATIONS[federation]
    return PofmklSettings(
        **{
            **content,
            "federation": {"name": "plant", "seed": 3, "clients": 6, "shards": len(PARTITIONS), "features": 3},
            "role": {"kind": kind},
            "samples": {"topic": "readings", **content["samples"]},
            "learning": {"features_per_kernel": 2, "learning_rate": 0.1, **content["learning"]},
        }
    )


def member(federation: str, kind: str) -> FuzzedMember:
    """A new role of this kind."""
    return FuzzedMember.of(settings(federation, kind))


def sample(federation: str, client: str, number: int, label: bool = True) -> FuzzedRecord:
    """A sample as the federation's users would write it."""
    section = settings(federation, "pofmkl-client").samples
    assert section is not None
    inputs = [math.sin(number), math.cos(number / 3), number % 5 / 5]
    content: dict[str, Any] = {"y": float(number % 2) if section.label_range[0] == 0 else math.sin(number)} if label else {}
    if isinstance(section.features, list):
        content |= {"device": client, "id": number, **dict(zip(section.features, inputs, strict=True))}
    else:
        content |= {"x": inputs}
    return users_message("samples", section.format, client, content)


def label(federation: str, client: str, number: int) -> FuzzedRecord:
    """The label of such a sample, where labels have a topic of their own."""
    section = settings(federation, "pofmkl-client").labels
    assert section is not None
    content = {"device": client, "id": number, "y": math.sin(number)}
    return users_message("labels", section.format, client, content)


def record(federation: str) -> list[FuzzedRecord]:
    """Some messages of every kind, from a small run of the federation's roles."""
    client, server = member(federation, "pofmkl-client"), member(federation, "pofmkl-server")
    found: list[FuzzedRecord] = []
    for number in range(ROUNDS):
        now = NOW + 2.0 * number
        samples = [sample(federation, name, number) for name in CLIENTS]
        if "labels" in FEDERATIONS[federation]:
            samples += [label(federation, name, number - 1) for name in CLIENTS]
        sent: list[Any] = [*client.role.receive([client.decode(one) for one in samples], now), *client.role.receive([], now + 1)]
        updates = [
            FuzzedRecord("updates", send.key, send.value, send.partition or 0)
            for send in sent
            if isinstance(send, Send) and send.channel == "updates"
        ]
        server.role.receive([server.decode(one) for one in updates], now)
        # A round has fewer clients than the federation: it closes by its timeout.
        server.role.receive([], now + 100)
        state = list(server.role.changed_state())
        model = [FuzzedRecord("model", one.key, one.value, one.partition) for one in state if one.channel == "model"]
        client.role.receive([client.decode(one) for one in model], now + 1)
        found += [*samples, *updates, *model]
        found += [
            FuzzedRecord("server", one.key, one.value, one.partition) for one in state if one.channel == "state" and one.value
        ]
        found += [FuzzedRecord("client", one.key, one.value, one.partition) for one in client.role.changed_state() if one.value]
    return some_of_each(found)


def run(federation: str) -> MemoryFederation:
    """A federation of a server and the clients, with few kernels, for tests that resume from stored state."""
    few = KernelsSection(bandwidths=[0.5, 1.0], views=["centred-lags"]) if federation.startswith("default") else KernelsSection()
    own = {
        kind: settings(federation, kind).model_copy(update={"kernels": few, "uplink": UplinkSection(kernels_per_upload=2)})
        for kind in ("pofmkl-server", "pofmkl-client")
    }
    late = "labels" in FEDERATIONS[federation]

    def written(number: int) -> list[Outgoing]:
        told = [("readings", sample(federation, name, number, label=not late)) for name in CLIENTS]
        told += [("truths", label(federation, name, number - 1)) for name in CLIENTS if late and number]
        return [Outgoing(topic, one.key, one.value, one.partition) for topic, one in told]

    return MemoryFederation(own, written)


class PofmklTarget(RoleTarget):
    """A role of one of these federations."""

    def __init__(self, name: str, messages: Sequence[FuzzedRecord], random: Random, federation: str, kind: str) -> None:
        self.federation = federation
        super().__init__(name, messages, random, settings(federation, kind))


class ClientTarget(PofmklTarget):
    """A client's role. It reads its users' samples and the model's topic."""

    _heard = 0

    def greet(self) -> None:
        assert self.feed(sample(self.federation, GOOD_CLIENT, 0, label=False)) is None

    def take(self, message: FuzzedRecord) -> str | None:
        if message.channel == "samples" and message.partition % len(PARTITIONS) in self.role.full:
            return "held back"
        return super().take(message)

    def goes_on(self) -> None:
        before = self._heard
        number = self.random.randrange(1000)
        assert self.feed(sample(self.federation, GOOD_CLIENT, number, label=False)) is None
        assert self._heard == before + 1, "a good sample was not predicted"
        waiting = [measured.value for measured in self.role.measure() if measured.name == "waiting_samples"]
        assert waiting[0] <= len(PARTITIONS) * 10_000 + 1

    def sent(self, send: Send) -> None:
        if send.channel == "updates":
            update = UPDATE.decode(send.value)
            dtype: Any = np.float64 if "logistic" in self.federation and "paper" in self.federation else np.float32
            decode_array(update.steps, dtype, (len(update.steps) // np.dtype(dtype).itemsize,), "steps")
            return
        prediction = json.loads(send.value)
        assert isinstance(prediction["prediction"], float), f"{prediction['prediction']} is no prediction"
        self._heard += prediction["client"] == GOOD_CLIENT


class ServerTarget(PofmklTarget):
    """A server's role. It reads its clients' updates."""

    _sequence = 0

    def begin(self) -> None:
        # Updates name the version that they were made with. The server refuses one that its model has not reached, by its book.
        for message in corpus(self.federation, "server", "model"):
            channel = "model" if message.channel == "model" else "state"
            if channel == "model" or message.key == BOOK.prefix:
                self.role.restore(StateChange(channel, message.partition, message.key or b"", message.value))

    def goes_on(self) -> None:
        self._sequence += 1
        template = UPDATE.decode(self.messages[-1].value)
        partition = self.messages[-1].partition
        version = cast(PofmklServer, self.role).snapshot()[partition].model_version
        assert version >= 0
        update = msgspec.structs.replace(template, client=GOOD_CLIENT, epoch=1, sequence=self._sequence, model_version=version)
        reason = self.feed(FuzzedRecord("updates", GOOD_CLIENT.encode(), UPDATE.encode(update), partition))
        assert reason is None, f"a good update was refused: {reason}"
        assert any(key[2] == b"client/" + GOOD_CLIENT.encode() for key in self.state)

    def greet(self) -> None:
        self.goes_on()

    def remember(self, change: StateChange) -> None:
        super().remember(change)
        if change.channel == "model":
            record = decode_model(change.key, change.value)
            if isinstance(record, KernelParameters):
                dtype: Any = np.float64 if "logistic" in self.federation and "paper" in self.federation else np.float32
                decode_array(record.parameters, dtype, (4,), "parameters")


def _changed(message: FuzzedRecord) -> FuzzedRecord:
    """A sample in JSON as the change event of its row."""
    return replace(message, value=b'{"op": "c", "after": ' + (message.value or b"null") + b"}")


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """The functions that create each target, by its name."""
    everything = [message for name in FEDERATIONS for message in corpus(name, "updates", "model", "samples")]
    by_channel = {channel: [m for m in everything if m.channel == channel] for channel in ("updates", "model", "samples")}
    numbers = [*by_channel["updates"], *by_channel["model"]]
    make: dict[str, Callable[[str], Target]] = {
        "decode updates": lambda name: Decoder(name, by_channel["updates"], random, lambda one: UPDATE.decode(one.value)),
        "decode model": lambda name: Decoder(name, by_channel["model"], random, lambda one: decode_model(one.key, one.value)),
        "decode arrays": lambda name: Arrays(name, numbers, random),
    }
    for format in sorted(point.name for point in entry_points(group="streamfl.formats")):
        for fields, section in SECTIONS.items():
            chosen = SamplesSection(topic="t", format=format, label="y", **section)
            try:
                format_of(chosen)
            except ConfigurationError:
                # This format needs a schema.
                continue
            messages = [_changed(one) for one in by_channel["samples"]] if format == "debezium" else by_channel["samples"]
            make[f"samples {format} {fields}"] = partial(Samples, messages=messages, random=random, section=chosen)
    for federation in FEDERATIONS:
        of_client, of_server = settings(federation, "pofmkl-client"), settings(federation, "pofmkl-server")
        common: dict[str, Any] = {"random": random, "federation": federation}
        heard, updates = corpus(federation, "samples", "labels", "model"), corpus(federation, "updates")
        make[f"client {federation}"] = partial(ClientTarget, messages=heard, kind="pofmkl-client", **common)
        make[f"server {federation}"] = partial(ServerTarget, messages=updates, kind="pofmkl-server", **common)
        for name, channels, chosen_settings in (
            ("server", ("server", "model"), of_server),
            ("client", ("client",), of_client),
        ):
            remembered = corpus(federation, *channels)
            make[f"restore {name} {federation}"] = partial(
                Restored, messages=remembered, random=random, settings=chosen_settings
            )
    return make


POFMKL = Fuzzed(corpus, tuple(FEDERATIONS), record, targets)
