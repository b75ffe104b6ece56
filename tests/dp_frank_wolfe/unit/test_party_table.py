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
from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE, Bounds, freeze, whole_label, whole_row
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


def test_rows_that_came_one_by_one_are_the_window() -> None:
    """Protects the arithmetic: bounds and zeros are those of a table that is frozen at once."""
    found = filled(ChangedParts())
    assert found.new == NAMES
    found.announce(NAMES)
    features, labels = table()
    features[3, 1], labels[5] = np.nan, np.inf
    wanted, window = freeze(features, labels, BOUNDS, LABEL, ROWS), found.window(NAMES)
    # All that a window has: a count of clipped or missing values would differ, and no noise would cover it.
    np.testing.assert_equal(vars(window), vars(wanted))
    assert not window.columns[3].any()


def test_what_is_far_too_large_is_no_error() -> None:
    """Protects a party from an entity whose numbers overflow."""
    tiny = Bounds(np.zeros(2), np.full(2, 1e-300))
    assert whole_row(np.array([1e18, 0.0]), tiny).tolist() == [0, 0]
    assert whole_label(1e18, Bounds(np.zeros(1), np.full(1, 1e-300))) == 0


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


def test_every_row_takes_as_many_bytes() -> None:
    """Protects rows' contents from whoever sees how much is written: zeros take as much as anything else."""
    parts = ChangedParts()
    filled(parts)
    sizes = {len(value) for _, value in parts.changed_state() if value is not None}
    assert len(sizes) == 1


@pytest.mark.parametrize(
    "row",
    [
        [b"\x00" * (2 * COLUMNS - 1), bytes(8), False],
        [b"\xff\x7f" * COLUMNS, bytes(8), False],
        [bytes(2 * COLUMNS), b"\xff" * 7 + b"\x7f", False],
        [bytes(2 * COLUMNS), bytes(9), False],
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
