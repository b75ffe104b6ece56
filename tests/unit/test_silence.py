"""A member whose peers have fallen silent is not ready, says who should answer, and recovers by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamfl.role import TopicSpec
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.silence import Silence


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Federation:
    """Workers on a memory bus by one clock; who was never started does not answer."""

    def __init__(self, *members: dict[str, Any]) -> None:
        self.clock = Clock()
        self.bus = MemoryBus(clock=self.clock)
        self.workers = [self._join(sections) for sections in members]
        self.step()

    def _join(self, sections: dict[str, Any]) -> Worker:
        kind = find_kind(sections["role"]["kind"])
        settings = kind.settings(**sections)
        self.bus.create([TopicSpec(spec.name, spec.partitions or 1, spec.compacted) for spec in kind.topics(settings)])
        return build_worker(settings, self.bus, clock=self.clock)

    def start(self, sections: dict[str, Any]) -> Worker:
        self.workers.append(self._join(sections))
        return self.workers[-1]

    def send(self, topic: str, key: str, content: dict[str, Any]) -> None:
        self.bus.write([Outgoing(topic, key.encode(), json.dumps(content).encode(), 0)])
        self.step()

    def step(self) -> None:
        for _ in range(8):
            for worker in self.workers:
                worker.step(0.0)


def pofmkl(kind: str, **learning: Any) -> dict[str, Any]:
    return {
        "federation": {"name": "plant", "clients": 3, "features": 2},
        "role": {"kind": kind},
        "samples": {"topic": "readings", "features": ["t1", "t2"], "label": "cooling"},
        "learning": {"round_timeout_seconds": 5.0, "features_per_kernel": 5, **learning},
        "bus": {"commit_interval_ms": 0},
    }


PACES = [{"staleness": "lockstep"}, {"staleness": "bounded", "max_staleness": 2}, {"staleness": "async"}]


@pytest.mark.parametrize("pace", PACES, ids=["lockstep", "bounded", "async"])
def test_a_client_without_a_server_turns_red_and_recovers_when_one_comes(pace: dict[str, Any]) -> None:
    """Protects a federation whose server was never started: the client predicts nothing new, or learns for nobody, and says so."""
    federation = Federation(pofmkl("pofmkl-client", **pace))
    [client] = federation.workers
    for number in range(18):
        # From the first upload on: it goes out with its sample, or a second later.
        assert number > 14 or client.health.trouble is None
        federation.clock.now += 1.0
        federation.send("readings", "press", {"t1": 1.0, "t2": number / 10, "cooling": 3.0})
    assert client.health.reasons.keys() == {"role"}
    assert "pofmkl-server" in (client.health.trouble or "")
    federation.start(pofmkl("pofmkl-server", **pace))
    federation.step()
    federation.clock.now += 6.0
    federation.step()
    assert client.health.trouble is None


def test_an_idle_client_is_ready() -> None:
    """Protects quiet federations: where nothing goes out nothing is owed."""
    federation = Federation(pofmkl("pofmkl-client"))
    federation.send("readings", "press", {"t1": 1.0, "t2": 0.0})
    federation.clock.now += 1e6
    federation.step()
    assert federation.workers[0].health.trouble is None


def test_a_restarted_client_that_waits_in_lockstep_turns_red_again() -> None:
    """Protects against a restart that makes the trouble invisible: the update went out in an earlier life and is not sent again."""
    federation = Federation(pofmkl("pofmkl-client", staleness="lockstep"))
    for number in range(3):
        federation.send("readings", "press", {"t1": 1.0, "t2": float(number), "cooling": 3.0})
    federation.workers.pop().close()
    client = federation.start(pofmkl("pofmkl-client", staleness="lockstep"))
    federation.step()
    assert client.health.trouble is None
    for _ in range(4):
        federation.clock.now += 5.0
        federation.step()
    assert client.health.reasons.keys() == {"role"}


def vafl(kind: str, party: str = "bank") -> dict[str, Any]:
    sections: dict[str, Any] = {
        "federation": {"name": "credit", "parties": ["bank", "shop"], "embedding_size": 1},
        "role": {"kind": kind},
        "alignment": {"patience_seconds": 60.0},
        "bus": {"commit_interval_ms": 0},
    }
    if kind == "vafl-party":
        return sections | {"party": {"name": party}, "samples": {"topic": f"{party}-rows", "features": ["age"]}}
    return sections | {"labels": {"topic": "outcomes", "label": "defaulted"}}


def test_a_party_without_a_coordinator_turns_red() -> None:
    """Protects a party that shows embeddings to nobody."""
    federation = Federation(vafl("vafl-party"))
    [party] = federation.workers
    for number in range(13):
        federation.clock.now += 5.0
        federation.send("bank-rows", f"ann-{number}", {"age": 0.5})
        assert (party.health.trouble is None) == (number < 12)
    assert "vafl-coordinator" in (party.health.trouble or "")


def test_a_silent_party_is_named_by_the_coordinator_and_hears_of_its_return() -> None:
    """Protects predictions that lack a party: the coordinator says which one shows nothing, until it does."""
    federation = Federation(vafl("vafl-coordinator"), vafl("vafl-party"))
    coordinator, party = federation.workers
    for number in range(14):
        federation.clock.now += 5.0
        federation.send("bank-rows", f"ann-{number}", {"age": 0.5})
        federation.send("outcomes", f"ann-{number}", {"defaulted": 1})
    assert "no embedding of shop " in (coordinator.health.trouble or "")
    assert party.health.trouble is None
    federation.start(vafl("vafl-party", "shop"))
    federation.send("shop-rows", "ann-3", {"age": 0.1})
    federation.step()
    assert coordinator.health.trouble is None


def test_a_stream_that_ends_leaves_no_debt() -> None:
    """Protects idle nights: an entity that the other party never sees is no silence of that party."""
    federation = Federation(vafl("vafl-coordinator"), vafl("vafl-party"))
    federation.send("bank-rows", "ann", {"age": 0.5})
    for _ in range(100):
        federation.clock.now += 60.0
        federation.step()
    assert federation.workers[0].health.trouble is None


def test_a_clock_that_was_ahead_makes_nobody_wait_until_its_time_comes_again() -> None:
    """Protects the alarm from a clock that is set right: what was asked in the future counts as asked now."""
    silence = Silence(patience=10.0)
    silence.asked(5000.0)
    silence.look(100.0)
    assert silence.wake_at == 110.0
    silence.asked(109.0)
    silence.look(110.0)
    assert silence.overdue
