"""PromQL that alerts and dashboards share."""

from __future__ import annotations

from streamfl.runtime.lag import SessionMetrics

__all__ = ["lag_by_partition"]


def lag_by_partition(labels: str, *matchers: str) -> str:
    """Unread records by partition: as the partition's worker reports, or, if it has none, as other workers of
    its group report.

    labels: further labels that separate series, besides topic and partition, with commas between. matchers:
    of the series that count; none: all.

    >>> lag_by_partition("group").partition(" or ")[0]
    'sum by (group, topic, partition) (streamfl_consumer_lag_records)'
    """
    by = f"{labels}, topic, partition"
    own, others = (
        one.where(*matchers)
        for one in (SessionMetrics.consumer_lag_records, SessionMetrics.group_lag_records)
    )
    # All live workers report the same lag of a partition, so max and not sum.
    return f"sum by ({by}) ({own}) or max by ({by}) ({others})"
