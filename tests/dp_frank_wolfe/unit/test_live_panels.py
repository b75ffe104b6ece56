"""The board of private Frank-Wolfe federations, asked of a real Prometheus that has watched one through kills
and restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from dp_frank_wolfe.proof.observed_messages import messages_of, names_by_window
from dp_frank_wolfe.soak import ROWS, SOAK
from live.watched import NOTHING_REFUSED, Watched, federation, replaced
from scipy.optimize import brentq
from soak.subject import FEDERATION, Plan

pytestmark = pytest.mark.long

EPSILON, DELTA, SHARE = 8, 1e-4, 0.2
PREDICTIONS = f"{FEDERATION}.predictions"
COUNT = 60


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A federation of which a party and the server were killed in a fit and while they predict, and that
    rests."""
    plan = Plan("frank-wolfe", "sqlite")
    private = {'mode = "exact"': 'mode = "private"'}
    with federation(
        "dp-frank-wolfe", plan, tmp_path_factory.mktemp("sparse"), lambda _, own: replaced(own, private)
    ) as found:
        found.write(SOAK.first(plan))
        found.until(lambda: found.count(f"{FEDERATION}.clinic.asks") > 1, "a fit has begun")
        found.kill("server")
        found.start("server")
        found.until(lambda: SOAK.begun(found.left()), "there is a model")
        found.rest()
        found.marks["fitted"] = time.time()
        found.write(*found.load(0, COUNT))
        found.kill("clinic")
        found.start("clinic")
        found.rest()
        # Workers that come back and have nothing to do.
        found.kill("insurer")
        found.start("insurer")
        found.restart("server")
        found.calm_from_now()
        found.write(*found.load(COUNT, 2 * COUNT))
        found.rest()
        yield found


def epsilon_of(cost: float) -> float:
    """What rho-zCDP implies at delta: the least over alpha > 1 of Canonne, Kamath and Steinke's bound, on a
    fine grid."""
    delta, alpha = DELTA * (1 - 2**-10), 1 + np.logspace(-3, 4, 2_000_001)
    return float((alpha * cost + np.log1p(-1 / alpha) - np.log(alpha * delta) / (alpha - 1)).min())


def test_epsilon_is_what_was_released(watched: Watched) -> None:
    """Protects the figure that a budget is watched by: after a fit, it is what a fit costs; with a
    prediction, the whole budget."""
    cost = brentq(lambda one: epsilon_of(one) - EPSILON, 1e-3, 10)
    fitted = watched.marks["fitted"]
    assert watched.value("Epsilon spent", at=fitted) == pytest.approx(
        epsilon_of((1 - SHARE) * cost), rel=1e-5
    )
    assert watched.value("Privacy budget used", at=fitted) == pytest.approx(
        epsilon_of((1 - SHARE) * cost) / EPSILON, rel=1e-5
    )
    assert watched.value("Epsilon spent") == pytest.approx(EPSILON, rel=1e-5)
    asks, releases = (
        messages_of(watched.left(), f"{FEDERATION}.clinic.{kind}") for kind in ("asks", "releases")
    )
    charged = {name for names in names_by_window(asks, releases, ROWS).values() for name in names}
    assert charged & {one["entity"] for one in watched.contents(PREDICTIONS)}


def test_no_line_is_empty(watched: Watched) -> None:
    """Protects panels from being empty, or NaN, on a federation that works, and after restarts."""
    assert watched.empty() == NOTHING_REFUSED
