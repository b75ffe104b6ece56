"""The tables that a federation is measured on, each as one that a user could have."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from river import datasets
from sklearn.datasets import load_diabetes, make_friedman1

from benchmarks.commands import Floats

CLIENT, LABEL = "device", "y"
METERS = 30
Rows = tuple[Floats, Floats]


@dataclass(frozen=True)
class Shape:
    """How a table is dealt where nothing else is said: to so many clients, so many samples each."""

    clients: int
    samples: int


def _friedman(count: int, seed: int) -> Rows:
    """scikit-learn's made data: ten inputs, five of them of no use, and noise."""
    inputs, labels = make_friedman1(n_samples=count, n_features=10, noise=1.0, random_state=seed)
    return inputs, labels


def _diabetes(count: int, seed: int) -> Rows:
    """442 patients, in an order by seed."""
    inputs, labels = load_diabetes(return_X_y=True, scaled=False)
    chosen = np.random.default_rng(seed).permutation(len(labels))[:count]
    return inputs[chosen], labels[chosen]


def _trump(count: int, seed: int) -> Rows:
    """1,001 days of polls in the order of time, which is the same for every seed."""
    inputs, labels = zip(*datasets.TrumpApproval().take(count), strict=True)
    return np.array([list(one.values()) for one in inputs], dtype=float), np.array(labels)


def _meters(count: int, seed: int) -> Rows:
    """Made here: 30 buildings, and what each uses hour by hour. The weather changes, and each building
    answers its own way."""
    draws = np.random.default_rng(seed)
    size, slope = draws.uniform(20, 80, METERS), draws.uniform(0.6, 1.4, METERS)
    step, meter = np.divmod(np.arange(count), METERS)
    hour = (step + meter) % 24
    day = np.sin(2 * np.pi * hour / 24)
    outdoor = 10 + 12 * np.sin(2 * np.pi * step / 240) + 4 * day + draws.normal(size=count)
    people = np.maximum(0, draws.normal(np.where((hour >= 8) & (hour <= 18), 1.0, 0.1), 0.2))
    uses = (
        size[meter]
        + slope[meter] * (0.08 * (outdoor - 18) ** 2 + (12 + 3 * day) * people)
        + 1.5 * draws.normal(size=count)
    )
    return np.column_stack([outdoor, people, hour]), uses


TABLES: dict[str, tuple[Callable[[int, int], Rows], Shape]] = {
    "friedman": (_friedman, Shape(40, 100)),
    "diabetes": (_diabetes, Shape(10, 44)),
    "trump": (_trump, Shape(10, 100)),
    "meters": (_meters, Shape(METERS, 200)),
}


def write_table(name: str, clients: int, samples: int, seed: int, path: Path) -> Floats:
    """Write the rows as CSV, the t-th samples of all clients before the next ones, and return the labels
    (samples, clients). ValueError if the table has too few rows."""
    make, _ = TABLES[name]
    rows, answers = make(clients * samples, seed)
    if len(answers) < clients * samples:
        raise ValueError(
            f"{name} has {len(answers)} rows: {clients} clients x {samples} samples are too many"
        )
    inputs, labels = rows.reshape(samples, clients, -1), answers.reshape(samples, clients)
    heads = [CLIENT, *(f"x{number}" for number in range(inputs.shape[-1])), LABEL]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        for own, told in zip(inputs.tolist(), labels.tolist(), strict=True):
            for client, (row, label) in enumerate(zip(own, told, strict=True)):
                writer.writerow([f"{CLIENT}-{client}", *row, float(label)])
    return np.asarray(labels, dtype=np.float64)
