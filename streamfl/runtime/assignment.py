"""Assigns keys to partitions, and partitions to members of a group, for the buses that decide this
themselves."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

__all__ = ["deal", "partition_of"]

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
