"""A POF-MKL federation on the memory bus: one server, all clients, and the baselines to compare it with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.configuration.settings import BusSection, RoleSection
from streamfl.contract.role import ConfigurationError, DataError
from streamfl.encoding.wire import record_size
from streamfl.learning.accuracy import classification_figures
from streamfl.pofmkl.client.role import PofmklClient, StepTrace
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.tools.alone import local_predictions
from streamfl.pofmkl.tools.errors import Errors, errors_of, errors_of_challengers, without_regret
from streamfl.pofmkl.tools.kernel_names import kernel_names
from streamfl.pofmkl.tools.sites import InputArray, present, samples_of
from streamfl.records.samples import SamplesSection
from streamfl.runtime.bus import Outgoing, Subscription
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.log import only_errors
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

__all__ = ["ALONE", "Outcome", "drawn_frequencies", "simulate"]

ALONE = "each client on its own"
_MOST_STEPS = 10_000
# Labels are between 0 and 1 on the learning scale. A prediction this large means that the federation diverged.
_DIVERGED = 1e6


@dataclass
class Outcome:
    """The results of a run. K clients, T rounds, N kernels.

    predictions, labels: (T, K) on the learning scale. All (T, K) arrays are NaN where a client has no samples any more. scale: one
    unit of the learning scale in the label's own unit. local, mean: (T, K), the squared errors of a learner without a federation
    and of each client's running mean. downlink_bytes: the model as published, once for every client that takes part.
    regret_per_client: in the order of the clients. challengers: errors on the learning scale of the settings' challengers. course:
    of a traced run, by name, (T,) each: values after every round. interrupted: where the run ended early.
    """

    settings: PofmklSettings
    predictions: NDArray[np.float64]
    labels: NDArray[np.float64]
    scale: float
    local: NDArray[np.float64]
    mean: NDArray[np.float64]
    regret_per_client: dict[str, float]
    uplink_bytes: int
    downlink_bytes: int
    budget_bytes: float | None
    seconds: float
    parameters: NDArray[Any]
    frequencies: dict[str, NDArray[Any]]
    steps: dict[str, list[StepTrace]] = field(default_factory=dict)
    challengers: dict[str, Errors] = field(default_factory=dict)
    course: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    interrupted: str = ""

    @property
    def squared_errors(self) -> NDArray[np.float64]:
        return np.square(self.predictions - self.labels)

    def summary(self) -> dict[str, Any]:
        """The figures of the run, as ``streamfl simulate --format json`` prints them.

        rmse and mae are in the label's own unit. Names that begin with scaled are for labels from 0 to 1. rmse_best_kernel: of each
        client's best kernel in hindsight. log_loss, accuracy and auc are over all samples together, and None with the square loss.
        With the logistic loss scaled_mse is the Brier score.
        """
        rounds, clients = self.labels.shape
        samples = int(samples_of(self.labels).sum())
        learning = self.settings.learning
        regrets = list(self.regret_per_client.values())
        learners = {"": self.squared_errors, "_local_only": self.local, "_running_mean": self.mean}
        found = {name: errors_of(squared, self.labels, self.scale) for name, squared in learners.items()}
        return {
            "samples": samples,
            "clients": clients,
            "rounds": rounds,
            "preset": learning.preset,
            "learning_rate": learning.rate if learning.preset == "paper" else None,
            "regularisation": learning.regularisation if learning.preset == "paper" else None,
            "exploration_rate": learning.effective_exploration,
            **{f"rmse{name}": errors.rmse for name, errors in found.items()},
            **{f"mae{name}": errors.mae for name, errors in found.items()},
            "rmse_best_kernel": without_regret(found[""].rmse, sum(regrets) / samples, self.scale, learning.loss),
            "challengers": {
                name: {"rmse": self.scale * one.rmse, "mae": self.scale * one.mae} for name, one in self.challengers.items()
            },
            **self._classification(),
            "scaled_mse": (found[""].rmse / self.scale) ** 2,
            "scaled_regret_mean": float(np.mean(regrets)),
            "scaled_regret_per_client": self.regret_per_client,
            "uplink_bytes": self.uplink_bytes,
            "uplink_bytes_per_sample": self.uplink_bytes / samples,
            "uplink_budget_bytes": self.budget_bytes,
            "downlink_bytes": self.downlink_bytes,
            "seconds": self.seconds,
        }

    def _classification(self) -> dict[str, float | None]:
        if self.settings.learning.loss == "square":
            return dict.fromkeys(("log_loss", "accuracy", "auc"))
        there = present(self.labels)
        return {**classification_figures(self.predictions[there], self.labels[there])}

    def trace(self) -> dict[str, NDArray[Any]]:
        """Everything needed to compute the run again, by array name; (T, K, …) for values of samples.

        All errors and labels are on the learning scale; 1 on it is label_unit in the label's own unit.
        Where a client has no samples any more, floats are NaN, integers -1 and booleans False.
        A report also shows: published, predictions as users read them, and local_squared_errors, (T, K); after each round, (T,)
        each: uplink_bytes, budget_bytes, staleness, challengers/NAME; and as texts kernels (N,), clients (K,), loss and preset.
        """
        by_client = [self.steps[name] for name in self.regret_per_client]
        names = {
            "inputs": "inputs",
            "labels": "label",
            "predictions": "prediction",
            "kernel_predictions": "kernel_predictions",
            "kernel_order": "kernel_order",
            "drawn_bin": "drawn_bin",
            "bin_probability": "bin_probability",
            "sent": "sent",
            "kernel_log_weights": "log_weights",
        }
        arrays = {name: _side_by_side(by_client, attribute) for name, attribute in names.items()}
        learning = self.settings.learning
        told = {
            "kernels": np.array(kernel_names(self.settings)),
            "clients": np.array([*self.regret_per_client]),
            "loss": np.array(learning.loss),
            "preset": np.array(learning.preset),
            "rate": np.array(learning.rate),
            "label_unit": np.array(self.scale),
            "published": self.predictions,
            "local_squared_errors": self.local,
        }
        return arrays | self.frequencies | {"parameters": self.parameters} | told | self.course


@only_errors()
def simulate(
    settings: PofmklSettings,
    inputs: InputArray,
    labels: NDArray[Any],
    *,
    names: Sequence[str] | None = None,
    trace: bool = False,
    local_only: bool = True,
    watch: Callable[[str, int], bool] = lambda of, samples: False,
) -> Outcome:
    """Run a federation over ``inputs`` (T, K, d) and ``labels`` (T, K), in the label's own unit, and measure it.

    Inputs are divided by samples.input_norm and labels mapped by samples.label_range, as in a deployment. A client that has fewer
    samples than others has NaN for labels from there on, and takes no part in further rounds: the server forgets it. ``names`` are
    the clients' (client-0, … if left out). ``watch`` is called with the current work and the number of predictions. If it returns
    True, the run ends with the rounds so far. Under a byte budget the token buckets see one second a round, and more if a round
    waits for them. DataError if the federation diverges or refuses a sample, ConfigurationError if it cannot go on.
    """
    rounds, clients, dimension = inputs.shape
    scales = settings.samples or SamplesSection(topic="samples")
    # The format of records that this function writes, independent of the user's.
    section = SamplesSection(
        topic="samples",
        format="msgpack",
        sample_id="id",
        features="inputs",
        dimension=dimension,
        label="label",
        input_norm=scales.input_norm,
        label_range=scales.label_range,
    )
    federation = settings.federation.model_copy(update={"clients": clients, "features": dimension})
    settings = settings.model_copy(update={"samples": section, "federation": federation, "labels": None}).in_one_process()
    clock = _Clock()
    bus = MemoryBus(clock=clock)
    started = time.perf_counter()
    server_worker = _start("pofmkl-server", settings, bus, clock)
    client_worker = _start("pofmkl-client", settings, bus, clock)
    client = cast(PofmklClient, client_worker.role)
    steps: dict[str, list[StepTrace]] = {}
    if trace:
        client.trace = lambda step: steps.setdefault(step.client, []).append(step)
    observer = _Observer(bus, federation.name)
    names = names or [f"client-{index}" for index in range(clients)]
    index_of = {name: index for index, name in enumerate(names)}
    encode = msgspec.msgpack.Encoder().encode
    low, high = section.label_range
    budget = settings.uplink.budget_bytes_per_second
    predictions = np.full((rounds, clients), np.nan)
    course: dict[str, list[float]] = {}
    done, downlink_bytes, allowed_bytes = 0, 0, 0.0
    taking_part, interrupted = list(range(clients)), ""
    for number, there in enumerate(present(labels)):
        began, heard = clock.now, observer.model_bytes
        before, taking_part = taking_part, np.flatnonzero(there).tolist()
        for index in set(before).difference(taking_part):
            server_worker.role.forget(names[index])
        round_of_samples = []
        for index, values in zip(taking_part, inputs[number, taking_part].tolist(), strict=True):
            content = {"id": str(number), "inputs": values, "label": float(labels[number, index])}
            round_of_samples.append(Outgoing("samples", names[index].encode(), encode(content)))
        bus.write(round_of_samples)
        done += len(round_of_samples)
        for _ in range(_MOST_STEPS):
            moved = client_worker.step(0.0)
            moved = server_worker.step(0.0) or moved
            if not moved:
                if client.predicted == done:
                    break
                _check_letters(bus, federation.name)
                # Nothing can happen until time passes: a bucket has to fill, or a round has to time out.
                clock.advance(client_worker.role.wake_at, server_worker.role.wake_at)
        else:
            standing = (
                f"the federation is stuck in round {number}: {client.predicted} of {done} samples are predicted, "
                f"{done - client.predicted} wait, after {clock.now:g} simulated seconds"
            )
            if budget is not None:
                standing += f"; raise uplink.budget_bytes_per_second = {budget:g} or leave it out"
            raise ConfigurationError(standing)
        clock.now += 1.0
        if client.trouble is not None:
            raise _diverged(client.trouble, settings)
        server_figures = {one.name: one.value for one in server_worker.role.measure()}
        if server_figures.get("bounded_parameters"):
            raise _diverged("the model's parameters grew beyond what clients take", settings)
        for prediction in observer.new_predictions():
            # JSON has no infinity: a number too large for the label's own unit arrives as null.
            scaled = math.inf if prediction.prediction is None else (prediction.prediction - low) / (high - low)
            if not abs(scaled) <= _DIVERGED:
                raise _diverged(f"predictions reach {abs(scaled):g} where labels are between 0 and 1", settings)
            predictions[int(prediction.sample), index_of[prediction.client]] = scaled
        bus.forget_read()
        downlink_bytes += len(taking_part) * (observer.model_bytes - heard)
        allowed_bytes += len(taking_part) * (clock.now - began) * (budget or 0.0)
        if trace:
            stood = {"uplink_bytes": float(observer.uplink_bytes), "staleness": server_figures["staleness"]}
            if budget is not None:
                stood["budget_bytes"] = allowed_bytes
            if client.challengers is not None:
                stood |= {f"challengers/{name}": mse for name, mse in client.challengers.mean_squared_errors().items()}
            for name, value in stood.items():
                course.setdefault(name, []).append(value)
        if watch("federation", done):
            interrupted = f"{done:,} of {samples_of(labels).sum():,} samples"
            predictions, labels = predictions[: number + 1], labels[: number + 1]
            break
    scaled_labels = (np.asarray(labels, dtype=np.float64) - low) / (high - low)
    local = np.full_like(scaled_labels, np.nan)
    if local_only and not interrupted:
        try:
            alone = local_predictions(settings, inputs / section.input_norm, scaled_labels, partial(_go_on, watch))
            with np.errstate(over="ignore", invalid="ignore"):
                local = np.square(alone - scaled_labels)
        except _Interrupted:
            interrupted = ALONE
    outcome = Outcome(
        settings=settings,
        predictions=predictions,
        labels=scaled_labels,
        scale=high - low,
        local=local,
        mean=_running_mean(scaled_labels),
        # The simulated topics have one partition.
        regret_per_client={name: regret for (_, name), regret in client.regret().items()},
        uplink_bytes=observer.uplink_bytes,
        downlink_bytes=downlink_bytes,
        budget_bytes=None if budget is None else allowed_bytes,
        seconds=time.perf_counter() - started,
        parameters=client.model.parameters.copy(),
        frequencies=drawn_frequencies(client.learner),
        steps=steps,
        challengers=errors_of_challengers(client.challengers),
        course={name: np.array(values) for name, values in course.items()},
        interrupted=interrupted,
    )
    client_worker.close()
    server_worker.close()
    return outcome


class _Interrupted(Exception):
    """The run of clients on their own was interrupted."""


def _go_on(watch: Callable[[str, int], bool], samples: int) -> None:
    if watch(ALONE, samples):
        raise _Interrupted


def _side_by_side(clients: Sequence[Sequence[StepTrace]], attribute: str) -> NDArray[Any]:
    """An attribute of every step, (T, K, …)."""
    first = np.asarray(getattr(clients[0][0], attribute))
    gap = {"f": np.nan, "i": -1, "b": False}[first.dtype.kind]
    result = np.full((max(map(len, clients)), len(clients), *first.shape), gap, first.dtype)
    for number, steps in enumerate(clients):
        result[: len(steps), number] = [getattr(step, attribute) for step in steps]
    return result


def drawn_frequencies(learner: Learner) -> dict[str, NDArray[Any]]:
    """The random features' frequencies, as a trace names them."""
    if isinstance(learner, PaperLearner):
        return {"frequencies": learner.features.frequencies}
    assert isinstance(learner, DefaultLearner)
    return {f"frequencies_{view}": drawn for view, drawn in learner.features.frequencies.items()}


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


class _Published(msgspec.Struct, gc=False):
    """The fields of a prediction that the observer reads."""

    client: str
    sample: str
    prediction: float | None


class _Observer:
    """Reads what the federation publishes, as a user's consumer would."""

    def __init__(self, bus: MemoryBus, federation: str) -> None:
        self._model, self._updates = f"{federation}.model", f"{federation}.updates"
        self._session = bus.session(Subscription("observer", (f"{federation}.predictions",), (self._model, self._updates)))
        self.uplink_bytes = 0
        self.model_bytes = 0

    def new_predictions(self) -> list[_Published]:
        predictions = []
        while polled := self._session.poll(0.0, 10_000):
            for record in polled.tables:
                if record.topic == self._model:
                    self.model_bytes += record_size(record)
                else:
                    self.uplink_bytes += record_size(record)
            predictions += [msgspec.json.decode(record.value or b"", type=_Published) for record in polled.records]
        return predictions


def _start(kind: str, settings: PofmklSettings, bus: MemoryBus, clock: _Clock) -> Worker:
    """A worker of this kind, with its topics. A topic that may have any number of partitions gets one."""
    # The operator's [bus] is for another bus. Here a group from it would hold workers of both kinds.
    own = settings.model_copy(update={"role": RoleSection(kind=kind), "bus": BusSection(commit_interval_ms=0)})
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


def _diverged(cause: str, settings: PofmklSettings) -> DataError:
    return DataError(
        f"the federation diverged: {cause}. "
        f"Lower learning.learning_rate = {settings.learning.rate:g} or learning.regularisation = "
        f"{settings.learning.regularisation:g}, or send more kernels an upload (section [uplink])."
    )


def _running_mean(labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared errors of predicting the mean of the client's labels so far, and 0 before the first."""
    counts = np.arange(len(labels))[:, None]
    before = np.cumsum(labels, axis=0) - labels
    return np.asarray(np.square(before / np.maximum(counts, 1) - labels))
