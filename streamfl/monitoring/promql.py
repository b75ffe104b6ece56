"""What alerts and dashboards ask Prometheus in the same words."""

from __future__ import annotations

__all__ = ["lag_by_partition"]


def lag_by_partition(labels: str, chosen: str = "") -> str:
    """Records that wait, by partition: as the partition's worker says, or, where it has none, as others of its group do.

    labels: by which series are kept apart, beside topic and partition, separated by commas. chosen: a selector of series, in
    braces.

    >>> lag_by_partition("group").partition(" or ")[0]
    'sum by (group, topic, partition) (streamfl_consumer_lag_records)'
    """
    by = f"{labels}, topic, partition"
    own, others = f"streamfl_consumer_lag_records{chosen}", f"streamfl_group_lag_records{chosen}"
    # Everybody who is alive says the same of a partition that is another's.
    return f"sum by ({by}) ({own}) or max by ({by}) ({others})"
