"""Fits in one process in which every party has the same share of the budget, of the columns and of the
ball."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from streamfl.dp_frank_wolfe.learning.blocks import Block, Sampling
from streamfl.dp_frank_wolfe.learning.means import plan_means
from streamfl.dp_frank_wolfe.learning.public import MEANS_SHARE
from streamfl.dp_frank_wolfe.learning.selection import MARGINAL, TWO_ROUND, SelectionPlan, plan_selection
from streamfl.dp_frank_wolfe.learning.sketch import Sketch
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.window import Window
from streamfl.dp_frank_wolfe.privacy.budget import FitPlan, plan_fit
from streamfl.dp_frank_wolfe.tools.centring import Centred, centre
from streamfl.dp_frank_wolfe.tools.direct import place
from streamfl.dp_frank_wolfe.tools.estimators import Estimate, fit_marginal, fit_two_round

__all__ = ["centre_by", "equal_blocks", "marginal", "plans_of", "two_round"]


def equal_blocks(windows: Mapping[str, Window], radius: float, parts: int = 1) -> Sequence[Block]:
    """Each party's columns in ``parts`` blocks of consecutive columns. All blocks have the same radius. Radii
    sum to ``radius``."""
    each = radius / (parts * len(windows))
    return [
        Block(party, tuple(int(column) for column in columns), each)
        for party, given in windows.items()
        for columns in np.array_split(np.arange(given.columns.shape[1]), parts)
    ]


def plans_of(
    windows: Mapping[str, Window],
    sampling: Sampling,
    iterations: int,
    sketch: Sketch,
    cost: float,
    columns: int,
    prediction_bound: float,
    *,
    window: int = 0,
    choice_share: float = 0.5,
) -> dict[str, FitPlan]:
    """Equal shares: cost / K for each party, and ``columns`` / K columns, rounded down."""
    parties = len(windows)
    return {
        party: plan_fit(
            cost / parties,
            max(1, sampling.answers_of(party, window, iterations)),
            max(1, columns // parties),
            prediction_bound,
            sketch,
            choice_share,
        )
        for party in windows
    }


def centre_by(windows: Mapping[str, Window], cost: float, secret: bytes, window: int = 0) -> Centred:
    """Centres the windows with equal shares. cost: of an entity, over all parties. window: its number."""
    plans = {
        party: plan_means(cost / len(windows) * MEANS_SHARE, own.columns.shape[1])
        for party, own in windows.items()
    }
    return centre(windows, plans, lambda party: place(party, window, secret))


def marginal(
    windows: Mapping[str, Window],
    cost: float,
    columns: int,
    radius: float,
    *,
    delta: float = 1e-5,
    secret: bytes = bytes(range(32)),
    shares: Mapping[str, float] = MARGINAL,
    norm: float | None = None,
    window: int = 0,
    place: Callable[[str, int, bytes], ReleaseContext] = place,
) -> Estimate:
    """Top columns by |a_i'y|, then their values and norms.

    cost: of an entity, over all parties.
    columns: N, of all parties together.
    radius: of the ball.
    norm: |a|^2 / n of every column if that is public. Then norms are not released, and their share goes to
    the values.
    window, place: its number, and where releases belong, of a party, the window and the secret.
    """
    plans = _plans(windows, cost, columns, _without_norms(shares) if norm is not None else shares)
    return fit_marginal(windows, plans, lambda party: place(party, window, secret), radius, delta, norm)


def two_round(
    windows: Mapping[str, Window],
    cost: float,
    columns: int,
    radius: float,
    *,
    delta: float = 1e-5,
    secret: bytes = bytes(range(32)),
    shares: Mapping[str, float] = TWO_ROUND,
    window: int = 0,
    place: Callable[[str, int, bytes], ReleaseContext] = place,
) -> Estimate:
    """Top columns, their rows with noise, then products. Parameters as in :func:`marginal`."""
    plans = _plans(windows, cost, columns, shares)
    return fit_two_round(windows, plans, lambda party: place(party, window, secret), radius, delta)


def _without_norms(shares: Mapping[str, float]) -> dict[str, float]:
    return {"choices": shares["choices"], "values": 1 - shares["choices"]}


def _plans(
    windows: Mapping[str, Window], cost: float, columns: int, shares: Mapping[str, float]
) -> dict[str, SelectionPlan]:
    """Equal shares of the budget and of the columns."""
    each = max(1, columns // len(windows))
    plans = {}
    for party, given in windows.items():
        count = min(each, given.columns.shape[1])
        plans[party] = plan_selection(cost / len(windows), count, _others(windows, party, each), shares)
    return plans


def _others(windows: Mapping[str, Window], party: str, each: int) -> int:
    return sum(min(each, given.columns.shape[1]) for name, given in windows.items() if name != party)
