"""Permanent faults. After all other faults have stopped, all work that does not depend on the lost parts must
still be finished.

Examples: a process is cut off from the bus in one direction, or never comes back; a whole member is absent;
an input partition cannot be read any more; a client or a party falls silent. TigerBeetle's simulator does the
same: a core of its replicas must make progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streamfl.runtime.bus import TopicPartition

__all__ = [
    "DEAF",
    "GONE",
    "MUTE",
    "PermanentFault",
    "of_a_member",
    "of_a_partition",
    "of_a_process",
    "with_a_process_left",
]

# A deaf process can send but receives nothing. A mute process receives, but its messages are lost, so it
# cannot request anything. A gone process has ended.
DEAF, MUTE, GONE = "hears nothing", "is not heard", "never comes back"


@dataclass(frozen=True)
class PermanentFault:
    """One permanent fault.

    what: the fault in words.
    at: virtual seconds after the beginning.
    processes: the affected processes, and how each is affected: ``DEAF``, ``MUTE`` or ``GONE``.
    places: input partitions that cannot be read any more.
    """

    what: str
    at: float
    processes: Mapping[str, str]
    places: frozenset[TopicPartition] = frozenset()

    def __str__(self) -> str:
        return f"stays: {self.what}"


def with_a_process_left(workers: Mapping[str, int], permanent_fault: PermanentFault | None) -> list[str]:
    """The members that have at least one unaffected process. workers: by member, its number of processes."""
    gone = set() if permanent_fault is None else permanent_fault.processes.keys()
    return [
        name for name, count in workers.items() if not {f"{name}-{number}" for number in range(count)} <= gone
    ]


def of_a_process(draws: np.random.Generator, at: float, members: Sequence[str]) -> PermanentFault:
    """A permanent fault of one process of one of these members. Each member has at least two processes."""
    member = members[int(draws.integers(len(members)))]
    how = (DEAF, MUTE, GONE)[int(draws.integers(3))]
    return PermanentFault(f"{member}-0 {how}", at, {f"{member}-0": how})


def of_a_member(member: str, workers: Mapping[str, int], at: float) -> PermanentFault:
    """No process of this member comes back. workers: by member, its number of processes."""
    gone = {f"{member}-{number}": GONE for number in range(workers[member])}
    return PermanentFault(f"{member} never comes back", at, gone)


def of_a_partition(topic: str, partition: int, at: float) -> PermanentFault:
    """A partition of an input cannot be read any more."""
    what = f"partition {partition} of {topic} cannot be read"
    return PermanentFault(what, at, {}, frozenset([(topic, partition)]))
