"""Two classes, end to end: log loss, accuracy and AUC of the default preset and of River's classifiers on the
same streams.

``STREAMFL_DATA=folder python -m benchmarks.classification``: elec2, phishing and a9a, ten clients with 1,000
samples each; elec2 in ten stretches of its series, the others shuffled. A table in Markdown on stdout.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from benchmarks.commands import Floats
from streamfl.learning.accuracy import classification_figures
from streamfl.learning.challengers import challenger
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.alone import alone
from streamfl.pofmkl.tools.direct import federated

SETS = ("elec2", "phishing", "a9a")
CLIENTS, SAMPLES = 10, 1_000
RIVER = ("linear", "hoeffding", "knn", "running-mean", "last-label")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.classification", description=__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each client")
    samples = parser.parse_args().samples
    if "STREAMFL_DATA" not in os.environ:
        sys.exit("STREAMFL_DATA is not set: the folder with elec2.npz, phishing.npz and a9a.npz")
    print("| set | method | log loss | accuracy | AUC |\n| --- | --- | --- | --- | --- |", flush=True)
    for name in SETS:
        inputs, labels = streams(
            Path(os.environ["STREAMFL_DATA"]) / f"{name}.npz", ordered=name == "elec2", samples=samples
        )
        for method in ("default", "default without a server", *RIVER):
            figures = classification_figures(predictions(method, inputs, labels).ravel(), labels.ravel())
            shown = " | ".join(f"{figures[key]:.3f}" for key in ("log_loss", "accuracy", "auc"))
            print(f"| {name} | {method} | {shown} |", flush=True)


def streams(path: Path, ordered: bool, samples: int) -> tuple[Floats, Floats]:
    """Inputs (T, K, d), divided by the largest norm of a row, and labels 0 and 1 (T, K)."""
    with np.load(path) as archive:
        inputs, labels = archive["X"].astype(float), archive["y"].astype(float)
    labels = (labels > labels.min()).astype(float)
    stretch = len(labels) // CLIENTS
    starts = np.arange(CLIENTS) * stretch
    order = np.arange(len(labels)) if ordered else np.random.default_rng(0).permutation(len(labels))
    rows = order[starts + np.arange(samples)[:, None]]
    return inputs[rows] / np.linalg.norm(inputs, axis=1).max(), labels[rows]


def predictions(method: str, inputs: Floats, labels: Floats) -> Floats:
    """Probabilities of label 1, (T, K), each before its label."""
    if method.startswith("default"):
        settings = PofmklSettings.model_validate(
            {
                "federation": {"name": "classes", "clients": CLIENTS},
                "role": {"kind": "pofmkl-client"},
                "learning": {"loss": "logistic"},
            }
        )
        if method != "default":
            return alone(settings, inputs, labels)
        return federated(settings, inputs, labels, [f"client-{index}" for index in range(CLIENTS)])
    found = np.empty(labels.shape)
    for client in range(CLIENTS):
        learner = challenger(method, "logistic")
        for number in range(len(labels)):
            sample = dict(enumerate(inputs[number, client].tolist()))
            found[number, client] = learner.predict(sample)
            learner.learn(sample, float(labels[number, client]))
    return found


if __name__ == "__main__":
    main()
