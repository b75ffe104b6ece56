"""How good the predictions of a partition's model have been over its whole life: sums that are remembered, so
that they survive restarts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec

from streamfl.contract.role import Measurement
from streamfl.encoding.wire import Count
from streamfl.fdskl.learning.losses import MarginLoss
from streamfl.fdskl.metrics import ActiveMetrics

__all__ = ["PrequentialTotals", "measure_totals", "of_no_use"]

# Sums are cut here, so that they can be remembered and restored.
LARGEST = 1e300
# With fewer labels a loss says little.
FEWEST = 256
Sum = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, msgspec.Meta(ge=0.0, le=LARGEST)]


class PrequentialTotals(msgspec.Struct, array_like=True):
    """Sums over predictions of a model whose label came, each made before its label was learnt from.

    labels: how many.
    loss: sum of the losses.
    total, squares: sums of the labels and of their squares.
    """

    labels: Count = 0
    loss: Positive = 0.0
    total: Sum = 0.0
    squares: Positive = 0.0

    def score(self, loss: float, label: float) -> None:
        """Add the loss of a prediction, and its label."""
        self.labels += 1
        self.loss = min(self.loss + loss, LARGEST)
        self.total = max(-LARGEST, min(self.total + label, LARGEST))
        self.squares = min(self.squares + label * label, LARGEST)


def of_no_use(totals: PrequentialTotals, what: MarginLoss) -> str | None:
    """A sentence for the operator if a constant would have lost less than the predictions so far; None if
    none would, or while there are few. what: the loss.
    """
    constant = what.of_constant(totals.labels, totals.total, totals.squares)
    if totals.labels < FEWEST or totals.loss <= constant:
        return None
    return (
        f"the predictions of {totals.labels:,} labelled entities have lost {totals.loss / totals.labels:.4g} "
        f"each, but the mean of these labels would have lost {constant / totals.labels:.4g}: so far this "
        "model is worse than none. There are few labels for this much noise: raise learning.regularisation "
        "and learning.bandwidth_multiplier, or check that labels have the keys of their samples"
    )


def measure_totals(totals: Iterable[PrequentialTotals], what: MarginLoss) -> Iterator[Measurement]:
    """The sums over all partitions of a worker. They move with their partitions. what: the loss."""
    totals = list(totals)
    labels, loss = sum(one.labels for one in totals), sum(one.loss for one in totals)
    constant = sum(what.of_constant(one.labels, one.total, one.squares) for one in totals)
    yield ActiveMetrics.lifetime_labels(labels)
    yield ActiveMetrics.lifetime_loss(loss)
    yield ActiveMetrics.lifetime_best_constant_loss(constant)
    yield ActiveMetrics.regret(loss - constant)
