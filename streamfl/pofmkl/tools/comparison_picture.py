"""The picture of a comparison: error over time, and each method's final error and bytes sent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamfl.pofmkl.tools.comparison import Contender
from streamfl.simulation.error_words import in_words
from streamfl.simulation.pictures import label_axes, logarithmic, new_pyplot

__all__ = ["draw_errors", "picture", "sent_in_words"]

# The longest bar, in lengths of the median one: a method that is far worse would make all others look alike.
LONGEST_BAR = 3.0


def picture(contenders: Sequence[Contender], path: Path, title: str, unit: str, record_bytes: int) -> None:
    """Write error over time, and error and bytes at the end, to ``path``. Its ending gives the format.

    A method has the same colour at the left and at the right, where its name is.
    unit: of the errors.
    record_bytes: size of a record, to compare bytes with.
    """
    pyplot = new_pyplot()
    size = (14, 1.6 + 0.36 * max(8, len(contenders)))
    figure, (over_time, at_the_end) = pyplot.subplots(1, 2, figsize=size, layout="constrained")
    draw_errors(contenders, over_time, unit)
    over_time.get_legend().remove()
    best_last = sorted(enumerate(contenders), key=lambda one: -_sortable(one[1]))
    errors = np.array([_sortable(contender) for _, contender in best_last])
    longest = (
        LONGEST_BAR * float(np.median(errors[np.isfinite(errors)])) if np.isfinite(errors).any() else 1.0
    )
    for place, ((number, contender), error) in enumerate(zip(best_last, errors.tolist(), strict=True)):
        at_the_end.barh(place, min(error, longest), color=_colour(number), height=0.7)
        sent = sent_in_words(contender.uplink_bytes_per_sample)
        text = f"{in_words(error)}; sends {sent}" + (" bytes" if sent[0].isdigit() else "")
        text += "; the bar is cut" if error > longest else ""
        at_the_end.text(min(error, longest), place, f" {text}", va="center", fontsize=8)
    at_the_end.set_yticks(
        range(len(best_last)), [f"{one.name}: {one.about}" for _, one in best_last], fontsize=8
    )
    at_the_end.set_xlim(0.0, 1.7 * min(longest, float(errors.max())))
    label_axes(
        at_the_end,
        "At the end, and bytes sent a sample",
        f"RMSE, {unit} (a record has {record_bytes:,} bytes)",
    )
    at_the_end.grid(visible=False, axis="y")
    figure.suptitle(title)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def draw_errors(contenders: Sequence[Contender], axes: Any, unit: str) -> None:
    """Draw each method's RMSE so far, with a legend. unit: of the errors."""
    for number, contender in enumerate(contenders):
        width = 2.5 if contender.name == "default" else 1.3
        errors = contender.rmse_over_time()
        rounds = np.arange(1, len(errors) + 1)
        axes.plot(
            rounds,
            errors,
            color=_colour(number),
            linewidth=width,
            label=f"{contender.name}: {contender.about}",
        )
    label_axes(axes, "Error so far", "samples a client", f"RMSE, {unit}")
    logarithmic(axes)
    axes.legend(frameon=False, fontsize=8)


def sent_in_words(bytes_a_sample: float | None) -> str:
    """A method's bytes for each sample, in words."""
    if bytes_a_sample is None:
        return "not counted"
    return f"{bytes_a_sample:,.0f}" if bytes_a_sample else "nothing"


def _sortable(contender: Contender) -> float:
    error = contender.summary()["rmse"]
    return float("inf") if error is None else float(error)


def _colour(number: int) -> Any:
    from matplotlib import colormaps

    # Strong colours first, then the pale ones.
    colours = colormaps["tab20"].colors  # type: ignore[attr-defined]
    return (*colours[::2], *colours[1::2])[number % len(colours)]
