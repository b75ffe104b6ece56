"""Vertical federations on real data: accuracy in epochs, in one pass, and with labels that come late.

``STREAMFL_DATA=folder python -m benchmarks.vafl.accuracy``: MNIST and Fashion-MNIST, 784 pixels dealt to
seven parties, and a9a, 123 columns dealt to two. Everything goes through the roles, their workers and the
memory bus. A table in Markdown on stdout, a line as soon as it is known; tens of minutes altogether.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from streamfl.simulation.parties import Delay
from streamfl.simulation.vertical.table import VerticalTable
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.tools.run import run_vertical

PARTIES = {"mnist": 7, "fashion_mnist": 7, "a9a": 2}
LATE = 10_000
MEAN_PIXEL = 0.13
LINEAR: dict[str, Any] = {}
NETWORK: dict[str, Any] = {"embedding": {"hidden": [64]}, "head": {"kind": "network", "hidden": [64]}}
# More would let many be learnt from as they were shown at the beginning: AdaGrad has their large gradients in
# its sums for ever.
FRESH: dict[str, Any] = {"learning": {"max_staleness": 2}}
WAITING: dict[str, Any] = {"learning": {"wait_for": 7}}
ALONE: dict[str, Any] = {"learning": {"quorum": 1}}
OF_FIVE: dict[str, Any] = {"learning": {"quorum": 5}}
# Virtual seconds from one upload of a party to its next.
ALIKE = (1.0,) * 7
TWO_SLOW = (1.0, 1.0, 1.0, 1.0, 1.0, 10.0, 10.0)


def private(mu: float, size: int, batch: int, rate: float) -> dict[str, Any]:
    """An entity that is shown and learnt from once costs ``mu`` at each party, nine tenths of mu^2 by its
    embedding."""
    noise = {"embedding_norm": 1.0, "embedding_noise": 2 / (mu * 0.9**0.5)}
    steps = {"gradient_norm": 1.0, "gradient_noise": 2 / (mu * 0.1**0.5), "budget_mu": mu * (1 + 1e-9)}
    return {
        "federation": {"embedding_size": size},
        "embedding": {"hidden": [64]},
        "head": {"kind": "network"},
        "privacy": noise | steps,
        "learning": {"optimiser": "sgd", "learning_rate": rate, "batch_size": batch},
    }


# Name: data, settings, passes (None: one, online), entities that labels come later, and what is to be
# reached.
RUNS: dict[str, tuple[str, dict[str, Any], int | None, int, float]] = {
    "mnist, linear, 3 epochs": ("mnist", LINEAR, 3, 0, 0.92),
    "mnist, linear, 3 epochs, learning.quorum 1": ("mnist", ALONE, 3, 0, 0.0),
    "mnist, linear, 3 epochs, max_staleness 2": ("mnist", FRESH, 3, 0, 0.0),
    "mnist, linear, 1 epoch, two slow": ("mnist", LINEAR, 1, 0, 0.0),
    "mnist, linear, 1 epoch, two slow, learning.quorum 5": ("mnist", OF_FIVE, 1, 0, 0.0),
    "mnist, linear, 1 epoch, two slow, learning.quorum 1": ("mnist", ALONE, 1, 0, 0.0),
    "mnist, linear, synchronous, 3 epochs": ("mnist", LINEAR | WAITING, 3, 0, 0.92),
    "mnist, network, synchronous, 4 epochs": ("mnist", NETWORK | WAITING, 4, 0, 0.975),
    "mnist, linear, one pass": ("mnist", LINEAR, None, 0, 0.915),
    "mnist, linear, one pass, two slow": ("mnist", LINEAR, None, 0, 0.0),
    "mnist, linear, one pass, two slow, learning.quorum 5": ("mnist", OF_FIVE, None, 0, 0.0),
    "mnist, linear, one pass, two slow, learning.quorum 1": ("mnist", ALONE, None, 0, 0.0),
    "mnist, network, one pass": ("mnist", NETWORK, None, 0, 0.96),
    "mnist, linear, labels late, stored embeddings": ("mnist", LINEAR, None, LATE, 0.0),
    "mnist, linear, labels late, fresh embeddings": ("mnist", FRESH, None, LATE, 0.0),
    "mnist, network, labels late, fresh embeddings": ("mnist", NETWORK | FRESH, None, LATE, 0.96),
    "mnist, mu 1.4, one pass": ("mnist", private(1.4, 10, 512, 1.0), None, 0, 0.80),
    "mnist, mu 2.3, one pass": ("mnist", private(2.3, 10, 512, 2.0), None, 0, 0.86),
    "mnist, mu 4.5, one pass": ("mnist", private(4.5, 14, 256, 2.0), None, 0, 0.89),
    "fashion, linear, synchronous, 3 epochs": ("fashion_mnist", LINEAR | WAITING, 3, 0, 0.845),
    "fashion, network, synchronous, 4 epochs": ("fashion_mnist", NETWORK | WAITING, 4, 0, 0.88),
    "a9a, linear, 3 epochs": ("a9a", LINEAR, 3, 0, 0.848),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vafl.accuracy", description=__doc__)
    parser.add_argument(
        "--only", action="append", help="a run's name or a pattern; may be given several times"
    )
    parser.add_argument("--seed", type=int, action="append", help="may be given several times; left out: 0")
    chosen = parser.parse_args()
    if "STREAMFL_DATA" not in os.environ:
        sys.exit("STREAMFL_DATA is not set: the folder with mnist.npz, fashion_mnist.npz and a9a.npz")
    names = [name for name in RUNS if any(fnmatchcase(name, pattern) for pattern in chosen.only or ["*"])]
    heads = (
        "run",
        "seed",
        "accuracy",
        "goal",
        "noisy embeddings",
        "one party absent",
        "mu",
        "embeddings",
        "asked anew",
        "staleness, mean and largest",
        "virtual seconds",
        "seconds",
    )
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}", flush=True)
    for name in names:
        accuracies = []
        for seed in chosen.seed or [0]:
            row, accuracy = measured(name, seed, Path(os.environ["STREAMFL_DATA"]))
            accuracies.append(accuracy)
            print(row, flush=True)
        if len(accuracies) > 1:
            spread = f"{np.mean(accuracies):.4f} ({min(accuracies):.4f} to {max(accuracies):.4f})"
            print(f"| {name} | all {len(accuracies)} | {spread} |{' |' * (len(heads) - 3)}", flush=True)


def measured(name: str, seed: int, folder: Path) -> tuple[str, float]:
    """One run as a row of the table, and its accuracy."""
    data, sections, epochs, late, goal = RUNS[name]
    began = time.perf_counter()
    # Directions of embeddings tell more of inputs about 0.
    table = read(folder / f"{data}.npz", PARTIES[data], MEAN_PIXEL if "privacy" in sections else 0.0)
    delays = [Delay(mean) for mean in (TWO_SLOW if "two slow" in name else ALIKE)[: PARTIES[data]]]
    chosen = settings(data, sections, seed, online=epochs is None)
    outcome = run_vertical(chosen, table, delays=delays, epochs=epochs, label_delay=late)
    seconds = time.perf_counter() - began
    without = [one.accuracy or 0.0 for one in outcome.absent.values()]
    columns = (
        name,
        str(seed),
        f"{outcome.final.accuracy:.4f}",
        f"{goal:g}" if goal else "",
        "" if outcome.noisy is None else f"{outcome.noisy.accuracy:.4f}",
        f"{min(without):.4f} to {max(without):.4f}",
        "" if outcome.mu is None else f"{outcome.mu:.3g}",
        str(outcome.traffic["uploads"]),
        str(outcome.requests),
        f"{outcome.staleness_mean:.1f}, {outcome.staleness_largest}",
        f"{outcome.seconds:,.0f}",
        f"{seconds:.0f}",
    )
    assert outcome.final.accuracy is not None
    return f"| {' | '.join(columns)} |", outcome.final.accuracy


def settings(data: str, sections: dict[str, Any], seed: int, online: bool = False) -> VaflSettings:
    """AdaGrad with .03 in batches of 16 at every member, on inputs as they come.

    online: an entity that is shown once only is predicted when all parties have shown it.
    """
    images = data != "a9a"
    loss = {"loss": "softmax", "classes": 10} if images else {"loss": "logistic"}
    learning: dict[str, Any] = {**loss, "learning_rate": 0.03, "batch_size": 16}
    learning |= sections.get("learning", {})
    return VaflSettings.model_validate(
        {
            "federation": {
                "name": "figures",
                "seed": seed,
                "parties": [f"party-{number}" for number in range(PARTIES[data])],
                "embedding_size": 16 if "embedding" in sections else 10 if images else 1,
                **sections.get("federation", {}),
            },
            "role": {"kind": "simulation"},
            # Slow parties show entities long after the others: nothing expires.
            "alignment": {"quorum": PARTIES[data] if online else 1, "revise": False, "expiry_seconds": 1e6},
            **{key: value for key, value in sections.items() if key not in ("federation", "learning")},
            "embedding": {"standardise": False, **sections.get("embedding", {})},
            **(
                {"privacy": {**sections["privacy"], "secret_file": _secret()}}
                if "privacy" in sections
                else {}
            ),
            "learning": learning,
        }
    )


def _secret() -> str:
    """A file whose noise is the same at every run."""
    path = Path(tempfile.gettempdir()) / "streamfl-benchmark-secret"
    path.write_bytes(b"not a secret at all, for a benchmark is to be done again")
    path.chmod(0o600)
    return str(path)


def read(path: Path, parties: int, mean: float = 0.0) -> VerticalTable:
    """The columns dealt in order, the official test rows last; pixels from 0 to 1, less ``mean``."""
    with np.load(path) as archive:
        inputs = np.concatenate([archive["X"], archive["X_test"]]).astype(float)
        labels = np.concatenate([archive["y"], archive["y_test"]]).astype(float)
        tests = len(archive["y_test"])
    if inputs.max() > 1:
        inputs /= 255.0
    inputs -= mean
    if labels.min() < 0:
        labels = (labels > 0).astype(float)
    return VerticalTable(
        [np.ascontiguousarray(part) for part in np.array_split(inputs, parties, axis=1)], labels, tests
    )


if __name__ == "__main__":
    main()
