"""Parties with keys, on the memory bus: a sum that somebody else changed is refused, and the federation goes
on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
from fdskl.makers import COLUMNS, settings_of
from identities import Keys, again, figure

from streamfl.contract.role import Record
from streamfl.fdskl.config import WORKER
from streamfl.fdskl.messages import PARTIAL_SUM
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

PARTIES = ("p0", "p1")


class Kernels:
    """A federation of two parties with keys."""

    def __init__(self, folder: Path) -> None:
        self.keys = Keys(folder, "f")
        for party in PARTIES:
            self.keys.add(party, WORKER, speaks_for=(party,))
        self.now = 1_700_000_000.0
        self.bus = MemoryBus(clock=lambda: self.now)
        self.workers = {name: self._start(name) for name in PARTIES}

    def _start(self, party: str) -> Worker:
        samples = {"topic": f"seen-{party}", "features": list(COLUMNS)}
        sections = {**self.keys.sections(party), "bus": {"commit_interval_ms": 0}, "samples": samples}
        settings = settings_of(party, len(PARTIES), **sections)
        specs = find_kind(WORKER).topics(settings)
        known = self.bus.describe([spec.name for spec in specs])
        self.bus.create(
            [type(spec)(spec.name, 1, spec.compacted) for spec in specs if spec.name not in known]
        )
        return build_worker(settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None)

    def entities(self, *names: str) -> None:
        """Each of its own columns, which every party has."""
        for number, name in enumerate(names):
            value = json.dumps(dict.fromkeys(COLUMNS, 0.3 * number)).encode()
            self.bus.write([Outgoing(f"seen-{party}", name.encode(), value, 0) for party in PARTIES])

    def labels(self, *names: str) -> None:
        for number, name in enumerate(names):
            self.bus.write([Outgoing("labels", name.encode(), json.dumps({"y": number % 2}).encode(), 0)])

    def settle(self, rounds: int = 60) -> None:
        for _ in range(rounds):
            self.now += 0.25
            for worker in self.workers.values():
                worker.step(0.0)

    def sums(self) -> list[Record]:
        return list(self.bus.read("f.p0.sums"))

    def predicted(self) -> list[str]:
        return [json.loads(record.value or b"")["entity"] for record in self.bus.read("f.predictions")]

    def refused(self) -> Counter[str]:
        return Counter(
            dict(letter.headers)["error"].decode() for letter in self.bus.read("f.p0.dead-letters")
        )


def test_a_sum_that_somebody_else_changed_is_refused(tmp_path: Path) -> None:
    """Protects predictions and the model from numbers that are changed on their way, which check words do not
    find."""
    kernels = Kernels(tmp_path)
    kernels.entities("e0", "e1", "e2")
    kernels.settle()
    kernels.labels("e0", "e1", "e2")
    kernels.settle()
    shown = kernels.sums()[-1]
    message = PARTIAL_SUM.decode(shown.value)
    changed = PARTIAL_SUM.encode(
        msgspec.structs.replace(message, values=bytes([message.values[0] ^ 1]) + message.values[1:])
    )
    assert not kernels.refused()
    kernels.bus.write(
        [
            again(msgspec.structs.replace(shown, value=changed)),
            Outgoing(shown.topic, None, changed, shown.partition),
        ]
    )
    kernels.settle()
    assert kernels.refused() == Counter(forged=1, unsigned=1)
    late = figure(kernels.workers["p0"], "ignored_messages")
    # As it was it is only late.
    kernels.bus.write([again(shown)])
    kernels.settle()
    assert kernels.refused() == Counter(forged=1, unsigned=1)
    assert figure(kernels.workers["p0"], "ignored_messages") == late + 1
    kernels.entities("e3")
    kernels.settle()
    assert kernels.predicted()[-1] == "e3"
