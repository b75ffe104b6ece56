"""Which partition a key has, and which member of a group has which partition, for the buses that decide it themselves."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

__all__ = ["deal", "partition_of"]

Member = TypeVar("Member")


def partition_of(key: bytes, partitions: int) -> int:
    """The partition, of so many, of a record with this key."""
    return zlib.crc32(key) % partitions


def deal(
    partitions: int, members: Sequence[Member], owners: Mapping[int, tuple[Member, int]], generation: int
) -> dict[int, tuple[Member, int]]:
    """Give every partition an owner, each member as many as the next, moving as few as that allows.

    owners: of each partition its owner so far, and the generation since which it is; returned as they are now.

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
