"""Parties and a coordinator with keys, on the memory bus: what strangers write is refused and counted, and
learning goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from identities import Keys, again, figure
from msgspec.structs import replace

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.messages import EMBEDDING, REPLY

VERTICAL = ("bank", "shop")


class Loans:
    """A VAFL federation of two parties and a coordinator with keys. predictions: the section of all three."""

    def __init__(self, folder: Path, **predictions: Any) -> None:
        self._predictions = predictions
        self.keys = Keys(folder, "loans")
        self.keys.add("head", "vafl-coordinator")
        for party in VERTICAL:
            self.keys.add(party, "vafl-party", speaks_for=(party,))
        self.now = 1_700_000_000.0
        self.bus = MemoryBus(clock=lambda: self.now)
        self.workers = {name: self._start(name) for name in ("head", *VERTICAL)}

    def _start(self, member: str) -> Worker:
        sections = self.keys.sections(member)
        content: dict[str, Any] = {
            **sections,
            "federation": {
                "name": "loans",
                "parties": list(VERTICAL),
                "embedding_size": 1,
                **sections["federation"],
            },
            "bus": {"commit_interval_ms": 0},
            "predictions": self._predictions,
        }
        if member == "head":
            content |= {"role": {"kind": "vafl-coordinator"}, "labels": {"topic": "results", "label": "y"}}
        else:
            samples = {"topic": f"seen-{member}", "features": ["x"]}
            content |= {"role": {"kind": "vafl-party"}, "party": {"name": member}, "samples": samples}
        settings = VaflSettings(**content)
        specs = find_kind(settings.role.kind).topics(settings)
        known = self.bus.describe([spec.name for spec in specs])
        self.bus.create(
            [type(spec)(spec.name, 2, spec.compacted) for spec in specs if spec.name not in known]
        )
        return build_worker(settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None)

    def entities(self, numbers: Sequence[int]) -> None:
        records = []
        for number in numbers:
            key, partition = f"e{number}".encode(), number % 2
            records += [
                Outgoing(f"seen-{party}", key, json.dumps({"x": number % 5}).encode(), partition)
                for party in VERTICAL
            ]
            records.append(Outgoing("results", key, json.dumps({"y": number % 2}).encode(), partition))
        self.bus.write(records)
        self.settle()

    def settle(self) -> None:
        for _ in range(50):
            self.now += 0.5
            if not sum(worker.step(0.0) for worker in self.workers.values()):
                return

    def refused(self, member: str) -> Counter[str]:
        own = "vafl-coordinator" if member == "head" else member
        return Counter(
            dict(letter.headers)["error"].decode() for letter in self.bus.read(f"loans.{own}.dead-letters")
        )


def test_a_samples_trace_and_time_go_with_sealed_messages(tmp_path: Path) -> None:
    """Protects the whole way from a sample to its prediction: what goes along breaks no seal, and the seal
    goes no further."""
    loans = Loans(tmp_path, headers=["traceparent"], event_time=True)
    then, trace = 1_600_000_000.0, ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    for party in VERTICAL:
        loans.bus.write([Outgoing(f"seen-{party}", b"e1", b'{"x": 1}', 0, (trace, ("baggage", b"x")), then)])
        loans.settle()
    predictions = list(loans.bus.read("loans.predictions"))
    assert [record.headers for record in predictions] == [(trace, ("streamfl.time", b"1600000000000"))] * 2
    assert [record.timestamp for record in predictions] == [then] * 2
    assert [record.timestamp > then for record in loans.bus.read("loans.bank.embeddings")] == [True]
    assert not loans.refused("head")


def test_vertical_messages_of_strangers_are_refused(tmp_path: Path) -> None:
    """Protects both directions: embeddings and replies that are unsigned, forged, moved, or another party's
    change nothing."""
    loans = Loans(tmp_path)
    loans.entities(range(10))
    assert figure(loans.workers["bank"], "gradients") == 10
    assert not loans.refused("head") + loans.refused("bank")
    shown = next(iter(loans.bus.read("loans.bank.embeddings")))
    answer = next(iter(loans.bus.read("loans.bank.gradients")))
    embedding, reply = EMBEDDING.decode(shown.value), REPLY.decode(answer.value)
    far = EMBEDDING.encode(replace(embedding, epoch=2**52))
    loans.bus.write(
        [
            Outgoing("loans.bank.embeddings", shown.key, far, shown.partition),
            again(replace(shown, value=far)),
            again(shown, partition=1 - shown.partition),
            again(shown, topic="loans.shop.embeddings"),
            party_sealed(loans, "shop", "loans.bank.embeddings", shown.key or b"", far, shown.partition),
            Outgoing(
                "loans.bank.gradients", answer.key, REPLY.encode(replace(reply, sequence=1)), answer.partition
            ),
            again(answer, topic="loans.shop.gradients"),
            party_sealed(
                loans,
                "shop",
                "loans.shop.gradients",
                answer.key or b"",
                answer.value or b"",
                0,
                "vafl-party",
                "shop",
            ),
        ]
    )
    loans.settle()
    assert loans.refused("head") == Counter(unsigned=1, forged=3, not_its_client=1)
    assert loans.refused("bank") == Counter(unsigned=1)
    assert loans.refused("shop")["forged"] >= 1
    assert sum(loans.refused("shop").values()) == 2
    loans.entities(range(10, 20))
    assert figure(loans.workers["bank"], "gradients") == 20
    # Again where it belongs: a duplicate, by its numbers.
    loans.bus.write([again(shown)])
    loans.settle()
    assert figure(loans.workers["head"], "ignored_embeddings") == 1


def test_a_party_has_to_speak_for_itself(tmp_path: Path) -> None:
    """Protects a party from running in vain: the coordinator would refuse all that it sends."""
    loans = Loans(tmp_path)
    loans.keys.change(replace(loans.keys.member("shop"), speaks_for=("ship",)))
    loans.workers["bank"].close()
    with pytest.raises(ConfigurationError, match="'shop' may not speak for it"):
        loans._start("shop")
    # Nobody could read what the coordinator answers.
    with pytest.raises(ConfigurationError, match="0 members"):
        loans._start("head")


def party_sealed(
    loans: Loans,
    member: str,
    topic: str,
    key: bytes,
    value: bytes,
    partition: int,
    kind: str = "vafl-coordinator",
    name: str | None = None,
) -> Outgoing:
    """What a member could seal with its own key."""
    seal = loans.keys.identity(member, "vafl-party").seal(topic, kind, name)
    return Outgoing(topic, key, value, partition, seal(key, value, partition))
