"""Federations of kernels in one process, and how their rows come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.commands import Floats
from streamfl.fdskl.learning.schedule import ends_of_iterations
from streamfl.fdskl.learning.section import KernelLearningSection
from streamfl.fdskl.tools.federation import KernelFederation, settings_of_all


def named(counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Names of as many columns of each party."""
    return {name: [f"{name}-{number}" for number in range(count)] for name, count in counts.items()}


def federation_of(
    columns: Mapping[str, Sequence[str]],
    inputs: Floats,
    labels: Floats,
    network_delay: float = 0.0,
    **sections: Any,
) -> KernelFederation:
    """Parties with these columns of a table, which has them in this order."""
    parts = np.hsplit(inputs, np.cumsum([len(own) for own in columns.values()])[:-1])
    settings = settings_of_all(list(columns), **sections)
    return KernelFederation(settings, parts, list(columns.values()), labels, network_delay=network_delay)


def show(federation: KernelFederation, rows: range) -> None:
    """Let it predict these rows, and then learn from their labels."""
    federation.write_samples(rows)
    federation.run()
    federation.write_labels(rows)
    federation.run()


def rows_by_iteration(learning: KernelLearningSection, count: int) -> Iterator[range]:
    """Rows up to the labels that each iteration is due with."""
    begin = 0
    for end in ends_of_iterations(learning.first_block, learning.block_instances):
        yield range(begin, min(end, count))
        begin = end
        if end >= count:
            return
