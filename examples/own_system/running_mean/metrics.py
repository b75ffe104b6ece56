"""What a running mean measures."""

from __future__ import annotations

from streamfl.contract.measurement import Counts, counter, gauge

__all__ = ["MeanMetrics"]


class MeanMetrics(Counts):
    """Metrics of the role. The dashboard and the alerts are made from them."""

    predictions = counter("Samples predicted.", headline=True)
    labels = counter("Labels learnt from.")
    clients = gauge("Clients that are known.")
    rmse = gauge("RMSE before the label, in the label's own unit.", headline=True)
