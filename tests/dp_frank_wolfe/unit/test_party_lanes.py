"""Fits and predictions are two chains of one ledger: neither goes on where the other was rolled back, and
both do after a crash."""

from __future__ import annotations

from copy import copy
from pathlib import Path

import pytest
from dp_frank_wolfe.party_driver import NAMES, Driver, settings

from streamfl.dp_frank_wolfe.messages import Message
from streamfl.dp_frank_wolfe.privacy.ledger import PREDICTIONS
from streamfl.privacy.anchor import Anchor

OTHERS = [f"other {name}" for name in NAMES]


def predicting(folder: Path) -> Driver:
    """A party with a model and with rows for another window, that has told no part of a prediction yet."""
    party = Driver(
        settings(folder, window={"fits": 5}, serving={"mode": "private", "share": 0.5, "predictions": 1})
    ).begun()
    party.feed(party.rows(1, OTHERS))
    party.tick()
    party.hear(party.ask(0))
    party.hear(party.model([0.1, 0, 0, 0]))
    return party


def show(party: Driver, names: list[str]) -> list[Message]:
    """Records of entities, and the tick at which parts are told of them."""
    party.feed([party.sample(name, [0.5] * 4) for name in names])
    return party.tick()


@pytest.mark.parametrize("state", ["begun anew", "rolled back"])
def test_no_fit_follows_predictions_that_were_forgotten(tmp_path: Path, state: str) -> None:
    """Protects entities whose predictions were charged: by a ledger's topic of before, fits would be charged
    as if none was."""
    party = predicting(tmp_path)
    old = dict(party.state)
    assert [message.kind for message in show(party, NAMES)] == ["partial"] * len(NAMES)
    back = Driver(
        party.settings,
        {key: value for key, value in old.items() if state == "rolled back" or key[0] == "ledger"},
    )
    if state == "begun anew":
        back.feed(back.rows(1, OTHERS))
        back.tick()
    links = Anchor.open(tmp_path / "ledger", "people", "a").links()
    assert back.hear(back.manifest(2, OTHERS)) == []
    assert [one.error.reason for one in back.rejections] == ["ledger"]
    assert "20 releases of another chain" in (back.role.trouble or "")
    assert Anchor.open(tmp_path / "ledger", "people", "a").links() == links


def test_no_prediction_follows_fits_that_were_forgotten(tmp_path: Path) -> None:
    """Protects the same the other way round: while the file knows of fits that the state does not, no part of
    a prediction is told.

    Nor does the party ask for ticks in vain.
    """
    party = predicting(tmp_path)
    old = dict(party.state)
    assert [message.kind for message in party.hear(party.manifest(2, OTHERS))] == ["frozen"]
    back = Driver(party.settings, old)
    assert show(back, NAMES) == []
    assert back.task.serving.wake_at is None


def test_no_prediction_follows_a_fit_of_a_second_worker(tmp_path: Path) -> None:
    """Protects entities from two workers on one ledger, one that fits and one that predicts: each charged
    them as if the other had not."""
    party = predicting(tmp_path)
    second = Driver(party.settings, dict(party.state))
    assert [message.kind for message in show(party, NAMES[:1])] == ["partial"]
    show(second, NAMES[:1])
    told = second.hear(second.manifest(2, OTHERS))
    assert [message.kind for message in told] == ["frozen"], second.role.trouble
    links = Anchor.open(tmp_path / "ledger", "people", "a").links(PREDICTIONS)
    assert show(party, NAMES[1:]) == []
    assert "two workers use one ledger" in (party.role.trouble or "")
    assert Anchor.open(tmp_path / "ledger", "people", "a").links(PREDICTIONS) == links


@pytest.mark.parametrize(
    ("first", "lost"),
    [("tick", ["partial"]), ("tick", ["frozen"]), ("manifest", ["partial", "frozen"])],
)
def test_what_was_noted_before_a_crash_is_done_again(tmp_path: Path, first: str, lost: list[str]) -> None:
    """Protects a party from holding itself back: killed between file and commit, one chain or both are behind
    the file, and whichever is done again first, both come to the same bytes.
    """
    party = predicting(tmp_path)
    party.feed([party.sample(name, [0.5] * 4) for name in NAMES])
    manifest = party.manifest(2, OTHERS)
    steps = {"partial": [], "frozen": [manifest]}
    told = [message for kind in lost for message in party.feed(steps[kind], commit=False)]
    assert {message.kind for message in told} == set(lost)

    again = copy(party)
    again.sent, ticks = [], again.feed
    if first == "manifest":
        # What a worker that begins takes before its first tick.
        again.feed = lambda batch, commit=True: ticks([manifest])  # type: ignore[method-assign, misc]
    again.start()
    again.feed = ticks  # type: ignore[method-assign]
    again.hear(manifest)
    while again.role.wake_at is not None and again.role.wake_at <= again.now:
        again.tick()
    assert again.rejections == []
    assert again.role.trouble is None
    assert [message.kind for message in again.sent if message.kind != "partial"] == ["frozen"]
    assert len(again.sent) == 1 + len(NAMES)
    assert all(message in again.sent for message in told)
