"""Two classes, end to end: log loss, accuracy and AUC of the default preset and of River's classifiers on the
same streams.

``STREAMFL_DATA=folder python -m benchmarks.classification``: elec2, phishing and a9a, ten clients with 1,000
samples each; elec2 in ten stretches of its series, the others shuffled. A table in Markdown on stdout.
"""

from __future__ import annotations

import numpy as np

from benchmarks.commands import Floats, Markdown, arguments, data_folder, data_set
from streamfl.learning.accuracy import classification_figures
from streamfl.learning.challengers import challenger
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.alone import alone
from streamfl.pofmkl.tools.direct import federated

SETS = ("elec2", "phishing", "a9a")
CLIENTS, SAMPLES = 10, 1_000
RIVER = ("linear", "hoeffding", "knn", "running-mean", "last-label")


def main() -> None:
    samples = arguments("classification", __doc__, samples=(SAMPLES, "of each client")).samples
    table = Markdown("set", "method", "log loss", "accuracy", "AUC")
    for name in SETS:
        inputs, labels = streams(name, ordered=name == "elec2", samples=samples)
        for method in ("default", "default without a server", *RIVER):
            figures = classification_figures(predictions(method, inputs, labels).ravel(), labels.ravel())
            table.add(name, method, *(f"{figures[key]:.3f}" for key in ("log_loss", "accuracy", "auc")))


def streams(name: str, ordered: bool, samples: int) -> tuple[Floats, Floats]:
    """Inputs (T, K, d), divided by the largest norm of a row, and labels 0 and 1 (T, K)."""
    inputs, labels = data_set(data_folder(), name)
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
