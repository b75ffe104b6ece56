"""Names of metrics that several systems have, each with a help text of its own.

The dashboards and alerts for every system look for these names: a system that measures the same thing uses
the same name."""

from __future__ import annotations

from streamfl.contract.measurement import counter, gauge

__all__ = ["SharedMetrics"]


class SharedMetrics:
    """Metrics of a system's own roles."""

    samples = counter("Samples taken")
    labels = counter("Labels taken")
    embeddings = counter("Embeddings taken")
    timed_out_rounds = counter("Rounds that were not complete in time")
    scored = counter("Labels of samples that had been predicted")
    loss_sum = counter("Loss of all scored predictions")
    right_predictions = counter("Scored predictions that were correct")
    waiting_samples = gauge("Samples that wait until the role may take them")
