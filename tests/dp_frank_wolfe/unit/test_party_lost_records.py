"""A ledger of which a part is missing releases nothing: its records say who was charged, how far it has come,
and on what terms."""

from __future__ import annotations

from pathlib import Path

import pytest
from dp_frank_wolfe.party_driver import Driver, settings


def fitted(folder: Path) -> Driver:
    """After a fit."""
    party = Driver(settings(folder)).begun()
    for iteration in range(6):
        party.hear(party.ask(iteration))
    party.hear(party.model())
    return party


def next_window(party: Driver) -> list[str]:
    """The same people come again, and the server asks for them; the kinds of what is said of them."""
    party.feed(party.rows(1))
    party.tick()
    return [message.kind for message in [*party.hear(party.manifest(2)), *party.hear(party.ask(0, window=2))]]


@pytest.mark.parametrize(
    "lost",
    [
        [b"spent/person 07"],
        [b"whole"],
        [b"spent/", b"whole"],
        [b"latest/"],
        [b"terms"],
        [b"chain/0"],
    ],
)
def test_nothing_is_released_by_a_ledger_with_a_gap(tmp_path: Path, lost: list[bytes]) -> None:
    """Protects people from a second fit after their charge was lost: the chain and the file say how many
    releases there were, and not of whom.
    """
    party = fitted(tmp_path)
    kept = {
        key: value
        for key, value in party.state.items()
        if key[0] == "state" or not key[1].startswith(tuple(lost))
    }
    assert len(kept) < len(party.state)
    gap = Driver(party.settings, kept)
    assert "records of it were lost" in (gap.role.trouble or "")
    assert next_window(gap) == []
    anew = Driver(party.settings, {key: value for key, value in kept.items() if key[0] == "ledger"})
    assert next_window(anew) == []
    whole = Driver(party.settings, party.state)
    assert whole.role.trouble is None


def test_a_ledger_and_its_file_that_are_behind_the_state_release_nothing(tmp_path: Path) -> None:
    """Protects everybody who was charged since: topic and file of before tell one story, and the party's
    state knows better."""
    party = Driver(settings(tmp_path))
    file = (tmp_path / "ledger").read_bytes()
    party = fitted(tmp_path)
    (tmp_path / "ledger").write_bytes(file)
    behind = Driver(party.settings, {key: value for key, value in party.state.items() if key[0] == "state"})
    assert "goes on behind link 7" in (behind.role.trouble or "")
    assert next_window(behind) == []
    assert (tmp_path / "ledger").read_bytes() == file


def test_a_gap_stays_one_whatever_is_charged_meanwhile(tmp_path: Path) -> None:
    """Protects the same through a restart: a party that releases nothing goes on charging predictions, and
    remembers that."""
    party = Driver(settings(tmp_path, serving={"mode": "private", "share": 0.5, "predictions": 1})).begun()
    party.hear(party.ask(0))
    party.hear(party.model([0.1, 0, 0, 0]))
    gap = Driver(
        party.settings, {key: value for key, value in party.state.items() if not key[1].startswith(b"spent/")}
    )
    before = dict(gap.state)
    gap.hear(gap.sample("somebody", [0.5] * 4))
    assert gap.state != before
    assert "records of it were lost" in (Driver(party.settings, gap.state).role.trouble or "")
