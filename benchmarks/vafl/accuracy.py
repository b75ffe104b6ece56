"""Vertical federations on real data: accuracy in epochs, in one pass, and with labels that come late.

``STREAMFL_DATA=folder python -m benchmarks.vafl.accuracy``: MNIST and Fashion-MNIST, 784 pixels dealt to
seven parties, and a9a, 123 columns dealt to two. Everything goes through the roles, their workers and the
memory bus. A table in Markdown on stdout, a line as soon as it is known; tens of minutes altogether.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import Markdown, arguments, data_folder, data_set, is_wanted, several
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


def noise_of(mu: float) -> dict[str, float]:
    """An entity that is shown and learnt from once costs ``mu`` at each party, nine tenths of mu^2 by its
    embedding."""
    embedding, gradient = (2 / (mu * share**0.5) for share in (0.9, 0.1))
    noise = {"embedding_norm": 1.0, "embedding_noise": embedding}
    return {**noise, "gradient_norm": 1.0, "gradient_noise": gradient}


def private(mu: float, size: int, batch: int, rate: float) -> dict[str, Any]:
    return {
        "federation": {"embedding_size": size},
        "embedding": {"hidden": [64]},
        "head": {"kind": "network"},
        "privacy": {**noise_of(mu), "budget_mu": mu * (1 + 1e-9)},
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
    seeds = several("left out: 0", kind=int)
    chosen = arguments("vafl.accuracy", __doc__, only=several("a run's name or a pattern"), seed=seeds)
    told = ("embeddings", "asked anew", "staleness, mean and largest", "virtual seconds", "seconds")
    heads = ("accuracy", "goal", "noisy embeddings", "one party absent", "mu", *told)
    table = Markdown("run", "seed", *heads)
    for name in (name for name in RUNS if is_wanted(name, chosen.only)):
        accuracies = []
        for seed in chosen.seed or [0]:
            cells, accuracy = measured(name, seed)
            accuracies.append(accuracy)
            table.add(name, seed, *cells)
        if len(accuracies) > 1:
            spread = f"{np.mean(accuracies):.4f} ({min(accuracies):.4f} to {max(accuracies):.4f})"
            table.add(name, f"all {len(accuracies)}", spread, *[""] * (len(heads) - 1))


def measured(name: str, seed: int) -> tuple[list[str], float]:
    """What is told of a run, and its accuracy."""
    data, sections, epochs, late, goal = RUNS[name]
    began = time.perf_counter()
    # Directions of embeddings tell more of inputs about 0.
    table = read(data, PARTIES[data], MEAN_PIXEL if "privacy" in sections else 0.0)
    delays = [Delay(mean) for mean in (TWO_SLOW if "two slow" in name else ALIKE)[: PARTIES[data]]]
    chosen = settings(data, sections, seed, online=epochs is None)
    outcome = run_vertical(chosen, table, delays=delays, epochs=epochs, label_delay=late)
    seconds = time.perf_counter() - began
    without = [one.accuracy or 0.0 for one in outcome.absent.values()]
    assert outcome.final.accuracy is not None
    cells = [
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
    ]
    return cells, outcome.final.accuracy


def settings(data: str, sections: dict[str, Any], seed: int, online: bool = False) -> VaflSettings:
    """AdaGrad with .03 in batches of 16 at every member, on inputs as they come.

    online: an entity that is shown once only is predicted when all parties have shown it.
    """
    images = data != "a9a"
    loss = {"loss": "softmax", "classes": 10} if images else {"loss": "logistic"}
    learning: dict[str, Any] = {**loss, "learning_rate": 0.03, "batch_size": 16}
    learning |= sections.get("learning", {})
    own = {key: value for key, value in sections.items() if key not in ("federation", "learning")}
    if "privacy" in own:
        own["privacy"] = {**own["privacy"], "secret_file": known_secret()}
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
            **own,
            "embedding": {"standardise": False, **sections.get("embedding", {})},
            "learning": learning,
        }
    )


def known_secret() -> str:
    """A file whose noise is the same at every run."""
    path = Path(tempfile.gettempdir()) / "streamfl-benchmark-secret"
    path.write_bytes(b"not a secret at all, for a benchmark is to be done again")
    path.chmod(0o600)
    return str(path)


def read(name: str, parties: int, mean: float = 0.0) -> VerticalTable:
    """The columns dealt in order, the official test rows last; pixels from 0 to 1, less ``mean``."""
    learnt, of_learnt, tests, of_tests = data_set(data_folder(), name, "X", "y", "X_test", "y_test")
    inputs, labels = np.concatenate([learnt, tests]), np.concatenate([of_learnt, of_tests])
    if inputs.max() > 1:
        inputs /= 255.0
    inputs -= mean
    if labels.min() < 0:
        labels = (labels > 0).astype(float)
    parts = [np.ascontiguousarray(part) for part in np.array_split(inputs, parties, axis=1)]
    return VerticalTable(parts, labels, len(of_tests))


if __name__ == "__main__":
    main()
