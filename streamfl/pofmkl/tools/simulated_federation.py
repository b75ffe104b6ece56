"""A server and all clients of a POF-MKL federation in one process, a round of samples at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.configuration.settings import BusSection, RoleSection
from streamfl.contract.role import ConfigurationError, DataError
from streamfl.encoding.wire import record_size
from streamfl.pofmkl.client.role import PofmklClient, StepTrace
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.kinds import CLIENT, SERVER
from streamfl.pofmkl.metrics import ServerMetrics
from streamfl.pofmkl.tools.sites import present
from streamfl.runtime.bus import Outgoing, Subscription
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.simulation.clients import PublishedPrediction

__all__ = ["SimulatedFederation"]

_MOST_STEPS = 10_000
# Labels are between 0 and 1 on the learning scale. A prediction this large means that the federation
# diverged.
_DIVERGED = 1e6


class SimulatedFederation:
    """A federation on a bus in memory, with a clock that only the rounds move.

    settings: of all members.
    names: of the clients.
    rounds: T, the most rounds.
    trace: keep what was learnt, and how the federation stood after each round.
    client: the role of all clients.
    predictions: (T, K) on the learning scale; NaN where there is none.
    done: samples predicted.
    downlink_bytes: the model as published, once for every client that takes part.
    budget_bytes: the bytes of updates that clients were allowed; None: there is no budget.
    steps: with a trace, the learnt samples of each client.
    course: with a trace, values after each round by name.
    """

    def __init__(self, settings: PofmklSettings, names: Sequence[str], rounds: int, trace: bool) -> None:
        assert settings.samples is not None
        self._settings = settings
        self._names = names
        self._places = {name: place for place, name in enumerate(names)}
        self._label_range = settings.samples.label_range
        self._rate = settings.uplink.budget_bytes_per_second
        self._clock = _Clock()
        self._bus = MemoryBus(clock=self._clock)
        self._server = _start(SERVER, settings, self._bus, self._clock)
        self._clients = _start(CLIENT, settings, self._bus, self._clock)
        self._observer = _Observer(self._bus, settings.federation.name)
        self._taking_part: list[int] = list(range(len(names)))
        self._encode = msgspec.msgpack.Encoder().encode
        self._trace = trace
        self.client = cast(PofmklClient, self._clients.role)
        self.predictions = np.full((rounds, len(names)), np.nan)
        self.done = self.downlink_bytes = 0
        self.budget_bytes = None if self._rate is None else 0.0
        self.steps: dict[str, list[StepTrace]] = {}
        self.course: dict[str, list[float]] = {}
        if trace:
            self.client.trace = lambda step: self.steps.setdefault(step.client, []).append(step)

    @property
    def uplink_bytes(self) -> int:
        return self._observer.uplink_bytes

    def close(self) -> None:
        self._clients.close()
        self._server.close()

    def round(self, number: int, inputs: NDArray[Any], labels: NDArray[Any]) -> None:
        """Predict and learn a sample of each client: inputs (K, d), and labels (K,), NaN for clients without
        a sample.

        DataError if the federation diverges or refuses a sample, ConfigurationError if it cannot go on.
        """
        began, heard = self._clock.now, self._observer.model_bytes
        self._write(number, inputs, labels)
        self._work(number)
        self._clock.now += 1.0
        figures = self._sound_figures()
        self._read_predictions()
        self._bus.forget_read()
        self.downlink_bytes += len(self._taking_part) * (self._observer.model_bytes - heard)
        if self.budget_bytes is not None and self._rate is not None:
            self.budget_bytes += len(self._taking_part) * (self._clock.now - began) * self._rate
        if self._trace:
            self._note_course(figures)

    def _write(self, number: int, inputs: NDArray[Any], labels: NDArray[Any]) -> None:
        """Write the samples of a round. The server forgets clients that have none any more."""
        before, self._taking_part = self._taking_part, np.flatnonzero(present(labels)).tolist()
        for place in set(before).difference(self._taking_part):
            self._server.role.forget(self._names[place])
        samples = []
        for place, values in zip(self._taking_part, inputs[self._taking_part].tolist(), strict=True):
            content = {"id": str(number), "inputs": values, "label": float(labels[place])}
            samples.append(Outgoing("samples", self._names[place].encode(), self._encode(content)))
        self._bus.write(samples)
        self.done += len(samples)

    def _work(self, number: int) -> None:
        """Let the workers take turns until each sample is predicted."""
        for _ in range(_MOST_STEPS):
            moved = self._clients.step(0.0)
            moved = self._server.step(0.0) or moved
            if not moved:
                if self.client.predicted == self.done:
                    return
                _check_letters(self._bus, self._settings.federation.name)
                # Nothing can happen until time passes: a bucket has to fill, or a round has to time out.
                self._clock.advance(self._clients.role.wake_at, self._server.role.wake_at)
        standing = (
            f"the federation is stuck in round {number}: {self.client.predicted} of {self.done} samples are "
            f"predicted, {self.done - self.client.predicted} wait, after {self._clock.now:g} simulated "
            "seconds"
        )
        if self._rate is not None:
            standing += f"; raise uplink.budget_bytes_per_second = {self._rate:g} or leave it out"
        raise ConfigurationError(standing)

    def _sound_figures(self) -> dict[str, float]:
        """What the server measures. DataError if the federation diverged."""
        if self.client.trouble is not None:
            raise self._diverged(self.client.trouble)
        figures = {one.name: one.value for one in self._server.role.measure()}
        if figures.get(ServerMetrics.bounded_parameters.name):
            raise self._diverged("the model's parameters grew beyond what clients take")
        return figures

    def _read_predictions(self) -> None:
        low, high = self._label_range
        for prediction in self._observer.new_predictions():
            # JSON has no infinity: a number too large for the label's own unit arrives as null.
            scaled = (
                math.inf if prediction.prediction is None else (prediction.prediction - low) / (high - low)
            )
            if not abs(scaled) <= _DIVERGED:
                raise self._diverged(f"predictions reach {abs(scaled):g} where labels are between 0 and 1")
            self.predictions[int(prediction.sample), self._places[prediction.client]] = scaled

    def _note_course(self, figures: dict[str, float]) -> None:
        stood = {"uplink_bytes": float(self.uplink_bytes), "staleness": figures[ServerMetrics.staleness.name]}
        if self.budget_bytes is not None:
            stood["budget_bytes"] = self.budget_bytes
        if self.client.challengers is not None:
            stood |= {
                f"challengers/{name}": mse
                for name, mse in self.client.challengers.mean_squared_errors().items()
            }
        for name, value in stood.items():
            self.course.setdefault(name, []).append(value)

    def _diverged(self, cause: str) -> DataError:
        learning = self._settings.learning
        return DataError(
            f"the federation diverged: {cause}. Lower learning.learning_rate = {learning.rate:g} or "
            f"learning.regularisation = {learning.regularisation:g}, or send more kernels an upload (section "
            "[uplink])."
        )


class _Clock:
    """A clock that only the run moves, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, *wake_at: float | None) -> None:
        """Go on by a second, or to the first of these times if that is later, in whole seconds."""
        first = min((when for when in wake_at if when is not None), default=self.now)
        self.now = max(self.now + 1.0, float(np.ceil(first)))


class _Observer:
    """Reads what the federation publishes, as a user's consumer would."""

    def __init__(self, bus: MemoryBus, federation: str) -> None:
        self._model, self._updates = f"{federation}.model", f"{federation}.updates"
        self._session = bus.session(
            Subscription("observer", (f"{federation}.predictions",), (self._model, self._updates))
        )
        self.uplink_bytes = 0
        self.model_bytes = 0

    def new_predictions(self) -> list[PublishedPrediction]:
        predictions = []
        while polled := self._session.poll(0.0, 10_000):
            for record in polled.tables:
                if record.topic == self._model:
                    self.model_bytes += record_size(record)
                else:
                    self.uplink_bytes += record_size(record)
            predictions += [
                msgspec.json.decode(record.value or b"", type=PublishedPrediction)
                for record in polled.records
            ]
        return predictions


def _start(kind: str, settings: PofmklSettings, bus: MemoryBus, clock: _Clock) -> Worker:
    """A worker of this kind, with its topics. A topic that may have any number of partitions gets one."""
    # The operator's [bus] is for another bus. Here a group from it would hold workers of both kinds.
    own = settings.model_copy(
        update={"role": RoleSection(kind=kind), "bus": BusSection(commit_interval_ms=0)}
    )
    wanted = {topic.name: topic for topic in find_kind(kind).topics(own)}
    missing = wanted.keys() - bus.describe(wanted).keys()
    bus.create([replace(wanted[name], partitions=wanted[name].partitions or 1) for name in sorted(missing)])
    return build_worker(own, bus, clock)


def _check_letters(bus: MemoryBus, federation: str) -> None:
    """Raises DataError with the reason if a sample was refused: its round would wait for it without end."""
    for letter in bus.read(f"{federation}.dead-letters"):
        headers = {name: content.decode(errors="replace") for name, content in letter.headers}
        if headers["topic"] == "samples":
            client = (letter.key or b"").decode(errors="replace")
            raise DataError(f"a sample of {client} was refused ({headers['error']}): {headers['text']}")
