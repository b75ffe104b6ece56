"""Runs several methods on the same streams: how well each predicts, and how much it sends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamfl.configuration.settings import Section
from streamfl.contract.role import ConfigurationError
from streamfl.learning.challengers import challenger, challenger_about, challenger_names
from streamfl.pofmkl.config import FOREIGN_KEYS, PofmklSettings
from streamfl.pofmkl.estimators.baselines import Baseline, em_kofl, ofmkl_avg, ofskl, per_fed_avg, vm_kofl
from streamfl.pofmkl.roles import feature_map
from streamfl.pofmkl.tools.alone import alone
from streamfl.pofmkl.tools.direct import federated
from streamfl.pofmkl.tools.errors import errors_of, rmse_over_time
from streamfl.pofmkl.tools.federation import simulate
from streamfl.pofmkl.tools.sites import InputArray, samples_of

__all__ = ["Contender", "Problem", "compare", "method_names", "settings_of"]


@dataclass(frozen=True)
class Problem:
    """Streams, and the settings of the federation that learns from them.

    inputs: (T, K, d), in their own units; [samples] in the settings gives the learning scale.
    labels: (T, K), in their own unit, NaN where a client has no samples any more.
    names: the clients', which their draws depend on; None: client-0, client-1, …
    delay: sample t's label is learnt after sample t + delay is predicted.
    """

    settings: PofmklSettings
    inputs: InputArray
    labels: NDArray[np.float64]
    names: Sequence[str] | None = None
    delay: int = 0

    def client_names(self) -> list[str]:
        """The clients' names, which their draws depend on."""
        return list(self.names or (f"client-{index}" for index in range(self.labels.shape[1])))

    @property
    def label_unit(self) -> float:
        """Units of the label for 1 on the learning scale."""
        low, high = (0.0, 1.0) if self.settings.samples is None else self.settings.samples.label_range
        return high - low

    def scaled(self) -> tuple[InputArray, NDArray[np.float64]]:
        """Inputs and labels on the learning scale."""
        samples = self.settings.samples
        if samples is None:
            return self.inputs, self.labels
        low, high = samples.label_range
        return self.inputs / samples.input_norm, (self.labels - low) / (high - low)


@dataclass(frozen=True)
class Contender:
    """A method and its results: predictions (T, K) and their squared errors on the learning scale;
    uplink_bytes of all clients.

    uplink_bytes None: the method sends, but its bytes were not counted. label_unit: units of the label for 1
    on the learning scale. labels: (T, K), on the learning scale, NaN where there is no sample.
    """

    name: str
    predictions: NDArray[np.float64]
    squared_errors: NDArray[np.float64]
    uplink_bytes: float | None
    label_unit: float
    labels: NDArray[np.float64]

    @property
    def about(self) -> str:
        """The method in a few words."""
        return _ABOUT.get(self.name) or challenger_about(self.name) or ""

    @property
    def uplink_bytes_per_sample(self) -> float | None:
        return None if self.uplink_bytes is None else self.uplink_bytes / int(samples_of(self.labels).sum())

    def summary(self) -> dict[str, Any]:
        """The figures of the method, as ``streamfl compare --format json`` prints them.

        rmse and mae are in the label's own unit, None where the method diverged; scaled_mse is on labels from
        0 to 1.
        """
        errors = errors_of(self.squared_errors, self.labels, self.label_unit)
        there = bool(np.isfinite(errors.rmse))
        return {
            "method": self.name,
            "about": self.about,
            "rmse": errors.rmse if there else None,
            "mae": errors.mae if there else None,
            "scaled_mse": (errors.rmse / self.label_unit) ** 2 if there else None,
            "uplink_bytes": self.uplink_bytes,
            "uplink_bytes_per_sample": self.uplink_bytes_per_sample,
        }

    def rmse_over_time(self) -> NDArray[np.float64]:
        """RMSE of the samples so far, (T,), in the label's own unit."""
        return rmse_over_time(self.squared_errors, self.labels, self.label_unit)


def method_names(delay: int = 0, every: bool = True) -> tuple[str, ...]:
    """The methods that can be compared if labels are ``delay`` samples late.

    default and paper: federations of the two presets; local: the default's clients without a server; learners
    without a federation. every: with the methods that the paper compares itself with. The paper and these
    methods are defined only for labels that come before the next sample.
    """
    prompt = () if delay else ("paper", *(_BASELINES if every else ()))
    return ("default", "local", *prompt, *challenger_names())


def settings_of(settings: PofmklSettings, preset: Literal["default", "paper"]) -> PofmklSettings:
    """The settings converted to ``preset``. Keys with a meaning there stay, all others are as if left out.

    A learning rate and a dictionary of kernels do not carry over: their units differ. M and the number of
    shards are cut to N."""
    if settings.learning.preset == preset:
        return settings
    changed: dict[str, Section] = {}
    for name, foreign in FOREIGN_KEYS[preset].items():
        section: Section = getattr(settings, name)
        kept = section.model_dump(exclude_unset=True, exclude=foreign | {"learning_rate", "bandwidths"})
        changed[name] = type(section).model_validate(
            kept | ({"preset": preset} if name == "learning" else {})
        )
    settings = settings.model_copy(update=changed)
    federation, uplink = settings.federation, settings.uplink
    if uplink.kernels_per_upload is not None:
        fewer = min(uplink.kernels_per_upload, settings.kernel_count)
        settings = settings.model_copy(
            update={"uplink": uplink.model_copy(update={"kernels_per_upload": fewer})}
        )
    shards = min(federation.shards, settings.kernel_count)
    return settings.model_copy(update={"federation": federation.model_copy(update={"shards": shards})})


def compare(
    problem: Problem, methods: Sequence[str], progress: Callable[[str], None] = lambda method: None
) -> Iterator[Contender]:
    """Run the methods one after the other on the same streams. ``progress`` is called with each method's name
    before it runs.

    Each prediction is made before its label is used. Raises ConfigurationError, before any method runs, if a
    method is unknown or cannot use late labels.
    """
    unknown = [name for name in methods if name not in method_names()]
    if unknown:
        raise ConfigurationError(f"method {unknown[0]!r}: known are {', '.join(method_names())}")
    late = method_names(problem.delay)
    prompt = [name for name in methods if name not in late]
    if prompt:
        raise ConfigurationError(
            f"method {prompt[0]!r}: it needs labels at once, not {problem.delay} samples late; "
            f"{', '.join(late)} can wait for them"
        )
    if problem.delay and "default" in methods and problem.settings.uplink.budget_bytes_per_second is not None:
        raise ConfigurationError(
            "uplink.budget_bytes_per_second: with late labels only uplink.kernels_per_upload can be "
            "compared; set it instead"
        )
    if problem.settings.learning.loss != "square":
        raise ConfigurationError(
            f'learning.loss = "{problem.settings.learning.loss}": only federations with loss = "square" can '
            "be compared"
        )
    for name in methods:
        progress(name)
        predictions, sent = _run(problem, name)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = np.square(predictions - problem.scaled()[1])
        yield Contender(name, predictions, errors, sent, problem.label_unit, problem.scaled()[1])


def _run(problem: Problem, name: str) -> tuple[NDArray[np.float64], float | None]:
    """Predictions of the method on the learning scale, and the bytes it sent."""
    if name in _BASELINES:
        found = _BASELINES[name](replace(problem, settings=settings_of(problem.settings, "paper")))
        return found.predictions, found.uplink_bytes
    if name == "paper":
        return _federation(settings_of(problem.settings, "paper"), problem)
    default = settings_of(problem.settings, "default")
    if name == "default" and not problem.delay:
        return _federation(default, problem)
    if name == "default":
        return federated(default, *problem.scaled(), problem.client_names(), problem.delay), None
    if name == "local":
        return alone(default, *problem.scaled(), problem.delay), 0.0
    return _challenger(problem, name), 0.0


def _federation(settings: PofmklSettings, problem: Problem) -> tuple[NDArray[np.float64], float]:
    outcome = simulate(settings, problem.inputs, problem.labels, names=problem.names, local_only=False)
    return outcome.predictions, float(outcome.uplink_bytes)


def _baseline(method: Callable[..., Baseline], problem: Problem, **own: Any) -> Baseline:
    inputs, labels = problem.scaled()
    learning = problem.settings.learning
    features = feature_map(problem.settings, inputs.shape[2])
    return method(
        inputs, labels, features, learning_rate=learning.rate, regularisation=learning.regularisation, **own
    )


def _em(problem: Problem, hedge: str) -> Baseline:
    return _baseline(em_kofl, problem, hedge=hedge, seed=problem.settings.federation.seed)


def _ofskl(problem: Problem) -> Baseline:
    learning = problem.settings.learning
    return ofskl(
        *problem.scaled(),
        features_per_kernel=learning.features_per_kernel,
        learning_rate=learning.rate,
        regularisation=learning.regularisation,
        seed=problem.settings.federation.seed,
    )


def _per_fed_avg(problem: Problem) -> Baseline:
    settings = problem.settings
    return per_fed_avg(*problem.scaled(), seed=settings.federation.seed, learning_rate=settings.learning.rate)


def _challenger(problem: Problem, name: str) -> NDArray[np.float64]:
    inputs, labels = problem.scaled()
    predictions = np.full(labels.shape, np.nan)
    for client, count in enumerate(samples_of(labels).tolist()):
        learner = challenger(name)
        waiting: deque[tuple[dict[int, float], float]] = deque()
        for number, values in enumerate(inputs[:count, client].tolist()):
            sample = dict(enumerate(values))
            predictions[number, client] = learner.predict(sample)
            waiting.append((sample, float(labels[number, client])))
            if len(waiting) > problem.delay:
                learner.learn(*waiting.popleft())
    return predictions


_BASELINES: dict[str, Callable[[Problem], Baseline]] = {
    "ofskl": _ofskl,
    "ofmkl-avg": partial(_baseline, ofmkl_avg),
    "vm-kofl-sum": partial(_baseline, vm_kofl, hedge="sum"),
    "vm-kofl-mean": partial(_baseline, vm_kofl, hedge="mean"),
    "em-kofl-sum": partial(_em, hedge="sum"),
    "em-kofl-mean": partial(_em, hedge="mean"),
    "per-fed-avg": _per_fed_avg,
}
# In the words of scikit-learn, where it has them.
_ABOUT = {
    "default": "the federation",
    "local": "the same learner, each client alone",
    "paper": "the federation with preset paper: kernel regression",
    "ofskl": "kernel regression by SGD, one RBF kernel",
    "ofmkl-avg": "kernel regression by SGD, mean of many kernels",
    "vm-kofl-sum": "kernel regression by SGD, kernels weighed by summed losses",
    "vm-kofl-mean": "kernel regression by SGD, kernels weighed by mean losses",
    "em-kofl-sum": "kernel regression by SGD, one kernel drawn by summed losses",
    "em-kofl-mean": "kernel regression by SGD, one kernel drawn by mean losses",
    "per-fed-avg": "small neural network, fitted to each client",
}
