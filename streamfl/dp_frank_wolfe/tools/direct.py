"""A whole fit in one process, without roles and messages, with the functions that parties and server call
themselves.

Its objective and gap are computed from the data, without noise. They are for laboratories, never for a
member's metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.blocks import Block, Sampling, step_length
from streamfl.dp_frank_wolfe.learning.iterate import Iterate, Vertex
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.learning.sketch import Sketch
from streamfl.dp_frank_wolfe.party.fit import PartyFit, ReleaseContext
from streamfl.dp_frank_wolfe.party.window import CHUNK, FEATURE_ONE, RESIDUAL_ONE, Window
from streamfl.dp_frank_wolfe.privacy.budget import FitPlan, claim

__all__ = ["DirectFit", "DirectStep", "fit", "objective", "place", "window_figures"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DirectStep:
    """chosen: vertices, by number of the block. shown: columns whose sketches came with them. objective, gap:
    before the step."""

    chosen: dict[int, Vertex]
    shown: list[tuple[str, int]]
    objective: float
    gap: float


@dataclass
class DirectFit:
    """x: by party. steps: all of them. cost, epsilon: of all that the plans allow. uplink_numbers: signed
    indices and sketches."""

    x: dict[str, Floats]
    cost: float
    epsilon: float
    steps: list[DirectStep] = field(default_factory=list)
    sums: dict[tuple[str, int], Floats] = field(default_factory=dict)
    uplink_numbers: int = 0
    l1_norm: float = 0.0
    support: int = 0


def fit(
    windows: Mapping[str, Window],
    sampling: Sampling,
    iterations: int,
    sketch: Sketch,
    plans: Mapping[str, FitPlan],
    *,
    delta: float = 1e-5,
    secret: bytes = bytes(range(32)),
    window: int = 0,
    candidates: int | None = None,
    until_gap: float | None = None,
    absent: Callable[[int, str], bool] = lambda iteration, party: False,
    late: Callable[[int, str], bool] = lambda iteration, party: False,
    show_objective: bool = True,
    places: Callable[[str, int, bytes], ReleaseContext] | None = None,
) -> DirectFit:
    """Run all parties.

    windows: by party, all with the same labels.
    plans: by party.
    until_gap: the fit ends once the gap is at most this; not private.
    absent: of an iteration and a party, whether the party was not asked.
    late: whether its answer came too late for the step; a column that it shows is known from then on.
    places: of a party, the window and the secret, where releases belong; None: :func:`place`.
    The gap is known in iterations in which all parties answer.
    """
    members = _members(
        windows, sampling, sketch, plans, lambda party: (places or place)(party, window, secret), candidates
    )
    iterate = Iterate(sampling.blocks, {party: given.columns.shape[1] for party, given in windows.items()})
    done = _begun(iterate, sampling, sketch, plans, delta)
    for iteration in range(iterations):
        others = {party: iterate.others(party, sketch.numbers) for party in windows}
        value = objective(windows, iterate.x) if show_objective else np.nan
        wanted = show_objective or until_gap is not None
        gap = _gap(members, iterate, others) if wanted else np.nan
        due = sampling.blocks_of(window, iteration)
        heard = {sampling.blocks[number].party for number in due}
        heard = {party for party in heard if not absent(iteration, party) and not late(iteration, party)}
        if until_gap is not None and gap <= until_gap and heard == set(windows):
            break
        chosen, shown = {}, []
        for party, member in members.items():
            numbers = [number for number in due if sampling.blocks[number].party == party]
            if not numbers or absent(iteration, party):
                continue
            for number, answer in member.answer(iteration, numbers, iterate.x[party], others[party]).items():
                if not late(iteration, party):
                    chosen[number] = answer.vertex
                done.uplink_numbers += 1
                if answer.sums is not None:
                    iterate.show(party, answer.vertex.column, member.value(answer.sums))
                    done.sums[party, answer.vertex.column] = member.value(answer.sums)
                    shown.append((party, answer.vertex.column))
                    done.uplink_numbers += sketch.numbers
        iterate.step(chosen, step_length(iteration, sampling.least))
        done.steps.append(DirectStep(chosen, shown, value, gap))
    done.l1_norm, done.support = iterate.l1_norm, iterate.support
    return done


def _begun(
    iterate: Iterate, sampling: Sampling, sketch: Sketch, plans: Mapping[str, FitPlan], delta: float
) -> DirectFit:
    """A fit without steps, with the epsilon that all of it will cost."""
    cost = sum(plan.cost for plan in plans.values())
    widest = max(len(block.columns) for block in sampling.blocks)
    variation = sum(plan.variation(sketch, widest) for plan in plans.values())
    return DirectFit(iterate.x, cost, claim(cost, variation, delta))


def _gap(members: Mapping[str, PartyFit], iterate: Iterate, others: Mapping[str, Floats]) -> float:
    """The gap of all parties together."""
    return sum(member.gap(iterate.x[party], others[party]) for party, member in members.items())


def objective(windows: Mapping[str, Window], x: Mapping[str, Floats]) -> float:
    """|A x - y|^2 / (2 n) of the frozen window, not private."""
    first = next(iter(windows.values()))
    residuals = -first.labels / RESIDUAL_ONE
    for party, given in windows.items():
        active = np.flatnonzero(x[party])
        residuals = residuals + given.columns[:, active].astype(np.float64) @ x[party][active] / FEATURE_ONE
    return float(residuals @ residuals) / (2 * len(residuals))


def window_figures(public: Public, windows: dict[str, Window], x: dict[str, Floats]) -> dict[str, float]:
    """Objective and gap of the frozen window, without sketches, bounds of predictions and noise."""
    first = next(iter(windows.values()))
    residuals = -first.labels / RESIDUAL_ONE
    for party, given in windows.items():
        active = np.flatnonzero(x[party])
        residuals = residuals + given.columns[:, active] @ x[party][active] / FEATURE_ONE
    gradients = {party: _gradient(given, residuals) for party, given in windows.items()}
    gap = sum(float(gradients[party] @ x[party]) for party in windows)
    if public.settings.learning.estimator == "frank-wolfe":
        gap += sum(
            block.radius * float(np.abs(gradients[block.party][list(block.columns)]).max())
            for block in public.blocks
        )
    else:
        # These estimators have one ball for all parties.
        gap += public.settings.learning.radius * max(float(np.abs(own).max()) for own in gradients.values())
    support = sum(int(np.count_nonzero(own)) for own in x.values())
    return {"objective": objective(windows, x), "gap": gap, "support": support}


def _gradient(window: Window, residuals: Floats) -> Floats:
    """A'(A x - y) / n, a few rows at a time, because a whole table as floats would be four times as large."""
    total = np.zeros(window.columns.shape[1])
    for start in range(0, len(residuals), CHUNK):
        total += residuals[start : start + CHUNK] @ window.columns[start : start + CHUNK].astype(np.float64)
    return total / (FEATURE_ONE * len(residuals))


def place(party: str, window: int, secret: bytes) -> ReleaseContext:
    return ReleaseContext("direct", "direct", party, window, secret)


def _members(
    windows: Mapping[str, Window],
    sampling: Sampling,
    sketch: Sketch,
    plans: Mapping[str, FitPlan],
    at: Callable[[str], ReleaseContext],
    candidates: int | None,
) -> dict[str, PartyFit]:
    blocks: dict[str, dict[int, Block]] = {party: {} for party in windows}
    for number, block in enumerate(sampling.blocks):
        blocks[block.party][number] = block
    return {
        party: PartyFit(given, blocks[party], plans[party], sketch, at(party), candidates, sampling.seed)
        for party, given in windows.items()
    }
