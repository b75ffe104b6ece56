"""Charts as SVG, written without a drawing library: a report has to work where none is installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.simulation.page import Chart, Line

__all__ = ["COLOURS", "colours_of", "svg"]

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 44
# The palette by Okabe and Ito, which the colour-blind can tell apart. The first colour is for the most
# important line.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a600", "#5b4fc4", "#7a5230")
REST = "#b4bac0"
DASHES = ("", "7 3", "2 3", "9 3 2 3")
# A screen cannot show more.
MOST_POINTS = 500
# Numbers beyond this are left out: the difference of two of them would overflow.
LARGEST = 1e300
# The end of the year 9999. A record's time is whatever its writer set.
LAST_SECOND = 253_402_300_799.0
# The name of a series may come from a stranger.
LONGEST_NAME = 60

Floats = NDArray[np.float64]
Scale = Callable[[Any], Any]


def colours_of(chart: Chart) -> Iterator[tuple[str, str, str]]:
    """Yields each line's name, colour and dash pattern, in order."""
    for number, line in enumerate(chart.lines):
        if line.rest:
            yield _cut(line.name), REST, ""
            continue
        dash = DASHES[1 + number % 3] if line.level else DASHES[number // len(COLOURS) % len(DASHES)]
        yield _cut(line.name), COLOURS[number % len(COLOURS)], dash


def svg(chart: Chart) -> str:
    """The chart as an ``<svg>`` element. Text and background use the page's colours."""
    if chart.bars:
        return _framed(chart, [*_bars(chart)], HEIGHT)
    lines = _stacked(chart.lines) if chart.stacked else [_thinned(line) for line in chart.lines]
    points = [(line.x[ok], line.y[ok]) for line in lines if (ok := _shown(line, chart.logarithmic)).any()]
    if not points:
        return _framed(chart, [_text(WIDTH / 2, HEIGHT / 2, "nothing to show yet", "middle")], HEIGHT)
    x = np.concatenate([x for x, _ in points])
    y = np.concatenate([y for _, y in points])
    across, marks = _horizontal(float(x.min()), float(x.max()), chart.times)
    up, steps = _vertical(float(y.min()), float(y.max()), chart)
    parts = [*_grid(across, marks, up, steps)]
    if chart.stacked:
        parts += _areas(lines, chart, across, up)
    else:
        for line, (name, colour, dash) in zip(lines, colours_of(chart), strict=True):
            for piece in _pieces(line, chart.logarithmic):
                path = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in piece)
                width = 1.5 if line.level else 2.4
                dashed = f' stroke-dasharray="{dash}"' if dash else ""
                parts.append(
                    f'<polyline class="curve" stroke="{colour}" stroke-width="{width}"{dashed} '
                    f'points="{path}">'
                    f"<title>{escape(name)}</title></polyline>"
                )
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, chart.horizontal, "middle"))
    return _framed(chart, parts, HEIGHT)


def _framed(chart: Chart, parts: Sequence[str], height: float) -> str:
    name = escape(f"{chart.title}. {chart.says}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _thinned(line: Line) -> Line:
    """The line with as many points as a screen can show. The last point is always kept."""
    count = len(line.x)
    if count <= MOST_POINTS:
        return line
    kept = np.unique(np.linspace(0, count - 1, MOST_POINTS).round().astype(np.intp))
    return Line(line.name, line.x[kept], line.y[kept], line.level)


def _shown(line: Line, logarithmic: bool) -> NDArray[np.bool_]:
    able = (np.abs(line.x) <= LARGEST) & (np.abs(line.y) <= LARGEST)
    return np.asarray(able & (line.y > 0) if logarithmic else able)


def _pieces(line: Line, logarithmic: bool) -> Iterator[list[tuple[float, float]]]:
    """Runs of points without a gap."""
    piece: list[tuple[float, float]] = []
    for a, b, able in zip(line.x.tolist(), line.y.tolist(), _shown(line, logarithmic).tolist(), strict=True):
        if able:
            piece.append((a, b))
        elif piece:
            # A single point becomes a line to itself, which is drawn as a dot.
            yield piece if len(piece) > 1 else piece * 2
            piece = []
    if piece:
        yield piece if len(piece) > 1 else piece * 2


def _stacked(lines: Sequence[Line]) -> list[Line]:
    """Each line's upper edge in a stack. The first line is at the bottom. All lines have the same ``x``."""
    thinned = [_thinned(line) for line in lines]
    below: Floats = np.cumsum([np.nan_to_num(line.y) for line in thinned], axis=0)
    return [Line(line.name, line.x, upper) for line, upper in zip(thinned, below, strict=True)]


def _areas(lines: Sequence[Line], chart: Chart, across: Scale, up: Scale) -> Iterator[str]:
    lower = np.zeros(len(lines[0].x))
    for line, (name, colour, _) in zip(lines, colours_of(chart), strict=True):
        edge = [(across(a), up(b)) for a, b in zip(line.x.tolist(), line.y.tolist(), strict=True)]
        back = [(across(a), up(b)) for a, b in zip(line.x.tolist(), lower.tolist(), strict=True)][::-1]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (*edge, *back))
        title = f"<title>{escape(name)}</title>"
        yield f'<polygon fill="{colour}" fill-opacity="0.75" points="{path}">{title}</polygon>'
        lower = line.y


def _bars(chart: Chart) -> Iterator[str]:
    values = [float(line.y[0]) for line in chart.lines]
    most = max([value for value in values if math.isfinite(value)], default=0.0) or 1.0
    room, left = (HEIGHT - TOP - 8) / max(1, len(values)), 220
    for number, (value, (name, colour, _)) in enumerate(zip(values, colours_of(chart), strict=True)):
        top, length = TOP + number * room, max(0.0, value / most) * (WIDTH - left - 80)
        yield _text(left - 8, top + room / 2 + 4, name if len(name) <= 32 else f"{name[:31]}…", "end")
        size = f'width="{length:.1f}" height="{room * 0.7:.1f}"'
        yield f'<rect x="{left}" y="{top + room * 0.15:.1f}" {size} fill="{colour}"/>'
        yield _text(left + length + 6, top + room / 2 + 4, f"{value:.3g}")


def _grid(
    across: Scale, marks: Sequence[tuple[float, str]], up: Scale, steps: Sequence[tuple[float, str]]
) -> Iterator[str]:
    for at, text in steps:
        y = up(at)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, text, "end")
    for at, text in marks:
        x = across(at)
        heights = f'y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}"'
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" {heights}/>'
        yield _text(x, HEIGHT - BOTTOM + 18, text, "middle")


def _horizontal(low: float, high: float, times: bool) -> tuple[Scale, list[tuple[float, str]]]:
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        space = max(0.5, 1e-9 * abs(low))
        low, high = low - space, high + space

    def across(value: Any) -> Any:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    if not times:
        return across, [(at, _number(at)) for at in _round_numbers(low, high, 6)]
    marks = [low + (high - low) * share for share in (0.05, 0.275, 0.5, 0.725, 0.95)]
    if high - low < 20:
        return across, [(at, f"+{at - low:.3g} s") for at in marks]
    form = "%H:%M:%S" if high - low < 600 else "%H:%M" if high - low < 86_400 else "%d %b %H:%M"
    return across, [
        (at, datetime.fromtimestamp(min(max(at, 0.0), LAST_SECOND), UTC).strftime(form)) for at in marks
    ]


def _vertical(low: float, high: float, chart: Chart) -> tuple[Scale, list[tuple[float, str]]]:
    if chart.logarithmic:
        low, high = math.log10(low), math.log10(high)
        space = max(0.04 * (high - low), 0.05)
        low, high = low - space, high + space
    else:
        # The axis begins at zero, so that changes are seen in proportion.
        low, high = min(low, 0.0), max(high, 0.0)
        space = 0.05 * (high - low) or 1.0
        low, high = low - (space if low else 0.0), high + (space if high or not low else 0.0)

    def up(value: Any) -> Any:
        value = math.log10(value) if chart.logarithmic else value
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    if not chart.logarithmic:
        return up, [(at, _number(at)) for at in _round_numbers(low, high, 5)]
    whole = range(max(-300, math.floor(low)), min(300, math.ceil(high)) + 1, max(1, int((high - low) / 6)))
    for factors in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        found = [factor * 10.0**power for power in whole for factor in factors]
        found = [at for at in found if low <= math.log10(at) <= high]
        if len(found) >= 3:
            break
    else:
        found = [10**at for at in _round_numbers(low, high, 5)]
    return up, [(at, _number(at)) for at in found]


def _round_numbers(low: float, high: float, count: int) -> list[float]:
    """About ``count`` multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * (10 if unit == "k" else 1):
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
