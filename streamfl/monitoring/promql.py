"""PromQL that alerts and dashboards share."""

from __future__ import annotations

from streamfl.contract.measurement import Metric

__all__ = ["chosen_series", "lag_by_partition"]


def chosen_series(metric: Metric | str, *matchers: str, **labels: str | tuple[str, ...]) -> str:
    """The metric's series that match: see :meth:`streamfl.contract.measurement.Metric.where`."""
    if isinstance(metric, Metric):
        return metric.where(*matchers, **labels)
    return f"streamfl_{metric}{{{','.join(matchers)}}}" if matchers else f"streamfl_{metric}"


def lag_by_partition(labels: str, chosen: str = "") -> str:
    """Unread records by partition: as the partition's worker reports, or, if it has none, as other workers of its group report.

    labels: further labels that separate series, besides topic and partition, with commas between. chosen: a selector of series,
    in braces.

    >>> lag_by_partition("group").partition(" or ")[0]
    'sum by (group, topic, partition) (streamfl_consumer_lag_records)'
    """
    by = f"{labels}, topic, partition"
    own, others = f"streamfl_consumer_lag_records{chosen}", f"streamfl_group_lag_records{chosen}"
    # All live workers report the same lag of a partition, so max and not sum.
    return f"sum by ({by}) ({own}) or max by ({by}) ({others})"
