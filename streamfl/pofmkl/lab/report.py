"""A run as a person judges it: a table's rows, and a picture of error and regret over time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.kernels import Loss, loss_named
from streamfl.pofmkl.lab.federation import Outcome
from streamfl.simulation.pictures import FEDERATION, LOCAL, MEAN, STYLES, label_axes, new_pyplot

__all__ = ["bytes_as_text", "draw_errors", "picture", "regret_over_time", "rows"]

_CLASSIFICATION = {"log_loss": "Log loss, federation", "accuracy": "Accuracy, federation", "auc": "AUC, federation"}


def regret_over_time(trace: Mapping[str, NDArray[Any]], loss: Loss) -> NDArray[np.float64]:
    """Regret (11) of the average client after each round, (T,): its loss so far minus that of its best kernel so far.

    trace: what :meth:`Outcome.trace` says of a traced run.
    """
    labels = trace["labels"]
    there = ~np.isnan(labels)
    own = np.cumsum(np.where(there, loss.value(trace["predictions"], labels), 0.0), axis=0)
    lost = loss.value(trace["kernel_predictions"], labels[..., None])
    kernels = np.cumsum(np.where(there[..., None], lost, 0.0), axis=0)
    return np.asarray((own - kernels.min(axis=2)).mean(axis=1), dtype=np.float64)


def rows(outcome: Outcome) -> list[tuple[str, str]]:
    """What was measured and its value, ready to print."""
    summary = outcome.summary()
    budget = summary["uplink_budget_bytes"]
    sent = summary["uplink_bytes"]
    local = summary["mse_local_only"]
    allowed = "no budget" if budget is None else f"{bytes_as_text(budget)} allowed ({sent / budget:.0%} used)"
    return [
        ("Samples", f"{summary['samples']:,} of {summary['clients']} clients"),
        ("MSE, federation", f"{summary['mse']:.5f}"),
        *((text, f"{summary[name]:.5f}") for name, text in _CLASSIFICATION.items() if summary[name] is not None),
        ("MSE, each client on its own", f"{local:.5f}" if np.isfinite(local) else "diverged"),
        ("MSE, each client's running mean", f"{summary['mse_running_mean']:.5f}"),
        *((f"MSE, challenger {name}", f"{mse:.5f}") for name, mse in summary["mse_challengers"].items()),
        ("Regret per sample", f"{summary['regret_mean'] / summary['rounds']:.5f}"),
        ("Sent by the clients", f"{bytes_as_text(sent)}, {allowed}"),
        ("Time", f"{summary['seconds']:.1f} s"),
    ]


def picture(outcome: Outcome, path: Path, title: str) -> None:
    """Write mean squared error and regret over time to ``path``; the ending says the format. Needs a traced run.

    Challengers are lines at the error that they end with.
    """
    pyplot = new_pyplot()
    regret = regret_over_time(outcome.trace(), loss_named(outcome.settings.learning.loss))
    rounds = np.arange(1, len(regret) + 1)
    figure, (errors, regrets) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    draw_errors(outcome, errors)
    regrets.plot(rounds, regret / rounds, color=FEDERATION, linewidth=2.5)
    label_axes(regrets, "Regret per sample", "samples a client")
    figure.suptitle(title)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def draw_errors(outcome: Outcome, axes: Any) -> None:
    """Draw mean squared error over time, the federation's and what to compare it with. A challenger is a line at its last."""
    rounds = np.arange(1, len(outcome.labels) + 1)
    for name, squared, colour, width in (
        ("running mean", outcome.mean, MEAN, 1.5),
        ("each client on its own", outcome.local, LOCAL, 1.5),
        ("federation", outcome.squared_errors, FEDERATION, 2.5),
    ):
        axes.plot(rounds, np.cumsum(squared.mean(axis=1)) / rounds, color=colour, linewidth=width, label=name)
    for style, (name, mse) in zip(cycle(STYLES), outcome.challengers.items(), strict=False):
        axes.axhline(mse, color="black", linewidth=1, linestyle=style, label=f"{name}, at the end")
    label_axes(axes, "Mean squared error so far", "samples a client")
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)


def bytes_as_text(count: float) -> str:
    """A number of bytes with the unit that fits."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
