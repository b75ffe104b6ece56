"""The estimators that choose once, in one process, with the functions that parties and server call
themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.gram import LEAST_EIGENVALUE, doubt, gram_of
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.learning.refit import refit
from streamfl.dp_frank_wolfe.learning.selection import SelectionPlan, clip_rows
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.selection import PartySelection
from streamfl.dp_frank_wolfe.party.window import Window
from streamfl.dp_frank_wolfe.privacy.budget import claim

__all__ = ["Estimate", "fit_marginal", "fit_two_round", "selected"]

Floats = NDArray[np.float64]


@dataclass
class Estimate:
    """x: by party. cost, epsilon: of everything released. uplink_numbers: signed indices and numbers."""

    x: dict[str, Floats]
    cost: float
    epsilon: float
    uplink_numbers: int


def selected(
    public: Public, windows: Mapping[str, Window], places: Callable[[str], ReleaseContext]
) -> Estimate:
    """The estimate by these settings, whatever their shares. windows: centred, if the parties centre. places:
    of a party."""
    plans, learning = {party: public.selection_plan(party) for party in windows}, public.settings.learning
    call = fit_marginal if learning.estimator == "marginal" else fit_two_round
    return call(windows, plans, places, learning.radius, public.settings.privacy.delta)


def fit_marginal(
    windows: Mapping[str, Window],
    plans: Mapping[str, SelectionPlan],
    place: Callable[[str], ReleaseContext],
    radius: float,
    delta: float,
    norm: float | None = None,
) -> Estimate:
    members, values = _chosen(windows, plans, place)
    norms = (
        np.concatenate([member.norms() for member in members.values()])
        if norm is None
        else np.full(len(values), norm)
    )
    numbers = len(values) * (2 if norm is not None else 3)
    found = refit(np.diag(norms), values, radius, LEAST_EIGENVALUE)
    return _estimate(windows, members, plans, found, numbers, delta)


def fit_two_round(
    windows: Mapping[str, Window],
    plans: Mapping[str, SelectionPlan],
    place: Callable[[str], ReleaseContext],
    radius: float,
    delta: float,
) -> Estimate:
    members, values = _chosen(windows, plans, place)
    rows = {party: member.rows() for party, member in members.items()}
    own, products = {}, {}
    for party, member in members.items():
        own[party] = member.gram()
        told = np.hstack(
            [np.zeros((len(rows[party]), 0)), *(given for name, given in rows.items() if name != party)]
        )
        products[party] = member.products(clip_rows(told, plans[party].row_bound))
    gram = gram_of(own, products)
    found = refit(
        gram, values, radius, LEAST_EIGENVALUE + doubt(plans, len(next(iter(windows.values())).labels))
    )
    released = sum(len(given.ravel()) for given in rows.values()) + len(values) * (len(values) + 3)
    return _estimate(windows, members, plans, found, released, delta)


def _chosen(
    windows: Mapping[str, Window], plans: Mapping[str, SelectionPlan], place: Callable[[str], ReleaseContext]
) -> tuple[dict[str, PartySelection], Floats]:
    """Parties that have chosen their columns, and the columns' values, party by party."""
    members = {party: PartySelection(given, plans[party], place(party)) for party, given in windows.items()}
    for member in members.values():
        member.choose()
    return members, np.concatenate([member.values() for member in members.values()])


def _estimate(
    windows: Mapping[str, Window],
    members: Mapping[str, PartySelection],
    plans: Mapping[str, SelectionPlan],
    found: Floats,
    numbers: int,
    delta: float,
) -> Estimate:
    x = {party: np.zeros(given.columns.shape[1]) for party, given in windows.items()}
    at = 0
    for party, member in members.items():
        x[party][member.chosen] = found[at : at + len(member.chosen)]
        at += len(member.chosen)
    cost = sum(plan.cost for plan in plans.values())
    variation = sum(plans[party].variation(*windows[party].columns.shape) for party in windows)
    return Estimate(x, cost, claim(cost, variation, delta), numbers)
