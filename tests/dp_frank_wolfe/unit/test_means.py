"""Means that a window is centred by: what they cost, what they hide, and what a server takes."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.hand_made import (
    COLUMNS,
    ROWS,
    Server,
    converse,
    hands,
    names_of,
    settings_of,
)
from dp_frank_wolfe.party_driver import Driver, settings
from dp_frank_wolfe.problems import divided

from streamfl.dp_frank_wolfe.learning.means import plan_means, released_means
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import Frozen, read_content
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Window
from streamfl.dp_frank_wolfe.tools.direct import place

SECRET = bytes(range(32))
MOVED = FEATURE_ONE * RESIDUAL_ONE
UNEQUAL = {"party-0": 0.6, "party-1": 0.3}


def exact(window: Window) -> np.ndarray:
    return released_means(window, plan_means(math.inf, window.columns.shape[1]), place("party-0", 1, SECRET))


def table(seed: int = 0, rows: int = 50, columns: int = 3, centre: float = 0.0) -> Window:
    random = np.random.default_rng(seed)
    features = np.clip(centre + 0.2 * random.normal(size=(rows, columns)), -1, 1)
    labels = random.uniform(-1, 1, rows)
    return divided(features, labels, 1)["party-0"]


def test_a_row_moves_the_sums_by_what_the_noise_is_of() -> None:
    """Protects epsilon: over neighbours with all corners of the bounds, the sums of all columns and the
    label's, which is told floor(sqrt(d)) times, move together by 2 sqrt(d + floor(sqrt(d))^2) at most, which
    is reached, and sigma^2 is that squared over 2 cost, as an exact fraction.
    """
    random, columns, cost = np.random.default_rng(1), 5, 0.003
    features, labels = random.uniform(-1, 1, (20, columns)), random.uniform(-1, 1, 20)
    # Any other row lies between two of these in each of its numbers.
    corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * (columns + 1))).reshape(columns + 1, -1).T
    corners = np.vstack([corners, random.uniform(-1, 1, (60, columns + 1))])
    sums = []
    for corner in corners:
        features[7], labels[7] = corner[:-1], corner[-1]
        sums.append(exact(divided(features, labels, 1)["party-0"]))
    furthest = max(float(np.linalg.norm(one - other)) for one in sums for other in sums)
    assert furthest == 2 * math.sqrt(columns + 4) * RESIDUAL_ONE
    noise = plan_means(cost, columns).noise
    assert noise is not None
    assert noise.variance * noise.unit**2 == Fraction((2 * RESIDUAL_ONE) ** 2 * (columns + 4)) / (
        2 * Fraction(cost)
    )
    # Rounding to the unit commutes with a shift of 2: it does not move neighbours further apart.
    assert 2 * RESIDUAL_ONE % noise.unit == 0


@pytest.mark.parametrize(
    ("estimator", "shares", "fits"),
    [("frank-wolfe", UNEQUAL, 3), ("marginal", None, 1), ("two-round", UNEQUAL, 1)],
)
def test_all_that_a_window_releases_is_within_what_is_charged(estimator: str, shares: Any, fits: int) -> None:
    """Protects epsilon: each release of a fit counted again from sensitivities and variances, the means with
    all others, is no more than an entity is charged for the fit, and nearly that.
    """
    learning = {"estimator": estimator, "columns": 6, "iterations": 9, "sketch_rows": 16}
    public = Public(
        settings_of(learning=learning, privacy={"epsilon": 2.0, "shares": shares}, window={"fits": fits})
    )
    for party in public.parties:

        def gaussian(noise: Any, sensitivity: float) -> float:
            return sensitivity**2 / float(2 * noise.variance * noise.unit**2)

        own, chosen = COLUMNS, public.quota(party)
        # Of columns, and of the label as it is told: twice.
        spent = gaussian(public.means_plan(party).noise, math.hypot(2 * math.sqrt(own), 2 * 2) * RESIDUAL_ONE)
        assert 0.03 < spent / public.fit_cost(party) < 0.06
        if estimator == "frank-wolfe":
            plan = public.fit_plan(party, 1)
            assert plan.rate is not None
            moved = 2 * FEATURE_ONE * (plan.prediction_bound + RESIDUAL_ONE)
            spent += 9 * float(2 * plan.rate * moved) ** 2 / 8 + chosen * gaussian(
                plan.noise, 2 * math.sqrt(16) * FEATURE_ONE
            )
        else:
            selection = public.selection_plan(party)
            assert selection.rate is not None
            spent += chosen * float(2 * selection.rate * 2 * MOVED) ** 2 / 8
            spent += gaussian(selection.noises["values"], 2 * math.sqrt(chosen) * MOVED)
            if estimator == "marginal":
                spent += gaussian(selection.noises["norms"], math.sqrt(chosen) * FEATURE_ONE**2)
            else:
                spent += gaussian(selection.noises["rows"], 2 * math.sqrt(chosen) * FEATURE_ONE)
                # The grids of these are coarser than their lengths: of them the plan's own figure is taken.
                spent += selection.noises["products"].cost + selection.noises["gram"].cost
        assert 0.97 * public.fit_cost(party) < spent <= public.fit_cost(party) * (1 + 1e-12)


def test_noise_is_of_the_secret_and_of_all_that_it_hides() -> None:
    """Protects rows: the same window has the same means, made again; another row, secret, window or strength
    has other noise."""
    window, plan, at = table(), plan_means(0.01, 3), place("party-0", 1, SECRET)
    once = released_means(window, plan, at)
    assert np.array_equal(once, released_means(window, plan, at))
    noise = plan.noise
    assert noise is not None

    def drawn(window: Window, told: np.ndarray) -> tuple[int, ...]:
        return tuple((told - (exact(window) + noise.unit // 2) // noise.unit).tolist())

    columns = window.columns.copy()
    columns[3, 0] += 1
    changed = Window(columns, window.labels, bytes(32))
    found = {
        drawn(window, once),
        drawn(changed, released_means(changed, plan, at)),
        drawn(window, released_means(window, plan, place("party-0", 1, bytes(32)))),
        drawn(window, released_means(window, plan, place("party-0", 2, SECRET))),
        drawn(window, released_means(window, plan, place("party-1", 1, SECRET))),
    }
    assert len(found) == 5


def test_the_label_has_no_more_noise_for_more_columns() -> None:
    """Protects wide tables: the noise of the label's mean costs what its own sensitivity does, times 2^.5 at
    most, however many columns share the release. Told once it had d + 1 times the variance, and every
    prediction of 1,000 columns was off by it."""
    rows, cost, columns = 400, 0.05, 1000
    window = divided(np.zeros((rows, columns)), np.full(rows, 0.25), 1)["party-0"]
    plan = plan_means(cost, columns)
    assert plan.noise is not None
    deviation = plan.noise.deviation / (plan.weight * rows * RESIDUAL_ONE)
    assert deviation < 1.5 * 2 / rows / math.sqrt(2 * cost)
    found = plan.means(released_means(window, plan, place("party-0", 1, SECRET)), rows).label / RESIDUAL_ONE
    assert 0 < abs(found - 0.25) < 5 * deviation


def test_no_mean_passes_that_no_rows_can_have() -> None:
    """Protects the intercept from a party that lies: means beyond what noise could take them to, or of
    another shape, are refused, and the party's own may still come.
    """
    server = Server(settings_of())
    server.announce(names_of())
    found = hands(server)
    answer = found["party-0"].hear(server.said[0][1])
    assert answer is not None
    own: Frozen = answer[1]
    plan = server.public.means_plan("party-0")
    assert plan.noise is not None
    # The label's sum is told twice.
    most = [int(ROWS * times * RESIDUAL_ONE // plan.noise.unit + 1 + plan.noise.largest) for times in (1, 2)]
    for place_of, limit in ((0, most[0]), (-1, most[1])):
        for lie in (limit + 1, -limit - 1, 2**62, -(2**63)):
            means = np.frombuffer(own.means, "<i8").copy()
            means[place_of] = lie
            assert server.hear("party-0", "frozen", Frozen(own.manifest, means.tobytes(), 2), 1) == [
                "out_of_bounds"
            ]
    for means in (own.means[:-8], own.means[:-1]):
        assert server.hear("party-0", "frozen", Frozen(own.manifest, means, 2), 1) == ["shape"]
    # A build between two releases told the label's sum once, and one of it would be half of the mean.
    for weight in (0, 1, 3):
        assert server.hear("party-0", "frozen", Frozen(own.manifest, own.means, weight), 1) == [
            "configuration"
        ]
    assert not server.task.means.has("party-0")
    highest = np.array([most[0]] * COLUMNS + most[1:], "<i8").tobytes()
    server.tell("party-0", "frozen", Frozen(own.manifest, highest, 2), 1)
    assert abs(server.task.means.intercept({party: np.zeros(COLUMNS) for party in found})) <= 1


def test_a_fit_of_the_release_before_ends_as_it_began(tmp_path: Path) -> None:
    """Protects who upgrades within a fit: a window that was frozen without means is fitted by the plan that
    it was charged for, bit for bit, and the next one is centred.
    """
    before = Driver(settings(tmp_path, learning={"intercept": False}, window={"fits": 2})).begun()
    # The release before remembered nothing of centring.
    old = {key: value for key, value in before.state.items() if key[1] != b"fit-centred"}
    noted = (tmp_path / "ledger").read_bytes()
    ask = before.ask(0)
    (wanted,) = before.hear(ask)
    (tmp_path / "ledger").write_bytes(noted)
    party = Driver(settings(tmp_path, window={"fits": 2}), old)
    assert party.public.fingerprint == before.public.fingerprint
    assert party.hear(ask) == [wanted]
    party.hear(party.model())
    (frozen,) = party.window(2, seed=1)
    assert len(read_content(frozen.content, Frozen).means) == 8 * 5
    assert read_content(before.sent[-2].content, Frozen).means == b""


def test_a_party_that_does_not_centre_is_told_of_and_the_fit_goes_on() -> None:
    """Protects a federation of two releases: that a party tells no means the server says, and takes its
    columns as they are."""
    server = Server(settings_of())
    server.announce(names_of())
    found = hands(server)
    plain = Server(settings_of(learning={"intercept": False}))
    found["party-1"] = hands(plain)["party-1"]
    converse(server, found)
    assert server.task.model == 1
    assert [one.reason for one in server.role.notices()] == ["not_centred"]
    assert server.task.means.has("party-0")
    assert not server.task.means.has("party-1")
