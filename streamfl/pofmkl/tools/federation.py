"""Simulates a POF-MKL federation, and measures it beside the baselines to compare it with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.learning.accuracy import classification_figures
from streamfl.pofmkl.client.role import StepTrace
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.tools.alone import local_predictions
from streamfl.pofmkl.tools.errors import Errors, errors_of, errors_of_challengers, without_regret
from streamfl.pofmkl.tools.kernel_names import kernel_names
from streamfl.pofmkl.tools.simulated_federation import SimulatedFederation
from streamfl.pofmkl.tools.sites import InputArray, present, samples_of
from streamfl.records.samples import SamplesSection
from streamfl.runtime.log import only_errors

__all__ = ["ALONE", "Outcome", "drawn_frequencies", "simulate"]

ALONE = "each client on its own"


@dataclass
class Outcome:
    """The results of a run. K clients, T rounds, N kernels.

    predictions, labels: (T, K) on the learning scale. All (T, K) arrays are NaN where a client has no samples
    any more.
    scale: one unit of the learning scale in the label's own unit.
    local, mean: (T, K), the squared errors of a learner without a federation and of each client's running
    mean.
    downlink_bytes: the model as published, once for every client that takes part.
    regret_per_client: in the order of the clients.
    challengers: errors on the learning scale of the settings' challengers.
    course: of a traced run, by name, (T,) each: values after every round.
    interrupted: where the run ended early.
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

        rmse and mae are in the label's own unit. Names that begin with scaled are for labels from 0 to 1.
        rmse_best_kernel: of each client's best kernel in hindsight. log_loss, accuracy and auc are over all
        samples together, and None with the square loss. With the logistic loss scaled_mse is the Brier score.
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
            "rmse_best_kernel": without_regret(
                found[""].rmse, sum(regrets) / samples, self.scale, learning.loss
            ),
            "challengers": {
                name: {"rmse": self.scale * one.rmse, "mae": self.scale * one.mae}
                for name, one in self.challengers.items()
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
        A report also shows: published, predictions as users read them, and local_squared_errors, (T, K);
        after each round, (T,) each: uplink_bytes, budget_bytes, staleness, challengers/NAME; and as texts
        kernels (N,), clients (K,), loss and preset."""
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
    """Run a federation over ``inputs`` (T, K, d) and ``labels`` (T, K), in the label's own unit, and measure
    it.

    Inputs are divided by samples.input_norm and labels mapped by samples.label_range, as in a deployment. A
    client that has fewer samples than others has NaN for labels from there on, and takes no part in further
    rounds: the server forgets it. ``names`` are the clients' (client-0, … if left out). ``watch`` is called
    with the current work and the number of predictions. If it returns True, the run ends with the rounds so
    far. Under a byte budget the token buckets see one second a round, and more if a round waits for them.
    DataError if the federation diverges or refuses a sample, ConfigurationError if it cannot go on.
    """
    clients, dimension = inputs.shape[1:]
    settings = _in_this_process(settings, clients, dimension)
    assert settings.samples is not None
    low, high = settings.samples.label_range
    scaled_labels = (np.asarray(labels, dtype=np.float64) - low) / (high - low)
    started = time.perf_counter()
    run = SimulatedFederation(
        settings, names or [f"client-{index}" for index in range(clients)], len(labels), trace
    )
    rounds, interrupted = _rounds(run, inputs, labels, watch)
    scaled_labels = scaled_labels[:rounds]
    local = None
    if local_only and not interrupted:
        local = _local_errors(settings, inputs / settings.samples.input_norm, scaled_labels, watch)
        interrupted = ALONE if local is None else ""
    client = run.client
    outcome = Outcome(
        settings=settings,
        predictions=run.predictions[: len(scaled_labels)],
        labels=scaled_labels,
        scale=high - low,
        local=np.full_like(scaled_labels, np.nan) if local is None else local,
        mean=_running_mean(scaled_labels),
        # The simulated topics have one partition.
        regret_per_client={name: regret for (_, name), regret in client.regret().items()},
        uplink_bytes=run.uplink_bytes,
        downlink_bytes=run.downlink_bytes,
        budget_bytes=run.budget_bytes,
        seconds=time.perf_counter() - started,
        parameters=client.model.parameters.copy(),
        frequencies=drawn_frequencies(client.learner),
        steps=run.steps,
        challengers=errors_of_challengers(client.challengers),
        course={name: np.array(values) for name, values in run.course.items()},
        interrupted=interrupted,
    )
    run.close()
    return outcome


def _rounds(
    run: SimulatedFederation, inputs: InputArray, labels: NDArray[Any], watch: Callable[[str, int], bool]
) -> tuple[int, str]:
    """Run the rounds, until ``watch`` ends them. Returns how many there were, and the samples until then of
    how many; "" if all were."""
    for number in range(len(labels)):
        run.round(number, inputs[number], labels[number])
        if watch("federation", run.done):
            return number + 1, f"{run.done:,} of {samples_of(labels).sum():,} samples"
    return len(labels), ""


def _in_this_process(settings: PofmklSettings, clients: int, dimension: int) -> PofmklSettings:
    """The settings of all members of the simulated federation."""
    scales = settings.samples or SamplesSection(topic="samples")
    # The format of records that a simulation writes, independent of the user's.
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
    return settings.model_copy(
        update={"samples": section, "federation": federation, "labels": None}
    ).in_one_process()


class _Interrupted(Exception):
    """The run of clients on their own was interrupted."""


def _local_errors(
    settings: PofmklSettings,
    inputs: InputArray,
    labels: NDArray[np.float64],
    watch: Callable[[str, int], bool],
) -> NDArray[np.float64] | None:
    """Squared errors (T, K) of each client on its own; None: interrupted."""

    def go_on(samples: int) -> None:
        if watch(ALONE, samples):
            raise _Interrupted

    try:
        alone = local_predictions(settings, inputs, labels, go_on)
    except _Interrupted:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.square(alone - labels))


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


def _running_mean(labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared errors of predicting the mean of the client's labels so far, and 0 before the first."""
    counts = np.arange(len(labels))[:, None]
    before = np.cumsum(labels, axis=0) - labels
    return np.asarray(np.square(before / np.maximum(counts, 1) - labels))
