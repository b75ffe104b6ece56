"""The report of a run: a table, and a picture of error and regret over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from streamfl.kernels import loss_named
from streamfl.learning.challengers import challenger_about
from streamfl.pofmkl.tools.errors import rmse_over_time
from streamfl.pofmkl.tools.federation import ALONE, Outcome
from streamfl.pofmkl.tools.regret import regret_over_time
from streamfl.simulation.error_words import in_words
from streamfl.simulation.pictures import FEDERATION, LOCAL, MEAN, STYLES, label_axes, logarithmic, new_pyplot
from streamfl.simulation.system_tools import Report

__all__ = ["bytes_as_text", "draw_errors", "error_columns", "picture", "report"]


def error_columns(unit: str, record_bytes: int) -> tuple[str, str, str]:
    """The headings of errors and bytes.

    unit: of the errors, such as "points".
    record_bytes: size of a record, to compare bytes with.
    """
    return f"RMSE, {unit}", f"MAE, {unit}", f"bytes sent a sample (a record: {record_bytes:,})"


def report(outcome: Outcome, title: str, unit: str, record_bytes: int) -> Report:
    """Every learner's errors and bytes. unit, record_bytes: as in :func:`error_columns`."""
    summary = outcome.summary()
    a_sample = summary["uplink_bytes_per_sample"]
    rows = [
        ("federation", in_words(summary["rmse"]), in_words(summary["mae"]), f"{a_sample:,.0f}"),
        _alone(outcome, summary),
        (
            "each client's running mean",
            in_words(summary["rmse_running_mean"]),
            in_words(summary["mae_running_mean"]),
            "nothing",
        ),
    ]
    if summary["rmse_best_kernel"] is not None:
        rows.append(
            ("each client's best kernel, known afterwards", in_words(summary["rmse_best_kernel"]), "", "")
        )
    for name, found in summary["challengers"].items():
        rows.append((_challenger(name), in_words(found["rmse"]), in_words(found["mae"]), "nothing"))
    return Report(
        title,
        rows,
        {**summary, "record_bytes": record_bytes},
        ("learner", *error_columns(unit, record_bytes)),
        notes=[*_notes(summary, unit, record_bytes), *_note_of_history(outcome)],
        interrupted=outcome.interrupted,
    )


def _alone(outcome: Outcome, summary: Mapping[str, Any]) -> Sequence[str]:
    if outcome.interrupted:
        return ALONE, "not run", "not run", ""
    return ALONE, in_words(summary["rmse_local_only"]), in_words(summary["mae_local_only"]), "nothing"


def _notes(summary: Mapping[str, Any], unit: str, record_bytes: int) -> Sequence[str]:
    sent, budget = summary["uplink_bytes"], summary["uplink_budget_bytes"]
    allowed = (
        "" if budget is None else f" of {bytes_as_text(budget)} that the budget allowed ({sent / budget:.0%})"
    )
    notes = [
        f"{summary['samples']:,} samples of {summary['clients']} clients in {summary['seconds']:.1f} s.",
        f"The clients sent {bytes_as_text(sent)}{allowed}: {summary['uplink_bytes_per_sample']:,.0f} bytes a "
        f"sample. The record itself, which stays with its client, has {record_bytes:,}.",
    ]
    own, alone = summary["mae"], summary["mae_local_only"]
    if summary["log_loss"] is not None:
        figures = (
            f"log loss {summary['log_loss']:.4f}, accuracy {summary['accuracy']:.4f}, AUC "
            f"{summary['auc']:.4f}"
        )
        notes.append(f"The federation's probabilities: {figures}.")
    elif np.isfinite(alone) and alone > 0:
        change = own / alone - 1.0
        meaning = f"the error is {abs(change):.0%} {'smaller' if change < 0 else 'larger'}"
        notes.append(
            f"On average a prediction of the federation is {in_words(own, 3)} {unit} off, and one of a "
            f"client on its own {in_words(alone, 3)}: by learning together {meaning}."
        )
    return notes


def _note_of_history(outcome: Outcome) -> Sequence[str]:
    """A note for async with a budget. With other staleness a history is learnt at its pace, and check counts
    no updates."""
    if outcome.budget_bytes is None or outcome.settings.learning.staleness != "async":
        return ()
    return (
        "This is with a sample a second of each client. History in a topic is learnt faster, and the budget "
        "pays for fewer updates of it: the rest is learnt alone. streamfl check says how many it pays.",
    )


def _challenger(name: str) -> str:
    about = challenger_about(name)
    return name if about is None else f"{name}: {about}"


def picture(outcome: Outcome, path: Path, title: str, unit: str) -> None:
    """Write the error and the regret over time to ``path``. Its ending gives the format. Needs a traced run.

    A challenger is a line at its final error. unit: of the errors.
    """
    pyplot = new_pyplot()
    regret = regret_over_time(outcome.trace(), loss_named(outcome.settings.learning.loss))
    rounds = np.arange(1, len(regret) + 1)
    figure, (errors, regrets) = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    draw_errors(outcome, errors, unit)
    regrets.plot(rounds, outcome.scale**2 * regret / rounds, color=FEDERATION, linewidth=2.5)
    label_axes(
        regrets,
        "Regret per sample: squared error beyond the best kernel's",
        "samples a client",
        f"squared {unit}",
    )
    figure.suptitle(title)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def draw_errors(outcome: Outcome, axes: Any, unit: str) -> None:
    """Draw the RMSE over time of the federation and its baselines. A challenger is a line at its final RMSE.

    unit: of the errors.
    """
    rounds = np.arange(1, len(outcome.labels) + 1)
    for name, squared, colour, width in (
        ("running mean", outcome.mean, MEAN, 1.5),
        ("each client on its own", outcome.local, LOCAL, 1.5),
        ("federation", outcome.squared_errors, FEDERATION, 2.5),
    ):
        errors = rmse_over_time(squared, outcome.labels, outcome.scale)
        axes.plot(rounds, errors, color=colour, linewidth=width, label=name)
    for style, (name, found) in zip(cycle(STYLES), outcome.challengers.items(), strict=False):
        text = challenger_about(name) or name
        axes.axhline(
            outcome.scale * found.rmse,
            color="black",
            linewidth=1,
            linestyle=style,
            label=f"{text}, at the end",
        )
    label_axes(axes, "Error of all samples so far", "samples a client", f"RMSE, {unit}")
    logarithmic(axes)
    axes.legend(frameon=False, fontsize=8)


def bytes_as_text(count: float) -> str:
    """A number of bytes with the unit that fits."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
