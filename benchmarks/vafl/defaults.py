"""``python -m benchmarks.vafl.defaults``: two parties with the defaults, beside River's pooled linear models on all columns.

Every entity is predicted before its label, once. STREAMFL_DATA adds tables.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from river import compose, linear_model, preprocessing
from sklearn.datasets import load_breast_cancer, load_diabetes, make_classification, make_friedman1

from streamfl.learning.accuracy import accuracy, log_loss
from streamfl.simulation.tables import numbers, read_data
from streamfl.simulation.vertical import VerticalTable
from streamfl.vafl.config import COORDINATOR, VaflSettings
from streamfl.vafl.lab.run import run_vertical

Floats = NDArray[np.float64]
ENTITIES = 4_000
# The last ones are for the figure on other entities, which is not looked at here.
REST = 50
CLASSES = ("a9a", "credit_default", "elec2", "gmsc", "phishing", "w8a")
NUMBERS = ("bike_hour", "parkinsons_telemonitoring", "naval")


def tables(square: bool) -> Iterator[tuple[str, Floats, Floats]]:
    """Name, inputs and labels, 0 and 1 or numbers from 0 to 1; in random order but where the rows are a stream."""
    draws = np.random.default_rng(0)
    if square:
        yield "friedman", *make_friedman1(ENTITIES, 10, noise=1.0, random_state=0)
        yield "diabetes", *_shuffled(*load_diabetes(return_X_y=True, scaled=False), draws)
        yield "river TrumpApproval", *_of_river("TrumpApproval")
    else:
        yield "made", *_made(draws)
        yield "breast cancer", *_shuffled(*load_breast_cancer(return_X_y=True), draws)
        yield "river Phishing", *_of_river("Phishing")
        yield "river Bananas", *_of_river("Bananas")
    folder = os.environ.get("STREAMFL_DATA")
    for name in (NUMBERS if square else CLASSES) if folder else ():
        with np.load(Path(folder or "") / f"{name}.npz") as archive:
            inputs, labels = archive["X"].astype(float), archive["y"].astype(float)
        inputs = np.where(np.isnan(inputs), np.nanmean(inputs, axis=0), inputs)
        labels = labels if square else (labels > 0).astype(float)
        order = np.arange(len(labels)) if name in ("elec2", "bike_hour") else draws.permutation(len(labels))
        yield name, inputs[order], labels[order]


def _made(draws: np.random.Generator) -> tuple[Floats, Floats]:
    inputs, labels = make_classification(ENTITIES, 20, n_informative=8, class_sep=0.7, random_state=1)
    return inputs * np.exp(2 * draws.normal(size=20)) + 5, labels.astype(float)


def _shuffled(inputs: Floats, labels: Floats, draws: np.random.Generator) -> tuple[Floats, Floats]:
    order = draws.permutation(len(labels))
    return inputs[order], labels[order].astype(float)


def _of_river(name: str) -> tuple[Floats, Floats]:
    location = f"river:{name}"
    data = read_data(location)
    return numbers(data, data.inputs(["y"]), location), numbers(data, ["y"], location)[:, 0]


def federation(inputs: Floats, labels: Floats, square: bool, network: bool) -> tuple[float | None, float]:
    """Accuracy and mean loss of what two parties, each with half of the columns, predicted before the label."""
    half = inputs.shape[1] // 2
    sections = {"embedding": {"hidden": [16]}, "head": {"kind": "network", "hidden": [16]}} if network else {}
    settings = VaflSettings.model_validate(
        {
            "federation": {"name": "defaults", "seed": 0, "parties": ["a", "b"], "embedding_size": 8 if network else 1},
            "role": {"kind": COORDINATOR},
            "labels": {"topic": "labels", "label": "y"},
            "learning": {"loss": "square" if square else "logistic"},
            **sections,
        }
    )
    outcome = run_vertical(settings, VerticalTable([inputs[:, :half], inputs[:, half:]], labels, REST), epochs=None)
    found = outcome.summary()["progressive"]
    return found["accuracy"], found["loss"]


def pooled(inputs: Floats, labels: Floats, square: bool) -> tuple[float | None, float]:
    """The same of River's standard scaler and linear model, which see all columns and each label at once."""
    model = linear_model.LinearRegression() if square else linear_model.LogisticRegression()
    line = compose.Pipeline(preprocessing.StandardScaler(), model)
    predicted = np.empty(len(labels))
    for number, (row, label) in enumerate(zip(inputs.tolist(), labels.tolist(), strict=True)):
        x = dict(enumerate(row))
        predicted[number] = line.predict_one(x) if square else line.predict_proba_one(x)[True]
        line.learn_one(x, label if square else bool(label))
    if square:
        return None, float(np.square(predicted - labels).mean())
    return accuracy(predicted, labels), log_loss(predicted, labels)


def main() -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.vafl.defaults", description=__doc__).parse_args()
    console = Console(width=132)
    for square in (False, True):
        table = Table("table", "rows x columns", "River, pooled", "two linear parties", "two networks", "base rate, or variance")
        for name, given, values in tables(square):
            inputs, labels = given[: ENTITIES + REST], values[: ENTITIES + REST]
            if square:
                labels = (labels - labels.min()) / (labels.max() - labels.min())
            found = [pooled(inputs[:-REST], labels[:-REST], square)]
            found += [federation(inputs, labels, square, network) for network in (False, True)]
            base = labels.var() if square else max(labels.mean(), 1 - labels.mean())
            cells = [f"{loss:.4f}" if share is None else f"{share:.3f}, {loss:.3f}" for share, loss in found]
            table.add_row(name, f"{len(labels) - REST} x {inputs.shape[1]}", *cells, f"{base:.3f}")
        console.print(f"{'squared error, label 0 to 1' if square else 'accuracy, log loss'} of predictions before the label")
        console.print(table)


if __name__ == "__main__":
    main()
