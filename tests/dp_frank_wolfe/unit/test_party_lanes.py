"""Fits and predictions are two chains of one ledger: neither goes on where the other was rolled back, and both do after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from dp_frank_wolfe.party_driver import NAMES, Driver, settings

from streamfl.dp_frank_wolfe.messages import Message
from streamfl.privacy.anchor import Anchor

OTHERS = [f"other {name}" for name in NAMES]


def predicting(folder: Path) -> Driver:
    """A party with a model, that has told no part of a prediction yet."""
    party = Driver(settings(folder, window={"fits": 5}, serving={"mode": "private", "share": 0.5, "predictions": 1})).begun()
    party.feed([party.ask(0)])
    party.feed([party.model([0.1, 0, 0, 0])])
    return party


def show(party: Driver, names: list[str]) -> list[Message]:
    """Records of entities, and the tick at which parts are told of them."""
    party.feed([party.sample(name, [0.5] * 4) for name in names])
    return party.feed([])


def new_rows(party: Driver) -> None:
    """Of others, which are announced."""
    party.feed([received for received in party.rows(1, OTHERS) if received.channel == "labels"])
    party.feed([party.record("samples", name, b"{}") for name in OTHERS])


@pytest.mark.parametrize("state", ["begun anew", "rolled back"])
def test_no_fit_follows_predictions_that_were_forgotten(tmp_path: Path, state: str) -> None:
    """Protects entities whose predictions were charged: by a ledger's topic of before, fits would be charged as if none was."""
    party = predicting(tmp_path)
    old = dict(party.state)
    assert [message.kind for message in show(party, NAMES)] == ["partial"] * len(NAMES)
    back = Driver(party.settings, {key: value for key, value in old.items() if state == "rolled back" or key[0] == "ledger"})
    back.feed(back.rows(1, OTHERS)) if state == "begun anew" else new_rows(back)
    back.feed([])
    links = Anchor.open(tmp_path / "ledger", "people", "a").links()
    assert back.feed([back.manifest(2, OTHERS)]) == []
    assert [one.error.reason for one in back.rejections] == ["ledger"]
    # A party that begins anew has no model: it has not tried to tell other parts in the place of those.
    assert ("20 releases of another chain" if state == "begun anew" else "as number 1 of 20") in (back.role.trouble or "")
    assert Anchor.open(tmp_path / "ledger", "people", "a").links() == links


def test_no_prediction_follows_fits_that_were_forgotten(tmp_path: Path) -> None:
    """Protects the same the other way round: while the file knows of fits that the state does not, no part of a prediction is told.

    Nor does the party ask for ticks in vain.
    """
    party = predicting(tmp_path)
    old = dict(party.state)
    party.feed(party.rows(1, OTHERS))
    party.feed([])
    assert [message.kind for message in party.feed([party.manifest(2, OTHERS)])] == ["frozen"]
    back = Driver(party.settings, old)
    assert show(back, NAMES) == []
    assert back.task.serving.wake_at is None


@pytest.mark.parametrize("first", ["tick", "manifest"])
def test_what_both_had_noted_before_a_crash_is_done_again(tmp_path: Path, first: str) -> None:
    """Protects a party from holding itself back: killed between file and commit, both chains are behind the file, and whichever
    is done again first, both come to the same bytes.
    """
    party = predicting(tmp_path)
    new_rows(party)
    show(party, [])
    party.feed([party.sample(name, [0.5] * 4) for name in NAMES])
    manifest = party.manifest(2, OTHERS)
    lost = [*party.feed([], commit=False), *party.feed([manifest], commit=False)]
    assert {message.kind for message in lost} == {"partial", "frozen"}

    again = Driver.__new__(Driver)
    again.__dict__.update(party.__dict__, sent=[], rejections=[])
    if first == "manifest":
        again.feed, feed = (lambda batch, commit=True: []), again.feed  # type: ignore[method-assign]
        again.start()
        again.feed = feed  # type: ignore[method-assign]
    else:
        again.start()
    again.feed([manifest])
    while again.role.wake_at is not None and again.role.wake_at <= again.now:
        again.feed([])
    assert again.rejections == []
    assert again.role.trouble is None
    key = lambda message: (message.kind, message.link)  # noqa: E731
    assert sorted(again.sent, key=key) == sorted(lost, key=key)
