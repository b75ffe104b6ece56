"""The bytes of the federated forest's messages: layouts for two that carry most, and the sizes by which all
are counted.

Numbers are little-endian. docs/forest.md gives every field.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

__all__ = [
    "BLOCK",
    "EVIDENCE",
    "FIRST_ITEM",
    "ITEM",
    "ITEMS",
    "KEY",
    "MOMENTS",
    "PART",
    "RUN",
    "SNAPSHOTS",
    "VALUE",
    "VALUE_RUN",
]
__all__ += ["block", "items", "tables_size", "versions_size"]

CODED, FLOATS = 1, 2  # schemas of items
SCHEMA = 1  # of other messages
KEY = 5  # epoch u16, version u8, number u16
# Up: header, run and item of an upload's items; an item before labels have a range; moments' header; evidence
# beside its ratios.
ITEMS, RUN, ITEM, FIRST_ITEM, MOMENTS, EVIDENCE = 8, 2, 7, 10, 6, 7
# Down: a block's record with its key, and each part of it that left; a run of values of one version, and a
# value.
BLOCK, PART, VALUE_RUN, VALUE = KEY + 9, 14, 3, 5
SNAPSHOTS = 64  # passes from one record of all values of a version to the next


def items(
    epoch: int, tables: int, coded: bool, runs: Sequence[tuple[int, Sequence[tuple[int, int, float]]]]
) -> bytes:
    """An upload's items: (version, [(block, answers, label), ...]) a run. Labels are codes, or floats while
    they have no range."""
    count = sum(len(run) for _, run in runs)
    parts = [struct.pack("<BBHHH", CODED if coded else FLOATS, tables % 256, epoch, count, len(runs))]
    for version, run in runs:
        parts.append(struct.pack("<BB", version, len(run) - 1))
        for number, answers, label in run:
            parts.append(
                struct.pack("<HIB", number, answers, int(label))
                if coded
                else struct.pack("<HIf", number, answers, label)
            )
    return b"".join(parts)


def block(splits: Sequence[int], parts: Sequence[tuple[int, int, int, int, int, int]]) -> bytes:
    """A block's value: a candidate or 255 for each of 7 inner cells; (part, block, tables, base, above,
    below) of those gone."""
    head = struct.pack("<B7BB", SCHEMA, *splits, len(parts))
    return head + b"".join(struct.pack("<BHBHII", *part) for part in parts)


def tables_size(features: int) -> int:
    """Of a version of ranges and importances, with its key."""
    return KEY + 1 + 8 * (features + 1) + 4 * features


def versions_size(trees: int) -> int:
    """Of the record that says which versions live, with its key."""
    return KEY + 1 + 4 * 2 * trees
