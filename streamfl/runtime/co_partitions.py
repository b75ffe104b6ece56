"""How many partitions of its inputs a role reads: partition p of each, or of none."""

from __future__ import annotations

from collections.abc import Mapping

from streamfl.contract.channels import Channels
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Subscription

__all__ = ["partitions_of_inputs", "placed_inputs", "strict_inputs"]


def strict_inputs(channels: Channels) -> list[str]:
    """The topics of the inputs that must have as many partitions as the role reads: in a further one there
    could be records that nobody reads. Empty: that number is fixed, and members write every input.
    """
    strict = [source.topic for source in channels.inputs.values() if not source.placed]
    if strict or channels.partitions is not None:
        return strict
    return [source.topic for source in channels.inputs.values()]


def placed_inputs(channels: Channels) -> frozenset[str]:
    """The topics of the inputs that may have more partitions."""
    return frozenset(source.topic for source in channels.inputs.values()) - {*strict_inputs(channels)}


def partitions_of_inputs(subscription: Subscription, counts: Mapping[str, int]) -> int:
    """The partitions that are read of each input. counts: those that it has, by topic.

    ConfigurationError if an input has others.
    """
    strict = {counts[topic] for topic in subscription.inputs if topic not in subscription.placed}
    if not strict and subscription.partitions is None:
        strict = {counts[topic] for topic in subscription.inputs}
    read = max(strict, default=subscription.partitions or 0)
    if len(strict) > 1 or any(counts[topic] < read for topic in subscription.inputs):
        found = ", ".join(f"{topic}: {counts[topic]}" for topic in subscription.inputs)
        raise ConfigurationError(
            f"the inputs of a role need the same number of partitions, {read} each ({found})"
        )
    return read
