"""``python -m benchmarks.vafl.defaults``: two parties with the defaults, beside models that see all columns.

Each party has half of the columns. Every entity is predicted before its label, once; with ``--late N`` labels
come N at a time, to everybody. Beside linear parties stands River's standard scaler with its linear model.
``--networks``: beside parties with networks stands a dense one of as many units, learnt by the same rule and
written out here. ``--noise``: what noise costs. STREAMFL_DATA adds tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from river import compose, linear_model, preprocessing
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_diabetes, make_classification, make_friedman1

from benchmarks.commands import Floats, arguments, data_folder, data_set
from benchmarks.vafl.accuracy import known_secret, noise_of
from streamfl.learning.accuracy import accuracy, log_loss
from streamfl.simulation.tables import numbers, read_data
from streamfl.simulation.vertical.table import VerticalTable
from streamfl.vafl.config import COORDINATOR, RATES, VaflSettings
from streamfl.vafl.tools.run import run_vertical

ENTITIES = 4_000
# The last ones are for the figure on other entities, which is not looked at here.
REST = 50
CLASSES = ("a9a", "credit_default", "elec2", "gmsc", "phishing", "w8a")
NUMBERS = ("bike_hour", "parkinsons_telemonitoring", "naval")
# What a party's network and the head have; beside them the whole of it.
HIDDEN, EMBEDDING = 16, 8
SEEDS = (0, 1)
# Of what stands in the tables, the farthest from the pooled model that is no miss.
TOLERANCE = 0.02
# Of a logistic label's noise, by the mu that its label costs; and of a party's, by the mu of an entity that
# is learnt from once.
LABEL_MU = (2.0, 1.0, 0.5)
PARTY_MU = (8.0, 4.0, 2.0)


class Quality(NamedTuple):
    """accuracy: None of numbers. loss: mean log loss; of numbers the root of the mean squared error."""

    accuracy: float | None
    loss: float


def tables(square: bool) -> Iterator[tuple[str, Floats, Floats]]:
    """Name, inputs and labels, 0 and 1 or numbers from 0 to 1; in random order but where the rows are a
    stream."""
    draws = np.random.default_rng(0)
    if square:
        yield "friedman", *make_friedman1(ENTITIES, 10, noise=1.0, random_state=0)
        yield "diabetes", *_shuffled(load_diabetes(return_X_y=True, scaled=False), draws)
        yield "river TrumpApproval", *_of_river("TrumpApproval")
    else:
        yield "made", *_made(draws)
        yield "breast cancer", *_shuffled(load_breast_cancer(return_X_y=True), draws)
        yield "river Phishing", *_of_river("Phishing")
        yield "river Bananas", *_of_river("Bananas")
    for name in (NUMBERS if square else CLASSES) if "STREAMFL_DATA" in os.environ else ():
        inputs, labels = data_set(data_folder(), name)
        inputs = np.where(np.isnan(inputs), np.nanmean(inputs, axis=0), inputs)
        labels = labels if square else (labels > 0).astype(float)
        order = np.arange(len(labels)) if name in ("elec2", "bike_hour") else draws.permutation(len(labels))
        yield name, inputs[order], labels[order]


def _made(draws: np.random.Generator) -> tuple[Floats, Floats]:
    inputs, labels = make_classification(ENTITIES, 20, n_informative=8, class_sep=0.7, random_state=1)
    return inputs * np.exp(2 * draws.normal(size=20)) + 5, labels.astype(float)


def _shuffled(table: tuple[Floats, Floats], draws: np.random.Generator) -> tuple[Floats, Floats]:
    inputs, labels = table
    order = draws.permutation(len(labels))
    return inputs[order], labels[order].astype(float)


def _of_river(name: str) -> tuple[Floats, Floats]:
    location = f"river:{name}"
    data = read_data(location)
    inputs, labels = (numbers(data, names, location) for names in (data.inputs(["y"]), ["y"]))
    return inputs, labels[:, 0]


def prepared(square: bool, names: str, rows: int = ENTITIES) -> Iterator[tuple[str, Floats, Floats]]:
    """The first rows of the tables of these names, labels brought to 0 to 1."""
    for name, given, values in tables(square):
        inputs, labels = given[: rows + REST], values[: rows + REST]
        if square:
            labels = (labels - labels.min()) / (labels.max() - labels.min())
        if fnmatchcase(name, names):
            yield name, inputs, labels


def federation(
    inputs: Floats,
    labels: Floats,
    square: bool,
    late: int,
    network: bool = False,
    seed: int = 0,
    size: int = 1,
    **sections: Any,
) -> Quality:
    """Of what two parties, each with half of the columns, predicted before the label."""
    half = inputs.shape[1] // 2
    size = EMBEDDING if network else size
    if network:
        sections |= {"embedding": {"hidden": [HIDDEN]}, "head": {"kind": "network", "hidden": [HIDDEN]}}
    settings = VaflSettings.model_validate(
        {
            "federation": {"name": "defaults", "seed": seed, "parties": ["a", "b"], "embedding_size": size},
            "role": {"kind": COORDINATOR},
            "labels": {"topic": "labels", "label": "y"},
            **sections,
            "learning": {"loss": "square" if square else "logistic", **sections.get("learning", {})},
        }
    )
    table = VerticalTable([inputs[:, :half], inputs[:, half:]], labels, REST)
    found = run_vertical(settings, table, epochs=None, arrivals=late).summary()["progressive"]
    return Quality(found["accuracy"], float(np.sqrt(found["loss"])) if square else found["loss"])


def pooled(inputs: Floats, labels: Floats, square: bool, late: int) -> Quality:
    """Of River's standard scaler and linear model, which see all columns."""
    model = linear_model.LinearRegression() if square else linear_model.LogisticRegression()
    line = compose.Pipeline(preprocessing.StandardScaler(), model)
    predicted = np.empty(len(labels))
    rows = [dict(enumerate(row)) for row in inputs.tolist()]
    for begin in range(0, len(rows), late):
        together = range(begin, min(begin + late, len(rows)))
        for number in together:
            row = rows[number]
            predicted[number] = line.predict_one(row) if square else line.predict_proba_one(row)[True]
        for number in together:
            line.learn_one(rows[number], labels[number] if square else bool(labels[number]))
    return quality(predicted, labels, square)


def pooled_network(inputs: Floats, labels: Floats, square: bool, late: int, seed: int) -> Quality:
    """Of one dense network of all columns: two layers of relu with a linear one between, as parties and head
    together.

    AdaGrad at the defaults' rate on columns by their own mean and deviation so far, cut at 3, over the root
    of their number. It steps on the labels that come together.
    """
    draws, rate = np.random.default_rng(seed), RATES[square, False]
    sizes = [inputs.shape[1], 2 * HIDDEN, 2 * EMBEDDING, HIDDEN, 1]
    shapes = [shape for below, above in pairwise(sizes) for shape in ((below, above), (above,))]
    parameters = [
        draws.uniform(-1, 1, shape) * np.sqrt(6 / sum(shape)) if len(shape) == 2 else np.zeros(shape)
        for shape in shapes
    ]
    sums = [np.zeros(shape) for shape in shapes]
    predicted = np.empty(len(labels))
    rows = _standardised(inputs)
    for begin in range(0, len(rows), late):
        layers, own = [rows[begin : begin + late]], labels[begin : begin + late]
        for layer in range(4):
            values = layers[-1] @ parameters[2 * layer] + parameters[2 * layer + 1]
            layers.append(np.maximum(values, 0) if layer in (0, 2) else values)
        predicted[begin : begin + late] = layers[-1][:, 0] if square else expit(layers[-1][:, 0])
        error = predicted[begin : begin + late] - own
        back = ((2 if square else 1) * error / len(own))[:, np.newaxis]
        for layer in reversed(range(4)):
            back = np.where(layers[layer + 1] > 0, back, 0.0) if layer in (0, 2) else back
            gradients = {2 * layer: layers[layer].T @ back, 2 * layer + 1: back.sum(axis=0)}
            back = back @ parameters[2 * layer].T
            for which, gradient in gradients.items():
                sums[which] += np.square(gradient)
                parameters[which] -= rate * gradient / (1e-8 + np.sqrt(sums[which]))
    return quality(predicted, labels, square)


def _standardised(inputs: Floats) -> Floats:
    counts = np.arange(1, len(inputs) + 1)[:, np.newaxis]
    # About the first row, so that squares of large numbers do not cancel.
    moved = inputs - inputs[0]
    means = np.cumsum(moved, axis=0) / counts
    deviations = np.sqrt(np.maximum(np.cumsum(np.square(moved), axis=0) / counts - np.square(means), 0))
    scaled = np.where(deviations > 1e-9, (moved - means) / np.maximum(deviations, 1e-9), 0.0)
    return np.asarray(np.clip(scaled, -3, 3) / np.sqrt(inputs.shape[1]))


def quality(predicted: Floats, labels: Floats, square: bool) -> Quality:
    """Of predictions, probabilities or numbers."""
    if square:
        return Quality(None, float(np.sqrt(np.square(predicted - labels).mean())))
    return Quality(accuracy(predicted, labels), log_loss(predicted, labels))


def mean(found: list[Quality]) -> Quality:
    shares = [one.accuracy for one in found if one.accuracy is not None]
    return Quality(float(np.mean(shares)) if shares else None, float(np.mean([one.loss for one in found])))


def _cell(one: Quality) -> str:
    text = f"{one.loss:.3f}" if one.loss < 1e3 else f"{one.loss:.0e}"
    return text if one.accuracy is None else f"{one.accuracy:.3f}, {text}"


def _beside(one: Quality, other: Quality) -> str:
    """How far one is from another, in percent, with a mark where it is a miss."""
    parts = [] if one.accuracy is None or other.accuracy is None else [1 - one.accuracy / other.accuracy]
    parts.append(one.loss / other.loss - 1)
    missed = " MISS" if max(parts) > TOLERANCE else ""
    shown = [-parts[0], parts[1]] if len(parts) == 2 else parts
    return ", ".join(f"{100 * part:+.1f}%" for part in shown) + missed


def compare(
    console: Console, square: bool, late: int, network: bool, batch: int | None, names: str, rows: int
) -> None:
    """Parties with the defaults beside a pooled model."""
    pair = ("network, pooled", "two networks") if network else ("River, pooled", "two linear parties")
    table = Table("table", "rows x columns", *pair, "beside it", "base rate, or deviation")
    for name, inputs, labels in prepared(square, names, rows):
        learnt = inputs[:-REST], labels[:-REST], square, late
        whole = mean([pooled_network(*learnt, seed) for seed in SEEDS]) if network else pooled(*learnt)
        learning = {"batch_size": batch}
        seeds = SEEDS if network else SEEDS[:1]
        parties = mean(
            [federation(inputs, labels, square, late, network, seed, learning=learning) for seed in seeds]
        )
        base = labels.std() if square else max(labels.mean(), 1 - labels.mean())
        shape = f"{len(labels) - REST} x {inputs.shape[1]}"
        table.add_row(name, shape, _cell(whole), _cell(parties), _beside(parties, whole), f"{base:.3f}")
    when = "one label after the other" if late == 1 else f"labels {late} at a time"
    drawn = f"; mean of seeds {SEEDS[0]} and {SEEDS[1]}" if network else ""
    console.print(f"{_measures(square)}, of predictions before the label; {when}{drawn}")
    console.print(table)


def noise(console: Console, square: bool, names: str, rows: int) -> None:
    """What it costs to hide labels, and to hide what a party knows. Columns then go by bounds that count as
    public."""
    labels_mu = {f"labels, mu {mu:g}": mu for mu in LABEL_MU}
    parties_mu = {f"parties, mu {mu:g}": mu for mu in PARTY_MU}
    table = Table("table", "no noise", *labels_mu, "bounded, no noise", *parties_mu)
    for name, inputs, labels in prepared(square, names, rows):
        cells = [federation(inputs, labels, square, 1)]
        for mu in labels_mu.values():
            hidden = {"secret_file": known_secret(), "reply_noise": (2.0 if square else 1.0) / mu}
            cells.append(federation(inputs, labels, square, 1, privacy=hidden))
        low, high = inputs.min(axis=0), inputs.max(axis=0)
        public = (2 * (inputs - low) / np.where(high > low, high - low, 1.0) - 1) / np.sqrt(
            inputs.shape[1] / 2
        )
        # Embeddings of 4 numbers and norm 1 under a linear head.
        sections: dict[str, Any] = {"head": {"kind": "network"}, "embedding": {"standardise": False}}
        for own in (None, *parties_mu.values()):
            noise = {} if own is None else {**noise_of(own), "secret_file": known_secret()}
            cells.append(federation(public, labels, square, 1, size=4, privacy=noise, **sections))
        table.add_row(name, *map(_cell, cells))
    console.print(f"{_measures(square)}, of predictions before it")
    console.print(table)


def _measures(square: bool) -> str:
    return "root of the mean squared error, label 0 to 1" if square else "accuracy, log loss"


def main() -> None:
    chosen = arguments(
        "vafl.defaults",
        __doc__,
        late=(1, "labels that come together"),
        networks=(False, "parties and head with a hidden layer"),
        noise=(False, "what noise costs"),
        batch_size={"type": int, "help": "learning.batch_size; left out: as by default"},
        only=("*", "a table's name or a pattern"),
        rows=(ENTITIES, "of each table at most"),
    )
    console, of = Console(width=160), (chosen.only, chosen.rows)
    for square in (False, True):
        if chosen.noise:
            noise(console, square, *of)
        else:
            compare(console, square, chosen.late, chosen.networks, chosen.batch_size, *of)


if __name__ == "__main__":
    main()
