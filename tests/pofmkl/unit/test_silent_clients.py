"""Clients that fall silent, or whose labels stay away, are counted; figures of what has ended are no
numbers. A client whose server has fallen silent is not ready, says who should answer, and recovers."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from peers import Peers

from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.pofmkl.tools import inspect
from streamfl.pofmkl.tools.inspect import client_report, server_report
from streamfl.runtime.worker import Worker

HOUR, DAY = 3600.0, 86_400.0


def pofmkl(kind: str, learning: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    return {
        "federation": {"name": "plant", "clients": 3, "features": 2},
        "role": {"kind": kind},
        "samples": {"topic": "readings", "features": ["t1", "t2"], "label": "cooling"},
        "learning": {"round_timeout_seconds": 5.0, "features_per_kernel": 5, **(learning or {})},
        "bus": {"commit_interval_ms": 0},
        **sections,
    }


def shown(worker: Worker, name: str) -> float:
    """What Prometheus would be told of a metric."""
    [value] = re.findall(rf"^streamfl_{name}{{.*}} (\S+)$", worker.metrics.render().decode(), re.MULTILINE)
    return float(value)


def feed(
    federation: Peers, clients: tuple[str, ...], count: int, seconds: float, labelled: bool = True
) -> None:
    """So many samples of each, one after so many seconds."""
    for number in range(count):
        federation.clock.now += seconds
        for client in clients:
            sample = {
                "client": client,
                "t1": 1.0,
                "t2": number / 10,
                **({"cooling": 3.0} if labelled else {}),
            }
            federation.send("readings", client, sample)


def test_a_client_is_silent_by_its_own_rhythm_and_no_restart_hides_it() -> None:
    """Protects a client that nobody hears any more from going unnoticed, and one that speaks once a day from
    an alert each hour."""
    sections = pofmkl("pofmkl-client")
    sections["samples"]["client"] = "client"
    federation = Peers(sections, pofmkl("pofmkl-server"))
    client, server = federation.workers
    for _ in range(5):
        feed(federation, ("often",), 6, 4 * HOUR)
        feed(federation, ("rare",), 1, 0.0)
    feed(federation, ("often",), 5, 4 * HOUR)
    assert (shown(client, "silent_clients"), shown(server, "silent_clients")) == (0.0, 0.0)
    feed(federation, ("rare",), 1, 4 * HOUR)
    feed(federation, ("rare",), 1, DAY)
    assert (shown(client, "silent_clients"), shown(server, "silent_clients")) == (1.0, 1.0)
    federation.workers.remove(client)
    client.close()
    client = federation.start(sections)
    federation.step()
    assert shown(client, "silent_clients") == 1.0
    feed(federation, ("often",), 1, 1.0)
    assert shown(client, "silent_clients") == 0.0


def test_inspect_tells_when_a_client_was_last_seen_and_not_when_its_state_last_moved() -> None:
    """Protects an operator from taking a client that sends all the time for one that fell silent: the time by
    which idle clients are forgotten moves in steps of a 64th of the expiry, twenty minutes."""
    sections = pofmkl("pofmkl-client")
    federation = Peers(sections)
    [worker] = federation.workers
    feed(federation, ("press", "lathe"), 10, 60.0)
    feed(federation, ("press",), 5, 60.0)
    assert isinstance(worker.role, PofmklClient)
    report = client_report(worker.role, PofmklSettings(**sections), None)
    seen = {one["client"]: one["last_seen"] for one in report.figures["clients"]}
    assert seen["press"] == federation.clock.now
    assert seen["lathe"] == federation.clock.now - 300.0


def test_inspect_names_the_clients_whose_samples_or_labels_have_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects whoever reads an alert, which only counts, from searching a thousand clients. The server tells
    of clients without updates, whatever has stopped."""
    sections, server_sections = pofmkl("pofmkl-client"), pofmkl("pofmkl-server")
    federation = Peers(sections, server_sections)
    client, server = federation.workers
    monkeypatch.setattr(inspect.time, "time", lambda: federation.clock.now)
    feed(federation, ("press", "lathe", "drill"), 60, 2.0)
    stopped = federation.clock.now
    for _ in range(40):
        feed(federation, ("press",), 1, 2.0)
        feed(federation, ("lathe",), 1, 0.0, labelled=False)
    assert isinstance(client.role, PofmklClient)
    assert isinstance(server.role, PofmklServer)
    report = client_report(client.role, PofmklSettings(**sections), None)
    found = {one["client"]: one for one in report.figures["clients"]}
    assert [name for name, one in found.items() if one["unlabelled"]] == ["lathe"]
    assert [name for name, one in found.items() if one["silent"]] == ["drill"]
    assert found["lathe"]["last_label"] == pytest.approx(stopped, abs=5.0)
    seen = {row[0]: row[report.columns.index("last seen")] for row in report.rows}
    assert "no label since" in seen["lathe"]
    assert seen["drill"].endswith(", silent")
    assert "," not in seen["press"]
    of_server = server_report(server.role, PofmklSettings(**server_sections), None)
    assert of_server.figures["shards"][0]["silent"] == ["drill", "lathe"]
    assert of_server.rows[0][of_server.columns.index("silent")] == "drill, lathe"


def test_labels_that_stay_away_are_told_and_what_is_windowed_ends() -> None:
    """Protects from a federation that predicts and learns nothing with a board as if all were well."""
    federation = Peers(pofmkl("pofmkl-client", challengers={"models": ["last-label"]}))
    [client] = federation.workers
    feed(federation, ("press",), 60, 2.0)
    assert shown(client, "unlabelled_clients") == 0.0
    assert shown(client, "rmse_windowed") >= 0.0
    feed(federation, ("press",), 40, 2.0, labelled=False)
    assert shown(client, "unlabelled_clients") == 1.0
    assert shown(client, "silent_clients") == 0.0
    for name in ("rmse_windowed", "mae_windowed", "challenger_rmse_windowed", "challenger_mae_windowed"):
        assert math.isnan(shown(client, name)), name
    # Samples end too: then the client is silent, and not one whose labels stay away.
    federation.clock.now += 600.0
    assert (shown(client, "silent_clients"), shown(client, "unlabelled_clients")) == (1.0, 0.0)
    feed(federation, ("press",), 1, 1.0)
    assert (shown(client, "silent_clients"), shown(client, "unlabelled_clients")) == (0.0, 0.0)
    assert shown(client, "rmse_windowed") >= 0.0


PACES = [{"staleness": "lockstep"}, {"staleness": "bounded", "max_staleness": 2}, {"staleness": "async"}]


@pytest.mark.parametrize("pace", PACES, ids=["lockstep", "bounded", "async"])
def test_a_client_without_a_server_turns_red_and_recovers_when_one_comes(pace: dict[str, Any]) -> None:
    """Protects a federation whose server was never started: the client predicts nothing new, or learns for
    nobody, and says so."""
    federation = Peers(pofmkl("pofmkl-client", pace))
    [client] = federation.workers
    for number in range(18):
        # From the first upload on: it goes out with its sample, or a second later.
        assert number > 14 or client.health.trouble is None
        federation.clock.now += 1.0
        federation.send("readings", "press", {"t1": 1.0, "t2": number / 10, "cooling": 3.0})
    assert client.health.reasons.keys() == {"role"}
    assert "pofmkl-server" in (client.health.trouble or "")
    federation.start(pofmkl("pofmkl-server", pace))
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
    federation = Peers(pofmkl("pofmkl-client", PACES[0]))
    for number in range(3):
        federation.send("readings", "press", {"t1": 1.0, "t2": float(number), "cooling": 3.0})
    federation.workers.pop().close()
    client = federation.start(pofmkl("pofmkl-client", PACES[0]))
    federation.step()
    assert client.health.trouble is None
    for _ in range(4):
        federation.clock.now += 5.0
        federation.step()
    assert client.health.reasons.keys() == {"role"}
