"""A party's own columns: bounds, expiry, restoring, wrong values."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from streamfl.contract.role import BadRecord
from streamfl.fdskl.sums.own_columns import OwnColumns
from streamfl.state.changelog import ChangedParts


def columns_of(*numbers: float) -> bytes:
    return np.array(numbers, "<f8").tobytes()


def owner(parts: ChangedParts | None = None, limit: int = 3) -> tuple[OwnColumns, dict[str, int]]:
    forgotten = {"expired": 0, "displaced": 0}
    return OwnColumns(ChangedParts() if parts is None else parts, 2, 10.0, limit, forgotten), forgotten


def test_rows_are_what_came_last_and_nought_where_nothing_did() -> None:
    """Protects sums from columns of another entity, or older ones."""
    own, _ = owner()
    own.put("a", columns_of(1, 2), 0.0)
    own.put("b", columns_of(3, 4), 0.0)
    own.put("a", columns_of(5, 6), 1.0)
    rows, known = own.rows(["b", "c", "a"])
    assert rows.tolist() == [[3, 4], [0, 0], [5, 6]]
    assert known.tolist() == [True, False, True]


def test_columns_are_late_only_where_others_had_to_do_with_other_ones() -> None:
    """Protects predictions from columns that came too late unnoticed, and rounds from revisions that change
    nothing."""
    own, _ = owner()
    assert not own.put("a", columns_of(1, 2), 0.0)
    assert not own.put("a", columns_of(2, 2), 0.0)
    own.ask("a", 1.0)
    assert not own.put("a", columns_of(2, 2), 2.0)
    assert own.put("a", columns_of(3, 3), 2.0)
    assert not own.put("a", columns_of(4, 4), 2.0)
    own.ask("b", 2.0)
    assert not own.knows("b")
    assert own.put("b", columns_of(0, 0), 3.0)


def test_entities_expire_and_give_way_the_oldest_first() -> None:
    """Protects memory, and from forgetting what was heard of last."""
    own, forgotten = owner()
    for number, name in enumerate("abcd"):
        own.put(name, columns_of(number, 0), float(number))
    assert (len(own), forgotten["displaced"], own.knows("a")) == (3, 1, False)
    assert own.wake_at == 11.0
    own.expire(12.0)
    assert (len(own), forgotten["expired"], own.wake_at) == (1, 2, 13.0)
    own.ask("e", 12.5)
    own.expire(22.6)
    assert len(own) == 0


def test_restored_columns_are_those_that_were_there() -> None:
    """Protects a restarted party from forgetting another entity than one that never stopped."""
    parts = ChangedParts()
    one, _ = owner(parts)
    one.put("a", columns_of(1, 2), 0.0)
    one.put("b", columns_of(3, 4), 1.0)
    # Written last, and still the oldest.
    one.ask("a", 5.0)
    again = ChangedParts()
    other, forgotten = owner(again)
    for key, value in parts.changed_state():
        assert value is not None
        again.restore(key, value)
    assert other.put("a", columns_of(0, 0), 5.0)
    for own in (one, other):
        own.put("c", columns_of(0, 0), 6.0)
        own.put("d", columns_of(0, 0), 7.0)
    assert other.knows("a")
    assert not other.knows("b")
    assert forgotten["displaced"] == 1


def test_a_clock_that_was_ahead_holds_no_expiry_up() -> None:
    """Protects expiry from an hour of waiting after a clock was set right."""
    own, _ = owner()
    own.put("a", columns_of(1, 2), 5000.0)
    own.set_back(3.0)
    assert own.wake_at == 13.0


@pytest.mark.parametrize(
    "value",
    [
        [0.0, columns_of(1), False],
        [0.0, columns_of(1, np.nan), False],
        [0.0, columns_of(1, 1e300), False],
        [np.nan, b"", True],
    ],
)
def test_remembered_columns_that_cannot_be_are_refused(value: object) -> None:
    """Protects a start from a damaged changelog."""
    parts = ChangedParts()
    owner(parts)
    with pytest.raises((BadRecord, msgspec.ValidationError)):
        parts.restore(b"entity/a", msgspec.msgpack.encode(value))
