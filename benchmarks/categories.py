"""What a category is worth as an input: ``python -m benchmarks.categories`` prints a table of
docs/accuracy.md.

Columns that are categories are given to the same federation in several ways. Errors are mean squared errors
on labels from 0 to 1, times 1000.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.commands import Floats, Markdown, arguments, data_folder, data_set
from benchmarks.rounds import in_rounds
from streamfl.records.input_reader import InputReader
from streamfl.records.inputs import InputSection

CLIENTS, SAMPLES, VALUES = 12, 300, 30


def real(name: str, categories: tuple[str, ...], seed: int) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Numbers (T, K, d), categories (T, K, c) and labels (T, K) of a data set: each client a stretch of its
    rows."""
    inputs, labels = data_set(data_folder(), name)
    with np.load(data_folder() / f"{name}.npz") as archive:
        names = [str(one) for one in archive["feature_names"]]
    keep = np.isfinite(inputs).all(axis=1) & np.isfinite(labels)
    inputs, labels = inputs[keep], labels[keep]
    labels = (labels - labels.min()) / (labels.max() - labels.min())
    block = len(labels) // CLIENTS
    starts = np.arange(CLIENTS) * block + np.random.default_rng(seed).integers(
        block - SAMPLES + 1, size=CLIENTS
    )
    rows = np.arange(SAMPLES)[:, None] + starts
    places = [names.index(one) for one in categories]
    numbers = np.delete(inputs, places, axis=1)[rows]
    return numbers, inputs[rows][:, :, places].astype(np.int64), labels[rows]


def generated(personal: bool, seed: int) -> tuple[Floats, NDArray[np.int64], Floats]:
    """A label that is the effect of one of 30 values, each client's own or everybody's, and of a number;
    noise of 0.05."""
    generator = np.random.default_rng(seed)
    effects = generator.random((CLIENTS if personal else 1, VALUES))
    categories = np.minimum(generator.geometric(0.1, (SAMPLES, CLIENTS)) - 1, VALUES - 1)
    numbers = generator.standard_normal((SAMPLES, CLIENTS, 1))
    owners = np.arange(CLIENTS) if personal else np.zeros(CLIENTS, np.int64)
    noise = 0.05 * generator.standard_normal((SAMPLES, CLIENTS))
    labels = 0.2 + 0.6 * effects[owners, categories] + 0.1 * np.sin(2 * numbers[:, :, 0]) + noise
    return numbers, categories[:, :, None], labels


def encoded(categories: NDArray[np.int64], make: Callable[[int, list[str]], InputSection]) -> Floats:
    """Every category by an input of the library."""
    columns = []
    for place in range(categories.shape[2]):
        own = categories[:, :, place]
        values = [str(value) for value in np.unique(own)]
        one = InputReader(make(place, values), 1.0)
        known = {value: one.numbers({"f": str(value)}) for value in np.unique(own)}
        columns.append(np.array([[known[value] for value in row] for row in own]))
    return np.concatenate(columns, axis=2)


def target_means(categories: NDArray[np.int64], labels: Floats) -> Floats:
    """The mean label of the client's earlier samples with the value; it counts the client's mean as one label
    more."""
    found = np.empty(categories.shape)
    for client in range(categories.shape[1]):
        total, seen = 0.0, 0
        sums: dict[tuple[int, int], float] = {}
        counts: dict[tuple[int, int], int] = {}
        for number, values in enumerate(categories[:, client].tolist()):
            mean = total / max(seen, 1)
            for place, value in enumerate(values):
                key = (place, value)
                found[number, client, place] = (sums.get(key, 0.0) + mean) / (counts.get(key, 0) + 1)
                sums[key], counts[key] = sums.get(key, 0.0) + labels[number, client], counts.get(key, 0) + 1
            total, seen = total + labels[number, client], seen + 1
    return found


def methods(categories: NDArray[np.int64], labels: Floats) -> dict[str, Floats]:
    """What each method adds to the numbers, (T, K, columns)."""
    one_hot = encoded(
        categories,
        lambda _, values: InputSection.model_validate({"field": "f", "as": "category", "values": values}),
    )
    means = target_means(categories, labels)

    def hashed(buckets: int) -> Floats:
        return encoded(
            categories,
            lambda *_: InputSection.model_validate({"field": "f", "as": "category", "buckets": buckets}),
        )

    return {
        "left out": np.empty((*labels.shape, 0)),
        "its code, as a number": categories.astype(float),
        "`values`: one input each": one_hot,
        "`buckets = 8`": hashed(8),
        "`buckets = 32`": hashed(32),
        "the client's mean label": means,
        "`values`, and the mean label": np.concatenate([one_hot, means], axis=2),
    }


def main() -> None:
    given = arguments("categories", "Measure what a category is worth as an input.", seeds=(2, "so many"))
    sets: dict[str, Callable[[int], tuple[Floats, NDArray[np.int64], Floats]]] = {
        "air: wind direction": lambda seed: real("air", ("wd_code",), seed),
        "bike: season, month, weekday, weather": lambda seed: real(
            "bike_hour", ("season", "mnth", "weekday", "weathersit"), seed
        ),
        "generated, everybody's effects": lambda seed: generated(False, seed),
        "generated, personal effects": lambda seed: generated(True, seed),
    }
    rows: dict[str, list[str]] = {}
    for name, make in sets.items():
        errors: dict[str, list[float]] = {}
        for seed in range(given.seeds):
            numbers, categories, labels = make(seed)
            for method, added in methods(categories, labels).items():
                predictions = in_rounds(
                    np.concatenate([numbers, added], axis=2), labels, np.ones(labels.shape, np.bool_), seed
                )
                errors.setdefault(method, []).append(1000 * float(np.square(predictions - labels).mean()))
                print(f"{name} {seed} {method}: {errors[method][-1]:.2f}", file=sys.stderr, flush=True)
        for method, found in errors.items():
            rows.setdefault(method, []).append(f"{np.mean(found):.2f}")
    table = Markdown("the category is", *sets)
    for method, cells in rows.items():
        table.add(method, *cells)


if __name__ == "__main__":
    main()
