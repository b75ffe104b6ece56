"""The accuracy figures as a document: its tables, put between the marks of the text, and the picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.accuracy_plan import (
    ABLATIONS,
    BASELINES,
    CELLS,
    CHALLENGERS,
    EXPERIMENT_SAMPLES,
    EXPERIMENT_SETS,
    EXPERIMENTS,
    FEDERATED,
    LATE,
    LATE_BY,
    SEEDS,
    SETS,
    WHOLE,
    Experiment,
    cells_of,
    seeds_of,
)
from benchmarks.accuracy_runs import Cache, Run, curve_points
from streamfl.simulation.pictures import new_pyplot

NOTHING = "-"
BYTES_DRAWN = (3e2, 3e5)
TITLES = {"bike_hour": "bike", "parkinsons_telemonitoring": "telemonitoring"}
SHORT = [TITLES.get(data, data) for data in SETS]
DRAWN = ("default", "default, M = 1", "default without a server", "paper, M = 1", *CHALLENGERS)


@dataclass(frozen=True)
class Figure:
    """A mean over seeds: squared error x 1000, None where a seed diverged; its standard deviation; bytes a
    sample; seeds."""

    mse: float | None
    spread: float
    bytes: float | None
    seeds: int

    def __str__(self) -> str:
        if self.mse is None:
            return "diverged"
        return digits(self.mse) if self.seeds == 1 else f"{digits(self.mse)} ± {digits(self.spread, 1)}"


class Figures:
    """What is kept, as means over the seeds that there are."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def of(
        self,
        method: str,
        data: str,
        cell: tuple[int, int],
        delay: int = 0,
        seeds: Sequence[int] | None = None,
    ) -> Figure | None:
        """The method's figure; seeds: these only. None where nothing is kept."""
        wanted = seeds_of(method, data) if seeds is None else seeds
        kept = [self._cache.get(Run(method, data, *cell, seed, delay)) for seed in wanted]
        found = [result for result in kept if result is not None]
        if not found:
            return None
        errors = [result["mse"] for result in found]
        sent = found[0]["bytes"]
        if None in errors:
            return Figure(None, 0.0, sent, len(found))
        spread = float(np.std(errors, ddof=1)) if len(errors) > 1 else 0.0
        return Figure(float(np.mean(errors)), spread, sent, len(found))

    def seeds(self, method: str, data: str, cell: tuple[int, int]) -> set[int]:
        """Those that there are."""
        return {seed for seed in SEEDS if self._cache.get(Run(method, data, *cell, seed)) is not None}

    def curve(self, method: str, data: str, cell: tuple[int, int]) -> tuple[list[int], list[float]]:
        """Numbers of samples, and the error so far at each, as the mean over the seeds; nothing where it
        diverged."""
        kept = [self._cache.get(Run(method, data, *cell, seed)) for seed in seeds_of(method, data)]
        found = [result for result in kept if result is not None and "curve" in result]
        if not found:
            return [], []
        return curve_points(found[0]["samples"]), np.mean(
            [result["curve"] for result in found], axis=0
        ).tolist()


def digits(value: float, count: int = 3) -> str:
    """The value with so many significant digits, never in powers of ten."""
    if value == 0:
        return "0"
    decimals = max(0, count - 1 - int(np.floor(np.log10(abs(value)))))
    return f"{value:.{decimals}f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def overview(figures: Figures, methods: Sequence[str], cell: tuple[int, int], delay: int = 0) -> str:
    """Methods by sets, best first by the geometric mean over the sets that all have; the best of each set in
    bold."""
    found = {method: [figures.of(method, data, cell, delay) for data in SETS] for method in methods}
    found = {method: row for method, row in found.items() if any(row)}
    best = [
        min((_error(row[column]) for row in found.values()), default=np.inf) for column in range(len(SETS))
    ]
    rows = []
    shared = [column for column in range(len(SETS)) if all(row[column] for row in found.values())]
    for method in sorted(found, key=lambda method: _geometric([found[method][column] for column in shared])):
        cells = []
        for figure, lowest in zip(found[method], best, strict=True):
            text = NOTHING if figure is None else str(figure)
            cells.append(f"**{text}**" if np.isfinite(lowest) and _error(figure) == lowest else text)
        row = [method, *cells]
        if not delay:
            sent = [
                figure.bytes for figure in found[method] if figure is not None and figure.bytes is not None
            ]
            row.append("not counted" if not sent else f"{np.mean(sent):,.0f}" if max(sent) else "none")
        rows.append(row)
    header = ["method", *SHORT]
    return markdown(header if delay else [*header, "bytes a sample"], rows)


def places(figures: Figures, methods: Sequence[str], cell: tuple[int, int], delay: int = 0) -> str:
    """For each set the methods, best first."""
    columns = []
    for data in SETS:
        found = {method: figures.of(method, data, cell, delay) for method in methods}
        best = sorted((one for one in found.items() if one[1] is not None), key=lambda one: _error(one[1]))
        columns.append([f"{method} {str(figure).partition(' ')[0]}" for method, figure in best])
    rows = [
        [str(place + 1), *(column[place] if place < len(column) else "" for column in columns)]
        for place in range(max(map(len, columns)))
    ]
    return markdown(["", *SHORT], rows)


def ablation(figures: Figures) -> str:
    """Each ingredient's removal as a ratio to the full learner, with the first seed, worst first."""
    cells = [(data, cell) for cell in CELLS for data in SETS]
    rows = []
    for method in (*(name for name in ABLATIONS if name != WHOLE), "default without a server"):
        ratios = [
            _ratio(figures.of(method, *cell, seeds=(0,)), figures.of(WHOLE, *cell, seeds=(0,)))
            for cell in cells
        ]
        if np.isfinite(ratios).any():
            rows.append((float(np.nanmean(ratios)), method, ratios))
    rows.sort(key=lambda row: -row[0])
    header = [
        "removed or changed",
        "mean ratio",
        *(f"{TITLES.get(data, data)} {cell[0]}" for data, cell in cells),
    ]
    return markdown(header, [[method, *map(_decimals, (mean, *ratios))] for mean, method, ratios in rows])


def server(figures: Figures) -> str:
    """The default's error against that of the same clients without a server, over the seeds that both
    have."""
    rows = []
    for cell in CELLS:
        row = [f"K = {cell[0]}, T = {cell[1]}"]
        for data in SETS:
            alone = figures.of("default without a server", data, cell)
            together = figures.of("default", data, cell, seeds=range(alone.seeds) if alone else ())
            ratio = _ratio(together, alone)
            row.append(f"{100 * (ratio - 1):+.0f} %" if np.isfinite(ratio) else NOTHING)
        rows.append(row)
    return markdown(["", *SHORT], rows)


def experiment(figures: Figures, varied: Experiment) -> str:
    """A quantity varied: a row for each method and set, over the seeds that all of its figures have."""
    rows = []
    for data in EXPERIMENT_SETS:
        for name, row in varied.rows.items():
            cells = [(method, data, (clients, EXPERIMENT_SAMPLES)) for method, clients in row]
            having = [seeds for cell in cells if (seeds := figures.seeds(*cell))]
            shared = sorted(set.intersection(*having)) if having else []
            found = [figures.of(*cell, seeds=shared) for cell in cells]
            texts = [NOTHING if figure is None else str(figure) for figure in found]
            rows.append([f"{data}, {name}", *texts, *[""] * (len(varied.values) - len(texts))])
    return f"{varied.title}:\n\n" + markdown(["", *varied.values], rows)


def tables(cache: Cache) -> dict[str, str]:
    """Every table of the document by the name of its place."""
    figures = Figures(cache)
    everything = (*FEDERATED, *BASELINES, *CHALLENGERS)
    found = {}
    for cell in CELLS:
        methods = [method for method in everything if cell in cells_of(method)]
        name = f"{cell[0]}x{cell[1]}"
        found[f"overview {name}"] = overview(figures, methods, cell)
        found[f"places {name}"] = places(figures, methods, cell)
        found[f"late {name}"] = overview(figures, LATE, cell, LATE_BY)
    found["server"] = server(figures)
    found["ablation"] = ablation(figures)
    found["experiments"] = "\n\n".join(experiment(figures, varied) for varied in EXPERIMENTS)
    return found


def state(due: Sequence[Run], cache: Cache) -> str:
    """What the tables lack, or show as older code made it, by method."""
    missing = Counter(run.method for run in due if cache.get(run) is None)
    older = Counter(run.method for run in due if cache.get(run) is not None)
    lines = []
    for title, found in (("Not measured yet", missing), ("Measured with code that has changed since", older)):
        if found:
            lines.append(
                f"{title}: {', '.join(f'{method} ({count})' for method, count in sorted(found.items()))}."
            )
    return "\n\n".join(lines) or "Every run is there, and of the code as it is."


def fill(text: str, contents: Mapping[str, str]) -> str:
    """The text with each content between its two marks, ``<!-- begin NAME -->`` and ``<!-- end -->``;
    ValueError without them."""
    for name, content in contents.items():
        before, begin, rest = text.partition(f"<!-- begin {name} -->")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise ValueError(f"the document has no {begin or f'<!-- begin {name} -->'} with an <!-- end -->")
        text = f"{before}{begin}\n\n{content}\n\n{end}{after}"
    return text


def fill_in(document: Path, contents: Mapping[str, str]) -> None:
    """The same of a file."""
    document.write_text(fill(document.read_text(encoding="utf-8"), contents), encoding="utf-8")


def picture(cache: Cache, path: Path) -> None:
    """Error over time for every set, and error against bytes; the ending of ``path`` says the format."""
    from matplotlib.ticker import LogLocator

    figures, pyplot = Figures(cache), new_pyplot()
    figure, axes = pyplot.subplots(len(CELLS) + 1, len(SETS), figsize=(19, 12), layout="constrained")
    colours = dict(zip((*DRAWN, *BASELINES), pyplot.get_cmap("tab20").colors, strict=False))
    for column, data in enumerate(SETS):
        for row, cell in enumerate(CELLS):
            panel = axes[row, column]
            for method in DRAWN:
                samples, errors = figures.curve(method, data, cell)
                width = 2.5 if method == "default" else 1.2
                if samples:
                    panel.plot(
                        samples,
                        errors,
                        color=colours[method],
                        linewidth=width,
                        label=method,
                        zorder=2 + width,
                    )
            panel.set(title=f"{TITLES.get(data, data)}, K = {cell[0]}", xlabel="samples a client")
        panel = axes[-1, column]
        for method in (*DRAWN, *BASELINES):
            found = figures.of(method, data, CELLS[0])
            if found is None or found.mse is None or found.bytes is None:
                continue
            if found.bytes:
                size = 10 if method == "default" else 6
                panel.plot(found.bytes, found.mse, "o", color=colours[method], markersize=size, label=method)
                panel.annotate(
                    method, (found.bytes, found.mse), xytext=(4, 4), textcoords="offset points", fontsize=7
                )
            else:
                panel.axhline(found.mse, color=colours[method], linewidth=1, linestyle=":")
        panel.set(
            title=f"{TITLES.get(data, data)}, K = {CELLS[0][0]}", xlabel="bytes a sample", xlim=BYTES_DRAWN
        )
    axes[0, 0].set_ylabel("mean squared error so far, x 1e-3")
    axes[1, 0].set_ylabel("mean squared error so far, x 1e-3")
    axes[2, 0].set_ylabel("error after all samples (dotted: sends nothing)")
    for panel in axes.flat:
        if panel.has_data():
            panel.set(xscale="log", yscale="log")
            panel.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("{x:g}")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(DRAWN), frameon=False
    )
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def _error(figure: Figure | None) -> float:
    return np.inf if figure is None or figure.mse is None else figure.mse


def _geometric(row: Sequence[Figure | None]) -> float:
    return float(np.exp(np.mean(np.log([_error(figure) for figure in row])))) if row else np.inf


def _ratio(one: Figure | None, other: Figure | None) -> float:
    """Of the errors; not a number where there is one error only, or none."""
    errors = _error(one), _error(other)
    return errors[0] / errors[1] if np.isfinite(errors).all() else np.nan


def _decimals(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else NOTHING
