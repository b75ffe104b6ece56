"""The federations whose messages are made wrong, and their corpus: real messages, recorded once and kept as files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.mutations import Message

from streamfl.pofmkl.config import PofmklSettings
from streamfl.role import Channels, Received, Record, Role, Send
from streamfl.runtime.kinds import find_kind
from streamfl.samples import format_named

__all__ = ["FEDERATIONS", "Member", "corpus", "record", "write_corpus"]

CORPUS = Path(__file__).parent / "corpus"
PARTITIONS = (0, 1)
CLIENTS = ("press-1", "press-2", "pümpe")
ROUNDS = 12
KEPT = 12
NOW = 1_700_000_000.0

NAMED = {"client": "device", "sample_id": "id", "features": ["t1", "t2", "t3"], "label": "y", "label_range": [-1.0, 1.0]}
LISTED = {"features": "x", "dimension": 3, "label": "y"}

# Both presets, every staleness, every step of the server, both losses, both precisions, and labels of both kinds.
FEDERATIONS: dict[str, dict[str, Any]] = {
    "paper-lockstep": {
        "samples": {"format": "json", **NAMED},
        "learning": {"preset": "paper"},
        "uplink": {"kernels_per_upload": 2},
    },
    "paper-async-logistic": {
        "samples": {"format": "msgpack", **LISTED},
        "learning": {"preset": "paper", "staleness": "async", "loss": "logistic", "precision": "float64"},
    },
    "default-lockstep": {"samples": {"format": "json", **LISTED, "input_norm": 2.0}, "learning": {}},
    "default-async": {"samples": {"format": "msgpack", **NAMED}, "learning": {"staleness": "async"}},
    "default-bounded-adagrad": {
        "samples": {"format": "json", **NAMED},
        "learning": {"staleness": "bounded", "max_staleness": 3, "server_step": "adagrad"},
    },
    "default-async-gradient": {
        "samples": {"format": "json", **LISTED},
        "learning": {"staleness": "async", "server_step": "gradient", "loss": "logistic"},
    },
    "default-late-labels": {
        "samples": {"format": "json", **NAMED, "label": None},
        "labels": {"topic": "truths", "client": "device", "sample_id": "id", "label": "y"},
        "learning": {"staleness": "async"},
    },
}


@dataclass
class Member:
    """A role with its partitions open, and the topics behind its names."""

    role: Role
    channels: Channels

    @classmethod
    def of(cls, federation: str, kind_name: str) -> Member:
        kind, chosen = find_kind(kind_name), settings(federation, kind_name)
        role = kind.build(chosen)
        for partition in PARTITIONS:
            role.open(partition)
        return cls(role, kind.channels(chosen))

    def decode(self, message: Message, offset: int = 0, timestamp: float = NOW) -> Received:
        """PeerError where the message cannot be decoded."""
        source = self.channels.inputs.get(message.channel) or self.channels.tables[message.channel]
        record = Record(source.topic, message.partition, offset, message.key, message.value, (), timestamp)
        return Received(message.channel, source.decode(record), record)


@cache
def settings(federation: str, kind: str) -> PofmklSettings:
    content = FEDERATIONS[federation]
    return PofmklSettings(
        **{
            **content,
            "federation": {"name": "plant", "seed": 3, "clients": 6, "shards": len(PARTITIONS)},
            "role": {"kind": kind},
            "samples": {"topic": "readings", **content["samples"]},
            "learning": {"features_per_kernel": 2, "learning_rate": 0.1, **content["learning"]},
        }
    )


def sample(federation: str, client: str, number: int, label: bool = True) -> Message:
    """A sample as the federation's users would write it."""
    section = settings(federation, "pofmkl-client").samples
    assert section is not None
    inputs = [math.sin(number), math.cos(number / 3), number % 5 / 5]
    content: dict[str, Any] = {"y": float(number % 2) if section.label_range[0] == 0 else math.sin(number)} if label else {}
    if isinstance(section.features, list):
        content |= {"device": client, "id": number, **dict(zip(section.features, inputs, strict=True))}
    else:
        content |= {"x": inputs}
    partition = sum(client.encode()) % len(PARTITIONS)
    return Message("samples", client.encode(), format_named(section.format).encode(content), partition)


def label(federation: str, client: str, number: int) -> Message:
    """The label of such a sample, where labels have a topic of their own."""
    section = settings(federation, "pofmkl-client").labels
    assert section is not None
    content = {"device": client, "id": number, "y": math.sin(number)}
    partition = sum(client.encode()) % len(PARTITIONS)
    return Message("labels", client.encode(), format_named(section.format).encode(content), partition)


def record(federation: str) -> list[Message]:
    """Some messages of every kind, as a small run of the federation's roles makes them."""
    client, server = Member.of(federation, "pofmkl-client"), Member.of(federation, "pofmkl-server")
    found: list[Message] = []
    for number in range(ROUNDS):
        now = NOW + 2.0 * number
        samples = [sample(federation, name, number) for name in CLIENTS]
        if "labels" in FEDERATIONS[federation]:
            samples += [label(federation, name, number - 1) for name in CLIENTS]
        sent: list[Any] = [*client.role.receive([client.decode(one) for one in samples], now), *client.role.receive([], now + 1)]
        updates = [
            Message("updates", send.key, send.value, send.partition or 0)
            for send in sent
            if isinstance(send, Send) and send.channel == "updates"
        ]
        server.role.receive([server.decode(one) for one in updates], now)
        # A round has fewer clients than the federation: it closes by its time.
        server.role.receive([], now + 100)
        state = list(server.role.changed_state())
        model = [Message("model", one.key, one.value, one.partition) for one in state if one.channel == "model"]
        client.role.receive([client.decode(one) for one in model], now + 1)
        found += [*samples, *updates, *model]
        found += [Message("server", one.key, one.value, one.partition) for one in state if one.channel == "state" and one.value]
        found += [Message("client", one.key, one.value, one.partition) for one in client.role.changed_state() if one.value]
    return [message for channel in dict.fromkeys(one.channel for one in found) for message in _some(found, channel)]


def _some(found: Iterable[Message], channel: str) -> Iterator[Message]:
    """A few of each kind of key, the last ones, in their order."""
    kinds: dict[bytes, list[Message]] = {}
    for message in found:
        if message.channel == channel:
            kinds.setdefault((message.key or b"").partition(b"/")[0][:8], []).append(message)
    for messages in kinds.values():
        yield from messages[-KEPT // len(kinds) - 1 :]


def write_corpus() -> None:
    """Record every federation anew."""
    for federation in FEDERATIONS:
        lines = [
            json.dumps({"channel": one.channel, "partition": one.partition, "key": _hex(one.key), "value": _hex(one.value)})
            for one in record(federation)
        ]
        (CORPUS / f"{federation}.jsonl").write_text("\n".join(lines) + "\n")


@cache
def corpus(federation: str, *channels: str) -> tuple[Message, ...]:
    """The recorded messages of these channels."""
    found = []
    for line in (CORPUS / f"{federation}.jsonl").read_text().splitlines():
        content = json.loads(line)
        key, value = (None if text is None else bytes.fromhex(text) for text in (content["key"], content["value"]))
        found.append(Message(content["channel"], key, value, content["partition"]))
    return tuple(message for message in found if message.channel in channels)


def _hex(content: bytes | None) -> str | None:
    return None if content is None else content.hex()
