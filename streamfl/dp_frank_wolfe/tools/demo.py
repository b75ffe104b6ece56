"""``streamfl demo dp-frank-wolfe``: a hospital, a laboratory and a pharmacy find what delays recovery, with
privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import rng_for
from streamfl.dp_frank_wolfe.config import (
    BudgetSection,
    ColumnFederation,
    DataBoundsSection,
    DPFrankWolfeSettings,
    RowWindowSection,
    SparseLearningSection,
)
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.learning.refit import refit
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, RESIDUAL_ONE, Window
from streamfl.dp_frank_wolfe.tools import direct
from streamfl.dp_frank_wolfe.tools.draws import fitted, mean_and_deviation
from streamfl.dp_frank_wolfe.tools.federation import name_of
from streamfl.dp_frank_wolfe.tools.fit_outcome import FitOutcome
from streamfl.dp_frank_wolfe.tools.received_fits import ReceivedFit
from streamfl.dp_frank_wolfe.tools.run import frozen_windows, predictions, r_squared, run_fits
from streamfl.dp_frank_wolfe.tools.simulated_members import members
from streamfl.privacy.zcdp import epsilon_of
from streamfl.simulation.pictures import (
    FEDERATION,
    LOCAL,
    MEAN,
    STYLES,
    can_draw,
    label_axes,
    new_picture,
    save_picture,
)
from streamfl.simulation.system_tools import Report
from streamfl.simulation.vertical.members import HEAD
from streamfl.simulation.vertical.table import VerticalTable
from streamfl.terminal.progress import progress

__all__ = ["demo"]

Floats = NDArray[np.float64]
COLUMNS = {"hospital": 20, "laboratory": 20, "pharmacy": 20}
ROWS, TEST = 10_000, 5_000
EPSILON, DELTA, RADIUS = 1.0, 1e-6, 2.2
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, math.inf)
SECRETS = 5
# Six columns delay or hasten recovery, in days per deviation. The others have no effect.
DAYS = {3: 0.9, 8: -0.66, 14: 0.48, 25: 0.75, 33: -0.54, 52: 0.6}
MEAN_DAYS, OTHER_DAYS = 10.0, 0.45
NAMES = {
    "marginal": "`marginal`",
    "frank-wolfe": "`frank-wolfe`, the paper's algorithm",
    "two-round": "`two-round`",
}
LOOKS: dict[str, dict[str, Any]] = {
    "marginal": {"color": FEDERATION, "linewidth": 2.5, "marker": "o"},
    "frank-wolfe": {"color": LOCAL, "linewidth": 2, "marker": "s"},
    "two-round": {"color": MEAN, "linewidth": 2, "marker": "^"},
}
TITLES = {
    "marginal": "the three together, epsilon 1, `marginal`",
    "frank-wolfe": "the three together, epsilon 1, `frank-wolfe`, the paper's algorithm",
    "two-round": "the three together, epsilon 1, `two-round`",
    "one table": "whoever had all columns in one table, LASSO without privacy",
    "alone": "the {} alone, the best of the three, LASSO without privacy",
}


@dataclass(frozen=True)
class _Found:
    """r2: of other patients, by draw of noise. right, wrong: in the first draw, columns with a weight that
    matter, and that do not. numbers: sent up.
    """

    r2: list[float]
    right: int
    wrong: int
    numbers: int


def demo(out: Path, seed: int) -> Report:
    """Lets the three learn with each estimator at epsilon 1, at other epsilons, and without privacy. Draws
    what is learnt, which columns are found, and how the budget is spent.
    """
    table = _table(seed)
    runs = {name: _run(name, table, seed) for name in NAMES}
    windows = frozen_windows(
        _settings(seed, "marginal"), table, ReceivedFit([name_of(entity) for entity in range(ROWS)])
    )
    found = {
        name: _measured(run.weights, run.intercept, table, run.uplink_numbers) for name, run in runs.items()
    }
    found["one table"] = _measured(_lasso(windows), 0.0, table, ROWS * sum(COLUMNS.values()))
    alone = {party: _measured(_lasso({party: window}), 0.0, table, 0) for party, window in windows.items()}
    best = max(alone, key=lambda party: alone[party].r2)
    found["alone"] = alone[best]
    curves = {
        name: [_mean_r2(name, windows, epsilon, table, seed) for epsilon in EPSILONS if epsilon != EPSILON]
        for name in NAMES
    }
    for name, run in runs.items():
        # One draw of noise says little about the paper's algorithm.
        found[name].r2[:] = run.r2_draws
        curves[name].insert(EPSILONS.index(EPSILON), float(np.mean(run.r2_draws)))
    spent = {name: _spent(_settings(seed, name)) for name in ("marginal", "frank-wolfe")}
    if can_draw():
        _draw(out, runs["marginal"], found, curves, spent)
    summary = runs["marginal"].summary()
    return Report(
        title=f"Days until recovery of {TEST:,} other patients, learnt from {ROWS:,}. Data are made up; R^2 "
        "is not private",
        columns=(
            "who learns",
            f"R^2, {SECRETS} draws",
            "columns that matter, of 6",
            "other columns",
            "numbers sent",
        ),
        rows=[
            (
                title.format(best),
                mean_and_deviation(found[name].r2),
                *(f"{number:,}" for number in astuple(found[name])[1:]),
            )
            for name, title in TITLES.items()
        ],
        figures={
            "runs": {name: vars(one) for name, one in found.items()},
            "epsilons": list(EPSILONS),
            "r2_by_epsilon": curves,
            **{name: summary[name] for name in summary if name not in ("traffic", "history")},
        },
    )


def _run(name: str, table: VerticalTable, seed: int) -> FitOutcome:
    with progress(f"iterations, {name}") as work:
        return run_fits(_settings(seed, name), table, draws=SECRETS, watch=work)


def _settings(seed: int, estimator: Any) -> DPFrankWolfeSettings:
    federation = ColumnFederation(name="demo", seed=seed, parties=list(COLUMNS), columns=COLUMNS)
    return DPFrankWolfeSettings(
        federation=federation,
        **members(federation)[HEAD],
        window=RowWindowSection(rows=ROWS),
        # Measurements are in deviations; most lie within two. Days are clipped to within 3.6 of ten.
        bounds=DataBoundsSection(bound=2.0, label_centre=MEAN_DAYS, label_bound=3.6, prediction=3.0),
        # A demo with other numbers each time could not be described. Its data are made up, and its noise
        # follows from the seed.
        privacy=BudgetSection(epsilon=EPSILON, delta=DELTA, insecure_test_noise=True),
        learning=SparseLearningSection(
            estimator=estimator, radius=RADIUS, columns=9, iterations=12, sketch="signs", sketch_rows=200
        ),
    )


def _table(seed: int) -> VerticalTable:
    """Measurements of patients, and their days."""
    random = rng_for(seed, "demo", "rows")
    columns = random.normal(size=(ROWS + TEST, sum(COLUMNS.values())))
    days = (
        MEAN_DAYS
        + columns[:, list(DAYS)] @ np.array(list(DAYS.values()))
        + OTHER_DAYS * random.normal(size=len(columns))
    )
    ends = np.cumsum(list(COLUMNS.values()))[:-1]
    return VerticalTable(np.hsplit(columns, ends), days, TEST)


def _measured(weights: Mapping[str, Floats], intercept: float, table: VerticalTable, numbers: int) -> _Found:
    """Measures a model on patients that nobody learnt from."""
    whole = {party: weights.get(party, np.zeros(count)) for party, count in COLUMNS.items()}
    active = set(np.flatnonzero(np.concatenate(list(whole.values()))).tolist())
    return _Found([_r2(whole, intercept, table)], len(active & set(DAYS)), len(active - set(DAYS)), numbers)


def _r2(weights: dict[str, Floats], intercept: float, table: VerticalTable) -> float:
    rows = np.arange(ROWS, ROWS + TEST)
    r2 = r_squared(predictions(_settings(0, "marginal"), table, rows, weights, intercept), table.labels[rows])
    assert r2 is not None
    return r2


def _lasso(windows: Mapping[str, Window]) -> dict[str, Floats]:
    """Least squares within the same ball, from the whole frozen table: no privacy."""
    columns = np.hstack([window.columns / FEATURE_ONE for window in windows.values()])
    labels = next(iter(windows.values())).labels / RESIDUAL_ONE
    weights = refit(columns.T @ columns / len(labels), columns.T @ labels / len(labels), RADIUS, 1e-9)
    ends = np.cumsum([window.columns.shape[1] for window in windows.values()])[:-1]
    return dict(zip(windows, np.split(weights, ends), strict=True))


def _mean_r2(
    name: str, windows: Mapping[str, Window], epsilon: float, table: VerticalTable, seed: int
) -> float:
    """Mean R^2 over several secrets that noise is drawn from; over one without noise."""
    settings = _settings(seed, name)
    public = Public(
        settings.model_copy(update={"privacy": settings.privacy.model_copy(update={"epsilon": epsilon})})
    )
    found = []
    for number in range(SECRETS if math.isfinite(epsilon) else 1):
        secret = rng_for(seed, "demo", "secret", number).bytes(32)
        model = fitted(public, windows, 1, {party: direct.place(party, 1, secret) for party in windows})
        found.append(_r2(*model, table))
    return float(np.mean(found))


def _spent(settings: DPFrankWolfeSettings) -> list[float]:
    """epsilon of a patient after each release that the parties' plans allow, in one possible order."""
    public = Public(settings)
    costs: list[float] = []
    for party in public.parties:
        costs.append(public.means_plan(party).cost)
        if settings.learning.estimator == "frank-wolfe":
            plan = public.fit_plan(party, 1)
            assert plan.noise is not None
            shown = plan.columns * [plan.noise.cost]
            costs += plan.choices * [(plan.cost - sum(shown)) / plan.choices] + shown
        else:
            selection = public.selection_plan(party)
            noises = [noise.cost for noise in selection.noises.values()]
            costs += selection.columns * [(selection.cost - sum(noises)) / selection.columns] + noises
    return [0.0, *(epsilon_of(cost, DELTA) for cost in np.cumsum(costs).tolist())]


def _draw(
    out: Path,
    run: FitOutcome,
    found: Mapping[str, _Found],
    curves: Mapping[str, list[float]],
    spent: Mapping[str, list[float]],
) -> None:
    """Draws what is learnt at which epsilon, which columns are found, and how the budget is used up."""
    figure, (learnt, weights, ledger) = new_picture(3, 14, 4.4)
    _draw_learnt(learnt, found, curves)
    _draw_weights(weights, run)
    _draw_spent(ledger, spent)
    save_picture(
        figure,
        out,
        "streamfl: three keep their columns, find what matters, and spend epsilon 1 of each patient",
    )


def _draw_learnt(axes: Any, found: Mapping[str, _Found], curves: Mapping[str, list[float]]) -> None:
    """What is learnt at which epsilon."""
    # Infinity is drawn at the right, beyond a gap.
    at = [*EPSILONS[:-1], 50.0]
    for name, look in LOOKS.items():
        axes.plot(at[:-1], curves[name][:-1], label=NAMES[name].replace("`", ""), **look)
        axes.plot(at[-1:], curves[name][-1:], **look)
    axes.axhline(
        found["one table"].r2[0],
        color="black",
        linewidth=1,
        linestyle=STYLES[1],
        label="LASSO, one table, no privacy",
    )
    axes.axhline(
        found["alone"].r2[0],
        color="black",
        linewidth=1,
        linestyle=STYLES[0],
        label="LASSO, the best party alone",
    )
    axes.set_xscale("log")
    axes.set_xticks(at, [*(f"{epsilon:g}" for epsilon in EPSILONS[:-1]), "no noise"])
    axes.minorticks_off()
    axes.set_ylim(bottom=min(0.0, *(min(line) for line in curves.values())) - 0.05, top=1.0)
    label_axes(
        axes, f"What is learnt: means of {SECRETS} draws of noise", "epsilon of a patient, over all three"
    )
    axes.set_ylabel("R² of other patients")
    axes.legend(frameon=False, fontsize=8)


def _draw_spent(axes: Any, spent: Mapping[str, list[float]]) -> None:
    """How the releases of a fit use up the budget."""
    for name, costs in spent.items():
        short = NAMES[name].replace("`", "").partition(",")[0]
        axes.step(
            np.linspace(0, 1, len(costs)),
            costs,
            where="post",
            color=LOOKS[name]["color"],
            linewidth=2.5,
            label=f"{short}: {len(costs) - 1} releases",
        )
    axes.axhline(
        EPSILON,
        color="black",
        linewidth=1,
        linestyle=STYLES[1],
        label="the budget: then nothing more is released",
    )
    axes.set_ylim(0, 1.15 * EPSILON)
    axes.set_xticks([0, 1 / 3, 2 / 3, 1], ["0", *COLUMNS])
    for label, side in zip(axes.get_xticklabels(), ("center", "right", "right", "right"), strict=True):
        label.set_horizontalalignment(side)
    label_axes(axes, "What it costs one patient", "releases of a fit, one party after the other")
    axes.set_ylabel("epsilon spent")
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _draw_weights(axes: Any, run: FitOutcome) -> None:
    """Draws weights of all columns at epsilon 1 beside the true ones, in days per deviation."""
    unit = run.settings.bounds.label_bound / 2.0
    start = 0
    for colour, (party, own) in zip((FEDERATION, LOCAL, MEAN), run.weights.items(), strict=True):
        places = np.arange(start, start + len(own))
        axes.vlines(places, 0, own * unit, color=colour, linewidth=3)
        axes.plot(places, own * unit, "o", color=colour, markersize=4, label="found" if not start else None)
        axes.axvspan(start - 0.5, start + len(own) - 0.5, color=colour, alpha=0.08, linewidth=0)
        axes.text(start + len(own) / 2 - 0.5, 1.17, party, color=colour, ha="center", fontsize=10)
        start += len(own)
    axes.plot(
        list(DAYS),
        list(DAYS.values()),
        "o",
        markerfacecolor="none",
        markeredgecolor="black",
        markersize=10,
        label="true",
    )
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set_ylim(-0.9, 1.3)
    label_axes(axes, "Which columns are found, at epsilon 1 by marginal", "column")
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("days until recovery, for a deviation more")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
