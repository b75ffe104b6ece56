"""What is measured of a vertical federation that learns from a table: on test entities, without a party, and
before each label."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import DataError
from streamfl.learning.accuracy import area_under_curve
from streamfl.simulation.baseline import say_where_useless
from streamfl.simulation.error_words import in_words

__all__ = [
    "LOOKS",
    "Course",
    "TableOutcome",
    "VerticalFigures",
    "class_figures",
    "counts_by_reason",
    "in_label_units",
    "measured_rows",
    "number_figures",
]

LOOKS = 20
"""How often the test entities are evaluated during a run."""


@dataclass(frozen=True)
class VerticalFigures:
    """A federation's measures at a point in virtual time. ``accuracy`` is for classes, ``auc`` for two
    classes.

    ``scaled_mse`` is for numeric labels, scaled to 0 .. 1.
    """

    seconds: float
    accuracy: float | None = None
    scaled_mse: float | None = None
    auc: float | None = None
    loss: float = math.nan

    @property
    def measures(self) -> dict[str, float | None]:
        """All but the time."""
        return {name: value for name, value in asdict(self).items() if name != "seconds"}


def class_figures(
    seconds: float,
    guesses: NDArray[Any],
    labels: NDArray[np.float64],
    loss: float,
    scores: NDArray[Any] | None = None,
) -> VerticalFigures:
    """Figures of classes. guesses: the likeliest ones. scores: larger where class 1 is likelier; None: there
    are more classes."""
    area = math.nan if scores is None else area_under_curve(scores, labels)
    return VerticalFigures(
        seconds, float((guesses == labels).mean()), None, None if math.isnan(area) else area, loss
    )


def number_figures(
    seconds: float, outputs: NDArray[Any], labels: NDArray[np.float64], loss: float | None = None
) -> VerticalFigures:
    """Figures of predicted numbers. loss: None: the mean squared error."""
    mse = float(np.square(outputs - labels).mean())
    return VerticalFigures(seconds, None, mse, None, mse if loss is None else loss)


class Course:
    """Evaluates the test entities while a run goes on.

    look: the figures at this moment.
    watch: called with the share that is done; if it returns True the run ends.
    """

    def __init__(self, look: Callable[[], VerticalFigures], watch: Callable[[float], bool]) -> None:
        self._look = look
        self._watch = watch
        self.history = [look()]
        self.interrupted = False

    def passed(self, share: float) -> bool:
        """Whether the run ends with this share."""
        if share * LOOKS >= len(self.history):
            self.history.append(self._look())
        self.interrupted = self._watch(share)
        return self.interrupted

    def end(self, remedy: str, seconds: float) -> None:
        """Note the final figures; DataError with this remedy if the federation diverged. seconds: of the last
        movement."""
        final = replace(self._look(), seconds=seconds)
        if not math.isfinite(final.loss):
            raise DataError(f"the federation diverged: its loss is no finite number; choose {remedy}")
        self.history.append(final)


@dataclass(frozen=True, kw_only=True)
class TableOutcome:
    """The results of a run.

    entities: number learnt from.
    seconds: of virtual time.
    final: figures on the test entities.
    absent: by party, the same if that party knows none of them.
    progressive: figures of each entity's last prediction before it was learnt from; None in epochs.
    constant_loss: loss on the test entities of the best constant in hindsight.
    running_mean_loss: loss of predicting each label from those before it alone; None in epochs.
    history: figures on the test entities over virtual time.
    parties: figures by name.
    forgotten: entities that were forgotten, by reason.
    trace: arrays by name, if they were asked for.
    """

    entities: int
    test_entities: int
    seconds: float
    final: VerticalFigures
    absent: dict[str, VerticalFigures]
    progressive: VerticalFigures | None
    constant_loss: float
    running_mean_loss: float | None
    history: list[VerticalFigures]
    parties: dict[str, Any]
    forgotten: dict[str, int]
    trace: dict[str, NDArray[Any]]

    @property
    def measured(self) -> dict[str, Any]:
        """How many entities there are, and the final figures."""
        return {"entities": self.entities, "test_entities": self.test_entities, **self.final.measures}

    @property
    def compared(self) -> dict[str, Any]:
        """The figures without a party, and those before each label."""
        return {
            "absent": {name: figures.measures for name, figures in self.absent.items()},
            "progressive": None if self.progressive is None else self.progressive.measures,
        }

    @property
    def baselines(self) -> dict[str, float | None]:
        """The losses of models that read no columns."""
        return {"constant_loss": self.constant_loss, "running_mean_loss": self.running_mean_loss}

    def entity_rows(
        self, summary: Mapping[str, Any], *more: tuple[str, Mapping[str, Any] | None]
    ) -> list[tuple[str, str]]:
        """The first rows to print. summary: figures in the label's unit. more: other figures on the test
        entities."""
        count = f"{self.entities:,} of {len(self.parties)} parties, {self.test_entities:,} more to measure on"
        absent = ((f"test entities, {name} absent", figures) for name, figures in summary["absent"].items())
        measured = (("test entities", summary), *more, ("before each label", summary["progressive"]), *absent)
        return [("Entities", count), *measured_rows(measured)]

    def say_where_useless(self, remedy: str, *more: tuple[str, float | None, float | None]) -> None:
        """Warn of losses above those of models that read no columns. more: as in
        :func:`say_where_useless`."""
        measured = [("the test entities", self.final.loss, self.constant_loss), *more]
        if self.progressive is not None:
            measured.append(
                ("the predictions before each label", self.progressive.loss, self.running_mean_loss)
            )
        say_where_useless(measured, remedy)


def counts_by_reason(counts: Mapping[str, int]) -> str:
    """The counts that are not 0, with their reasons."""
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items() if count) or "0"


def measured_rows(measured: Iterable[tuple[str, Mapping[str, Any] | None]]) -> Iterator[tuple[str, str]]:
    """Rows to print: accuracy, AUC and RMSE, where measured.

    measured: (what was measured, figures as :func:`in_label_units` returns them); None: nothing was measured.
    """
    for title, figures in measured:
        for text, name in (("Accuracy", "accuracy"), ("AUC", "auc")):
            if figures is not None and figures[name] is not None:
                yield f"{text}, {title}", f"{figures[name]:.4f}"
        if figures is not None and figures.get("rmse") is not None:
            yield f"RMSE, units of the label, {title}", in_words(figures["rmse"])


def in_label_units(figures: Any, label_unit: float) -> Any:
    """Adds an ``rmse`` in the label's own unit beside each ``scaled_mse``, also in nested dictionaries and
    lists.

    label_unit: how much of the label's own unit is 1 on the scale from 0 to 1.

    >>> in_label_units({"scaled_mse": 0.25, "history": [{"scaled_mse": None}]}, 10.0)
    {'scaled_mse': 0.25, 'history': [{'scaled_mse': None, 'rmse': None}], 'rmse': 5.0}
    """
    if isinstance(figures, list):
        return [in_label_units(one, label_unit) for one in figures]
    if not isinstance(figures, Mapping):
        return figures
    found = {name: in_label_units(value, label_unit) for name, value in figures.items()}
    if "scaled_mse" in found:
        mse = found["scaled_mse"]
        found["rmse"] = None if mse is None else label_unit * math.sqrt(mse)
    return found
