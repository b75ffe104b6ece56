"""Rows that wait for a window, and the window once it is frozen."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from dp_frank_wolfe.party_driver import COLUMNS, NAMES, ROWS, table

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.metrics import MemberCounts
from streamfl.dp_frank_wolfe.party.frozen_window import FrozenWindow
from streamfl.dp_frank_wolfe.party.table import PartyTable
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, Bounds, whole_label, whole_row
from streamfl.state.changelog import ChangedParts

BOUNDS = Bounds(np.full(COLUMNS, 0.1), np.full(COLUMNS, 0.5))
LABEL = Bounds(np.zeros(1), np.full(1, 0.7))


def filled(parts: ChangedParts) -> PartyTable:
    found = PartyTable(parts, COLUMNS, ROWS, MemberCounts())
    features, labels = table()
    features[3, 1], labels[5] = np.nan, np.inf
    for name, row, label in zip(NAMES, features, labels, strict=True):
        found.put_label(name, whole_label(label, LABEL))
        found.put_columns(name, whole_row(row, BOUNDS))
    return found


def test_the_first_record_counts() -> None:
    """Protects work that is done again: a row that was announced is the same whatever came behind it."""
    half = PartyTable(ChangedParts(), 1, 1, MemberCounts())
    for number in range(3):
        half.put_columns("a", np.full(1, number, np.int16))
    half.put_label("a", 0)
    half.announce(["a"])
    assert half.window(["a"]).columns.tolist() == [[0]]
    found = filled(ChangedParts())
    before = (found.announce(NAMES), found.window(NAMES).digest)
    for name in NAMES:
        found.put_columns(name, np.full(COLUMNS, FEATURE_ONE, np.int16))
        found.put_label(name, 1)
    assert found.window(NAMES).digest == before[1]
    assert not found.has_new


def test_the_oldest_that_lacks_something_gives_way() -> None:
    """Protects memory: a complete row waits, a half one makes room, and beyond complete ones nothing is
    taken."""
    counts = MemberCounts()
    found = PartyTable(ChangedParts(), 1, 2, counts)
    one = np.ones(1, np.int16)
    for name in "abc":
        found.put_columns(name, one)
    assert (len(found), counts.displaced_entities) == (2, 1)
    found.put_label("c", 0)
    found.put_label("d", 0)
    found.put_columns("d", one)
    assert found.new == ["c", "d"]
    with pytest.raises(BadRecord, match="full"):
        found.put_columns("e", one)
    assert len(found) == 2


@pytest.mark.parametrize(
    "row",
    [
        [b"\xff\x7f" * COLUMNS, bytes(8), False],
        [bytes(2 * COLUMNS), b"\xff" * 7 + b"\x7f", False],
        [bytes(2 * COLUMNS), b"", True],
    ],
)
def test_a_damaged_row_is_refused(row: list[object]) -> None:
    """Protects sensitivities from state that was damaged: no number is beyond its bound."""
    parts = ChangedParts()
    found = PartyTable(parts, COLUMNS, ROWS, MemberCounts())
    with pytest.raises((BadRecord, ValueError)):
        parts.restore(b"entity/a", msgspec.msgpack.encode(row))
    assert not len(found)


def test_a_frozen_window_comes_back_whole_or_not_at_all() -> None:
    """Protects the one content of which anything is released."""
    parts, restored = ChangedParts(), ChangedParts()
    rows = filled(ChangedParts())
    rows.announce(NAMES)
    window = rows.window(NAMES)
    frozen, again = FrozenWindow(parts, ROWS, COLUMNS), FrozenWindow(restored, ROWS, COLUMNS)
    frozen.freeze(window)
    ((key, value),) = parts.changed_state()
    assert value is not None
    restored.restore(key, value)
    assert again.window.digest == window.digest
    for damaged in (value[:-8], b"\xff\x7f" + value[2:], value[:-1] + b"\x7f"):
        restored.restore(key, damaged)
        with pytest.raises(BadRecord):
            again.window  # noqa: B018
    frozen.clear()
    assert parts.changed_state() == [(key, None)]
