"""Panels for vertical systems: each party has other columns of the same entities, and scores an entity before
its label comes."""

from __future__ import annotations

from streamfl.monitoring.dashboard import Panel, Query, rate
from streamfl.monitoring.shared_metrics import SharedMetrics

__all__ = ["SCORED", "loss_tile"]

SCORED = f"(sum({rate(SharedMetrics.scored)}) > 0)"


def loss_tile(remedy: str) -> Panel:
    """Loss and accuracy of the latest interval. remedy: what to do when it looks bad."""
    return Panel(
        "Loss and accuracy now",
        "Mean loss of the latest interval's predictions, made before the label came, and the share that was "
        "correct. The share is empty with the square loss.",
        "short",
        (
            Query(f"sum({rate(SharedMetrics.loss_sum)}) / {SCORED}", "loss"),
            Query(f"sum({rate(SharedMetrics.right_predictions)}) / {SCORED}", "accuracy"),
        ),
        minimum=None,
        kind="stat",
        width=4,
        remedy=remedy,
        nothing="no labels",
    )
