"""What a running mean measures."""

from __future__ import annotations

from streamfl.contract.measurement import counter, gauge
from streamfl.roles.client_role import ClientCounts

__all__ = ["MeanMetrics"]


class MeanMetrics(ClientCounts):
    """Metrics of the role. The dashboard and the alerts are made from them."""

    predictions = counter("Samples predicted.", headline=True)
    labels = counter("Labels learnt from.")
    rmse = gauge("RMSE before the label, in the label's own unit.", headline=True)
