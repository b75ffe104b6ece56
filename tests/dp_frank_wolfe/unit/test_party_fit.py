"""A party's answers: candidates, the cap, its bounds, and noise that is never used for two contents."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from dp_frank_wolfe.problems import divided, sparse

from streamfl.dp_frank_wolfe.learning.blocks import Block
from streamfl.dp_frank_wolfe.learning.iterate import quantise
from streamfl.dp_frank_wolfe.learning.sketch import IdentitySketch, SignSketch
from streamfl.dp_frank_wolfe.party.fit import PartyFit, ReleaseContext, predictions
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Window
from streamfl.dp_frank_wolfe.privacy.budget import FitPlan, plan_fit
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
    window: Window, cost: float = 1.0, choices: int = 40, columns: int = 4, **options: object
) -> PartyFit:
    plan = plan_fit(cost, choices, columns, 2.0, SKETCH)
    return PartyFit(window, BLOCKS, plan, SKETCH, options.pop("place", PLACE), **options)


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


def released(
    window: Window,
    place: ReleaseContext = PLACE,
    sketch: SignSketch = SKETCH,
    plan: FitPlan | None = None,
    seed: int = 0,
) -> dict[int, np.ndarray]:
    """The noise of each column's sketch, all columns shown."""
    plan = plan or plan_fit(1.0, 40, 12, 2.0, sketch)
    blocks = {0: Block("party-0", tuple(range(12)), 1.0)}
    party = PartyFit(window, blocks, plan, sketch, place, candidates=1, seed=seed)
    found = {}
    for t in range(40):
        for answer in party.answer(t, [0], NONE, np.zeros(sketch.numbers)).values():
            if answer.sums is not None:
                exact = sketch.apply(window.columns[:, answer.vertex.column])
                found[answer.vertex.column] = answer.sums - (exact + plan.noise.unit // 2) // plan.noise.unit
    return found


def test_noise_is_for_one_content_in_one_place(window: Window) -> None:
    """Protects from differences: the same release has the same noise, and another row, window, party,
    federation, ledger, secret or strength has independent noise in every column, also in those that did not
    change.
    """
    once = released(window)
    assert len(once) > 8
    for first, second in itertools.combinations(once.values(), 2):
        assert np.mean(first == second) < 0.5
    for column, noise in released(window).items():
        np.testing.assert_array_equal(noise, once[column])
    features, labels = window.columns / FEATURE_ONE, window.labels / RESIDUAL_ONE
    features[3, 0] = -features[3, 0]
    changed = divided(features, labels, 1)["party-0"]
    others = [released(changed), released(window, plan=plan_fit(1.1, 40, 12, 2.0, SKETCH))]
    others += [
        released(window, plan=plan_fit(1.0, 40, 12, 2.1, SKETCH)),
        released(window, sketch=SignSketch(ROWS, 20, 2)),
    ]
    # Of which columns are drawn, and when, follows nothing.
    for column, noise in released(window, seed=1).items():
        np.testing.assert_array_equal(noise, once.get(column, noise))
    names = [
        {"ledger": "b"},
        {"federation": "b"},
        {"party": "b"},
        {"window": 1},
        {"secret": bytes(range(1, 33))},
    ]
    others += [released(window, replace(PLACE, **name)) for name in names]
    for other in others:
        for column in once.keys() & other.keys():
            assert np.mean(once[column] == other[column]) < 0.5


def test_every_release_of_a_fit_is_another_and_names_all_that_it_is_of(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects noise keys of choices: no two releases of a fit have one key, and a fit that differs in its
    strength, what it was told,
    its candidates or its rows has none in common with it.
    """
    heard: list[Release] = []

    def bits(secret: bytes, release: Release, draws: int) -> bytes:
        heard.append(release)
        return release_bits(secret, release, draws)

    monkeypatch.setattr("streamfl.dp_frank_wolfe.party.fit.release_bits", bits)
    features, labels = window.columns / FEATURE_ONE, window.labels / RESIDUAL_ONE
    features[3, 0] = -features[3, 0]
    changed = divided(features, labels, 1)["party-0"]

    def choices(party: PartyFit, others: float = 0.0, own: float = 0.0) -> set[Release]:
        heard.clear()
        for t in range(6):
            party.answer(t, [0, 3], np.full(COLUMNS, own), np.full(20, others))
        assert len(set(heard)) == len(heard) > 12
        return {release for release in heard if release.kind.startswith("choice")}

    once = choices(make(window))
    assert len(once) == 12
    assert choices(make(window)) == once
    for option in ({"cost": 1.1}, {"columns": 5}, {"choices": 41}, {"candidates": 3}):
        assert not choices(make(window, **option)) & once
    assert not choices(make(window), others=0.5) & once
    assert not choices(make(window), own=0.01) & once
    assert not choices(make(changed)) & once
    # Four times the budget may be the same noise in units of half the size.
    noise = plan_fit(1.0, 40, 4, 2.0, SKETCH).noise
    assert noise is not None
    shown = [release.parameters[5:] for release in heard if release.kind.startswith("sketch")]
    assert set(shown) == {(noise.variance, noise.unit, SKETCH.name)}
