"""What a missing input costs: ``python -m benchmarks.missing`` prints a table for docs/accuracy.md; it needs
STREAMFL_DATA.

Values are taken away from whole data sets, at random or in blocks of 24 samples on average, column by column.
Every method predicts the same samples with the same federation. Errors are mean squared errors on labels from
0 to 1, times 1000.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from river import preprocessing, stats

from benchmarks.accuracy_runs import load_streams
from benchmarks.commands import Floats, Markdown, arguments, data_folder, several
from benchmarks.rounds import in_rounds
from streamfl.records.imputation import RunningMeans

SETS = {"air": (12, 300), "bike_hour": (12, 300), "parkinsons_telemonitoring": (14, 300)}
RATES = (0.0, 0.1, 0.3, 0.5)
BLOCK = 24


def taken_away(
    shape: tuple[int, ...], rate: float, blocks: bool, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Which values are missing, (T, K, d): each by itself, or in runs of 24 on average."""
    if not blocks or not rate:
        return np.asarray(generator.random(shape) < rate)
    missing = np.empty(shape, np.bool_)
    state = generator.random(shape[1:]) < rate
    for number in range(shape[0]):
        missing[number] = state
        change = generator.random(shape[1:])
        state = np.where(state, change >= 1 / BLOCK, change < rate / (1 - rate) / BLOCK)
    return missing


def filled(values: Floats, fill: Callable[[int], Callable[[Floats], Floats]]) -> Floats:
    """Each client's samples by a function of its own, which is given them one by one."""
    clients = [fill(number) for number in range(values.shape[1])]
    return np.array([[own(sample) for own, sample in zip(clients, row, strict=True)] for row in values])


def running_means(indicators: bool, last: bool = False) -> Callable[[int], Callable[[Floats], Floats]]:
    """As `missing = "mean"` does it, or "last". indicators: with an input more for each, that says whether it
    is missing."""

    def of_client(number: int) -> Callable[[Floats], Floats]:
        means: list[RunningMeans] = []

        def fill(sample: Floats) -> Floats:
            if not means:
                means.append(
                    RunningMeans(range(len(sample)), range(len(sample)) if last else (), relative=True)
                )
            found = np.array(means[0].fill((0, str(number)), tuple(sample.tolist())))
            return np.concatenate([found, np.isnan(sample)]) if indicators else found

        return fill

    return of_client


def of_river(make: Callable[[], object]) -> Callable[[int], Callable[[Floats], Floats]]:
    """An imputer of River's, one a client."""

    def of_client(_number: int) -> Callable[[Floats], Floats]:
        imputer = make()

        def fill(sample: Floats) -> Floats:
            content = {
                place: None if np.isnan(value) else value for place, value in enumerate(sample.tolist())
            }
            imputer.learn_one(content)  # type: ignore[attr-defined]
            found = imputer.transform_one(content)  # type: ignore[attr-defined]
            return np.array([found.get(place) or 0.0 for place in content])

        return fill

    return of_client


def methods(values: Floats, columns: int) -> dict[str, Floats]:
    """The inputs as each method gives them to the federation; NaN where it drops the sample."""
    known = np.nanmean(values, axis=(0, 1))
    stat = preprocessing.StatImputer
    return {
        "drop the sample": values,
        '"zero"': np.nan_to_num(values),
        "a number: the set's mean": np.where(np.isnan(values), known, values),
        '"mean"': filled(values, running_means(indicators=False)),
        '"last"': filled(values, running_means(indicators=False, last=True)),
        '"mean", `indicator = true`': filled(values, running_means(indicators=True)),
        "River, StatImputer(Mean)": filled(
            values, of_river(lambda: stat(*((place, stats.Mean()) for place in range(columns))))
        ),
        "River, PreviousImputer": filled(values, of_river(preprocessing.PreviousImputer)),
    }


def main() -> None:
    given = arguments(
        "missing",
        "Measure what a missing input costs.",
        seeds=(2, "so many"),
        data=several("this set alone", SETS),
    )
    folder = data_folder()
    streams = load_streams(folder)
    places = [(blocks, rate) for blocks in (False, True) for rate in RATES if rate or not blocks]
    for name in given.data or SETS:
        errors: dict[str, list[list[float]]] = {}
        for seed in range(given.seeds):
            dealt, labels, _ = streams.make(name, *SETS[name], seed, folder)
            inputs, labels = np.moveaxis(dealt, 0, 1), labels.T
            for place, (blocks, rate) in enumerate(places):
                missing = taken_away(inputs.shape, rate, blocks, np.random.default_rng([seed, place]))
                for method, made in methods(np.where(missing, np.nan, inputs), inputs.shape[2]).items():
                    present = np.asarray(np.isfinite(made).all(axis=2))
                    predictions = in_rounds(np.nan_to_num(made), labels, present, seed)
                    error = 1000 * float(np.square(predictions - labels).mean())
                    errors.setdefault(method, [[] for _ in places])[place].append(error)
                    where = f"{name} {seed} {rate:.0%} {'in blocks' * blocks} {method}"
                    print(f"{where}: {error:.2f}", file=sys.stderr, flush=True)
        heads = [f"{rate:.0%}" + (" in blocks" if blocks else "") for blocks, rate in places]
        shape = f"{labels.shape[1]} clients, {labels.shape[0]} samples each, {inputs.shape[2]} inputs"
        print(f"\n{name}, {shape}:\n")
        table = Markdown("missing", *heads)
        for method, found in errors.items():
            table.add(method, *(f"{np.mean(one):.2f}" for one in found))


if __name__ == "__main__":
    main()
