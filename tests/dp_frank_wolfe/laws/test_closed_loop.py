"""Parties and server as roles come to what the arithmetic alone comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.federations import SERVER_MEMBER, settings_of
from dp_frank_wolfe.laws.closed_loop import assert_is, fitted

EXACT: dict[str, Any] = {"epsilon": float("inf")}
MANY_ROWS: dict[str, Any] = {"window": {"rows": 999_999}, "privacy": {"delta": 1e-9}}


@pytest.mark.parametrize(
    ("parties", "sections"),
    [
        (2, {}),
        (2, {"learning": {"columns": 2, "blocks": 2}}),
        (3, {"learning": {"blocks": 2, "sampling": "nice", "sampled_blocks": 2, "iterations": 9}}),
        (1, {"learning": {"sampling": "uniform", "candidates": 2, "iterations": 12}}),
        (2, {"privacy": EXACT, "learning": {"sketch": "identity", "iterations": 99, "tolerance": 0.1}}),
        (3, {"privacy": EXACT, "learning": {"blocks": 2, "sampling": "distributed", "columns": 12}}),
    ],
)
def test_a_fit_is_the_arithmetic(parties: int, sections: dict[str, Any]) -> None:
    """Protects what is learnt and released: messages, windows, ledger and state change no bit of it."""
    loop = fitted(parties, **sections)
    expected = loop.direct()
    assert_is(loop, expected.x)
    assert loop.server.model == 1
    estimator = loop.server.estimator
    assert estimator.support == expected.support > 0
    assert estimator.l1_norm == expected.l1_norm <= 1 + 1e-12
    assert estimator.iteration == len(expected.steps)
    for one in loop.published("model"):
        own = expected.x[one["party"]]
        assert (one["version"], one["columns"]) == (1, np.flatnonzero(own).tolist())
        assert one["weights"] == own[own != 0].tolist()
    # Beside what the fit releases, a mean of each column, and of the label by each party.
    means = loop.centred().uplink_numbers
    assert means == parties * 5
    released = sum(loop.members[party].role.counts.uplink_numbers for party in loop.parties) - means
    # Signed indices, and N columns of m numbers. At the cap a block without a shown column has none to
    # choose.
    public, learning = loop.public, loop.public.settings.learning
    most = sum(public.sampling.answers_of(party, 1, learning.iterations) for party in loop.parties)
    # A gap that is small ends the fit, and comes with answers that move nothing.
    ends_early = estimator.iteration < learning.iterations
    assert ends_early == bool(learning.tolerance)
    indices = sum(len(step.chosen) for step in expected.steps) + parties * ends_early
    assert released == indices + len(expected.sums) * public.settings.sketch_numbers
    assert released == estimator.uplink_numbers == expected.uplink_numbers + parties * ends_early
    assert indices == most or learning.blocks > 1 or ends_early
    codec, counts = loop.server.codec, loop.members[SERVER_MEMBER].role.counts
    told = [codec.decode(value) for name, _, _, value in loop.committed if name != SERVER_MEMBER]
    assert counts.uplink_bytes == sum(len(one.content) for one in told if one.kind == "answers") + 8 * means
    assert (counts.uplink_numbers, counts.signed_indices) == (released + means, indices)
    assert {one.name: one.value for one in loop.server.measure()}["fit_uplink_numbers"] == released + means


def test_noise_that_nobody_knows_is_that_of_the_secret(tmp_path: Path) -> None:
    """Protects the private path: with secrets and ledger files the fit is what the arithmetic makes of the
    same secrets."""
    loop = fitted(2, tmp_path)
    for party in loop.parties:
        assert loop.party(party).given.secret == (tmp_path / f"{party}.secret").read_bytes()
    assert_is(loop, loop.direct().x)
    assert np.any(loop.models()["party-0"])


@pytest.mark.parametrize(
    ("estimator", "parties", "privacy"),
    [("marginal", 2, {}), ("marginal", 1, EXACT), ("two-round", 4, {}), ("two-round", 1, {})],
)
def test_a_selection_is_the_arithmetic(estimator: str, parties: int, privacy: dict[str, Any]) -> None:
    """Protects the estimators that choose once, likewise."""
    loop = fitted(parties, learning={"estimator": estimator, "radius": 0.8}, privacy=privacy)
    assert_is(loop, loop.estimate().x)
    assert 0 < loop.server.estimator.support <= 4
    assert loop.server.estimator.l1_norm <= 0.8 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"learning": {"estimator": "marginal", "columns": 5000}}, "can solve for 4096 at most"),
        ({"learning": {"estimator": "two-round", "columns": 300}, **MANY_ROWS}, "hold in memory"),
        ({"learning": {"columns": 30_000}}, "less than or equal to 20000"),
    ],
)
def test_what_a_server_cannot_hold_is_refused_at_the_start(sections: dict[str, Any], text: str) -> None:
    """Protects a server from settings that it would fail under in the middle of a fit."""
    with pytest.raises(ValueError, match=text):
        settings_of(SERVER_MEMBER, 2, **sections)
