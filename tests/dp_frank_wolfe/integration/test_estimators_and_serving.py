"""Ways of serving, and estimators, on a real broker, with parties that are killed behind the ledger file's
back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest
from dp_frank_wolfe.broker_federation import (
    PARTIES,
    ROWS,
    Federation,
    direct_model,
    intercept,
    models,
    names_of,
    show,
    table,
    write,
)

from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.runtime.bus import connect

pytestmark = pytest.mark.broker

# A fit's links at a party: what it froze, and its answers.
LINKS = {"marginal": 2, "two-round": 3}
BOUND = 3.0


@pytest.mark.parametrize(
    ("estimator", "serving", "scheme", "killed"),
    [
        ("marginal", "exact", "kafka", "chosen"),
        ("two-round", "private", "kafka+librdkafka", "products"),
    ],
)
def test_a_release_that_was_noted_and_not_committed_is_made_again(
    make_federation: Callable[..., Federation],
    monkeypatch: pytest.MonkeyPatch,
    estimator: str,
    serving: str,
    scheme: str,
    killed: str,
) -> None:
    """Protects epsilon, the model and predictions from a party that dies between its ledger file and its
    commit.

    The file is one release ahead then. The party makes it again, the same bytes; the model is that of the
    arithmetic alone, exactly; every entity that comes afterwards is predicted once, though the server is
    killed amid that, and with noise the party once more behind its ledger file's back; and the ledger, in the
    topic and in the file, says what was spent of whom."""
    federation = make_federation(estimator=estimator, serving=serving, scheme=scheme)
    with closing(connect(federation.broker.url, {})) as bus:
        write(bus, federation, 1)
        federation.start("bank", "shop", "server")
        federation.kill_between_note_and_commit(bus, "clinic", killed)
        federation.start("clinic")
        federation.wait(lambda: len(models(federation, bus, 1)) == len(PARTIES), "model")
        expected, found = direct_model(federation, 1, monkeypatch), models(federation, bus, 1)
        assert any(np.any(weights) for weights in expected.values())
        for party in PARTIES:
            assert np.array_equal(found[party], expected[party]), party

        federation.wait(
            lambda: all(_has_model(federation, party) for party in PARTIES), "parties with the model"
        )
        assert federation.stop("clinic") == [0]
        show(bus, federation, 2)
        if serving == "private":
            federation.kill_between_note_and_commit(bus, "clinic", "partial")
        federation.kill("server")
        federation.start("clinic", "server")

        def said() -> list[dict[str, object]]:
            return [json.loads(record.value or b"") for record in bus.read(f"{federation.name}.predictions")]

        federation.wait(lambda: {str(one["entity"]) for one in said()} >= set(names_of(2)), "predictions")
        assert federation.stop() == [0] * (1 + len(PARTIES))
        predictions = {str(one["entity"]): one for one in said()}
        assert Counter(str(one["entity"]) for one in said()) == Counter(names_of(2))
        assert {one["model"] for one in predictions.values()} == {1}
        assert {one["private"] for one in predictions.values()} == {serving == "private"}
        if serving == "exact":
            inputs, x = table(2)[0], np.concatenate([found[party] for party in PARTIES])
            outputs = BOUND * (intercept(federation, bus, 1) + np.clip(inputs / BOUND, -1, 1) @ x)
            assert [predictions[name]["prediction"] for name in names_of(2)] == pytest.approx(
                outputs.tolist(), abs=1e-3
            )
        _check_ledgers(federation, estimator, serving)
        for member in (*PARTIES, "server"):
            assert not list(bus.read(federation.settings(member).dead_letters)), member


def _has_model(federation: Federation, party: str) -> bool:
    return federation.metric(party, "models_total") == 1


def _check_ledgers(federation: Federation, estimator: str, serving: str) -> None:
    """What every party ever wrote was one content at each place, and links and spend are those of one fit and
    its predictions."""
    public = Public(federation.settings("server"))
    for party in PARTIES:
        contents: dict[tuple[int, int, str], set[bytes]] = {}
        for message in federation.every_release(party):
            contents.setdefault((message.window, message.iteration, message.kind), set()).add(message.content)
        assert [
            place for place, distinct in contents.items() if len(distinct) > 1 and place[2] != "entities"
        ] == []
        shown, told = federation.ledger(party), ROWS if serving == "private" else 0
        assert (
            shown["releases"] == shown["topic"]["releases"] == {"fits": LINKS[estimator], "predictions": told}
        )
        assert shown["topic"]["agrees"] is True
        assert shown["topic"]["entities"] == ROWS + told
        if serving == "private":
            largest = max(public.fit_cost(party), public.prediction_cost(party))
            assert shown["topic"]["largest_rho"] == pytest.approx(largest, rel=1e-12)
            assert shown["topic"]["epsilon"] < 4.0
        else:
            # That parts were told as they are, for all entities at once.
            assert shown["topic"]["largest_rho"] is None
