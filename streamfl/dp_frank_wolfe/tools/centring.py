"""Centres windows in one process, as the parties do when they freeze them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.means import Means, MeansPlan, centred, intercept, released_means
from streamfl.dp_frank_wolfe.learning.public import MEANS_SHARE, Public
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.window import Window

__all__ = ["Centred", "centre", "centre_for"]


@dataclass(frozen=True)
class Centred:
    """windows, means, plans: by party. cost: what is left for the fit, over all parties."""

    windows: dict[str, Window]
    means: dict[str, Means]
    plans: dict[str, MeansPlan]
    cost: float

    def intercept(self, x: Mapping[str, NDArray[np.float64]]) -> float:
        """The intercept of a model of these windows. x: by party."""
        return intercept(self.means, self.plans, x)

    @property
    def uplink_numbers(self) -> int:
        """Numbers that were released for means."""
        return sum(plan.columns + 1 for plan in self.plans.values())


def centre(
    windows: Mapping[str, Window], plans: Mapping[str, MeansPlan], places: Callable[[str], ReleaseContext]
) -> Centred:
    """Centres the windows by these plans. places: of a party, where its releases belong."""
    means = {}
    for party, window in windows.items():
        told = released_means(window, plans[party], places(party))
        means[party] = plans[party].means(told, len(window.labels))
    found = {party: centred(window, means[party]) for party, window in windows.items()}
    cost = sum(plan.cost for plan in plans.values()) / MEANS_SHARE * (1 - MEANS_SHARE)
    return Centred(found, means, {party: plans[party] for party in windows}, cost)


def centre_for(
    public: Public, windows: Mapping[str, Window], places: Callable[[str], ReleaseContext]
) -> Centred:
    """Centres the windows as the parties of these settings do. Leaves them as they are if the parties do not
    centre."""
    if public.settings.learning.intercept:
        return centre(windows, {party: public.means_plan(party) for party in windows}, places)
    return Centred(dict(windows), {}, {}, sum(map(public.fit_cost, windows)))
