"""Parties and a server with keys, as processes on a real broker, of which some are killed amid a fit."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from broker import Broker
from dp_frank_wolfe.proof.observed_messages import messages_of
from dp_frank_wolfe.soak import SOAK
from soak.federation import Federation
from soak.subject import FEDERATION, Plan
from soak.verdict import judge_topics, left_by

from streamfl.runtime.bus import connect

pytestmark = pytest.mark.broker

SAMPLES = range(100, 110)


def wait(is_so: Callable[[], bool], federation: Federation) -> None:
    deadline = time.monotonic() + 180
    while not is_so():
        assert time.monotonic() < deadline, federation.log.read_text()[-3000:]
        time.sleep(0.1)


def test_who_is_killed_in_mid_fit_loses_and_doubles_nothing(tmp_path: Path, broker: Broker) -> None:
    """Protects the promise of epsilon, and whoever predicts, from the death of members on a real broker.

    A party and the server are killed amid a fit: every release was said once and is in the ledger's file,
    each entity was charged once, and who comes afterwards is predicted once, by the published model. That it
    is the model of the arithmetic alone is tried without a broker, and so are ledgers that were put back.
    """
    plan = Plan("frank-wolfe", seed=11, keys=True)
    with Federation(SOAK, plan, broker, tmp_path) as federation, closing(connect(federation.url, {})) as bus:
        bus.write(SOAK.first(plan))
        wait(lambda: len(messages_of(bus, f"{FEDERATION}.clinic.asks")) > 1, federation)
        killed = [one for one in federation.workers if not one.name.startswith("insurer")]
        for worker in killed:
            worker.process.kill()
        wait(lambda: sum(1 for _ in bus.read(f"{FEDERATION}.model")) == 2, federation)
        bus.write([record for number in SAMPLES for record in SOAK.records(plan, number)])
        predictions = f"{FEDERATION}.predictions"
        wait(lambda: sum(1 for _ in bus.read(predictions)) >= len(SAMPLES), federation)
        federation.rest()
        assert set(federation.leave()) == {0}
        verdict = judge_topics(SOAK, left_by(federation))
    assert verdict.wrong == []
    assert (verdict.samples, verdict.counts["windows"]) == (len(SAMPLES), 1)
    assert federation.exits[-signal.SIGKILL] == len(killed) == 3
