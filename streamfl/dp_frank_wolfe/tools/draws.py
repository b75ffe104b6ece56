"""How much of a figure is chance, and what to compare it with: other draws of noise, and fits without
privacy.

R^2 of the draws is computed with the functions that parties and server call themselves, without roles and
messages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.window import CHUNK, Window
from streamfl.dp_frank_wolfe.tools import direct
from streamfl.dp_frank_wolfe.tools.centring import centre_for
from streamfl.dp_frank_wolfe.tools.estimators import selected

__all__ = ["fitted", "least_squares", "mean_and_deviation"]

Floats = NDArray[np.float64]


def fitted(
    public: Public, windows: Mapping[str, Window], number: int, places: Mapping[str, ReleaseContext]
) -> tuple[dict[str, Floats], float]:
    """Weights by party, and the intercept, of a fit in which no party is away.

    windows: as they were frozen, by party.
    number: of the window.
    places: by party, where its releases belong, with their secret.
    """
    own, learning = centre_for(public, windows, places.__getitem__), public.settings.learning
    if learning.estimator != "frank-wolfe":
        x = selected(public, own.windows, places.__getitem__).x
        return x, own.intercept(x)
    x = direct.fit(
        own.windows,
        public.sampling,
        learning.iterations,
        public.sketch(number),
        {party: public.fit_plan(party, number) for party in windows},
        delta=public.settings.privacy.delta,
        window=number,
        candidates=learning.candidates,
        until_gap=learning.tolerance if math.isinf(public.cost) else None,
        show_objective=False,
        places=lambda party, _number, _secret: places[party],
    ).x
    return x, own.intercept(x)


def least_squares(
    inputs: Mapping[str, Floats], labels: Floats, knowing: Sequence[Sequence[str]]
) -> list[tuple[dict[str, Floats], float]]:
    """Weights by party, and the intercept, of a fit on some parties' columns: the smallest weights that fit
    best, no privacy.

    inputs: by party, (rows, columns).
    knowing: the parties of each fit; the others' weights are 0.
    """
    owners = np.concatenate([[""], *([party] * own.shape[1] for party, own in inputs.items())])
    gram, products = np.zeros((len(owners),) * 2), np.zeros(len(owners))
    for start in range(0, len(labels), CHUNK):
        some = slice(start, start + CHUNK)
        columns = np.hstack([np.ones((len(labels[some]), 1)), *(own[some] for own in inputs.values())])
        gram += columns.T @ columns
        products += columns.T @ labels[some]
    found = []
    for parties in knowing:
        own = np.flatnonzero(np.isin(owners, ["", *parties]))
        weights = np.zeros(len(owners))
        weights[own] = np.linalg.lstsq(gram[np.ix_(own, own)], products[own], rcond=None)[0]
        found.append(({party: weights[owners == party] for party in inputs}, float(weights[0])))
    return found


def mean_and_deviation(draws: Sequence[float]) -> str:
    """Mean and deviation as text. With one draw, the draw itself."""
    spread = f" ± {np.std(draws, ddof=1):.3f}" if len(draws) > 1 else ""
    return f"{np.mean(draws):.3f}{spread}"
