"""Faults that stay: when all others have stopped, whatever does not depend on what is gone has to come to its end all the same.

A process is cut off from the bus in one direction, or never comes back; a whole member is away; an input partition cannot be read
any more; a client, or a party, says nothing more. So TigerBeetle's simulator has a core of replicas that must make progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streamfl.runtime.bus import TopicPartition

__all__ = ["DEAF", "GONE", "MUTE", "Staying", "of_a_process"]

# It is heard and hears nothing; it hears and is not heard, which in a protocol of requests is silence; it has ended.
DEAF, MUTE, GONE = "hears nothing", "is not heard", "never comes back"


@dataclass(frozen=True)
class Staying:
    """One fault that stays. at: virtual seconds after the beginning.

    processes: that are concerned, and how: ``DEAF``, ``MUTE`` or ``GONE``. places: input partitions that cannot be read any more.
    """

    what: str
    at: float
    processes: Mapping[str, str]
    places: frozenset[TopicPartition] = frozenset()

    def __str__(self) -> str:
        return f"stays: {self.what}"


def of_a_process(draws: np.random.Generator, at: float, members: Sequence[str]) -> Staying:
    """One process of one of these members, each of which has two at least."""
    member = members[int(draws.integers(len(members)))]
    how = (DEAF, MUTE, GONE)[int(draws.integers(3))]
    return Staying(f"{member}-0 {how}", at, {f"{member}-0": how})
