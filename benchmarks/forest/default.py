"""The default learner beside a forest: what its experts say is recorded once, and then mixed again with the
forest among them.

The kernels that all clients train do not depend on the mixture, so recording them without a forest changes
nothing. What does depend on it, and is left as recorded: when a client's change detector finds that errors
rose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.kernels import LOGISTIC, loss_named
from streamfl.learning.online_scaling import clipped
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.client_journal import Forecast
from streamfl.pofmkl.learning.client_mixtures import MEMORY, RIDGE, RIDGE_LEAK, ClientMixtures
from streamfl.pofmkl.learning.client_scales import LARGEST_TARGET, LEAST_DEVIATION, ClientScales, Scale
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.journal_steps import JournalSteps
from streamfl.pofmkl.learning.mixture import corrected, log_posterior, mixed, ridge_step
from streamfl.pofmkl.learning.neighbours import Projection
from streamfl.pofmkl.tools import direct

__all__ = ["Recording", "record", "settings_of", "with_forest"]

Floats = NDArray[np.float64]

# The forest's prior, the weight of shared evidence and its largest term, and for how many labels the forest
# widens the range.
FOREST_PRIOR, EVIDENCE, LARGEST_EVIDENCE, FEW = 0.8, 1.5, 20.0, 20
# Part A: how many samples the grand mean is worth at most, how many the variance within clients is; labels
# until ranges are own.
MOST_PRIOR, VARIANCE_PRIOR, OWN_RANGE = 20.0, 4.0, 8
# Part B: labels are cut at so many deviations, once so many are known.
CUT, CUT_FROM = 5.0, 10


def settings_of(clients: int, seed: int, loss: str, kernels: int) -> PofmklSettings:
    """The default preset, in rounds; kernels: sent with a sample."""
    return PofmklSettings.model_validate(
        {
            "federation": {"name": "forest", "clients": clients, "seed": seed},
            "role": {"kind": "pofmkl-client"},
            "learning": {"staleness": "lockstep", "loss": loss},
            "uplink": {"kernels_per_upload": kernels},
        }
    )


@dataclass
class Recording:
    """What the default learner said and learnt, call by call; rows of the learner are clients.

    predictions (T, K): of the default without a forest. calls: (rows, experts, low, high, deviation, known)
    of a prediction, or (rows, experts, known, deviation, labels) of learning, in order.
    """

    kernels: int
    logistic: bool
    predictions: Floats = field(default_factory=lambda: np.empty(0))
    calls: list[tuple[Any, ...]] = field(default_factory=list)


class _Recorder(ClientMixtures):
    recording: Recording

    def mix(self, rows: NDArray[np.intp], experts: Floats, scale: Scale) -> tuple[Floats, Floats]:
        numbers = (scale.low.copy(), scale.high.copy(), scale.deviation.copy(), scale.known.copy())
        self.recording.calls.append((rows, experts.copy(), *numbers))
        return super().mix(rows, experts, scale)

    def learn(self, rows: NDArray[np.intp], forecast: Forecast, deviation: Floats, labels: Floats) -> None:
        self.recording.calls.append(
            (rows, forecast.experts.copy(), forecast.known.copy(), deviation.copy(), labels.copy())
        )
        super().learn(rows, forecast, deviation, labels)


class _CutLabels(Scale):
    """Part B: one wrong label must not spoil a client."""

    def bounded(self, labels: Floats) -> Floats:
        within = clipped(labels, self.mean - CUT * self.deviation, self.mean + CUT * self.deviation)
        return np.where(self.known >= CUT_FROM, within, super().bounded(labels))


class _Scales(ClientScales):
    """Parts A and B of the second leap. A: moments of all clients are a client's own until it has samples
    enough."""

    shared = robust = False

    def scale_by(self, moments: NDArray[Any], inputs: Floats, lags: Floats | None = None) -> Scale:
        if self.shared:
            moments = self._shrunk(moments)
        scale = super().scale_by(moments, inputs, lags)
        if self.shared:
            # `scale_by` reads the deviation as that of the next value; the prior's samples make it known from
            # the first label on.
            known = np.maximum(scale.known, 0)
            variance = moments["label_squares"] / np.maximum(known - 1, 1)
            scale.deviation = np.maximum(
                np.sqrt(variance * (1 + 1 / (known + self._prior[-1]))), LEAST_DEVIATION
            )
            if not self._logistic:
                new, width = known < OWN_RANGE, np.where(known > 0, 2.0, 3.0) * scale.deviation
                scale.low = np.where(
                    new, np.minimum(scale.mean - width, np.where(known > 0, scale.low, np.inf)), scale.low
                )
                scale.high = np.where(
                    new, np.maximum(scale.mean + width, np.where(known > 0, scale.high, -np.inf)), scale.high
                )
        if self.robust:
            return _CutLabels(**vars(scale))
        return scale

    def _shrunk(self, moments: NDArray[Any]) -> NDArray[Any]:
        """Empirical Bayes over clients: see part A of the second leap."""
        of_all, found = self._moments, moments.copy()
        prior = []
        for count, mean, squares in (
            ("samples", "input_mean", "input_squares"),
            ("labels", "label_mean", "label_squares"),
        ):
            there = of_all[count] > 0
            clients = int(there.sum())
            if not clients:
                prior.append(MOST_PRIOR)
                continue
            n = of_all[count][there].astype(float)
            means, sums = (of_all[name][there].reshape(clients, -1) for name in (mean, squares))
            total = max(n.sum(), 1.0)
            grand = (n[:, None] * means).sum(0) / total
            within = sums.sum(0) / max(total - clients, 1.0)
            between = (n[:, None] * (means - grand) ** 2).sum(0) - (clients - 1) * within
            between = np.maximum(0, between / max(total - (n**2).sum() / total, 1e-9))
            with np.errstate(divide="ignore", invalid="ignore"):
                worth = np.where(between > 0, np.minimum(within / between, MOST_PRIOR), MOST_PRIOR)
            if total <= clients:
                # No client has two samples: the spread of all is that of one.
                within = (n[:, None] * (means - grand) ** 2).sum(0) / max(clients - 1, 1)
            own = moments[count].astype(float)[:, None]
            own_mean = moments[mean].reshape(len(own), -1)
            own_squares = moments[squares].reshape(len(own), -1)
            found[mean] = ((own * own_mean + worth * grand) / (own + worth)).reshape(found[mean].shape)
            variance = (own_squares + VARIANCE_PRIOR * within) / (np.maximum(own - 1, 0) + VARIANCE_PRIOR)
            scaled = variance * (own if count == "samples" else np.maximum(own - 1, 1))
            found[squares] = scaled.reshape(found[squares].shape)
            prior.append(float(worth[-1]))
        self._prior = prior
        return found


def record(
    settings: PofmklSettings,
    inputs: Floats,
    labels: Floats,
    delay: int = 0,
    shared: bool = False,
    robust: bool = False,
) -> Recording:
    """Run the default over the streams, (K, T, d) and (K, T), with labels ``delay`` samples late, and keep
    what it said.

    shared, robust: with parts A and B of the second leap.
    """
    recording = Recording(0, settings.learning.loss == "logistic")

    def recorded(learner: DefaultLearner) -> DefaultLearner:
        personal = learner._mixtures.experts - learner.kernels
        mixtures = _Recorder(
            learner.kernels, personal, settings.experts.mixtures, loss_named(settings.learning.loss)
        )
        mixtures.recording, recording.kernels = recording, learner.kernels
        learner._mixtures = mixtures
        if shared or robust:
            project = Projection(learner.dimension, settings.federation.seed)
            scales = _Scales(learner.features, project, learner.loss is LOGISTIC)
            scales.shared, scales.robust = shared, robust
            learner._scales = scales
        learner._journal_steps = JournalSteps(
            learner._scales, mixtures, learner._journal, learner.loss is LOGISTIC
        )
        return learner

    make: Callable[..., Any] = direct._default_learner
    try:
        direct._default_learner = lambda *given: recorded(make(*given))
        names = [f"client-{number:04d}" for number in range(len(labels))]
        recording.predictions = direct.federated(settings, np.swapaxes(inputs, 0, 1), labels.T, names, delay)
    finally:
        direct._default_learner = make
    return recording


def with_forest(
    recording: Recording, forests: Floats, labels: Floats, delay: int = 0, lag: int = 0
) -> Floats:
    """Predictions (T, K) of the default's mixtures with the forests among its experts.

    forests (E, K, T): what each says, NaN where it is not known. Of two forests, one that says nothing counts
    as the other. labels (K, T). delay: of labels, in samples. lag: in rounds, of the evidence that clients
    share.
    """
    rounds, clients = recording.predictions.shape
    loss = loss_named("logistic" if recording.logistic else "square")
    kernels, count = recording.kernels, len(forests)
    own = recording.calls[0][1].shape[1]
    numbers = ClientMixtures(kernels, own - kernels + count, (), loss)
    experts_in_all, personal = numbers.experts, own - kernels
    some = [*range(kernels), *range(own, experts_in_all)]
    prior = np.full(experts_in_all, np.log((1 - FOREST_PRIOR) / 2 / kernels))
    prior[kernels:own] = np.log((1 - FOREST_PRIOR) / 2 / personal)
    prior[own:] = np.log(FOREST_PRIOR / count)
    without = np.full(experts_in_all, -np.inf)
    without[:kernels], without[kernels:own] = -np.log(2 * kernels), -np.log(2 * personal)
    by_kernels_prior = np.full(len(some), -np.log(2 * kernels))
    by_kernels_prior[kernels:] = -np.log(2 * count)
    size = clients
    losses, counts = np.zeros((size, experts_in_all)), np.zeros(size)
    weights = np.zeros((size, experts_in_all))
    covariances = np.tile(np.eye(experts_in_all) / RIDGE, (size, 1, 1))
    predictions = np.full((rounds, clients), np.nan)
    said: deque[tuple[Floats, Floats]] = deque()
    evidence = deque([np.zeros(experts_in_all)] * (lag + 1))
    noisy = not recording.logistic

    def deviations(experts: Floats, pivot: Floats, deviation: Floats) -> Floats:
        return clipped((experts - pivot[:, None]) / deviation[:, None], -LARGEST_TARGET, LARGEST_TARGET)

    def mix(call: tuple[Any, ...], column: Floats) -> tuple[Floats, Floats, Floats]:
        rows, experts, low, high, deviation, known = call
        there = np.isfinite(column)
        column = np.where(there, column, experts[:, :1])
        if recording.logistic:
            column = np.clip(column, 0.01, 0.99)
            low = np.minimum(low, np.where(known < FEW, 0.01, low))
            high = 1 - low
        for place in range(count):
            few = (known < FEW) & there[:, place]
            low = np.where(few, np.minimum(low, column[:, place]), low)
            high = np.where(few, np.maximum(high, column[:, place]), high)
        experts = np.hstack([experts, np.clip(column, low[:, None], high[:, None])])
        shared, heard = evidence[0], there[:, 0]
        base = np.where(heard[:, None], prior + shared, without)
        alone = np.where(heard[:, None], (by_kernels_prior + shared[some]), without[some])
        by_kernels = mixed(experts[:, some], log_posterior(losses[rows][:, some], counts[rows], alone, noisy))
        pivot = mixed(experts, log_posterior(losses[rows], counts[rows], base, noisy))
        change, _, _ = corrected(deviations(experts, pivot, deviation), weights[rows], covariances[rows])
        ridge = clipped(pivot + deviation * change, low, high)
        found = (by_kernels + pivot + ridge) / 3
        return np.where((known == 0) & heard, experts[:, own], found), experts, pivot

    calls, number = iter(recording.calls), 0
    for call in calls:
        column = forests[:, call[0], number].T
        if count == 2:
            column = np.where(np.isfinite(column), column, column[:, ::-1])
        predictions[number, call[0]], experts, pivot = mix(call, column)
        said.append((experts, pivot))
        number += 1
        if number <= delay:
            continue
        experts, pivot = said.popleft()
        call = next(calls)
        if len(call) == 6:  # Samples predicted before any label was known are asked about again.
            place = np.searchsorted(np.arange(clients), call[0])
            _, experts[place], pivot[place] = mix(call, experts[place][:, own:])
            call = next(calls)
        rows, _, known, deviation, truth = call
        able = np.flatnonzero(known)
        rows, experts, pivot = rows[able], experts[able], pivot[able]
        if len(rows):
            losses[rows] = MEMORY * losses[rows] + numbers.losses(experts, truth[able, None])
            counts[rows] = MEMORY * counts[rows] + 1
            target = clipped((truth[able] - pivot) / deviation[able], -LARGEST_TARGET, LARGEST_TARGET)
            weights[rows], covariances[rows] = ridge_step(
                deviations(experts, pivot, deviation[able]),
                target,
                weights[rows],
                covariances[rows],
                RIDGE,
                RIDGE_LEAK,
            )
        judged = counts > 0
        shared = np.zeros(experts_in_all)
        if judged.any():
            least = np.maximum(losses[judged].min(1, keepdims=True), 1e-9)
            ratios = np.minimum(losses[judged] / least - 1, LARGEST_EVIDENCE) * 255 / LARGEST_EVIDENCE
            shared = (
                -EVIDENCE * LARGEST_EVIDENCE / 255 * np.rint(ratios).mean(0)
            )  # A ratio goes up in a byte.
        evidence.append(shared)
        evidence.popleft()
    return predictions
