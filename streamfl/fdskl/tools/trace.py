"""Arrays to compute a run again without this code: columns, labels, draws, the entities of each iteration,
and the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.tools.federation import KernelFederation
from streamfl.simulation.vertical.table import VerticalTable

__all__ = ["trace_of"]


def trace_of(
    federation: KernelFederation, table: VerticalTable, shown: Mapping[str, NDArray[np.int64]]
) -> dict[str, NDArray[Any]]:
    """Arrays by name. Features are all that were drawn, kept or dropped; i counts them.

    inputs/PARTY: its columns of all entities, standardised, (entities, columns).
    frequencies/PARTY: omega_i on its columns, (features, columns).
    phases, owners: b_i, and the number of the party that drew it, (features,).
    labels: as the loss takes them, -1 and 1 for classes, (entities,).
    instances: with ``sgd``, the entities of each iteration, (T, B). learners: the number of the active party
    that has the coefficient of each feature, (features,).
    kept: first feature that is kept, and the one after the last, (2,). alphas: coefficients of the kept ones.
    scale: the common factor that is in ``alphas``. bandwidth: of the kernel. entities: those from this one on
    are the test rows. predictions: f of the test rows, (test,).
    """
    settings, model = federation.settings, federation.held.model
    learning = settings.learning
    expansion = model.snapshot()
    learners = federation.learners
    first, last = expansion.first, expansion.first + len(expansion.alphas)
    rows = federation.standardised(table.inputs)
    arrays: dict[str, NDArray[Any]] = {
        "labels": table.labels if learning.loss == "square" else 2 * table.labels - 1,
        "entities": np.array(table.learnt),
        "kept": np.array([first, last]),
        "alphas": np.sum([one.alphas for one in federation.expansions.values()], axis=0),
        "scale": np.array(model.scale),
        "bandwidth": np.array(expansion.bandwidth),
        "predictions": federation.evaluate(table.part(slice(table.learnt, None))[0]),
    }
    phases = np.zeros(last)
    for (name, role), own in zip(federation.roles.items(), rows, strict=True):
        arrays[f"inputs/{name}"] = own
        if not last:
            continue
        drawn = role.partition(0).sums.own_part.contributions.frequencies(expansion.bandwidth)
        arrays[f"frequencies/{name}"] = drawn.frequencies(0, last)
        arrays["owners"] = drawn.owners(0, last)
        phases += drawn.offsets(0, last)
    arrays["phases"] = phases
    numbers = [settings.federation.parties.index(name) for name in learners]
    if learning.solver == "sgd":
        size, left = learning.block_instances, {name: iter(own.tolist()) for name, own in shown.items()}
        instances = [list(islice(left[name], size)) for name in learners]
        arrays["instances"] = np.array(instances, np.int64).reshape(len(learners), size)
        arrays["learners"] = np.repeat(numbers, learning.block_features)
    return arrays
