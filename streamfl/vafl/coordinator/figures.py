"""The coordinator's metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Measurement
from streamfl.roles.recent import WINDOW, Recent
from streamfl.vafl.coordinator.alignment import Decision
from streamfl.vafl.coordinator.entities import CoordinatorEntities, Tally

__all__ = ["CoordinatorFigures"]

HEADLINES = {"embeddings", "labels", "predictions", "learnt", "gradients"}
COUNTS = {
    "embeddings": "Embeddings taken",
    "predictions": "Entities predicted",
    "revised_predictions": "Repeated predictions of an entity, made when another embedding came",
    "labels": "Labels taken",
    "learnt": "Times that an entity was learnt from",
    "learnt_below_quorum": "Times that an entity was learnt from although fewer parties than learning.quorum had sent it in time",
    "gradients": "Gradients sent",
    "requests": "Newer embeddings that were requested",
    "outdated_embeddings": "Embeddings above learning.max_staleness; their party's mean was used in the gradient instead",
    "steps": "Steps of the head's own parameters",
    "refused_steps": "Steps not taken because a parameter would have become infinite",
}


class CoordinatorFigures:
    """Counters of all partitions since the process started.

    counts: by name.
    duplicates: embeddings that came again.
    superseded: embeddings that came after a later one.
    tally: counts of forgotten entities and other outcomes.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self.duplicates = 0
        self.superseded = 0
        self.tally = Tally()
        self._aged = self._steps = self._oldest = 0
        self._ages: Recent[int] = Recent()

    def count(self, decision: Decision, ages: NDArray[np.int64], now: float) -> None:
        """Count entities that were worked off now. ages: (n, M), steps that the party took since each embedding."""
        learns = decision.learns
        used = ages[learns][decision.used[learns]]
        self._aged += len(used)
        self._steps += int(used.sum())
        self._oldest = max(self._oldest, int(used.max(initial=0)))
        self._ages.extend(used[-WINDOW:].tolist(), now)
        self.counts["learnt"] += int(learns.sum())
        self.counts["learnt_below_quorum"] += int((learns & decision.together & decision.below_quorum).sum())
        self.counts["outdated_embeddings"] += int(decision.outdated[learns].sum())
        self.counts["gradients"] += int(decision.answered[learns].sum())
        self.counts["requests"] += int(decision.asked.sum())

    def measure(self, entities: Sequence[CoordinatorEntities]) -> Iterable[Measurement]:
        """The metrics. entities: those of each partition."""
        for name, text in COUNTS.items():
            yield Measurement(name, "counter", text, self.counts[name], (), name in HEADLINES)
        text = "Repeated embeddings"
        yield Measurement("ignored_embeddings", "counter", text, self.duplicates, (("reason", "duplicate"),))
        text = "Embeddings with a number below one that was accepted just before: two processes send for one party"
        yield Measurement("superseded_embeddings", "counter", text, self.superseded)
        text = "Labels of entities that already had one; the first one counts"
        yield Measurement("duplicate_labels", "counter", text, self.tally.duplicate_labels)
        for reason, count in self.tally.forgotten.items():
            text = "Forgotten entities, by reason: what never came, no room, withheld, or learnt from but not sent by all"
            yield Measurement("forgotten_entities", "counter", text, count, (("reason", reason),))
        text = "Requests for a newer embedding without an answer"
        yield Measurement("silent_parties", "counter", text, self.tally.silent, (), True)
        yield Measurement("entities", "gauge", "Entities that are stored", sum(map(len, entities)), (), True)
        lacking = [one.lacking() for one in entities]
        text = (
            "Entities that are not learnt from: sent by enough parties but without a label, or with a label but not sent by "
            "enough parties"
        )
        for place, reason in enumerate(("label", "embeddings")):
            yield Measurement("lacking_entities", "gauge", text, sum(one[place] for one in lacking), (("reason", reason),))
        text = "Embeddings that gradients were computed from, counted once for each gradient"
        yield Measurement("aged_embeddings", "counter", text, self._aged)
        text = "Sum of the steps, as far as known here, that parties took since they made these embeddings"
        yield Measurement("staleness_steps", "counter", text, self._steps)
        yield Measurement("staleness_largest", "gauge", "The largest such number of steps since the worker's start", self._oldest)
        text = f"The largest such number of steps of the last {WINDOW} embeddings since the worker's start"
        largest, known = max(self._ages.items, default=0), bool(self._ages.items)
        yield Measurement("staleness_largest_windowed", "gauge", text, largest, known=known, until=self._ages.until)
