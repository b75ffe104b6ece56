"""How far a worker, and its consumer group, are behind the ends of their inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from streamfl.contract.measurement import Measurement, gauge
from streamfl.runtime.bus import Bus, Session, Subscription, TopicPartition

__all__ = ["Lag", "SessionMetrics"]


class SessionMetrics:
    """Metrics of a worker's inputs: its own partitions, and how far it and its group are behind."""

    partitions = gauge("Partitions this worker has.", headline=True)
    consumer_lag_records = gauge(
        "Records not read yet, by partition. Kafka's control records count too.",
        topic=None,
        partition=None,
        headline=True,
    )
    group_lag_records = gauge(
        "Records that the consumer group has not committed yet, whichever worker has the partition. Every "
        "worker of the group reports all partitions, a few seconds late: use the maximum, not the sum. "
        "Kafka's control records count too.",
        topic=None,
        partition=None,
    )


class Lag:
    """Unread records: in the worker's own partitions, by its session's positions, and in all partitions of
    its group.

    The group's view is by committed offsets, as in Kafka's own tools and exporters. Every live worker of the
    group gives it, so it also covers a partition whose worker has died, and one that no worker has.

    bus: the cluster.
    subscription: the inputs, the group, and where a group without offsets begins.
    """

    def __init__(self, bus: Bus, subscription: Subscription) -> None:
        self._bus = bus
        self._subscription = subscription
        self._of_group: dict[TopicPartition, int] = {}

    def look(self) -> None:
        """Ask the cluster for the group's view: one request for the offsets, and one for the ends of each
        input.

        BusUnavailable if the cluster does not answer; the last view then stays. It may be called from any
        thread.
        """
        subscription = self._subscription
        committed = self._bus.committed(subscription.group)
        found: dict[TopicPartition, int] = {}
        for topic in subscription.inputs:
            ends = self._bus.offsets(topic, math.inf)
            begun = {partition: committed.get((topic, partition)) for partition in ends}
            if None in begun.values() and subscription.auto_offset_reset == "earliest":
                begins = self._bus.offsets(topic, -math.inf)
                begun = {
                    partition: begins.get(partition) if at is None else at for partition, at in begun.items()
                }
            # With 'latest' the first position is not known before the group has begun.
            found |= {
                (topic, partition): max(0, ends[partition] - at)
                for partition, at in begun.items()
                if at is not None
            }
        self._of_group = found

    def measure(self, session: Session | None) -> Iterator[Measurement]:
        """Both views. session: the worker's, None while it has none."""
        if session is not None:
            for (topic, partition), behind in session.lag().items():
                yield SessionMetrics.consumer_lag_records(max(0, behind), topic, str(partition))
        for (topic, partition), behind in self._of_group.items():
            yield SessionMetrics.group_lag_records(behind, topic, str(partition))
