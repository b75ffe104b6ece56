"""Learning curves of a vertical federation: a run's measures over time, stored in its trace and drawn in its
report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import DataError
from streamfl.records.labels import Label
from streamfl.simulation.page import Arrays, Chart, FederationTopics, Line, Page, ReadRecord, Reports
from streamfl.simulation.untrusted_trace import as_number, checked_arrays

__all__ = ["curve_arrays", "reports"]

UNIT = "units of the label"
COURSE, SECONDS = "course/", "seconds"
SAYS = {
    "accuracy": (
        "Accuracy",
        "Share of test entities whose likeliest class is theirs. Higher is better.",
        "share",
    ),
    "auc": (
        "Area under the ROC curve",
        "0.5 is guessing, 1 is a perfect order of the test entities.",
        "area",
    ),
    "ks": (
        "Kolmogorov-Smirnov",
        "The largest distance between the scores of the two classes. Higher is better.",
        "distance",
    ),
    "rmse": ("Error", "On test entities. Lower is better.", f"RMSE, {UNIT}"),
    "scaled_mse": (
        "Scaled error",
        "The same squared, with labels from 0 to 1.",
        "squared error, labels scaled to 0..1",
    ),
    "loss": (
        "Loss",
        "Of test entities, the mean. Lower is better; if only the training's falls, it overfits.",
        "loss",
    ),
    "training_loss": (
        "Training loss",
        "Of the rows that are learnt from. If it does not fall, lower the learning rate.",
        "loss",
    ),
    "objective": (
        "Objective",
        "Of the frozen rows, without noise. It should fall; where noise is large it stays up.",
        "objective",
    ),
    "gap": (
        "Duality gap",
        "An upper bound of what a better model could still win. It should fall towards 0.",
        "gap",
    ),
    "support": ("Columns with a weight", "How many columns the model uses by now.", "columns"),
}
TIMES = "virtual seconds"


def curve_arrays(history: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """One array for each measure of a run's history, named ``course/NAME``. Values that were not measured are
    NaN.

    >>> curve_arrays([{"seconds": 1.0, "auc": None}, {"seconds": 2.0, "auc": 0.75}])
    {'course/seconds': array([1., 2.]), 'course/auc': array([ nan, 0.75])}
    """
    names = list(dict.fromkeys(name for one in history for name in one))
    rows = {name: [one.get(name) for one in history] for name in names}
    return {
        COURSE + name: np.array([np.nan if value is None else float(value) for value in row])
        for name, row in rows.items()
    }


def reports(name: str) -> Reports:
    """A vertical system's report pages. name: the system's name, as people write it."""
    return Reports(lambda trace: _of_trace(name, trace), lambda topics: _of_topics(name, topics))


def _of_trace(name: str, trace: Arrays) -> Page:
    names = [one for one in trace if one.startswith(COURSE)]
    if not names:
        raise DataError(
            "the trace has no learning curves: it was written by an earlier release; simulate again"
        )
    checked = checked_arrays(trace, dict.fromkeys(names, ("measurements",)), gaps=names)
    course = {one.removeprefix(COURSE): values for one, values in checked.items()}
    times = course.pop(SECONDS, None)
    steps = np.arange(max(len(values) for values in course.values())) if times is None else times
    charts, figures = [], []
    for measure, values in course.items():
        if not np.isfinite(values).any():
            continue
        title, says, vertical = SAYS.get(measure, (measure, "", measure))
        line = Line(title, steps[: len(values)], values)
        charts.append(Chart(title, says, [line], "step" if times is None else TIMES, vertical))
        figures.append((title, f"{values[-1]:.5g}"))
    return Page(f"{name}: report of a simulation", "How the federation came to its model.", figures, charts)


def _of_topics(name: str, topics: FederationTopics) -> Page:
    """First predictions of entities against their labels, if the role reads labels."""
    predictions = [one for one in topics.said("predictions") if isinstance(one.says, Mapping)]
    figures = [("predictions read", f"{len(predictions):,}")]
    charts, notes = [], []
    if predictions:
        line = Line(
            "predictions", np.array([one.time for one in predictions]), np.arange(1, len(predictions) + 1)
        )
        says = (
            "Number of predictions so far. Where the line is level, none came: look at the lag and the log."
        )
        charts.append(Chart("Predictions so far", says, [line], "time, UTC", "predictions", times=True))
    labels = topics.messages("labels")
    scored = _scored(predictions, labels, _label_range(topics))
    if scored is not None:
        charts.insert(0, scored)
        figures += [(line.name, f"{line.y[-1]:.5g}") for line in scored.lines]
    elif labels:
        notes.append("No error: no entity has a label and a prediction in numbers.")
    else:
        notes.append("No error: this role reads no labels. Give the settings of the role that does.")
    said = "From the records in the federation's topics. Nothing was changed, and no worker was disturbed."
    return Page(f"{name}: report of {topics.settings.federation.name}", said, figures, charts, notes=notes)


def _label_range(topics: FederationTopics) -> tuple[float, float]:
    low, high = getattr(getattr(topics.settings, "labels", None), "label_range", None) or (0.0, 1.0)
    return float(low), float(high)


def _scored(
    predictions: Sequence[ReadRecord], labels: Sequence[ReadRecord], label_range: tuple[float, float]
) -> Chart | None:
    """Running RMSE of each entity's last prediction before its label, and that of the labels' running mean.

    If all predictions came after the label, the first one counts. This happens when a whole history is
    written at once."""
    low, high = label_range
    known = {
        one.says.sample: (one.time, low + (high - low) * one.says.label)
        for one in labels
        if isinstance(one.says, Label)
    }
    told: dict[str, float] = {}
    for one in predictions:
        value = one.says.get("prediction", one.says.get("probability"))
        entity = str(one.says.get("entity"))
        number = as_number(value)
        if number is not None and entity in known and (entity not in told or one.time <= known[entity][0]):
            told[entity] = number
    if not told:
        return None
    truth, guesses = np.array([known[entity][1] for entity in told]), np.array([*told.values()])
    counts = np.arange(1, len(truth) + 1)
    means = (np.cumsum(truth) - truth) / np.maximum(counts - 1, 1)
    lines = [
        Line(f"RMSE, {UNIT}", counts, np.sqrt(np.cumsum(np.square(guesses - truth)) / counts)),
        Line("running mean's", counts, np.sqrt(np.cumsum(np.square(means - truth)) / counts), level=True),
    ]
    says = (
        "For the last prediction of each entity before its label; for classes its square is the Brier score. "
        "It should end below the labels' running mean, which learns nothing from the columns."
    )
    return Chart("Error so far", says, lines, "entities with a label", f"RMSE, {UNIT}")
