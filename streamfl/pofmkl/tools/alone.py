"""Clients that learn alone, computed together: ``simulate`` and ``compare`` compare the federation with them.

The clients are independent, so a round is one operation for all of them. Each client's kernels are computed
for a stretch of rounds ahead: the scale of the inputs depends on the samples and not on the predictions,
except where a change was found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import ConfigurationError
from streamfl.kernels import LOGISTIC, random_features
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.client_scales import ClientScales
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.neighbours import Projection
from streamfl.pofmkl.learning.recursive_least_squares import BLOCK, RecursiveLeastSquares
from streamfl.pofmkl.learning.views import LAGS, ViewedFeatures
from streamfl.pofmkl.roles import learner as learner_of
from streamfl.pofmkl.roles import server_step
from streamfl.pofmkl.tools.own_kernels import OneByOne, OwnKernels, OwnLeastSquares
from streamfl.pofmkl.tools.paper_alone import paper_alone
from streamfl.pofmkl.tools.sites import InputArray, samples_of

__all__ = ["alone", "local_predictions"]

# Clients run together as long as their kernels fit into this.
MOST_BYTES = 2**28

Floats = NDArray[np.float64]


def local_predictions(
    settings: PofmklSettings,
    inputs: InputArray,
    labels: Floats,
    progress: Callable[[int], None] = lambda samples: None,
) -> Floats:
    """Predictions (T, K) of clients without a server, by the preset; arguments as :func:`alone`.

    A learner alone may diverge where the federation does not. Its predictions are then not finite.
    """
    if settings.learning.preset == "default":
        return alone(settings, inputs, labels, progress=progress)
    return paper_alone(settings, inputs, labels, progress)


@np.errstate(over="ignore", invalid="ignore")
def alone(
    settings: PofmklSettings,
    inputs: InputArray,
    labels: Floats,
    delay: int = 0,
    progress: Callable[[int], None] = lambda samples: None,
) -> Floats:
    """Predictions (T, K) of clients of the default preset that each train all kernels on their own labels
    only.

    Sample t of a client is predicted with the labels of its samples 0 .. t - delay - 1 at hand. The result
    equals that of clients run one by one, up to rounding. ``progress`` is called with the number of samples
    done.

    inputs: (T, K, d), on the learning scale.
    labels: (T, K), on the learning scale; NaN where a client has no samples any more.

    Raises ConfigurationError for another preset.
    """
    every = settings.model_copy(
        update={"kernels": settings.kernels.model_copy(update={"bandwidths": list(settings.bandwidths)})}
    )
    counts = samples_of(labels)
    # Clients with many samples go together, so that a round has all clients of its group for as long as
    # possible.
    longest = np.argsort(-counts, kind="stable")
    predictions = np.full(labels.shape, np.nan)
    learner = _learner(every, inputs.shape[2])
    together = max(
        1, MOST_BYTES // OwnLeastSquares.most_bytes(learner.kernels, learner.row_length, learner.dtype)
    )
    done = 0
    for start in range(0, len(longest), together):
        chosen = longest[start : start + together]
        of_each = [
            inputs[:count, client]
            for client, count in zip(chosen.tolist(), counts[chosen].tolist(), strict=True)
        ]
        group = _Group(every, of_each, labels[:, chosen], delay)
        for number, predicted in enumerate(group.run()):
            predictions[number, chosen[: len(predicted)]] = predicted
            done += len(predicted)
            progress(done)
    return predictions


class _Foretold(ViewedFeatures):
    """Takes the kernels' predictions, which are known beforehand, in place of the parameters."""

    def predict(self, inputs: Sequence[NDArray[Any]], parameters: NDArray[Any]) -> NDArray[Any]:
        if len(parameters) != len(inputs[0]):
            raise ValueError(f"{len(inputs[0])} samples are asked about, {len(parameters)} were foretold")
        return parameters


class _Group:
    """Some clients in step, those with the most samples first.

    inputs: each client's, (its samples, d).
    labels: (T, clients).
    """

    def __init__(
        self, settings: PofmklSettings, inputs: Sequence[NDArray[Any]], labels: Floats, delay: int
    ) -> None:
        learner = _learner(settings, inputs[0].shape[1])
        self._learner = learner
        self._inputs = [np.array(own, np.float64) for own in inputs] if delay else list(inputs)
        self._labels, self._delay = labels, delay
        self._counts = np.array([len(own) for own in inputs])
        self._rows = np.array([learner.borrow() for _ in inputs])
        self._kernels = [_kernels(settings, learner) for _ in inputs]
        # The first two samples of a client teach its kernels nothing. With these lengths blocks and stretches
        # end together.
        self._first, self._length = (
            (BLOCK + 2 + delay, BLOCK) if isinstance(self._kernels[0], OwnLeastSquares) else (1, 1)
        )
        # Ahead of the learner's own scales, and equal to them once the learner has come as far.
        projection = Projection(learner.dimension, settings.federation.seed)
        self._scales = ClientScales(learner.features, projection, learner.loss is LOGISTIC)
        self._scales.grow(len(inputs))
        self._lags = np.full((*labels.shape, LAGS), np.nan)
        # How many samples each client's neighbours are searched among: fewer after the client has begun anew.
        self._kept = np.zeros(len(inputs), np.intp)

    def run(self) -> Iterator[Floats]:
        """Yields, round by round, the predictions of the clients that still have a sample."""
        learner, delay, rounds = self._learner, self._delay, int(self._counts.max())
        pending: deque[list[bytes]] = deque()
        no_norms = np.zeros(learner.kernels)
        ahead = _Stretch(self, 0, 0)
        for number in range(rounds):
            if number == ahead.stop:
                ahead = _Stretch(
                    self, number, min(rounds, number + (self._length if number else self._first))
                )
                ahead.look(number, self._taking_part(number))
            clients = self._taking_part(number)
            rows, (asked, of_learnt) = (
                self._rows[: len(clients)],
                ahead.said[:, number - ahead.start, : len(clients)],
            )
            forecast = learner.predict(rows, self._at(number, clients), asked)
            yield forecast.predictions
            pending.append(forecast.encoded())
            if len(pending) <= delay:
                continue
            drifts = learner.drifts
            learner.learn(
                rows,
                pending.popleft()[: len(rows)],
                self._labels[number - delay, : len(rows)],
                of_learnt,
                no_norms,
            )
            self._kept[: len(rows)] += 1
            if learner.drifts != drifts:
                ahead.look_again(number + 1, self._begun_anew(clients))

    def _taking_part(self, number: int) -> NDArray[np.intp]:
        return np.arange(int((self._counts > number).sum()))

    def _at(self, number: int, clients: NDArray[np.intp]) -> NDArray[Any]:
        return np.array([self._inputs[client][number] for client in clients.tolist()])

    def _begun_anew(self, clients: NDArray[np.intp]) -> NDArray[np.intp]:
        """The clients whose errors rose with the last learnt sample. Their scales are reset to the
        learner's."""
        found = []
        for client in clients.tolist():
            moments = self._learner.snapshot(int(self._rows[client])).moments
            if moments["kept"] != self._kept[client]:
                self._kept[client] = moments["kept"]
                content = np.zeros((), self._scales.layout)
                for name, value in moments.items():
                    content[name] = value
                self._scales.restore(client, content)
                found.append(client)
        return np.array(found, np.intp)


class _Stretch:
    """Rounds from ``start`` to ``stop``, computed ahead.

    said: every kernel's prediction for the sample that a client predicts in a round, and for the one that it
        learns then: (2, rounds, clients, N).
    """

    def __init__(self, group: _Group, start: int, stop: int) -> None:
        learner, clients = group._learner, len(group._inputs)
        self.start, self.stop = start, stop
        self.said = np.zeros((2, stop - start, clients, learner.kernels), learner.dtype)
        self._group = group
        # Inputs of each view, for predicted samples and for learnt ones.
        self._views: list[list[NDArray[Any]]] = []
        self._targets = np.zeros((stop - start, clients))
        # The round from which each client's kernels were last computed.
        self._since = [start] * clients

    def look(self, first: int, clients: NDArray[np.intp]) -> None:
        """Compute the kernels of these clients for the rounds from ``first`` on."""
        self._scale(first, clients)
        for client in clients.tolist():
            self._ask(client, first, self.stop)

    def look_again(self, first: int, clients: NDArray[np.intp]) -> None:
        """Compute again from ``first`` on, where these clients' scales have changed. What they learnt before
        stays."""
        if first == self.stop:
            return
        for client in clients.tolist():
            since = self._since[client]
            self._group._kernels[client].take_back()
            self._ask(client, since, first)
        self.look(first, clients)

    def _scale(self, first: int, clients: NDArray[np.intp]) -> None:
        group, scales = self._group, self._group._scales
        for number in range(first, self.stop):
            rows = clients[group._counts[clients] > number]
            inputs = scales.see(rows, group._at(number, rows))
            if group._delay:
                # The sample is used again when its label comes.
                for client, near in zip(rows.tolist(), inputs, strict=True):
                    group._inputs[client][number] = near
            scale = learnt = scales.scale(rows, inputs)
            group._lags[number, rows] = scale.lags
            if (sample := number - group._delay) >= 0:
                labels = group._labels[sample, rows]
                if sample != number:
                    learnt = scales.scale(rows, group._at(sample, rows), group._lags[sample, rows])
                labels = learnt.bounded(labels)
                self._targets[number - self.start, rows] = np.where(
                    learnt.known >= 2, learnt.target(labels), 0.0
                )
                scales.learn(rows, labels, late=True)
            for place, one in enumerate((scale, learnt)):
                self._note(number, rows, place, one.views)

    def _note(self, number: int, rows: NDArray[np.intp], place: int, views: Sequence[NDArray[Any]]) -> None:
        if not self._views:
            shape = self.said.shape[1:3]
            self._views = [
                [np.zeros((*shape, view.shape[1]), view.dtype) for view in views] for _ in range(2)
            ]
        for noted, view in zip(self._views[place], views, strict=True):
            noted[number - self.start, rows] = view

    def _ask(self, client: int, first: int, last: int) -> None:
        group = self._group
        self._since[client] = first
        last = min(last, int(group._counts[client]))
        part = slice(first - self.start, last - self.start)
        asked = features = self._features(self._views[0], client, part)
        if group._delay:
            features = self._features(self._views[1], client, part)
        learns = max(0, last - max(first, group._delay))
        self.said[:, part, client] = group._kernels[client].foresee(
            asked, features, self._targets[part, client], learns
        )

    def _features(self, views: Sequence[NDArray[Any]], client: int, part: slice) -> NDArray[Any]:
        """z_i of each sample, (N, samples, 2 D)."""
        drawn = self._group._learner.features.frequencies.values()
        found = [
            random_features(view[part, client], frequencies)
            for view, frequencies in zip(views, drawn, strict=True)
        ]
        return np.ascontiguousarray(np.concatenate(found, axis=1).swapaxes(0, 1))


def _learner(settings: PofmklSettings, dimension: int) -> DefaultLearner:
    learner = learner_of(settings, dimension, _Foretold)
    if not isinstance(learner, DefaultLearner):
        raise ConfigurationError(
            f'learning.preset = "{settings.learning.preset}": clients alone need preset = "default"'
        )
    return learner


def _kernels(settings: PofmklSettings, learner: DefaultLearner) -> OwnKernels:
    step = server_step(settings)(0)
    if isinstance(step, RecursiveLeastSquares):
        return OwnLeastSquares(learner.kernels, learner.row_length, learner.dtype)
    return OneByOne(
        server_step(settings)(learner.kernels), learner.kernels, learner.row_length, learner.dtype
    )
