"""``python -m benchmarks.backlog``: rows that come one by one, a history, a history that a peer starts on
later, and simulate."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from benchmarks.backlog.federation import Federation, settings_of
from benchmarks.backlog.systems import ENTITY, STAY_BOUNDS, STAY_CENTRES, STAY_PARTIES, SYSTEMS, System
from benchmarks.commands import Floats, arguments, several
from streamfl.learning.accuracy import accuracy, area_under_curve

WAYS = ("paced", "history", "late")
LATE_SECONDS = 25.0
# Seconds after which what there is counts.
PATIENCE = 240.0
# Of the rows that are learnt from, so many more are only measured on.
MORE = 4
LOOK_SECONDS = 0.25
# Members wait for one another for 10 s where nothing else is said, and nothing new after that is all there
# is.
QUIET_SECONDS = 15.0
COLUMNS = (
    "system", "way", "error", "simulate", "error (2)", "simulate (2)", "AUC", "without a peer",
    "learnt nothing", "never",
    "learnt", "lost", "first s", "all s",
)  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """error: the share of wrong predictions, or what of the label's variance is not explained. half: of the
    second half."""

    error: float
    half: float
    area: float = float("nan")


@dataclass(frozen=True)
class Measured:
    """figures: of each entity's last prediction. without: those that lack a peer's part. unlearnt: those of a
    model that has learnt nothing. never: entities without any. learnt: entities that were learnt from. lost:
    by metric, what is not 0. first, all: seconds from the workers' start to the first prediction of a model
    that has learnt, and to the last one.
    """

    figures: Figures
    without: int
    unlearnt: int
    never: int
    learnt: int
    lost: dict[str, int]
    first: float
    all: float


def main() -> None:
    given = arguments(
        "backlog",
        __doc__,
        system=several("left out: all", SYSTEMS),
        way=several("left out: all", WAYS),
        rows=(0, "left out: the system's own"),
        rate=(50.0, "rows a second of --way paced"),
        set=several("section.key=value of all members"),
        seed=(0, "of the rows"),
    )
    table = Table(*COLUMNS, title="error: the share of wrong predictions, or 1 - R^2; (2) is the second half")
    for name in given.system or SYSTEMS:
        system, settings = SYSTEMS[name], settings_of(given.set or ())
        rows = given.rows or system.rows
        promised = simulated(system, rows, given.seed, settings)
        print(f"{name} simulate: {promised}", file=sys.stderr, flush=True)
        for way in given.way or WAYS:
            one = measured(system, way, rows, given, settings)
            print(f"{name} {way}: {one}", file=sys.stderr, flush=True)
            table.add_row(
                name, way, f"{one.figures.error:.3f}", f"{promised.error:.3f}", f"{one.figures.half:.3f}",
                f"{promised.half:.3f}",
                f"{one.figures.area:.3f}", f"{one.without:,}", f"{one.unlearnt:,}", f"{one.never:,}",
                f"{one.learnt:,}",
                ", ".join(f"{count:,} {metric}" for metric, count in one.lost.items()) or "-",
                f"{one.first:.1f}", f"{one.all:.1f}",
            )  # fmt: skip
    Console(width=200).print(table)


def measured(
    system: System, way: str, count: int, given: argparse.Namespace, settings: Mapping[str, str]
) -> Measured:
    """Run the federation in this way."""
    whole = system.make(count + count // MORE, given.seed)
    rows = whole.iloc[:count].copy()
    rows.insert(0, ENTITY, [str(number) for number in range(count)])
    with _deployed(system, rows, settings) as federation:
        began, said = _run(federation, system, way, count, given.rate)
        learnt = int(federation.figure(*system.learnt))
        lost = {metric: int(federation.figure(member, metric)) for member, metric in system.lost}
    lost = {metric: number for metric, number in lost.items() if number}
    if system.fits_windows:
        return _of_models(said, whole, count, began, learnt, lost)
    return _of_predictions(said, system, rows, began, learnt, lost)


def _run(
    federation: Federation, system: System, way: str, count: int, rate: float
) -> tuple[float, list[tuple[float, dict[str, Any]]]]:
    """When workers were started, or rows began to come to them; and what was said to users by when."""
    late = system.late if way == "late" else None
    if way != "paced":
        federation.write()
    began = time.time()
    for name in system.members:
        if name != late:
            federation.start(name)
    if way == "paced":
        federation.wait_until_serving()
        began = time.time()
        federation.write_at(rate)
    said: list[tuple[float, dict[str, Any]]] = []
    quiet_since = began
    while time.time() < began + PATIENCE:
        if late is not None and time.time() >= began + LATE_SECONDS:
            federation.start(late)
            late = None
        if (found := federation.look()) or federation.is_writing or late is not None:
            quiet_since = time.time()
        said += found
        expected = 2 * len(STAY_PARTIES) if system.fits_windows else count
        done = len(said) if system.fits_windows else len({one["entity"] for _, one in said})
        if done >= expected and time.time() > quiet_since + QUIET_SECONDS:
            break
        time.sleep(LOOK_SECONDS)
    return began, said


def _of_predictions(
    said: list[tuple[float, dict[str, Any]]],
    system: System,
    rows: pd.DataFrame,
    began: float,
    learnt: int,
    lost: dict[str, int],
) -> Measured:
    last = {int(one["entity"]): one for _, one in said}
    first = min((at for at, one in said if _has_learnt(one)), default=np.nan)
    values = np.full(len(rows), 0.5)
    for number, one in last.items():
        values[number] = _chance(one)
    labels = rows[system.label].to_numpy()
    half = len(rows) // 2
    if "prediction" not in next(iter(last.values()), {}):
        learnt = len(last) - learnt
    return Measured(
        Figures(
            1 - accuracy(values, labels),
            1 - accuracy(values[half:], labels[half:]),
            area_under_curve(values, labels),
        ),
        sum(one.get("embeddings", one.get("parties", 2)) < 2 for one in last.values()),
        sum(not _has_learnt(one) for one in last.values()),
        len(rows) - len(last),
        learnt,
        lost,
        first - began,
        max((at for at, _ in said), default=np.nan) - began,
    )


def _has_learnt(one: Mapping[str, Any]) -> bool:
    """From 0 a linear model says 0.5 before it has learnt something."""
    return bool(one["model"] > 0) if "model" in one else one["prediction"] != 0.5


def _chance(one: Mapping[str, Any]) -> float:
    return float(one["prediction"]) if "prediction" in one else float(1 / (1 + np.exp(-one["output"])))


def _of_models(
    said: list[tuple[float, dict[str, Any]]],
    whole: pd.DataFrame,
    count: int,
    began: float,
    learnt: int,
    lost: dict[str, int],
) -> Measured:
    """Of models of windows, on rows that are in none."""
    test = whole.iloc[count:]
    inputs = np.clip((test.to_numpy()[:, :-1] - np.array(STAY_CENTRES)) / np.array(STAY_BOUNDS), -1, 1)
    labels = (test.to_numpy()[:, -1] - 10) / 10
    weights: dict[int, Floats] = {}
    for _, one in said:
        own = weights.setdefault(one["version"], np.zeros(len(STAY_CENTRES)))
        own[STAY_PARTIES[one["party"]] + np.array(one["columns"], int)] = one["weights"]
    errors = [_unexplained(labels, inputs @ own) for _, own in sorted(weights.items())]
    times = [at for at, _ in said]
    return Measured(
        Figures(float(np.mean(errors)) if errors else np.nan, errors[-1] if errors else np.nan),
        0, 0, 2 - len(errors), learnt, lost, min(times, default=np.nan) - began,
        max(times, default=np.nan) - began,
    )  # fmt: skip


def _unexplained(labels: Floats, predicted: Floats) -> float:
    return float(np.square(labels - predicted).sum() / np.square(labels - labels.mean()).sum())


def simulated(system: System, count: int, seed: int, settings: Mapping[str, str]) -> Figures:
    """What ``streamfl simulate`` says with the same file, on the same rows."""
    whole = system.make(count + count // MORE, seed)
    half = count // 2
    if system.fits_windows:
        first = pd.concat([whole.iloc[:half], whole.iloc[count:]])
        tables = ((first, "1"), (whole, "2"))
        errors = [
            1 - _simulate(system, table, settings, "--windows", windows)["r2"] for table, windows in tables
        ]
        return Figures(float(np.mean(errors)), errors[-1])
    told = _simulate(system, whole, settings)
    if "progressive" not in told:
        return Figures(1 - told["accuracy"], 1 - told["accuracy"], told["auc"])
    # What comes later changes nothing of the first half, so the rest of the wrong ones are of the second.
    before = _simulate(system, whole.iloc[: half + half // MORE], settings)["progressive"]
    all_rows = told["progressive"]
    error = 1 - all_rows["accuracy"]
    return Figures(error, 2 * error - (1 - before["accuracy"]), all_rows["auc"])


def _simulate(system: System, table: pd.DataFrame, settings: Mapping[str, str], *more: str) -> dict[str, Any]:
    with _deployed(system, table, settings) as federation:
        return federation.simulate(more)


@contextmanager
def _deployed(system: System, rows: pd.DataFrame, settings: Mapping[str, str]) -> Iterator[Federation]:
    with tempfile.TemporaryDirectory(prefix="streamfl-backlog-") as name:
        federation = Federation(system, Path(name), rows, settings)
        try:
            yield federation
        finally:
            federation.close()


if __name__ == "__main__":
    main()
