"""A party that is driven by hand-made messages: what it says, what it refuses, and what it does not take
twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dp_frank_wolfe.party_driver import COLUMNS, NAMES, ROWS, Driver, ask_of, reason, settings

from streamfl.contract.role import ConfigurationError, Received
from streamfl.dp_frank_wolfe.messages import (
    Ask,
    OtherRows,
)

SELECTING = {"learning": {"estimator": "two-round", "columns": 4}}


# ---- what is refused


def refused_asks(party: Driver) -> dict[str, tuple[Received, str]]:
    nan, zeros = np.full(8, np.nan), np.zeros(8)
    good = ask_of([0, 0, 0, 0], zeros)
    return {
        "a name that is too long": (party.sample("ö" * 129, [0.0] * COLUMNS), "malformed"),
        "a later window": (party.server("ask", 2, 0, good), "implausible"),
        "beyond T": (party.server("ask", 1, 6, good), "implausible"),
        "another kind": (party.server("choose", 1, 0, b""), "malformed"),
        "a text": (party.server("ask", 1, 1, b"\xa3abc"), "malformed"),
        "too many numbers": (party.server("ask", 1, 1, ask_of([0] * 4, np.zeros(9))), "shape"),
        "numbers that are none": (party.server("ask", 1, 1, ask_of([0] * 4, nan)), "not_finite"),
        "numbers beyond all": (party.server("ask", 1, 1, ask_of([0] * 4, zeros + 1e300)), "implausible"),
        "a weight beyond the ball": (
            party.server("ask", 1, 1, ask_of([0, 0.6, 0, 0], zeros)),
            "out_of_bounds",
        ),
        "weights that overflow": (
            party.server("ask", 1, 1, ask_of([1e308, 1e308, 1e308, 0], zeros)),
            "out_of_bounds",
        ),
        "a weight that is none": (party.server("ask", 1, 1, ask_of([0, np.nan, 0, 0], zeros)), "not_finite"),
        "a column that there is not": (
            party.server("ask", 1, 1, Ask(b"\x09\0\0\0", bytes(8), zeros.tobytes())),
            "implausible",
        ),
        "half a column": (party.server("ask", 1, 1, Ask(b"\x01\0", bytes(8), zeros.tobytes())), "shape"),
        "a column twice": (
            party.server("ask", 1, 1, Ask(bytes(8), bytes(16), zeros.tobytes())),
            "implausible",
        ),
        "a column that was never chosen": (
            party.server("ask", 1, 1, ask_of([0.1, 0.1, 0.1, 0.1], zeros)),
            "implausible",
        ),
        "the same ask with another content": (
            party.server("ask", 1, 0, ask_of([0] * 4, zeros + 1)),
            "another_ask",
        ),
        "another manifest": (party.manifest(1, sorted([*NAMES[1:], "another"])), "another_ask"),
        "a manifest of unknown names": (
            party.manifest(2, [f"{number:02}" for number in range(ROWS)]),
            "implausible",
        ),
        "a manifest of numbers that wait no longer": (party.manifest(2), "implausible"),
        "a short manifest": (party.server("manifest", 2, 0, [NAMES[:-1]]), "malformed"),
        "a manifest with a name twice": (
            party.server("manifest", 2, 0, [[NAMES[0], *NAMES[:-1]]]),
            "malformed",
        ),
        "a model of a later window": (party.model(window=2), "implausible"),
        "a model beyond the ball": (party.model([2, 0, 0, 0]), "out_of_bounds"),
    }


def test_wrong_messages_change_nothing(tmp_path: Path) -> None:
    """Protects a party from its server: each is refused for its reason, before anything is charged, chosen or
    remembered."""
    party = Driver(settings(tmp_path)).begun()
    party.hear(party.ask(0))
    found = {name: reason(party, message) for name, (message, _) in refused_asks(party).items()}
    assert found == {name: wanted for name, (_, wanted) in refused_asks(party).items()}
    undisturbed = Driver(settings(tmp_path), dict(party.state))
    assert party.hear(party.ask(1)) == undisturbed.hear(undisturbed.ask(1))
    assert party.task.trouble is None


def test_wrong_messages_to_a_party_that_chooses_once_change_nothing() -> None:
    """Protects a party from its server, where it chooses once."""
    party = Driver(settings(**SELECTING)).begun()
    good = OtherRows(np.zeros((ROWS, 2)).tobytes())
    assert reason(party, party.server("rows", 1, 0, good)) == "implausible"
    assert reason(party, party.server("choose", 1, 0, b"now")) == "malformed"
    assert reason(party, party.ask(0)) == "malformed"
    party.hear(party.server("choose", 1, 0, b""))
    for content, wanted in (
        (np.zeros((ROWS, 3)), "shape"),
        (np.zeros((ROWS - 1, 2)), "shape"),
        (np.full((ROWS, 2), np.inf), "not_finite"),
        (np.full((ROWS, 2), 1e200), "implausible"),
    ):
        assert reason(party, party.server("rows", 1, 0, OtherRows(content.tobytes()))) == wanted
    assert len(party.hear(party.server("rows", 1, 0, good))) == 1
    assert party.task.trouble is None


def test_what_comes_twice_is_counted_and_answered_once(tmp_path: Path) -> None:
    """Protects the ledger from a server that asks again: one release for each place, and none for what is
    past."""
    party = Driver(settings(tmp_path)).begun()
    messages = [party.manifest(), party.ask(0), party.ask(2), party.model([0, 0, 0, 0])]
    for number, message in enumerate(messages):
        party.hear(message)
        state = dict(party.state)
        for earlier in messages[: number + 1]:
            assert party.hear(earlier) == []
        assert party.feed([party.ask(1, others=np.ones(8))] if number > 1 else []) == []
        assert party.state == state
    assert party.rejections == []
    assert party.role.counts.repeated_messages == 1 + (1 + 2 + 3 + 4) + 2
    assert reason(party, party.model([0, 0.1, 0, 0])) == "another_ask"


def test_a_sampling_that_leaves_the_party_out_asks_nothing_of_it() -> None:
    """Protects the plan: an answer out of turn is one that was not counted when the noise was chosen."""
    party = Driver(settings(learning={"sampling": "uniform", "iterations": 40})).begun()
    due = {t for t in range(40) if party.public.sampling.blocks_of(1, t) == [0]}
    assert 0 < len(due) < 40
    for t in range(40):
        assert reason(party, party.ask(t)) == (None if t in due else "implausible")
    assert len([message for message in party.sent if message.kind == "answers"]) == len(due)


def test_settings_that_do_not_fit_are_mistakes(tmp_path: Path) -> None:
    """Protects operators: a missing secret, a missing ledger file and a wrong number of columns are said at
    the start."""
    with pytest.raises(ConfigurationError, match=r"privacy\.secret_file"):
        Driver(settings(privacy={"insecure_test_noise": False}))
    own = settings(tmp_path)
    (tmp_path / "ledger").unlink()
    with pytest.raises(ConfigurationError, match="streamfl ledger init"):
        Driver(own)
    with pytest.raises(ConfigurationError, match=r"federation\.columns"):
        Driver(settings(samples={"features": ["x0", "x1"]}))
