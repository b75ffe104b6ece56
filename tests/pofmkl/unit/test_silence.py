"""A client whose server has fallen silent is not ready, says who should answer, and recovers by itself."""

from __future__ import annotations

from typing import Any

import pytest
from peers import Peers


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
    """Protects a federation whose server was never started: the client predicts nothing new, or learns for
    nobody, and says so."""
    federation = Peers(pofmkl("pofmkl-client", **pace))
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
    federation = Peers(pofmkl("pofmkl-client"))
    federation.send("readings", "press", {"t1": 1.0, "t2": 0.0})
    federation.clock.now += 1e6
    federation.step()
    assert federation.workers[0].health.trouble is None


def test_a_restarted_client_that_waits_in_lockstep_turns_red_again() -> None:
    """Protects against a restart that makes the trouble invisible: the update went out in an earlier life and
    is not sent again."""
    federation = Peers(pofmkl("pofmkl-client", staleness="lockstep"))
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
