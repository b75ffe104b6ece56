"""What becomes of a message that the ledger held back: it is kept, and heard again once the newest state is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from dp_frank_wolfe.party_driver import Driver, settings


def test_what_the_ledger_held_back_is_a_dead_letter_and_heard_again(tmp_path: Path) -> None:
    """Protects a fit from an old copy that was put right: the ask that met it is not lost, and neither is the one after it."""
    party = Driver(settings(tmp_path)).begun()
    old = dict(party.state)
    party.feed([party.ask(0)])
    rolled_back = Driver(party.settings, old)
    asks = [party.ask(iteration, others=np.full(8, float(iteration))) for iteration in (1, 2)]
    assert rolled_back.feed([party.ask(0, others=np.ones(8)), *asks]) == []
    assert [one.error.reason for one in rolled_back.rejections] == ["ledger"] * 3
    assert all("replay this message" in one.error.text for one in rolled_back.rejections)
    assert rolled_back.state == old

    newest = Driver(party.settings, party.state)
    held_back = [rejection.received for rejection in rolled_back.rejections[1:]]
    assert [message.iteration for message in newest.feed(held_back)] == [1, 2]
    assert newest.role.trouble is None


def test_a_state_beside_the_ledger_that_was_rolled_back_holds_back_too(tmp_path: Path) -> None:
    """Protects the same where the ledger's topic is the newest and the party's state is not."""
    party = Driver(settings(tmp_path)).begun()
    old = dict(party.state)
    party.feed([party.ask(0)])
    mixed = {key: (old if key[0] == "state" else party.state).get(key, value) for key, value in party.state.items()}
    rolled_back = Driver(party.settings, {key: value for key, value in mixed.items() if key in old or key[0] == "ledger"})
    assert rolled_back.feed([party.ask(0, others=np.ones(8))]) == []
    assert [one.error.reason for one in rolled_back.rejections] == ["ledger"]
