"""Style of the pictures of runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from streamfl.contract.role import ConfigurationError

__all__ = [
    "FEDERATION",
    "LOCAL",
    "MEAN",
    "STYLES",
    "can_draw",
    "check_can_draw",
    "check_picture",
    "label_axes",
    "logarithmic",
    "new_picture",
    "new_pyplot",
    "picture_over_time",
    "save_picture",
]

# Three hues that differ in greyscale and for the colour-blind. The federation has the most visible one.
FEDERATION, LOCAL, MEAN = "#0b5fa5", "#d9822b", "#8a8a8a"
# Line styles of level lines: enough for the picture with the most of them.
STYLES = (":", "--", "-.", "-", (0, (8, 2, 1, 2, 1, 2)))


def can_draw() -> bool:
    """Whether matplotlib is installed, which the extra ``plots`` brings."""
    return importlib.util.find_spec("matplotlib") is not None


def check_can_draw() -> None:
    """ConfigurationError if matplotlib is not installed."""
    if not can_draw():
        raise ConfigurationError("a picture needs matplotlib: pip install 'streamfl[plots]'")


def check_picture(path: Path, option: str) -> None:
    """ConfigurationError, before the run whose results it is to show, if the option names no picture."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise ConfigurationError(f"{option} {path}: a name ending in .png or .svg is expected")


def new_pyplot() -> Any:
    """matplotlib's pyplot, set to draw into files. ConfigurationError if it is not installed."""
    check_can_draw()
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def new_picture(parts: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure, and its axes: an array if it has several parts, which are beside each other. width, height:
    in inches."""
    figure, axes = new_pyplot().subplots(1, parts, figsize=(width, height), layout="constrained")
    return figure, axes


def save_picture(figure: Any, path: Path, title: str) -> None:
    """Write the figure under this title. The path's ending chooses the format."""
    figure.suptitle(title)
    figure.savefig(path, dpi=140)
    new_pyplot().close(figure)


def picture_over_time(
    lines: Mapping[str, Sequence[tuple[float, float]]], levels: Mapping[str, float], path: Path, title: str
) -> None:
    """Draw accuracies over virtual seconds, and levels to compare them with, into ``path``. Its ending
    chooses the format."""
    figure, axes = new_picture(1, 8, 4.2)
    for (name, points), colour in zip(lines.items(), cycle((FEDERATION, LOCAL)), strict=False):
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=2.5, label=name)
    for style, (name, level) in zip(cycle(STYLES), levels.items(), strict=False):
        axes.axhline(level, color="black", linewidth=1, linestyle=style, label=f"{name}, at the end")
    label_axes(axes, "Accuracy", "virtual seconds")
    axes.legend(frameon=False, fontsize=8)
    save_picture(figure, path, title)


def label_axes(axes: Any, title: str, horizontal: str, vertical: str = "") -> None:
    """Set the title, the axes' labels and a light grid. Remove the frame above and at the right."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(horizontal)
    axes.set_ylabel(vertical)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def logarithmic(axes: Any) -> None:
    """Make the vertical axis logarithmic, with plain numbers. Call it after everything is drawn, because the
    range decides the ticks.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 4.0 * low:
        axes.yaxis.set_major_locator(MaxNLocator(6))
    else:
        axes.yaxis.set_major_locator(
            LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if high < 100.0 * low else (1.0, 3.0))
        )
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
