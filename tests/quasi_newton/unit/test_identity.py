"""Guest, host and coordinator with keys, on the memory bus: what somebody else wrote is refused, and the
training goes on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from identities import Keys, again
from quasi_newton.federations import settings_of
from quasi_newton.makers import problem

from streamfl.contract.role import Record
from streamfl.quasi_newton.config import COORDINATOR, GUEST, HOST
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.members.training_progress import TRAINED
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

MEMBERS = {"g": GUEST, "h1": HOST, "c": COORDINATOR}
SMALL: dict[str, Any] = {
    "learning": {"batch": 40, "min_batch": 40, "min_support": 2, "epochs": 2},
    "alignment": {"entities": 40, "settle_seconds": 1.0},
}


class Federation:
    """One guest, one host and a coordinator."""

    def __init__(self, folder: Path, keys: bool = True) -> None:
        self.keys = Keys(folder, "f")
        for member, kind in MEMBERS.items():
            self.keys.add(member, kind, speaks_for=() if kind == COORDINATOR else (member,))
        self.now = 1_700_000_000.0
        self.bus = MemoryBus(clock=lambda: self.now)
        self.dead_letters: dict[str, str] = {}
        self.workers = {name: self.start(name, keys) for name in MEMBERS}

    def start(self, member: str, keys: bool = True) -> Worker:
        own = self.keys.sections(member) if keys else {}
        sections = {"identity": own.get("identity", {}), "bus": {"commit_interval_ms": 0}}
        federation = {"name": "f", "parties": ["g", "h1"], **own.get("federation", {})}
        settings = settings_of(member, 1, columns=1, federation=federation, **sections, **SMALL)
        self.dead_letters[member] = settings.dead_letters
        specs = find_kind(settings.role.kind).topics(settings)
        known = self.bus.describe([spec.name for spec in specs])
        self.bus.create(
            [type(spec)(spec.name, 1, spec.compacted) for spec in specs if spec.name not in known]
        )
        return build_worker(settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None)

    def write_table(self) -> None:
        inputs, labels = problem(90, 2)
        for row in range(len(labels)):
            key = b"customer %d" % row
            for number, party in enumerate(("g", "h1")):
                self.bus.write(
                    [Outgoing(f"{party}-samples", key, json.dumps({"x0": inputs[row, number]}).encode(), 0)]
                )
            self.bus.write([Outgoing("labels", key, json.dumps({"y": int(labels[row] > 0)}).encode(), 0)])

    def settle(self, *without: str, rounds: int = 80) -> None:
        for _ in range(rounds):
            self.now += 0.25
            for name, worker in self.workers.items():
                if name not in without:
                    worker.step(0.0)

    def said(self, topic: str) -> list[Record]:
        return list(self.bus.read(f"f.{topic}"))

    def refused(self, member: str) -> Counter[str]:
        return Counter(
            dict(letter.headers)["error"].decode() for letter in self.bus.read(self.dead_letters[member])
        )

    def models(self) -> list[bytes]:
        tasks = [self.workers[name].role.task(0) for name in ("g", "h1")]  # type: ignore[attr-defined]
        found = []
        for task in tasks:
            assert isinstance(task, PartyTask)
            assert task.progress.phase == TRAINED, task.progress
            assert task.iterates.model is not None
            found.append(np.array(task.iterates.model).tobytes())
        return found


@pytest.fixture(name="usual", scope="module")
def _usual(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """What is learnt without keys and without strangers."""
    federation = Federation(tmp_path_factory.mktemp("usual"), keys=False)
    federation.write_table()
    federation.settle()
    return federation.models()


def test_keys_change_nothing_of_what_is_learnt(tmp_path: Path, usual: list[bytes]) -> None:
    """Protects a federation that gives its members keys: each of the three roles signs what it says, and
    hears the others."""
    federation = Federation(tmp_path)
    federation.write_table()
    federation.settle()
    assert federation.models() == usual
    for topic in ("g.uploads", "h1.uploads", "g.decisions", "h1.decisions", "h1.outputs", "h1.residuals"):
        found = federation.said(topic)
        assert found
        assert all("seal" in dict(record.headers) for record in found), topic
    assert [federation.refused(name) for name in MEMBERS] == [Counter()] * 3


@pytest.mark.parametrize(
    ("topic", "hears", "kind"),
    [
        ("h1.uploads", "c", "ready"),
        ("g.uploads", "c", "sums"),
        ("h1.decisions", "h1", "step"),
        ("g.decisions", "g", "opened"),
        ("h1.outputs", "g", "dots"),
        ("h1.residuals", "h1", "residuals"),
    ],
)
def test_what_somebody_else_wrote_is_refused_and_the_training_goes_on(
    tmp_path: Path, usual: list[bytes], topic: str, hears: str, kind: str
) -> None:
    """Protects each link: whoever may write to the broker cannot begin, change or end a training in a
    member's name."""
    federation = Federation(tmp_path)
    federation.write_table()
    for _ in range(400):
        federation.settle(hears, rounds=1)
        if any(kind_of(record) == kind for record in federation.said(topic)):
            break
        federation.workers[hears].step(0.0)
    genuine = next(record for record in reversed(federation.said(topic)) if kind_of(record) == kind)
    value = genuine.value or b""
    changed = value[:-1] + bytes([value[-1] ^ 1])
    federation.bus.write(
        [
            again(msgspec.structs.replace(genuine, value=changed)),
            Outgoing(genuine.topic, None, changed, genuine.partition),
            # Signed by a member, for another place.
            again(
                federation.said("h1.uploads" if topic != "h1.uploads" else "g.uploads")[0],
                topic=genuine.topic,
            ),
        ]
    )
    federation.settle()
    refused = federation.refused(hears)
    assert refused["unsigned"] == 1
    assert sum(refused.values()) == 3
    assert set(refused) <= {"unsigned", "forged", "not_a_member", "not_its_client"}
    assert federation.models() == usual


def kind_of(record: Record) -> str:
    return str(msgspec.msgpack.decode(record.value or b"")[5])
