"""The streams of the forest's study: sets of a folder dealt to clients, as ``streams.py`` there does it, and
what disturbs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy_runs import load_streams

__all__ = ["CELLS", "DISTURBANCES", "Stream", "deal", "disturbed"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Name, clients, samples of each. `_iid`: rows shuffled before dealing. The last six have two classes.
CELLS = {
    "naval 40": ("naval", 40, 300),
    "bike 40": ("bike_hour", 40, 300),
    "air 40": ("air", 40, 300),
    "uji 40": ("uji", 40, 300),
    "telemonitoring 40": ("parkinsons_telemonitoring", 40, 300),
    "air_iid 40": ("air_iid", 40, 300),
    "bike_iid 40": ("bike_hour_iid", 40, 300),
    "credit LIMIT_BAL 40": ("credit_default:0", 40, 300),
    "gmsc age 40": ("gmsc:1", 40, 300),
    "naval 10": ("naval", 10, 1000),
    "bike 10": ("bike_hour", 10, 1000),
    "air 10": ("air", 10, 1000),
    "air_iid 10": ("air_iid", 10, 1000),
    "bike_iid 10": ("bike_hour_iid", 10, 1000),
    "elec2 10": ("elec2", 10, 1000),
    "phishing 10": ("phishing", 10, 1000),
    "a9a 10": ("a9a", 10, 1000),
    "w8a 10": ("w8a", 10, 1000),
    "credit default 10": ("credit_default", 10, 1000),
    "gmsc default 10": ("gmsc", 10, 1000),
}
CLASSES = ("elec2", "phishing", "a9a", "w8a", "credit_default", "gmsc")
LIES = (
    "the last client is not judged",
    "one says labels x -20",
    "one makes up items",
    "one makes up late items",
)
DISTURBANCES = ("labels 20 late", "20% say labels x -20", *LIES, "newcomers", "flip", "shift")
# In `newcomers`, every tenth client begins after two thirds of the rounds.
LATE_LABELS, LIE = 20, -20.0


@dataclass(frozen=True)
class Stream:
    """K clients with T samples each, NaN in ``labels`` where a client has none. Labels are 0 and 1 with the
    loss "logistic".

    inputs (K, T, d), labels (K, T). told: labels as clients say them. late: rounds until a label is known.
    judged (K, T): the predictions whose errors count. forger: what the last client makes up, "items" or "late
    items".
    """

    inputs: Floats
    labels: Floats
    told: Floats
    judged: NDArray[np.bool_]
    loss: str = "square"
    late: int = 0
    forger: str = ""


def deal(name: str, seed: int, folder: Path) -> Stream:
    """The streams of a cell. Inputs are divided by the largest norm of a row; labels are scaled to [0, 1]
    over the whole set."""
    key, clients, samples = CELLS.get(name, ("air_iid", 1000, 20))
    module = load_streams(folder)
    if key in module.SETS:
        inputs, labels, _ = module.make(key, clients, samples, seed, folder)
    else:
        key, _, target = key.removesuffix("_iid").partition(":")
        if key in module.SETS:
            rows, y, _ = module.load(key, folder)
        else:
            rows, y = _table(folder / f"{key}.npz", int(target) if target else None)
        samples = min(samples, len(y) // clients)
        if key == "elec2":  # In its order, a stretch a client, as benchmarks.classification deals it.
            order = (np.arange(clients) * (len(y) // clients))[:, None] + np.arange(samples)
        else:
            order = (
                np.random.default_rng(seed).permutation(len(y))[: clients * samples].reshape(clients, samples)
            )
        inputs, labels = rows[order], y[order]
    loss = "logistic" if key in CLASSES and not CELLS.get(name, ("",))[0].partition(":")[2] else "square"
    return Stream(inputs, labels, labels, np.ones(labels.shape, np.bool_), loss)


def _table(path: Path, target: int | None) -> tuple[Floats, Floats]:
    """Complete rows of a set with two classes; target: the column that is the label instead."""
    with np.load(path) as archive:
        inputs, classes = archive["X"].astype(float), archive["y"].astype(float)
    labels = (classes > classes.min()).astype(float)
    if target is not None:
        labels, inputs = inputs[:, target], np.delete(inputs, target, axis=1)
        keep = np.isfinite(inputs).all(1) & np.isfinite(labels)
        inputs, labels = inputs[keep], labels[keep]
        labels = (labels - labels.min()) / (labels.max() - labels.min())
    keep = np.isfinite(inputs).all(1)
    inputs, labels = inputs[keep], labels[keep]
    return inputs / np.linalg.norm(inputs, axis=1).max(), labels


def disturbed(stream: Stream, what: str) -> Stream:
    """The same stream with one of ``DISTURBANCES``."""
    clients, rounds = stream.labels.shape
    number = np.arange(clients)
    if what == "labels 20 late":
        return replace(stream, late=LATE_LABELS)
    if what == LIES[0]:
        return replace(stream, judged=stream.judged & (number < clients - 1)[:, None])
    if what.startswith("one makes up "):
        judged = stream.judged & (number < clients - 1)[:, None]
        return replace(stream, judged=judged, forger=what.removeprefix("one makes up "))
    if "say labels" in what or "says labels" in what:
        liars = number % 5 == 4 if what.startswith("20%") else number == clients - 1
        told = np.where(liars[:, None], LIE * stream.labels, stream.labels)
        return replace(stream, told=told, judged=stream.judged & ~liars[:, None])
    if what == "newcomers":
        new, begin = number % 10 == 9, 2 * rounds // 3
        labels = np.where(new[:, None] & (np.arange(rounds) < begin), np.nan, stream.labels)
        first = new[:, None] & (np.arange(rounds) >= begin) & (np.arange(rounds) < begin + 3)
        return replace(stream, labels=labels, told=labels, judged=first)
    after = np.arange(rounds) >= rounds // 2
    if what == "flip":
        labels = np.where(after, 1 - stream.labels, stream.labels)
        return replace(
            stream, labels=labels, told=labels, judged=stream.judged & (np.arange(rounds) >= 3 * rounds // 4)
        )
    if what == "shift":
        labels = np.where(after, stream.labels / 10, stream.labels)
        return replace(stream, labels=labels, told=labels, judged=stream.judged & after)
    raise ValueError(f"{what!r} is none of {', '.join(DISTURBANCES)}")
