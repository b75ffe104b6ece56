"""What ``streamfl report`` shows of POF-MKL: error, regret against its bound, kernels, bytes and staleness over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamfl.kernels import loss_named
from streamfl.kernels.log_weights import normalised
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.lab.report import bytes_as_text, regret_over_time
from streamfl.records.samples import DataError
from streamfl.simulation.page import Arrays, Chart, Line, Page, Reports, Seen, Topics

__all__ = ["REPORTS", "bound_over_time"]

Floats = NDArray[np.float64]

NEEDED = (
    *("predictions", "labels", "kernel_predictions", "kernel_log_weights", "published", "local_squared_errors"),
    *("uplink_bytes", "staleness", "loss", "preset", "rate"),
)
# So many kernels have a colour of their own.
SHOWN = 7
# What is shown as a bar.
LEAST_WEIGHT = 0.001
ROUNDS = "samples a client"
ERRORS = (
    "The mean of (prediction - label)² over everything so far. Lower is better. The federation should end below the running "
    "mean, which learns nothing from the inputs, and below each challenger. If it does not, look at the inputs and at "
    "samples.label_range."
)
WEIGHTS = (
    "How much of the prediction each kernel makes, the mean over clients. Weight that gathers on few kernels says which bandwidths "
    "fit; weight that stays even says that no kernel is better than another yet."
)
NOW = (
    "How much of the prediction each kernel or local expert makes as the clients remember it, the mean over clients. Those below "
    "0.001 are left out. Where local experts have all the weight, the model of the federation does not help yet."
)
BYTES = (
    "What clients sent to the server. A line that lies on the budget means that kernels were held back for it; far below, the "
    "budget does not bind."
)


def _of_trace(trace: Arrays) -> Page:
    """From the arrays of ``streamfl simulate --trace``; DataError if one is missing."""
    if missing := [name for name in NEEDED if name not in trace]:
        raise DataError(f"the trace has no {', '.join(missing)}: it was written by an earlier release; simulate again")
    labels = trace["labels"]
    samples, clients = labels.shape
    rounds = np.arange(1, samples + 1)
    errors, last = _errors_of_trace(trace, rounds)
    regret = regret_over_time(trace, loss_named(str(trace["loss"])))
    sent = float(trace["uplink_bytes"][-1])
    budget = float(trace["budget_bytes"][-1]) if "budget_bytes" in trace else None
    figures = [
        ("samples", f"{samples * clients:,} of {clients} clients"),
        ("mean squared error", f"{last['federation']:.5f}"),
        ("running mean's", f"{last['running mean']:.5f}"),
        ("regret per sample", f"{regret[-1] / samples:.5f}"),
        ("sent by clients", bytes_as_text(sent)),
        *([] if budget is None else [("byte budget used", f"{sent / budget:.0%}")]),
        ("staleness, at most", f"{int(trace['staleness'].max()):,} versions"),
    ]
    charts = [
        errors,
        *_regret_charts(rounds, regret, trace["kernel_predictions"].shape[2], str(trace["preset"]), float(trace["rate"])),
        _weights_chart(trace, rounds),
        _bytes_chart(rounds, trace["uplink_bytes"], trace.get("budget_bytes")),
        Chart(
            "Staleness of updates",
            "Versions of the model between the one that an update was made with and the one that it was added to, of the last "
            "update in each round. With learning.staleness = \"lockstep\" it is 0. Where it grows, clients run far ahead of the "
            "model that they hear of.",
            [Line("staleness", rounds, trace["staleness"])],
            ROUNDS,
            "versions",
        ),
    ]
    said = f"A simulated federation of {clients} clients with {samples:,} samples each, preset \"{trace['preset']}\"."
    notes = ["Errors and losses are on the learning scale: labels from 0 to 1 by samples.label_range."]
    return Page("POF-MKL: report of a simulation", said, figures, charts, notes=notes)


def _errors_of_trace(trace: Arrays, rounds: NDArray[Any]) -> tuple[Chart, dict[str, float]]:
    labels = trace["labels"]
    counts = np.arange(len(labels))[:, None]
    means = (np.cumsum(labels, axis=0) - labels) / np.maximum(counts, 1)
    squared = {
        "federation": np.square(trace["published"] - labels),
        "running mean": np.square(means - labels),
        "each client on its own": trace["local_squared_errors"],
    }
    with np.errstate(over="ignore", invalid="ignore"):
        curves = {name: np.cumsum(each.mean(axis=1)) / rounds for name, each in squared.items()}
    curves |= {f"challenger {name.partition('/')[2]}": values for name, values in trace.items() if name.startswith("challengers/")}
    lines = [Line(name, rounds, values, level=name != "federation") for name, values in curves.items()]
    chart = Chart("Mean squared error so far", ERRORS, lines, ROUNDS, "squared error", logarithmic=True)
    return chart, {name: float(values[-1]) for name, values in curves.items()}


def bound_over_time(rounds: NDArray[Any], kernels: int, rate: float | None) -> Floats:
    """R(t) <= ln N / eta + eta t / 2   (POF-MKL, Theorem 1), for losses from 0 to 1.

    rate: eta; None: at each t the one for which the bound is lowest, sqrt(2 ln N / t), which gives sqrt(2 t ln N).
    """
    if rate is None:
        return np.sqrt(2.0 * rounds * math.log(kernels))
    return np.asarray(math.log(kernels) / rate + rate * rounds / 2.0, dtype=np.float64)


def _regret_charts(rounds: NDArray[Any], regret: Floats, kernels: int, preset: str, rate: float) -> list[Chart]:
    proved = preset == "paper"
    says = (
        "What the predictions lost beyond the client's best kernel in hindsight, added up, the mean over clients (equation 11). "
        "Below zero the mixture is better than every kernel alone. "
    )
    if proved:
        says += f"Theorem 1: at most ln N / eta + eta t / 2, for losses from 0 to 1; N = {kernels} kernels, eta = {rate:.3g}."
    else:
        says += (
            f"The bound is Theorem 1's at its best, sqrt(2 t ln N) with N = {kernels}: this preset weighs kernels by another rule, "
            "so the line is a yardstick here and no promise."
        )
    bound = Line("Theorem 1's bound", rounds, bound_over_time(rounds, kernels, rate if proved else None), level=True)
    per_sample = (
        "The same, divided by the samples so far. It should fall towards zero or below it. If it stays up, the weights follow the "
        "wrong kernels, or the best kernel changes: see drift.detector."
    )
    return [
        Chart("Regret against its bound", says, [Line("regret", rounds, regret), bound], ROUNDS, "loss"),
        Chart("Regret per sample", per_sample, [Line("regret per sample", rounds, regret / rounds)], ROUNDS, "loss a sample"),
    ]


def _weights_chart(trace: Arrays, rounds: NDArray[Any]) -> Chart:
    weights = normalised(trace["kernel_log_weights"].astype(np.float64)).mean(axis=1)
    names = [str(name) for name in trace.get("kernels", np.arange(weights.shape[1]))]
    order = np.argsort(-weights.mean(axis=0), kind="stable")
    lines = [Line(names[kernel], rounds, weights[:, kernel]) for kernel in order[:SHOWN].tolist()]
    if len(order) > SHOWN:
        lines.append(Line(f"the other {len(order) - SHOWN}", rounds, weights[:, order[SHOWN:]].sum(axis=1), rest=True))
    return Chart("Kernel weights", WEIGHTS, lines, ROUNDS, "share", stacked=True)


def _bytes_chart(x: NDArray[Any], sent: Floats, budget: Floats | None, horizontal: str = ROUNDS, times: bool = False) -> Chart:
    lines = [Line("sent", x, sent)] + ([] if budget is None else [Line("budget", x, budget, level=True)])
    return Chart("Bytes sent by clients", BYTES, lines, horizontal, "bytes so far", times=times)


def _of_topics(topics: Topics) -> Page:
    """From predictions, updates, the model and what the clients remember."""
    settings = cast(PofmklSettings, topics.settings)
    notes: list[str] = []
    charts: list[Chart] = []
    figures: list[tuple[str, str]] = []
    predictions = [one for one in topics.said("predictions") if isinstance(one.says, Mapping)]
    figures.append(("predictions read", f"{len(predictions):,}"))
    if (errors := _errors_of_topics(predictions)) is not None:
        chart, last = errors
        charts.append(chart)
        figures += [(name if name != "federation" else "mean squared error", f"{value:.5g}") for name, value in last.items()]
    elif predictions:
        notes.append(
            "No error over time: the predictions have no labels. With [labels] they come on a topic of their own, and the table "
            "below has each client's error as the clients remember it."
        )
    updates = [one for one in topics.said("updates") if isinstance(one.says, Mapping)]
    if updates:
        charts.append(_bytes_of_topics(updates, settings))
        figures.append(("sent by clients", bytes_as_text(float(sum(one.size for one in updates)))))
        charts.append(_staleness_of_topics(updates, topics.said("model")))
    remembered = topics.remembered()
    charts += _of_state({} if remembered is None else remembered.figures, settings, figures)
    return Page(
        f"POF-MKL: report of {settings.federation.name}",
        "What lies in the federation's topics. Nothing was changed, and no worker was disturbed.",
        figures,
        charts,
        notes=notes,
    )


def _errors_of_topics(predictions: Iterable[Seen]) -> tuple[Chart, dict[str, float]] | None:
    """Of predictions that name their label, in the label's own unit; yardsticks follow from the labels."""
    squared: dict[str, list[float]] = {"federation": [], "running mean": [], "last label": []}
    sums: dict[str, tuple[float, int, float]] = {}
    for one in predictions:
        said = one.says
        label, prediction, client = said.get("label"), said.get("prediction"), str(said.get("client"))
        if not (_is_number(label) and _is_number(prediction)):
            continue
        total, count, before = sums.get(client, (0.0, 0, math.nan))
        sums[client] = (total + label, count + 1, label)
        if not count:
            # A client's first label has nothing to be compared with.
            continue
        for name, guess in (("federation", prediction), ("running mean", total / count), ("last label", before)):
            squared[name].append((guess - label) ** 2)
    counts = np.arange(1, len(squared["federation"]) + 1)
    if not len(counts):
        return None
    curves = {name: np.cumsum(values) / counts for name, values in squared.items()}
    lines = [Line(name, counts, values, level=name != "federation") for name, values in curves.items()]
    says = f"{ERRORS} In the square of the label's own unit; each client's first label is left out."
    chart = Chart("Mean squared error so far", says, lines, "labels, all clients together", "squared error", logarithmic=True)
    return chart, {name: float(values[-1]) for name, values in curves.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _bytes_of_topics(updates: Sequence[Seen], settings: PofmklSettings) -> Chart:
    times = np.array([one.time for one in updates])
    sent = np.cumsum([float(one.size) for one in updates])
    clients = len({one.says["client"] for one in updates})
    rate = settings.uplink.budget_bytes_per_second
    # A client may send the bytes of a second at once.
    budget = None if rate is None else rate * clients * (times - times[0] + 1.0)
    return _bytes_chart(times, sent, budget, "time, UTC", times=True)


def _staleness_of_topics(updates: Sequence[Seen], model: Sequence[Seen]) -> Chart:
    """Of each update, how far its version is behind the newest of its shard that was there, or that another update names."""
    markers = [one for one in model if isinstance(one.says, Mapping) and "model_version" in one.says]
    events = [(one.time, 0, int(one.says["shard"]), int(one.says["model_version"])) for one in markers]
    events += [(one.time, 1, one.partition, int(one.says["version"])) for one in updates]
    newest: dict[int, int] = {}
    behind: list[float] = []
    for _, is_update, shard, version in sorted(events):
        newest[shard] = max(version, newest.get(shard, 0))
        if is_update:
            behind.append(float(newest[shard] - version))
    says = (
        "Versions of the model between the one that an update was made with and the newest one that was published when it was "
        "written. The model's topic is compacted, so of long ago this is a lower bound. Where it grows, clients do not hear of "
        "the model in time: look at their lag, and at learning.max_staleness."
    )
    line = Line("staleness", np.arange(1, len(behind) + 1), np.array(behind))
    return Chart("Staleness of updates", says, [line], "updates, all clients together", "versions")


def _of_state(remembered: Mapping[str, Any], settings: PofmklSettings, figures: list[tuple[str, str]]) -> list[Chart]:
    """Kernel weights and regret as the clients remember them now; figures get what is told in one number."""
    clients = [one for one in remembered.get("clients", ()) if one["labels"]]
    if not clients:
        return []
    labels = sum(one["labels"] for one in clients)
    regret = sum(one["regret"] for one in clients)
    kernels, learning = settings.kernel_count, settings.learning
    rate = learning.rate if learning.preset == "paper" else None
    bound = sum(float(bound_over_time(np.array(one["labels"]), kernels, rate)) for one in clients)
    figures.append(("regret per sample", f"{regret / labels:.5f}"))
    figures.append(("Theorem 1's bound, per sample", f"{bound / labels:.3g}"))
    weights: dict[str, float] = {}
    for one in clients:
        for name, weight in one["weights"].items():
            weights[name] = weights.get(name, 0.0) + weight / len(clients)
    best = [name for name in sorted(weights, key=lambda name: -weights[name])[: SHOWN + 1] if weights[name] >= LEAST_WEIGHT]
    lines = [Line(name, np.zeros(1), np.array([weights[name]])) for name in best]
    return [Chart("Weights of kernels and experts now", NOW, lines, "", "share", bars=True)]


REPORTS = Reports(of_trace=_of_trace, of_topics=_of_topics)
