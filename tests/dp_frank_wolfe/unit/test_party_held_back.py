"""What becomes of a message that the ledger held back: it is kept, and heard again once the newest state is
there."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.party_driver import Driver, settings

from streamfl.privacy.anchor import Anchor


def test_what_the_ledger_held_back_is_a_dead_letter_and_heard_again(tmp_path: Path) -> None:
    """Protects a fit from an old copy that was put right: the ask that met it is not lost, and neither is the
    one after it."""
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


def test_who_refused_an_ask_is_not_ready_as_long_as_the_server_waits() -> None:
    """Protects the others' fit: the party was ready while they waited for its answer to a dead letter."""
    party = Driver(settings()).begun()
    wrong = party.ask(0, others=np.full(8, np.inf))
    party.feed([wrong])
    assert "its ask of window 1, which was refused and is a dead letter (not_finite" in str(
        party.role.trouble
    )
    party.now += party.settings.window.patience_seconds
    party.feed([])
    assert party.role.trouble is None
    party.feed([wrong, party.ask(0)])
    assert party.role.trouble is None


def test_a_state_beside_the_ledger_that_was_rolled_back_holds_back_too(tmp_path: Path) -> None:
    """Protects the same where the ledger's topic is the newest and the party's state is not."""
    party = Driver(settings(tmp_path)).begun()
    old = dict(party.state)
    party.feed([party.ask(0)])
    mixed = {
        key: (old if key[0] == "state" else party.state).get(key, value) for key, value in party.state.items()
    }
    rolled_back = Driver(
        party.settings, {key: value for key, value in mixed.items() if key in old or key[0] == "ledger"}
    )
    assert rolled_back.feed([party.ask(0, others=np.ones(8))]) == []
    assert [one.error.reason for one in rolled_back.rejections] == ["ledger"]


def test_a_state_that_was_deleted_to_begin_anew_says_what_to_do(tmp_path: Path) -> None:
    """Protects the operator from a federation that stands still: its first window was frozen once, and the
    party says so."""
    ledger = {
        key: value for key, value in Driver(settings(tmp_path)).begun().state.items() if key[0] == "ledger"
    }
    anew = Driver(settings(tmp_path), ledger)
    names = [f"another {row:02}" for row in range(20)]
    anew.feed(anew.rows(1, names))
    anew.feed([])
    assert anew.feed([anew.manifest(1, names)]) == []
    assert [one.error.reason for one in anew.rejections] == ["ledger"]
    assert "another federation.name" in (anew.role.trouble or "")


@pytest.mark.parametrize(
    "other",
    [
        {"privacy": {"epsilon": 3.0}},
        {"privacy": {"shares": {"a": 0.9, "b": 0.1}}},
        {"federation": {"parties": ["a", "c"], "columns": {"a": 4, "c": 3}}},
    ],
)
def test_a_federation_with_other_terms_releases_nothing(tmp_path: Path, other: dict[str, Any]) -> None:
    """Protects the promise over all parties: each knows its own spend alone, and under other shares the sum
    would be beyond it."""
    ledger = {
        key: value for key, value in Driver(settings(tmp_path)).begun().state.items() if key[0] == "ledger"
    }
    others = {**other, "federation": {"name": "g", **other.get("federation", {})}}
    second = Driver(settings(tmp_path, **others), ledger)
    assert "were promised epsilon = 2 at delta = 0.001 with shares {'a': 0.5, 'b': 0.5}" in (
        second.role.trouble or ""
    )
    names = [f"another {row:02}" for row in range(20)]
    second.feed(second.rows(1, names))
    assert second.feed([]) == []
    assert second.feed([second.manifest(1, names)]) == []
    same = Driver(settings(tmp_path, federation={"name": "g"}, window={"fits": 3}), ledger)
    assert same.role.trouble is None


@pytest.mark.parametrize("privacy", [{}, {"epsilon": math.inf}])
def test_a_ledger_that_exact_parts_came_of_is_for_no_promise(tmp_path: Path, privacy: dict[str, Any]) -> None:
    """Protects entities that were told as they are from a later claim of a whole epsilon; what is exact
    itself goes on, and what began with a model alone and told nothing ends no promise.
    """
    exact = {"serving": {"mode": "exact"}, "privacy": privacy}
    party = Driver(settings(tmp_path, **exact)).begun()
    party.feed([party.model([0.1, 0, 0, 0])])

    def ledger() -> dict[tuple[str, bytes], bytes]:
        return {key: value for key, value in party.state.items() if key[0] == "ledger"}

    later = {"federation": {"name": "g"}, "privacy": privacy}
    assert Driver(settings(tmp_path, federation={"name": "g"}), ledger()).role.trouble is None
    party.feed([party.sample("zoe", [0.9] * 4)])
    # Before it is told.
    assert ("ledger", b"exact") in party.state
    assert [message.kind for message in party.feed([])] == ["partial"]
    assert {one.name: one.value for one in party.role.measure()}["epsilon"] == math.inf
    for mode in ("off", "private"):
        second = Driver(settings(tmp_path, federation={"name": "g"}, serving={"mode": mode}), ledger())
        assert "the federation 'f' sent exact parts of predictions" in (second.role.trouble or "")
        names = [f"another {row:02}" for row in range(20)]
        second.feed(second.rows(1, names))
        assert second.feed([]) == []
    assert Driver(settings(tmp_path, **{**later, **exact}), ledger()).role.trouble is None
    again = Driver(settings(tmp_path, **exact), dict(party.state))
    names = [f"another {row:02}" for row in range(20)]
    again.feed(again.rows(1, names))
    again.feed([])
    assert [message.kind for message in again.feed([again.manifest(2, names)])] == ["frozen"]


def another_file(path: Path) -> None:
    path.unlink()
    Anchor.create(path, "people", "a")


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (Path.unlink, "No such file"),
        (another_file, "another ledger file"),
        (lambda path: path.write_bytes(b"nonsense"), "is not a ledger file any more"),
    ],
)
def test_a_file_that_goes_away_under_a_party_is_told_of(
    tmp_path: Path, happens: Callable[[Path], None], told: str
) -> None:
    """Protects the operator from a traceback: a ledger file that was removed or replaced is a reason to
    release nothing."""
    party = Driver(settings(tmp_path)).begun()
    happens(tmp_path / "ledger")
    assert party.feed([party.ask(0)]) == []
    assert [one.error.reason for one in party.rejections] == ["ledger"]
    assert told in (party.role.trouble or "")


def test_a_full_disk_releases_nothing_and_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the order of file and release: what is not on the disk has not left, and with room again it
    leaves as it is."""
    party = Driver(settings(tmp_path)).begun()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert party.feed([party.ask(0)]) == []
    assert "No space left" in (party.role.trouble or "")
    party.start()
    [answer] = party.feed([party.ask(0)])
    assert (answer.kind, party.role.trouble) == ("answers", None)
