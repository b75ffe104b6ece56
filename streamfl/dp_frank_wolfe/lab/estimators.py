"""The estimators that choose once, in one process, by the functions that parties and server call themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.budget import claim
from streamfl.dp_frank_wolfe.lab.direct import place
from streamfl.dp_frank_wolfe.refit import refit
from streamfl.dp_frank_wolfe.selection import MARGINAL, TWO_ROUND, PartySelection, SelectionPlan, clip_rows, plan_selection
from streamfl.dp_frank_wolfe.window import FEATURE_ONE, Window

__all__ = ["Estimate", "marginal", "two_round"]

Floats = NDArray[np.float64]
# Of a Gram matrix whose columns lie within 1.
LEAST_EIGENVALUE = 0.01


@dataclass
class Estimate:
    """x: by party. rho, epsilon: of everything released. uplink_numbers: signed indices and numbers."""

    x: dict[str, Floats]
    rho: float
    epsilon: float
    uplink_numbers: int


def marginal(
    windows: Mapping[str, Window],
    rho: float,
    columns: int,
    radius: float,
    *,
    delta: float = 1e-5,
    secret: bytes = bytes(range(32)),
    shares: Mapping[str, float] = MARGINAL,
    norm: float | None = None,
) -> Estimate:
    """Top columns by |a_i'y|, then their values and norms.

    rho: of an entity, over all parties. columns: N, of all parties together. radius: of the ball.
    norm: |a|^2 / n of every column where that is public; it is not released then, and its share goes to the values.
    """
    members, plans, values = _chosen(windows, rho, columns, secret, _without_norms(shares) if norm is not None else shares)
    norms = np.concatenate([member.norms() for member in members.values()]) if norm is None else np.full(len(values), norm)
    numbers = len(values) * (2 if norm is not None else 3)
    found = refit(np.diag(norms), values, radius, LEAST_EIGENVALUE)
    return _estimate(windows, members, plans, found, numbers, delta)


def two_round(
    windows: Mapping[str, Window],
    rho: float,
    columns: int,
    radius: float,
    *,
    delta: float = 1e-5,
    secret: bytes = bytes(range(32)),
    shares: Mapping[str, float] = TWO_ROUND,
) -> Estimate:
    """Top columns, their rows with noise, then products. Parameters as of :func:`marginal`."""
    members, plans, values = _chosen(windows, rho, columns, secret, shares)
    rows = {party: member.rows() for party, member in members.items()}
    starts = np.cumsum([0] + [len(member.chosen) for member in members.values()])
    gram = np.zeros((len(values), len(values)))
    for number, (party, member) in enumerate(members.items()):
        own = np.arange(starts[number], starts[number + 1])
        gram[np.ix_(own, own)] = member.gram()
        if len(members) == 1:
            continue
        others = np.setdiff1d(np.arange(len(values)), own)
        told = np.hstack([given for name, given in rows.items() if name != party])
        # Two parties' products of each pair, of which the mean counts.
        products = member.products(clip_rows(told, plans[party].row_bound)) / 2
        gram[np.ix_(own, others)] += products
        gram[np.ix_(others, own)] += products.T
    found = refit(gram, values, radius, LEAST_EIGENVALUE + _doubt(plans, next(iter(windows.values()))))
    released = sum(len(given.ravel()) for given in rows.values()) + len(values) * (len(values) + 3)
    return _estimate(windows, members, plans, found, released, delta)


def _doubt(plans: Mapping[str, SelectionPlan], window: Window) -> float:
    """How large eigenvalues of the Gram matrix are that noise alone makes: half of what a symmetric matrix of such noise has.

    It follows from public plans. Two noisy products of a pair are averaged; the other party's rows carry noise as well.
    """
    noises = [plan.noises for plan in plans.values() if plan.rate is not None]
    if not noises:
        return 0.0
    rows = max(noise["rows"].deviation / FEATURE_ONE for noise in noises) / math.sqrt(len(window.labels))
    products = max(plan.product_deviation(len(window.labels)) for plan in plans.values())
    return math.hypot(rows, products) / math.sqrt(2) * math.sqrt(sum(plan.columns for plan in plans.values())) / 2


def _without_norms(shares: Mapping[str, float]) -> dict[str, float]:
    return {"choices": shares["choices"], "values": 1 - shares["choices"]}


def _chosen(
    windows: Mapping[str, Window], rho: float, columns: int, secret: bytes, shares: Mapping[str, float]
) -> tuple[dict[str, PartySelection], dict[str, SelectionPlan], Floats]:
    """Parties that have chosen their columns, their plans, and the columns' values, party by party."""
    each = max(1, columns // len(windows))
    plans = {}
    for party, given in windows.items():
        count = min(each, given.columns.shape[1])
        plans[party] = plan_selection(rho / len(windows), count, _others(windows, party, each), shares)
    members = {party: PartySelection(given, plans[party], place(party, 0, secret)) for party, given in windows.items()}
    for member in members.values():
        member.choose()
    return members, plans, np.concatenate([member.values() for member in members.values()])


def _others(windows: Mapping[str, Window], party: str, each: int) -> int:
    return sum(min(each, given.columns.shape[1]) for name, given in windows.items() if name != party)


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
    rho = sum(plan.rho for plan in plans.values())
    variation = sum(plans[party].variation(*windows[party].columns.shape) for party in windows)
    return Estimate(x, rho, claim(rho, variation, delta), numbers)
