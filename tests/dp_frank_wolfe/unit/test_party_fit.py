"""A party's answers: candidates, the cap, its bounds, and noise that is never used for two contents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.problems import divided, sparse

from streamfl.dp_frank_wolfe.learning.blocks import Block
from streamfl.dp_frank_wolfe.learning.iterate import quantise
from streamfl.dp_frank_wolfe.learning.sketch import IdentitySketch, SignSketch
from streamfl.dp_frank_wolfe.party.fit import PartyFit, ReleaseContext, predictions
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Window
from streamfl.dp_frank_wolfe.privacy.budget import plan_fit
from streamfl.privacy.release_bits import Release, release_bits

ROWS, COLUMNS = 200, 12
PLACE = ReleaseContext("ledger", "federation", "party-0", 0, bytes(range(32)))
SKETCH = SignSketch(ROWS, 20, 1)
BLOCKS = {0: Block("party-0", tuple(range(6)), 0.5), 3: Block("party-0", tuple(range(6, 12)), 0.5)}
NONE = np.zeros(COLUMNS)


@pytest.fixture(name="window", scope="module")
def _window() -> Window:
    return sparse(ROWS, COLUMNS, 1, seed=6)["party-0"]


def make(
    window: Window,
    cost: float = 1.0,
    choices: int = 40,
    columns: int = 4,
    bound: float = 2.0,
    sketch: SignSketch = SKETCH,
    place: ReleaseContext = PLACE,
    **options: int,
) -> PartyFit:
    plan = plan_fit(cost, choices, columns, bound, sketch)
    return PartyFit(window, BLOCKS, plan, sketch, place, **options)


def test_predictions_are_bounded_whatever_others_say(window: Window) -> None:
    """Protects Delta: no prediction is beyond R, and within it they are those of floating point."""
    random = np.random.default_rng(0)
    own, others = random.uniform(-0.2, 0.2, COLUMNS), random.normal(size=ROWS)
    found = (
        predictions(window, own, quantise(others * FEATURE_ONE), IdentitySketch(ROWS), 2 * RESIDUAL_ONE)
        / RESIDUAL_ONE
    )
    wanted = np.clip(window.columns / FEATURE_ONE @ own + others, -2, 2)
    np.testing.assert_allclose(found, wanted, atol=2.0**-18)
    for wild in (1e9, 1e200):
        found = predictions(
            window, own, quantise(wild * others * FEATURE_ONE), IdentitySketch(ROWS), 2 * RESIDUAL_ONE
        )
        assert np.abs(found).max() <= 2 * RESIDUAL_ONE


def test_candidates_are_drawn_from_the_block_and_change(window: Window) -> None:
    """Protects a fit with few candidates: vertices are of their own block, and every column comes up in
    time."""
    party = make(window, cost=float("inf"), columns=12, candidates=1)
    found = [party.answer(t, [0, 3], NONE, np.zeros(20)) for t in range(20)]
    first, last = ({answers[number].vertex.column for answers in found} for number in (0, 3))
    assert first == set(range(6))
    assert last == set(range(6, 12))
    assert sorted(party.shown) == list(range(12))


def test_a_party_chooses_no_more_often_than_its_plan_says(window: Window) -> None:
    """Protects the ledger from a server that asks for ever: the party counts its choices itself."""
    party = make(window, choices=3)
    party.answer(0, [0, 3], NONE, np.zeros(20))
    with pytest.raises(ValueError, match="used up"):
        party.answer(1, [0, 3], NONE, np.zeros(20))


def test_what_no_server_could_have_come_to_is_refused(window: Window) -> None:
    """Protects a party from an untrusted server: an iterate outside of the balls or numbers that are none
    cost no choice."""
    party = make(window, choices=2)
    zeros = np.zeros(20)
    for own, others in (
        (NONE + 1, zeros),
        (NONE + np.nan, zeros),
        (NONE, zeros + np.nan),
        (NONE, zeros + np.inf),
    ):
        with pytest.raises(ValueError, match="radius"):
            party.answer(0, [0, 3], own, others)
    assert len(party.answer(0, [0, 3], NONE, np.full(20, 1e250))) == 2


def test_every_release_of_a_fit_is_another_and_names_all_that_it_is_of(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from one draw on two contents, whose difference would be known: no two releases of a fit have
    one key, and a fit that differs in its place, secret, strength, sketch or rows has none in common with it.
    Choices depend on what was told too; a column's sketch is the same whenever it is shown.
    """
    heard: list[tuple[bytes, Release]] = []

    def bits(secret: bytes, release: Release, draws: int) -> bytes:
        heard.append((secret, release))
        return release_bits(secret, release, draws)

    monkeypatch.setattr("streamfl.dp_frank_wolfe.party.fit.release_bits", bits)
    features, labels = window.columns / FEATURE_ONE, window.labels / RESIDUAL_ONE
    features[3, 0] = -features[3, 0]
    changed = divided(features, labels, 1)["party-0"]

    def keys(party: PartyFit, others: float = 0.0, own: float = 0.0) -> list[set[tuple[bytes, Release]]]:
        """Of choices, and of sketches."""
        heard.clear()
        for t in range(6):
            party.answer(t, [0, 3], np.full(COLUMNS, own), np.full(20, others))
        assert len(set(heard)) == len(heard) > 12
        return [{one for one in heard if one[1].kind.startswith(kind)} for kind in ("choice", "sketch")]

    once = keys(make(window))
    assert len(once[0]) == 12
    assert keys(make(window)) == once
    names = [{"ledger": "b"}, {"federation": "b"}, {"party": "b"}, {"window": 1}, {"secret": bytes(32)}]
    options: list[dict[str, Any]] = [{"place": replace(PLACE, **name)} for name in names]
    options += [{"cost": 1.1}, {"columns": 5}, {"choices": 41}, {"bound": 2.1}]
    for found in [*(keys(make(window, **option)) for option in options), keys(make(changed))]:
        assert not found[1] & once[1]
        assert not found[0] & once[0]
    for found in (
        keys(make(window), others=0.5),
        keys(make(window), own=0.01),
        keys(make(window, candidates=3)),
    ):
        assert not found[0] & once[0]
    assert not keys(make(window, sketch=SignSketch(ROWS, 20, 2)))[1] & once[1]
    noise = plan_fit(1.0, 40, 4, 2.0, SKETCH).noise
    assert noise is not None
    given = {(one.iteration, *one.parameters[5:]) for _, one in once[1]}
    assert given == {(0, noise.variance, noise.unit, SKETCH.name)}
