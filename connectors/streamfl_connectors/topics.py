"""A connector's knowledge of a cluster's topics: asked once, and cached."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import HOW_TO_CREATE, Subscription, TopicPartition, TopicState
from streamfl.runtime.co_partitions import partitions_of_inputs

__all__ = ["Topics", "options_of"]


class Topics(ABC):
    """The topics of a cluster. Partition counts and size limits are cached, because topics keep them.

    largest: the largest record that the client library sends, in bytes.
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._counts: dict[str, int] = {}
        self._limits: dict[str, int] = {}

    @abstractmethod
    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name; ``error`` says what is wrong with one that cannot be used,
        ``hidden`` what is not known of one."""

    @abstractmethod
    def look_up(self, names: list[str]) -> dict[str, int | Exception | None]:
        """The partitions of topics; or the error that says why one cannot be used; None for a topic that does
        not exist.

        BusUnavailable if the cluster does not answer.
        """

    def require(self, topics: Iterable[str]) -> dict[str, int]:
        """The partition counts of topics; ConfigurationError if one is missing or not allowed."""
        names = set(topics)
        unknown = sorted(names - self._counts.keys())
        for name, found in (self.look_up(unknown) if unknown else {}).items():
            if found is None:
                raise ConfigurationError(f"topic {name!r} does not exist: create it, {HOW_TO_CREATE}")
            if isinstance(found, Exception):
                raise found
            self._counts[name] = found
        return {name: self._counts[name] for name in names}

    def limits(self, topics: Iterable[str]) -> dict[str, int]:
        """The largest record of each topic, in bytes; ConfigurationError if a topic is missing or not
        allowed."""
        names = set(topics)
        self.require(names)
        unknown = names - self._limits.keys()
        for name, state in (self.describe(unknown) if unknown else {}).items():
            if (error := state.error or state.hidden) is not None:
                raise ConfigurationError(f"topic {name!r}: {error}")
            self._limits[name] = min(int(state.options["max.message.bytes"]), self._largest)
        return {name: self._limits[name] for name in names}

    def of(self, subscription: Subscription) -> tuple[int, list[TopicPartition]]:
        """How many partitions of each input a member may have, and the partitions of its tables.

        Where no input may have further partitions, a member gets those that are added while it runs, too.
        ConfigurationError if a topic of it is missing or not allowed, or if its inputs differ in their
        partitions.
        """
        counts = self.require([*subscription.inputs, *subscription.tables])
        tables = [(topic, partition) for topic in subscription.tables for partition in range(counts[topic])]
        read = partitions_of_inputs(subscription, counts)
        return read if subscription.placed else sys.maxsize, tables


def options_of(spec: TopicSpec) -> Mapping[str, str]:
    """The configuration of a topic that is to be created."""
    return {"cleanup.policy": "compact" if spec.compacted else "delete", **spec.preferred, **spec.options}
