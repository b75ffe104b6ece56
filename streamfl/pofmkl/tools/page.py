"""The pages of ``streamfl report`` for POF-MKL: error, regret, kernels, bytes and staleness over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import ConfigurationError, DataError
from streamfl.kernels import loss_named
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.log_weights import normalised
from streamfl.pofmkl.tools.regret import bound_over_time, regret_over_time, regularised_regret
from streamfl.pofmkl.tools.report import bytes_as_text
from streamfl.pofmkl.tools.sites import present, samples_of
from streamfl.simulation.error_words import in_words
from streamfl.simulation.page import Arrays, Chart, FederationTopics, Line, Page, ReadRecord, Reports
from streamfl.simulation.untrusted_trace import as_number, checked_arrays

__all__ = ["REPORTS"]

Floats = NDArray[np.float64]

EACH = ("rounds", "clients")
BY_SAMPLE = ("predictions", "labels", "published", "kernel_predictions", "kernel_log_weights")
SHAPES = {
    **dict.fromkeys(("predictions", "labels", "published", "local_squared_errors"), EACH),
    **dict.fromkeys(("kernel_predictions", "kernel_log_weights"), (*EACH, "kernels")),
    **dict.fromkeys(("uplink_bytes", "staleness"), ("rounds",)),
    "rate": (),
    "label_unit": (),
}
NAMES = ("loss", "preset")
# A learner without a federation, or a challenger, may diverge.
CHALLENGERS = "challengers/"
# Kernels with a colour of their own.
SHOWN = 7
# The least weight that is shown as a bar.
LEAST_WEIGHT = 0.001
ROUNDS = "samples a client"
UNIT = "units of the label"
# The theorem bounds losses from 0 to 1.
SCALED = "labels scaled to 0..1"
ERRORS = (
    "The root of the mean of (prediction - label)² over everything so far. Lower is better. The federation "
    "should end below the running mean, which learns nothing from the inputs, and below each challenger. If "
    "it does not, look at the inputs and at samples.label_range."
)
WEIGHTS = (
    "Share of each kernel in the prediction, the mean over clients. If few kernels have most of the weight, "
    "their bandwidths fit. If the weights stay even, no kernel is better than another yet."
)
NOW = (
    "Share of each kernel or local expert in the prediction, from the clients' state, the mean over clients. "
    "Shares below 0.001 are left out. If local experts have all the weight, the federation's model does not "
    "help yet."
)
BYTES = (
    "Bytes that clients sent to the server. A line on the budget means that kernels were left out because of "
    "it; far below, the budget has no effect."
)


def _of_trace(trace: Arrays) -> Page:
    """From the arrays of ``streamfl simulate --trace``; DataError if one is missing."""
    if missing := [name for name in (*SHAPES, *NAMES) if name not in trace]:
        raise DataError(
            f"the trace has no {', '.join(missing)}: it was written by an earlier release; simulate again"
        )
    trace = {**trace, **_checked(trace)}
    labels = trace["labels"]
    counts = samples_of(labels)
    samples, clients = int(counts.sum()), len(counts)
    rounds = np.arange(1, len(labels) + 1)
    errors, last = _errors_of_trace(trace, rounds)
    regret = regret_over_time(trace, loss_named(str(trace["loss"])))
    sent = float(trace["uplink_bytes"][-1])
    budget = float(trace["budget_bytes"][-1]) if "budget_bytes" in trace else None
    figures = [
        ("samples", f"{samples:,} of {clients} clients"),
        (f"RMSE, {UNIT}", in_words(last["federation"])),
        ("running mean's", in_words(last["running mean"])),
        (f"regret per sample, {SCALED}", f"{regret[-1] * clients / samples:.5f}"),
        ("sent by clients", bytes_as_text(sent)),
        *([] if budget is None else [("byte budget used", f"{sent / budget:.0%}")]),
        ("staleness, at most", f"{int(trace['staleness'].max()):,} versions"),
    ]
    charts = [
        errors,
        *_regret_charts(rounds, regret, trace),
        _weights_chart(trace, rounds),
        _bytes_chart(rounds, trace["uplink_bytes"], trace.get("budget_bytes")),
        Chart(
            "Staleness of updates",
            "Versions of the model between the one that an update was made with and the one that it was "
            "added to, of the last "
            'update in each round. With learning.staleness = "lockstep" it is 0. If it grows, clients are '
            "far ahead of the "
            "model that they receive.",
            [Line("staleness", rounds, trace["staleness"])],
            ROUNDS,
            "versions",
        ),
    ]
    each = f"{counts.max():,}" if counts.min() == counts.max() else f"{counts.min():,} to {counts.max():,}"
    said = (
        f'A simulated federation of {clients} clients with {each} samples each, preset "{trace["preset"]}".'
    )
    return Page("POF-MKL: report of a simulation", said, figures, charts)


def _checked(trace: Arrays) -> Arrays:
    challengers = [name for name in trace if name.startswith(CHALLENGERS)]
    shapes = SHAPES | dict.fromkeys(challengers, ("rounds",))
    if "budget_bytes" in trace:
        shapes["budget_bytes"] = ("rounds",)
    found = checked_arrays(trace, shapes, ("local_squared_errors", *challengers, *BY_SAMPLE))
    there = present(found["labels"])
    # A client without a sample in a round has none later.
    if not there[0].all() or (there[1:] > there[:-1]).any():
        raise DataError(
            "the trace's 'labels' has values that are not numbers before a client's last label, or a client "
            "without labels"
        )
    for name in BY_SAMPLE:
        if not np.isfinite(found[name][there]).all():
            raise DataError(
                f"the trace's {name!r} has values that are not numbers, or are too large, where there is a "
                "label"
            )
    for name in ("rate", "budget_bytes", "label_unit"):
        if not np.all(found.get(name, 1.0) > 0):
            raise DataError(f"the trace's {name!r} has to be above zero")
    try:
        loss_named(str(trace["loss"]))
    except ConfigurationError as error:
        raise DataError(f"the trace's 'loss': {error}") from None
    kernels = found["kernel_predictions"].shape[2]
    if "kernels" in trace and trace["kernels"].shape != (kernels,):
        raise DataError(f"the trace's 'kernels' has no name for each of {kernels} kernels")
    return found


def _errors_of_trace(trace: Arrays, rounds: NDArray[Any]) -> tuple[Chart, dict[str, float]]:
    labels = trace["labels"]
    counts = np.arange(len(labels))[:, None]
    means = (np.cumsum(labels, axis=0) - labels) / np.maximum(counts, 1)
    squared = {
        "federation": np.square(trace["published"] - labels),
        "running mean": np.square(means - labels),
        "each client on its own": trace["local_squared_errors"],
    }
    there = present(labels)
    so_far = np.cumsum(there.sum(axis=1))
    with np.errstate(over="ignore", invalid="ignore"):
        curves = {name: np.cumsum(each.sum(axis=1, where=there)) / so_far for name, each in squared.items()}
        curves |= {
            f"challenger {name.partition('/')[2]}": values
            for name, values in trace.items()
            if name.startswith(CHALLENGERS)
        }
        curves = {name: trace["label_unit"] * np.sqrt(values) for name, values in curves.items()}
    lines = [Line(name, rounds, values, level=name != "federation") for name, values in curves.items()]
    chart = Chart("Error so far", ERRORS, lines, ROUNDS, f"RMSE, {UNIT}", logarithmic=True)
    return chart, {name: float(values[-1]) for name, values in curves.items()}


def _regret_charts(rounds: NDArray[Any], regret: Floats, trace: Arrays) -> list[Chart]:
    kernels, rate = trace["kernel_predictions"].shape[2], float(trace["rate"])
    proved = str(trace["preset"]) == "paper"
    lines = [Line("regret", rounds, regret)]
    says = (
        "What the predictions lost beyond the client's best kernel in hindsight, added up, the mean over "
        "clients (equation 11). Below zero the mixture is better than every kernel alone. "
    )
    if proved:
        lines.append(
            Line("with the regularisation", rounds, regularised_regret(trace, loss_named(str(trace["loss"]))))
        )
        says += (
            f"Theorem 1: at most ln N / eta + eta t / 2, for losses from 0 to 1; N = {kernels} kernels, eta "
            f"= {rate:.3g}. The weights follow losses with lambda ||theta||², and so does the line with the "
            "regularisation: the theorem is of it."
        )
    else:
        says += (
            f"The bound is Theorem 1's at its best, sqrt(2 t ln N) with N = {kernels}: this preset weights "
            "kernels by another rule, so the line is only a comparison here, not a guarantee."
        )
    # A client's regret grows with its own samples, and stays the same when it has no more.
    so_far = np.cumsum(present(trace["labels"]), axis=0)
    bounds = bound_over_time(so_far, kernels, rate if proved else None).mean(axis=1)
    bound = Line("Theorem 1's bound", rounds, bounds, level=True)
    per_sample = (
        "The same, divided by the samples so far. It should fall towards zero or below it. If it stays up, "
        "the weights follow the wrong kernels, or the best kernel changes: see drift.detector."
    )
    line = Line("regret per sample", rounds, regret / so_far.mean(axis=1))
    return [
        Chart("Regret against its bound", says, [*lines, bound], ROUNDS, f"loss, {SCALED}"),
        Chart("Regret per sample", per_sample, [line], ROUNDS, f"loss a sample, {SCALED}"),
    ]


def _weights_chart(trace: Arrays, rounds: NDArray[Any]) -> Chart:
    there = present(trace["labels"])
    weights = normalised(trace["kernel_log_weights"]).mean(axis=1, where=there[..., None])
    names = [str(name) for name in trace.get("kernels", np.arange(weights.shape[1]))]
    order = np.argsort(-weights.mean(axis=0), kind="stable")
    lines = [Line(names[kernel], rounds, weights[:, kernel]) for kernel in order[:SHOWN].tolist()]
    if len(order) > SHOWN:
        lines.append(
            Line(f"the other {len(order) - SHOWN}", rounds, weights[:, order[SHOWN:]].sum(axis=1), rest=True)
        )
    return Chart("Kernel weights", WEIGHTS, lines, ROUNDS, "share", stacked=True)


def _bytes_chart(
    x: NDArray[Any], sent: Floats, budget: Floats | None, horizontal: str = ROUNDS, times: bool = False
) -> Chart:
    lines = [Line("sent", x, sent)] + ([] if budget is None else [Line("budget", x, budget, level=True)])
    return Chart("Bytes sent by clients", BYTES, lines, horizontal, "bytes so far", times=times)


def _of_topics(topics: FederationTopics) -> Page:
    """From predictions, updates, the model and the clients' stored state."""
    settings = cast(PofmklSettings, topics.settings)
    notes: list[str] = []
    charts: list[Chart] = []
    figures: list[tuple[str, str]] = []
    predictions = [one for one in topics.said("predictions") if isinstance(one.says, Mapping)]
    figures.append(("predictions read", f"{len(predictions):,}"))
    errors, left_out = _errors_of_topics(predictions)
    if left_out:
        notes.append(
            f"{left_out:,} predictions are not in the error: label or prediction is not a number, or too "
            "large."
        )
    if errors is not None:
        chart, last = errors
        charts.append(chart)
        figures += [
            (name if name != "federation" else f"RMSE, {UNIT}", in_words(value))
            for name, value in last.items()
        ]
    elif predictions and not left_out:
        notes.append(
            "No error over time: the predictions have no labels. With [labels] they come on a topic of their "
            "own, and the table below has each client's error as the clients remember it."
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
        "From the records in the federation's topics. Nothing was changed, and no worker was disturbed.",
        figures,
        charts,
        notes=notes,
    )


def _errors_of_topics(predictions: Iterable[ReadRecord]) -> tuple[tuple[Chart, dict[str, float]] | None, int]:
    """Errors of predictions with a label, in its own unit, and of baselines from the labels. Also how many
    were left out."""
    squared: dict[str, list[float]] = {"federation": [], "running mean": [], "last label": []}
    sums: dict[str, tuple[float, int, float]] = {}
    left_out = 0
    for one in predictions:
        said = one.says
        label = as_number(said.get("label"))
        prediction = as_number(said.get("prediction"))
        client = str(said.get("client"))
        if label is None or prediction is None:
            left_out += said.get("label") is not None
            continue
        total, count, before = sums.get(client, (0.0, 0, math.nan))
        sums[client] = (total + label, count + 1, label)
        if not count:
            # There is no baseline for a client's first label.
            continue
        for name, guess in (
            ("federation", prediction),
            ("running mean", total / count),
            ("last label", before),
        ):
            squared[name].append((guess - label) ** 2)
    counts = np.arange(1, len(squared["federation"]) + 1)
    if not len(counts):
        return None, left_out
    curves = {name: np.sqrt(np.cumsum(values) / counts) for name, values in squared.items()}
    lines = [Line(name, counts, values, level=name != "federation") for name, values in curves.items()]
    says = f"{ERRORS} Each client's first label is left out."
    chart = Chart(
        "Error so far", says, lines, "labels, all clients together", f"RMSE, {UNIT}", logarithmic=True
    )
    return (chart, {name: float(values[-1]) for name, values in curves.items()}), left_out


def _bytes_of_topics(updates: Sequence[ReadRecord], settings: PofmklSettings) -> Chart:
    times = np.array([one.time for one in updates])
    sent = np.cumsum([float(one.size) for one in updates])
    clients = len({one.says["client"] for one in updates})
    rate = settings.uplink.budget_bytes_per_second
    # A client may send a second's bytes at once.
    budget = None if rate is None else rate * clients * (times - times[0] + 1.0)
    return _bytes_chart(times, sent, budget, "time, UTC", times=True)


def _staleness_of_topics(updates: Sequence[ReadRecord], model: Sequence[ReadRecord]) -> Chart:
    """For each update, how far its version is behind the newest that its shard had published, or that an
    update names."""
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
        "Versions of the model between the one that an update was made with and the newest one that was "
        "published when it was written. The model's topic is compacted, so for old updates this is a lower "
        "bound. If it grows, clients do not get the model in time: check their lag, and "
        "learning.max_staleness."
    )
    line = Line("staleness", np.arange(1, len(behind) + 1), np.array(behind))
    return Chart("Staleness of updates", says, [line], "updates, all clients together", "versions")


def _of_state(
    remembered: Mapping[str, Any], settings: PofmklSettings, figures: list[tuple[str, str]]
) -> list[Chart]:
    """Kernel weights and regret from the clients' stored state. Single numbers are added to ``figures``."""
    clients = [one for one in remembered.get("clients", ()) if one["labels"]]
    if not clients:
        return []
    labels = sum(one["labels"] for one in clients)
    regret = sum(one["scaled_regret"] for one in clients)
    kernels, learning = settings.kernel_count, settings.learning
    rate = learning.rate if learning.preset == "paper" else None
    bound = sum(float(bound_over_time(np.array(one["labels"]), kernels, rate)) for one in clients)
    figures.append((f"regret per sample, {SCALED}", f"{regret / labels:.5f}"))
    name = (
        "Theorem 1's bound for it" if rate is not None else "Theorem 1's bound for it (for comparison here)"
    )
    figures.append((name, f"{bound / labels:.3g}"))
    weights: dict[str, float] = {}
    for one in clients:
        for name, weight in one["weights"].items():
            weights[name] = weights.get(name, 0.0) + weight / len(clients)
    best = [
        name
        for name in sorted(weights, key=lambda name: -weights[name])[: SHOWN + 1]
        if weights[name] >= LEAST_WEIGHT
    ]
    lines = [Line(name, np.zeros(1), np.array([weights[name]])) for name in best]
    return [Chart("Weights of kernels and experts now", NOW, lines, "", "share", bars=True)]


REPORTS = Reports(of_trace=_of_trace, of_topics=_of_topics)
