"""Assigns keys to partitions, and partitions to members of a group, for the buses that decide this
themselves."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence, Set
from typing import TypeVar

__all__ = ["changes", "deal", "partition_of"]

Member = TypeVar("Member")


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record with this key, in a topic of ``partitions`` partitions."""
    return zlib.crc32(key) % partitions


def deal(
    partitions: int, members: Sequence[Member], owners: Mapping[int, tuple[Member, int]], generation: int
) -> dict[int, tuple[Member, int]]:
    """Give every partition an owner, in equal shares, and move as few partitions as possible.

    owners: by partition, its present owner and the generation since which it has it. Returns the new owners
    in the same form.

    >>> deal(4, ["a", "b"], {0: ("a", 1), 1: ("a", 1), 2: ("a", 1), 3: ("gone", 1)}, 2)
    {0: ('a', 1), 1: ('a', 1), 2: ('b', 2), 3: ('b', 2)}
    """
    if not members:
        return {}
    share, extra = divmod(partitions, len(members))
    room = {member: share + (number < extra) for number, member in enumerate(members)}
    kept: dict[int, tuple[Member, int]] = {}
    for partition, (owner, since) in owners.items():
        if partition < partitions and room.get(owner, 0) > 0:
            room[owner] -= 1
            kept[partition] = (owner, since)
    free = (member for member in members for _ in range(room[member]))
    for partition in range(partitions):
        if partition not in kept:
            kept[partition] = (next(free), generation)
    return kept


def changes(
    owned: Set[int], since: Mapping[int, int], generation: int, all_anew: bool
) -> tuple[list[int], list[int]]:
    """The partitions that a member is to report as revoked, and those as assigned.

    A partition that another member had for a while is in both lists: the caller's state of it is out of date.

    owned, generation: those of the last report.
    since: by partition that the member has, the generation since which it has it.
    all_anew: report every partition as revoked, and those that the member still has as assigned.
    """
    kept = {p for p in owned if not all_anew and since.get(p, generation + 1) <= generation}
    return sorted(owned - kept), sorted(since.keys() - kept)
