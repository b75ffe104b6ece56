"""Runs a federation on a table until its fits are over. Gives their results, and what others need to compute
them again.

R^2, objective and gap are computed from the data, without noise. They are for laboratories, never for a
member's metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import ConfigurationError, DataError
from streamfl.contract.seeding import rng_for
from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.means import centred, intercept
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.window import Bounds, Window, freeze
from streamfl.dp_frank_wolfe.privacy.budget import claim
from streamfl.dp_frank_wolfe.tools.direct import window_figures
from streamfl.dp_frank_wolfe.tools.draws import fitted, least_squares
from streamfl.dp_frank_wolfe.tools.federation import FrankWolfeFederation, bounds_of
from streamfl.dp_frank_wolfe.tools.fit_outcome import FitOutcome
from streamfl.dp_frank_wolfe.tools.received_fits import ReceivedFit, ReceivedFits, iterates
from streamfl.dp_frank_wolfe.tools.trace import traced
from streamfl.simulation.vertical.table import FOR_EVER, VerticalTable

__all__ = ["clipped_shares", "frozen_windows", "predictions", "r_squared", "run_fits"]

Floats = NDArray[np.float64]


def run_fits(
    settings: DPFrankWolfeSettings,
    table: VerticalTable,
    windows: int = 1,
    *,
    network_delay: float = 0.0,
    draws: int = 1,
    trace: bool = False,
    watch: Callable[[float], bool] = lambda share: False,
) -> FitOutcome:
    """Lets the federation fit the first rows of the table, ``window.rows`` to a window. r2 is of the rows
    behind them, if any.

    network_delay: virtual seconds of a message.
    draws: of noise, to measure r2 with; the first is the federation's.
    watch: called with the share that is done. If it returns True the run ends with the fits that are over, or
    with KeyboardInterrupt if none is. Raises ConfigurationError if there are too few rows, DataError if the
    fits did not end.
    """
    begun, public = time.perf_counter(), Public(settings)
    count, claimed = _rows_of(settings, table, windows), _claimed(public)
    inputs, labels = table.part(slice(count))
    received = ReceivedFits(public, trace)

    federation = FrankWolfeFederation(
        _adapted(settings, count), inputs, labels, network_delay=network_delay, overheard=received
    )
    with closing(federation):
        while federation.turn():
            if watch(_done(settings, received) / windows):
                if not received.over:
                    raise KeyboardInterrupt
                windows = received.over
                break
        seconds = time.perf_counter() - begun
        if federation.trouble is not None or received.over < windows:
            raise DataError(federation.trouble or f"{received.over} of {windows} fits came to an end")
        fits = _Fits(
            public,
            table,
            [_Fit(public, table, number, received.fits[number]) for number in range(1, windows + 1)],
        )
        r2_draws = list(fits.r2_draws(federation.places(windows), draws, watch))
        arrays = fits.arrays(federation) if trace else {}
        return _outcome(federation, fits, r2_draws, arrays, epsilon=claimed, seconds=seconds)


class _Fit:
    """A window's fit. raw, frozen: each party's window, before and after it was centred. course: weights
    before each step and after the last.
    """

    def __init__(self, public: Public, table: VerticalTable, number: int, messages: ReceivedFit) -> None:
        self.number = number
        self.messages = messages
        self.raw = frozen_windows(public.settings, table, messages)
        self.frozen = centred_windows(public, self.raw, messages)
        self.course = iterates(public, messages)
        self.intercept = _intercept(public, messages)
        self.rounds = len(self.course) - 1 if messages.asks else 1


class _Fits:
    """The fits of all windows. learnt: rows of the last window. rows: those that its model is measured on."""

    def __init__(self, public: Public, table: VerticalTable, fits: Sequence[_Fit]) -> None:
        self.public = public
        self.settings = public.settings
        self.table = table
        self.fits = fits
        self.last = fits[-1]
        count = len(fits) * self.settings.window.rows
        self.test = len(table.labels) - count
        self.learnt = np.array([int(name) for name in self.last.messages.manifest])
        self.rows = np.arange(count, len(table.labels)) if self.test else self.learnt

    @property
    def predicted(self) -> Floats:
        """Predictions of the rows that the last model is measured on."""
        return predictions(
            self.settings, self.table, self.rows, self.last.messages.models, self.last.intercept
        )

    def r2(self, predicted: Floats) -> float | None:
        return r_squared(predicted, self.table.labels[self.rows])

    def served_r2(self, noise: float) -> float | None:
        """R^2 to expect of predictions with noise of this deviation. None without noise."""
        r2 = self.r2(self.predicted)
        return r2 - noise**2 / float(self.table.labels[self.rows].var()) if noise and r2 is not None else None

    def r2_draws(
        self, places: Mapping[str, ReleaseContext], draws: int, watch: Callable[[float], bool]
    ) -> Iterator[float]:
        """R^2 of the last model, and of others with other noise."""
        first = self.r2(self.predicted)
        if first is None:
            return
        yield first
        for number in range(1, draws if math.isfinite(self.public.cost) else 1):
            own = _drawn(self.settings, places, number)
            if not watch(1.0):
                model = fitted(self.public, self.last.raw, self.last.number, own)
                found = self.r2(predictions(self.settings, self.table, self.rows, *model))
                assert found is not None, "the same labels"
                yield found

    def arrays(self, federation: FrankWolfeFederation) -> dict[str, NDArray[Any]]:
        """All that others need to compute the fits again."""
        found: dict[str, NDArray[Any]] = {}
        for one in self.fits:
            places = federation.places(one.number)
            found |= traced(self.public, places, one.number, one.messages, one.raw, one.frozen, one.course)
        return found | {"predictions": self.predicted, "predicted_rows": self.rows}


def _outcome(
    federation: FrankWolfeFederation,
    fits: _Fits,
    r2_draws: list[float],
    arrays: dict[str, NDArray[Any]],
    epsilon: float,
    seconds: float,
) -> FitOutcome:
    settings, public, last = fits.settings, fits.public, fits.last
    weights, windows = last.messages.models, len(fits.fits)
    noise = public.prediction_noise(weights)
    pooled, *alone = _without_privacy(settings, fits.table, fits.learnt, fits.rows)
    return FitOutcome(
        settings=settings,
        windows=windows,
        rows=windows * settings.window.rows,
        test_rows=fits.test,
        r2=next(iter(r2_draws), None),
        history=[window_figures(public, last.frozen, x) for x in last.course],
        iterations=sum(one.rounds for one in fits.fits),
        uplink_numbers=sum(one.messages.uplink_numbers for one in fits.fits),
        uplink_most=windows * _most_numbers(public),
        epsilon=epsilon,
        epsilon_spent=_spent(public, federation.spent),
        parties={
            name: {"columns": len(own), "columns_with_weight": int(np.count_nonzero(own))}
            for name, own in weights.items()
        },
        traffic={kind: vars(one) for kind, one in federation.traffic().items()},
        seconds=seconds,
        virtual_seconds=federation.virtual_seconds,
        weights=weights,
        intercept=last.intercept,
        trace=arrays,
        r2_draws=r2_draws,
        alone=dict(zip(public.parties, alone, strict=True)),
        pooled=pooled,
        prediction_noise=noise,
        served_r2=fits.served_r2(noise),
    )


def _done(settings: DPFrankWolfeSettings, received: ReceivedFits) -> float:
    """How many fits' work is done. In a fit without iterations, reading the rows is half of the work."""
    learning = settings.learning
    if learning.estimator == "frank-wolfe":
        return received.iterations / learning.iterations
    return (
        received.announced / (settings.window.rows * len(settings.federation.parties)) + received.over
    ) / 2


def frozen_windows(
    settings: DPFrankWolfeSettings, table: VerticalTable, fit: ReceivedFit
) -> dict[str, Window]:
    """The window of each party, with the rows that the manifest names."""
    rows = [int(name) for name in fit.manifest]
    return {
        party: freeze(own[rows], table.labels[rows], *_bounds(settings, party), settings.window.rows)
        for party, own in zip(settings.federation.parties, table.inputs, strict=True)
    }


def centred_windows(public: Public, windows: dict[str, Window], fit: ReceivedFit) -> dict[str, Window]:
    """Each window minus the means that its party released."""
    rows, found = public.settings.window.rows, dict(windows)
    for party, told in fit.means.items():
        found[party] = centred(windows[party], public.means_plan(party).means(told, rows))
    return found


def _intercept(public: Public, fit: ReceivedFit) -> float:
    plans = {party: public.means_plan(party) for party in fit.means}
    means = {
        party: plans[party].means(told, public.settings.window.rows) for party, told in fit.means.items()
    }
    return intercept(means, plans, fit.models)


def predictions(
    settings: DPFrankWolfeSettings,
    table: VerticalTable,
    rows: NDArray[np.intp],
    weights: dict[str, Floats],
    intercept: float,
) -> Floats:
    """Predictions of rows, in the label's own scale. Features are clipped to bounds as in a window.
    intercept: in label bounds."""
    total = np.full(len(rows), intercept)
    for party, own in zip(settings.federation.parties, table.inputs, strict=True):
        bounds, _ = _bounds(settings, party)
        total += np.clip((own[rows] - bounds.centre) / bounds.bound, -1, 1) @ weights[party]
    return np.asarray(settings.bounds.label_centre + settings.bounds.label_bound * total)


def r_squared(predicted: Floats, labels: Floats) -> float | None:
    """R^2 about the labels' mean. None if all labels are the same."""
    spread = float(np.sum((labels - labels.mean()) ** 2))
    return 1 - float(np.sum((predicted - labels) ** 2)) / spread if spread > 0 else None


def _drawn(
    settings: DPFrankWolfeSettings, places: Mapping[str, ReleaseContext], number: int
) -> dict[str, ReleaseContext]:
    """The same places with other secrets. They follow from the seed if the federation's do."""
    repeats = settings.privacy.insecure_test_noise
    random = rng_for(settings.federation.seed, "draw", number) if repeats else np.random.default_rng()
    return {party: replace(place, secret=random.bytes(32)) for party, place in places.items()}


def _without_privacy(
    settings: DPFrankWolfeSettings, table: VerticalTable, learnt: NDArray[np.intp], rows: NDArray[np.intp]
) -> list[float | None]:
    """r2 of least squares on all columns, and on each party's. learnt: rows of the fit. rows: of r2."""
    inputs, parties = {}, settings.federation.parties
    for party, own in zip(parties, table.inputs, strict=True):
        bounds, label_bounds = _bounds(settings, party)
        inputs[party] = np.clip((own[learnt] - bounds.centre) / bounds.bound, -1, 1)
    labels = np.clip((table.labels[learnt] - label_bounds.centre) / label_bounds.bound, -1, 1)
    fits = least_squares(inputs, labels, [parties, *([party] for party in parties)])
    return [r_squared(predictions(settings, table, rows, *fit), table.labels[rows]) for fit in fits]


def _rows_of(settings: DPFrankWolfeSettings, table: VerticalTable, windows: int) -> int:
    rows = settings.window.rows
    if windows * rows > len(table.labels):
        raise ConfigurationError(
            f"window.rows = {rows:,}: {windows} of them are more than the {len(table.labels):,} usable rows "
            "of the table"
        )
    return windows * rows


def _adapted(settings: DPFrankWolfeSettings, entities: int) -> DPFrankWolfeSettings:
    """The settings with room for all entities. The server never goes on without a party."""
    window = settings.window.model_copy(
        update={"patience_seconds": FOR_EVER, "limit": max(settings.window.limit, entities)}
    )
    privacy = settings.privacy.model_copy(
        update={"ledger_limit": max(settings.privacy.ledger_limit, entities)}
    )
    return settings.model_copy(update={"window": window, "privacy": privacy})


def _bounds(settings: DPFrankWolfeSettings, party: str) -> tuple[Bounds, Bounds]:
    """Bounds of a party's columns, and of the label."""
    own, columns = bounds_of(settings, party), settings.federation.columns[party]
    return Bounds.of(own.centre, own.bound, columns), Bounds.of(own.label_centre, own.label_bound, 1)


def clipped_shares(settings: DPFrankWolfeSettings, table: VerticalTable) -> tuple[list[Floats], float]:
    """The share of rows that are beyond the bounds, and so clipped: by party, (columns,), and of the
    label."""
    bounds = [_bounds(settings, party) for party in settings.federation.parties]
    shares = [
        np.asarray(np.mean(np.abs(own - of_columns.centre) > of_columns.bound, axis=0))
        for own, (of_columns, _) in zip(table.inputs, bounds, strict=True)
    ]
    of_label = bounds[0][1]
    return shares, float(np.mean(np.abs(table.labels - of_label.centre) > of_label.bound))


def _most_numbers(public: Public) -> int:
    """Most numbers that parties may send up in a fit: signed indices, and numbers of columns."""
    settings = public.settings
    learning, quota = settings.learning, {party: public.quota(party) for party in public.parties}
    total = sum(quota.values())
    means = sum(settings.federation.columns.values()) + len(quota) if learning.intercept else 0
    if learning.estimator == "frank-wolfe":
        choices = sum(public.sampling.answers_of(party, 1, learning.iterations) for party in public.parties)
        return means + choices + total * settings.sketch_numbers
    if learning.estimator == "marginal":
        return means + 3 * total
    return means + sum(own * (2 + settings.window.rows + (total - own) + own) for own in quota.values())


def _claimed(public: Public) -> float:
    """Epsilon of an entity's whole life. Raises ConfigurationError if no noise is enough for it, even with
    test noise."""
    privacy = public.settings.privacy.model_copy(update={"insecure_test_noise": False})
    Public(public.settings.model_copy(update={"privacy": privacy})).check()
    return public.epsilon()


def _spent(public: Public, charged: float) -> float:
    """Epsilon of the entity that was charged most. charged: its cost.

    Test noise is charged as infinite. Then the result is what a fit would cost with a secret.
    """
    cost = (
        charged
        if public.settings.privacy.is_private
        else math.fsum(public.fit_cost(party) for party in public.parties)
    )
    if not math.isfinite(cost):
        return math.inf
    return claim(cost, 0.0, public.settings.privacy.delta)
