"""Offsets that a commit names beside its own, so that the cluster checks it and others wait for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from streamfl.runtime.bus import Step, TopicPartition

__all__ = ["fence"]


def fence(step: Step, base: Mapping[TopicPartition, int], reported: Collection[int]) -> dict[TopicPartition, int]:
    """Offsets that change nothing: of each partition whose changelog the step writes without a position of it, and of one if
    the step has no position at all.

    They make the cluster check that the member is still one; and whoever takes such a partition over asks for its offset, and
    with that waits until the transaction is decided, however late its end comes.

    base: offsets that the group has committed. reported: the partitions that the member has.
    """
    held = {place[1]: (place, offset) for place, offset in base.items() if place[1] in reported}
    written = {record.partition for record in step.changelog} - {partition for _, partition in step.positions}
    fenced = [held[partition] for partition in held.keys() & written]
    return dict(fenced or ([] if step.positions else list(held.values())[:1]))
