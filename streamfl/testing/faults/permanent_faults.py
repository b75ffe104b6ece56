"""Faults that stay. When all other faults have stopped, all work that does not depend on what is gone must still be finished.

A process is cut off from the bus in one direction, or never comes back. A whole member is away. An input partition cannot be read
any more. A client, or a party, falls silent. TigerBeetle's simulator does the same with a core of replicas that must make progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streamfl.runtime.bus import TopicPartition

__all__ = ["DEAF", "GONE", "MUTE", "PermanentFault", "of_a_process", "with_a_process_left"]

# Deaf: it is heard, but hears nothing. Mute: it hears, but is not heard, so it can ask for nothing. Gone: it has ended.
DEAF, MUTE, GONE = "hears nothing", "is not heard", "never comes back"


@dataclass(frozen=True)
class PermanentFault:
    """One fault that stays.

    what: the fault in words.
    at: virtual seconds after the beginning.
    processes: those concerned, and how: ``DEAF``, ``MUTE`` or ``GONE``.
    places: input partitions that cannot be read any more.
    """

    what: str
    at: float
    processes: Mapping[str, str]
    places: frozenset[TopicPartition] = frozenset()

    def __str__(self) -> str:
        return f"stays: {self.what}"


def with_a_process_left(workers: Mapping[str, int], permanent_fault: PermanentFault | None) -> list[str]:
    """The members of which not every process is concerned. workers: by member, how many processes it has."""
    gone = set() if permanent_fault is None else permanent_fault.processes.keys()
    return [name for name, count in workers.items() if not {f"{name}-{number}" for number in range(count)} <= gone]


def of_a_process(draws: np.random.Generator, at: float, members: Sequence[str]) -> PermanentFault:
    """A fault of one process, of one of these members; each member has at least two processes."""
    member = members[int(draws.integers(len(members)))]
    how = (DEAF, MUTE, GONE)[int(draws.integers(3))]
    return PermanentFault(f"{member}-0 {how}", at, {f"{member}-0": how})
