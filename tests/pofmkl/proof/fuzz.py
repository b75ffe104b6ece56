"""POF-MKL's federations for the fuzzer, and what has to hold for a client and a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from random import Random
from typing import Any, cast

import msgspec
import numpy as np
from resumed import MemoryFederation

from streamfl.contract.role import ConfigurationError, Send, StateChange
from streamfl.encoding.wire import decode_array
from streamfl.pofmkl.config import KernelsSection, PofmklSettings, UplinkSection
from streamfl.pofmkl.messages import UPDATE, KernelParameters, decode_model
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.pofmkl.state import BOOK
from streamfl.pofmkl.tools.members import MEMBERS
from streamfl.records.formats import format_of
from streamfl.records.samples import SamplesSection
from streamfl.simulation.clients import samples_of
from streamfl.testing.fuzz.clients import CLIENTS, GOOD_CLIENT, ClientTarget, client_sample
from streamfl.testing.fuzz.federations import FuzzedFederation, some_of_each, users_record
from streamfl.testing.fuzz.member import PARTITIONS
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.targets import Arrays, Decoder, RoleTarget, Samples, Target, member_targets

__all__ = ["CLIENT", "FEDERATIONS", "SERVER", "run", "targets"]

CLIENT, SERVER = "client", "server"
ROUNDS = 12

NAMED = {
    "client": "device",
    "sample_id": "id",
    "features": ["t1", "t2", "t3"],
    "label": "y",
    "label_range": [-1.0, 1.0],
}
LISTED = {"features": "x", "dimension": 3, "label": "y"}

# Both presets, every staleness, every step of the server, both losses, both precisions, labels of both kinds,
# and a model of a user's own.
CONTENT: dict[str, dict[str, Any]] = {
    "paper-lockstep": {
        "samples": {"format": "json", **NAMED},
        "learning": {"preset": "paper", "staleness": "lockstep"},
        "uplink": {"kernels_per_upload": 2},
    },
    "paper-async-logistic": {
        "samples": {"format": "msgpack", **LISTED},
        "learning": {"preset": "paper", "staleness": "async", "loss": "logistic", "precision": "float64"},
    },
    "default-lockstep": {
        "samples": {"format": "json", **LISTED, "input_norm": 2.0},
        "learning": {"staleness": "lockstep"},
    },
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


def _federation(content: Mapping[str, Any]) -> FuzzedFederation:
    given: dict[str, Any] = {
        **content,
        "federation": {"name": "plant", "seed": 3, "clients": 6, "shards": len(PARTITIONS), "features": 3},
        "samples": {"topic": "readings", **content["samples"]},
        "learning": {"features_per_kernel": 2, "learning_rate": 0.1, **content["learning"]},
    }
    settings = MEMBERS.of(PofmklSettings(**{**given, "role": {"kind": "pofmkl-client"}}))
    own = {name: settings[name] for name in (SERVER, CLIENT)}
    samples = samples_of(own[CLIENT])

    def written(number: int) -> Iterator[tuple[str, FuzzedRecord]]:
        for client in CLIENTS:
            yield CLIENT, client_sample(samples, client, number)
            if own[CLIENT].labels is not None and number:
                yield CLIENT, label(own[CLIENT], client, number - 1)

    # A round has fewer clients than the federation: it closes by its timeout.
    return FuzzedFederation(own, written, ROUNDS, moments=3, seconds=50.0)


def label(settings: PofmklSettings, client: str, number: int) -> FuzzedRecord:
    """The label of such a sample, where labels have a topic of their own."""
    section = settings.labels
    assert section is not None
    return users_record(
        "labels", section, client, {section.sample_id: number, section.label: math.sin(number)}
    )


FEDERATIONS = {name: _federation(content) for name, content in CONTENT.items()}


def run(name: str) -> MemoryFederation:
    """A federation with few kernels, for tests that resume from stored state."""
    few = (
        KernelsSection(bandwidths=[0.5, 1.0], views=["centred-lags"])
        if name.startswith("default")
        else KernelsSection()
    )
    update = {"kernels": few, "uplink": UplinkSection(kernels_per_upload=2)}
    federation = FEDERATIONS[name]
    return MemoryFederation(
        replace(
            federation,
            settings={member: own.model_copy(update=update) for member, own in federation.settings.items()},
        )
    )


class PofmklTarget(RoleTarget):
    """A role of one of these federations."""

    settings: PofmklSettings

    @property
    def dtype(self) -> Any:
        return np.float64 if self.settings.learning.precision == "float64" else np.float32


class PofmklClientTarget(PofmklTarget, ClientTarget):
    """A client's role. It reads its users' samples and the model's topic."""

    def goes_on(self) -> None:
        super().goes_on()
        waiting = [measured.value for measured in self.role.measure() if measured.name == "waiting_samples"]
        assert waiting[0] <= len(PARTITIONS) * 10_000 + 1

    def sent(self, send: Send) -> None:
        if send.channel == "updates":
            update = UPDATE.decode(send.value)
            decode_array(
                update.steps, self.dtype, (len(update.steps) // np.dtype(self.dtype).itemsize,), "steps"
            )
        super().sent(send)


class ServerTarget(PofmklTarget):
    """A server's role. It reads its clients' updates."""

    _sequence = 0

    def begin(self) -> None:
        # Updates name the version that they were made with. The server refuses one that its model has not
        # reached, by its book.
        for message in self.federation.remembered(SERVER):
            if message.channel == "model" or message.key == BOOK.prefix:
                self.role.restore(
                    StateChange(message.channel, message.partition, message.key or b"", message.value)
                )
        super().begin()

    def goes_on(self) -> None:
        self._sequence += 1
        template = UPDATE.decode(self.messages[-1].value)
        partition = self.messages[-1].partition
        version = cast(PofmklServer, self.role).snapshot()[partition].model_version
        assert version >= 0
        update = msgspec.structs.replace(
            template, client=GOOD_CLIENT, epoch=1, sequence=self._sequence, model_version=version
        )
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
                decode_array(record.parameters, self.dtype, (4,), "parameters")


def _changed(message: FuzzedRecord) -> FuzzedRecord:
    """A sample in JSON as the change event of its row."""
    return replace(message, value=b'{"op": "c", "after": ' + (message.value or b"null") + b"}")


def targets(random: Random) -> Mapping[str, Callable[[str], Target]]:
    """The functions that create each target, by its name."""
    heard = {
        channel: [
            one
            for federation in FEDERATIONS.values()
            for one in some_of_each(federation.heard(member, channel))
        ]
        for channel, member in (("updates", SERVER), ("model", CLIENT), ("samples", CLIENT))
    }
    made: dict[str, Callable[[str], Target]] = {
        "decode updates": lambda name: Decoder(
            name, heard["updates"], random, lambda one: UPDATE.decode(one.value)
        ),
        "decode model": lambda name: Decoder(
            name, heard["model"], random, lambda one: decode_model(one.key, one.value)
        ),
        "decode arrays": lambda name: Arrays(name, [*heard["updates"], *heard["model"]], random),
    }
    for format in sorted(point.name for point in entry_points(group="streamfl.formats")):
        for fields, section in SECTIONS.items():
            chosen = SamplesSection(topic="t", format=format, label="y", **section)
            try:
                format_of(chosen)
            except ConfigurationError:
                # This format needs a schema.
                continue
            messages = (
                [_changed(one) for one in heard["samples"]] if format == "debezium" else heard["samples"]
            )
            made[f"samples {format} {fields}"] = partial(
                Samples, messages=messages, random=random, section=chosen
            )
    return made | member_targets(random, FEDERATIONS, {CLIENT: PofmklClientTarget, SERVER: ServerTarget})
