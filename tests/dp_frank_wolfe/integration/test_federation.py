"""Server and three parties with keys, on a real broker: a kill changes no bit, and a ledger that was put back
is refused.

Small, so that it takes less than a minute on two slow cores: windows of 24 entities, three columns each,
twenty iterations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from broker import Broker
from dp_frank_wolfe.broker_federation import (
    ITERATIONS,
    PARTIES,
    ROWS,
    Federation,
    direct_model,
    models,
    write,
)

from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.runtime.bus import connect

pytestmark = pytest.mark.broker


@pytest.fixture(name="federation")
def _federation(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Federation]:
    made = Federation(tmp_path, broker, monkeypatch, capsys)
    yield made
    made.stop()


def test_who_is_killed_in_mid_fit_goes_on_to_the_same_model_and_a_ledger_put_back_is_refused(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the promise of epsilon from the death of any member and from an old copy of the ledger.

    A party is killed between its ledger file and its commit, and the server amid the fit: the model is that
    of the arithmetic alone, exactly; every release, those of aborted transactions too, was one content; each
    entity was charged once. Then a party's ledger is put back to what it was in mid-fit: it releases nothing
    more, is not ready and says why. With the whole ledger it goes on.
    """
    with closing(connect(federation.broker.url, {})) as bus:
        write(bus, federation, 1)
        federation.start("bank", "shop", "server")
        federation.kill_between_note_and_commit(bus, "clinic")
        federation.start("clinic")

        def asked(party: str) -> set[int]:
            return set(federation.iterations(bus, f"{party}.asks", "ask"))

        def answered(party: str) -> set[int]:
            return set(federation.iterations(bus, f"{party}.releases", "answers"))

        federation.wait(lambda: len(answered("clinic")) > 1, "iteration")
        federation.kill_amid("server", lambda: all(asked(party) == answered(party) for party in PARTIES))
        assert len(asked("shop")) < ITERATIONS, "the fit was over before the server could be killed"
        federation.start("server")
        federation.wait(lambda: len(models(federation, bus, 1)) == len(PARTIES), "model")

        expected, found = direct_model(federation, 1, monkeypatch), models(federation, bus, 1)
        assert any(np.any(weights) for weights in expected.values())
        for party in PARTIES:
            assert np.array_equal(found[party], expected[party]), party
        public = Public(federation.settings("server"))
        for party in PARTIES:
            contents: dict[tuple[int, int, str], set[bytes]] = {}
            for message in federation.every_release(party):
                contents.setdefault((message.window, message.iteration, message.kind), set()).add(
                    message.content
                )
            assert {kind for _, _, kind in contents} == {"entities", "frozen", "answers"}
            assert [
                place for place, distinct in contents.items() if len(distinct) > 1 and place[2] != "entities"
            ] == []
            shown = federation.ledger(party)
            assert shown["releases"]["fits"] == 1 + ITERATIONS
            assert shown["topic"]["agrees"] is True
            assert shown["topic"]["entities"] == ROWS
            assert shown["topic"]["largest_rho"] == pytest.approx(public.fit_cost(party), rel=1e-12)
        for member in (*PARTIES, "server"):
            assert not list(bus.read(federation.settings(member).dead_letters)), member

        assert federation.stop("clinic") == [0]
        ledger = f"{federation.name}-clinic.ledger"
        whole = list(bus.read(ledger))
        federation.replace(ledger, whole[: len(whole) // 2])
        write(bus, federation, 2)
        federation.start("clinic")
        federation.wait(
            lambda: federation.ready("clinic")[0] == 503 and "ledger" in federation.ready("clinic")[1],
            "refusal",
        )
        # Where it was cut decides whether records are missing within a commit, or whole commits.
        assert "truncated" in federation.ready("clinic")[1]
        assert {
            message.kind for message in federation.every_release("clinic") if message.window == 2
        } == set()
        assert federation.stop("clinic") == [0]
        assert federation.ledger("clinic", code=4)["topic"]["agrees"] is False

        federation.replace(ledger, whole)
        federation.start("clinic")
        federation.call("dead-letters", federation.config("clinic"), "--reason", "ledger", "--replay")
        federation.wait(lambda: len(models(federation, bus, 2)) == len(PARTIES), "model of the second window")
        assert federation.stop() == [0] * (1 + len(PARTIES))
        expected, found = direct_model(federation, 2, monkeypatch), models(federation, bus, 2)
        for party in PARTIES:
            assert np.array_equal(found[party], expected[party]), party
