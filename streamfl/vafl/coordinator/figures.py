"""The coordinator's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.measurement import Measurement
from streamfl.roles.recent import WINDOW, Recent
from streamfl.vafl.coordinator.alignment import Decision
from streamfl.vafl.coordinator.entities import CoordinatorEntities
from streamfl.vafl.metrics import CoordinatorMetrics

__all__ = ["CoordinatorFigures"]


class CoordinatorFigures(CoordinatorMetrics):
    """Counts of all partitions since the process started, and how old the embeddings were that gradients were
    computed from."""

    def __init__(self) -> None:
        self._oldest = 0
        self._ages: Recent[int] = Recent()

    def count(self, decision: Decision, ages: NDArray[np.int64], now: float) -> None:
        """Count entities that were worked off now. ages: (n, M), steps that the party took since each
        embedding."""
        learns = decision.learns
        used = ages[learns][decision.used[learns]]
        self.aged_embeddings += len(used)
        self.staleness_steps += int(used.sum())
        self._oldest = max(self._oldest, int(used.max(initial=0)))
        self._ages.extend(used[-WINDOW:].tolist(), now)
        self.learnt += int(learns.sum())
        self.learnt_below_quorum += int((learns & decision.together & decision.below_quorum).sum())
        self.outdated_embeddings += int(decision.outdated[learns].sum())
        self.gradients += int(decision.answered[learns].sum())
        self.requests += int(decision.asked.sum())

    def measure(self, entities: Sequence[CoordinatorEntities]) -> Iterable[Measurement]:
        """The metrics. entities: those of each partition."""
        yield from self.measure_counts()
        yield CoordinatorMetrics.entities(sum(map(len, entities)))
        lacking = [one.lacking() for one in entities]
        for place, reason in enumerate(("label", "embeddings")):
            yield CoordinatorMetrics.lacking_entities(sum(one[place] for one in lacking), reason)
        yield CoordinatorMetrics.staleness_largest(self._oldest)
        largest, known = max(self._ages.items, default=0), bool(self._ages.items)
        yield CoordinatorMetrics.staleness_largest_windowed(largest, known=known, until=self._ages.until)
