"""Which numbered messages of a party count as new, in any order and after any restart."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.server.received_messages import MOST_GAPS, ReceivedMessages
from streamfl.dp_frank_wolfe.state import ANNOUNCEMENTS
from streamfl.state.changelog import ChangedParts


def received(state: dict[bytes, bytes | None]) -> tuple[ChangedParts, ReceivedMessages]:
    parts = ChangedParts()
    made = ReceivedMessages(parts, ANNOUNCEMENTS, ["a", "b"], "announcements")
    for key, value in state.items():
        assert value is not None
        parts.restore(key, value)
    return parts, made


@given(st.lists(st.integers(1, 40)))
def test_each_number_is_new_once(numbers: list[int]) -> None:
    """Protects a party from being refused for good after records were lost, and predictions from coming
    twice."""
    state: dict[bytes, bytes | None] = {}
    came = set[int]()
    for number in numbers:
        parts, made = received(state)
        assert [one for one in range(1, 45) if not made.is_new("a", one)] == sorted(came)
        if made.is_new("a", number):
            made.take("a", number)
            came.add(number)
        state.update(parts.changed_state())
    assert received(state)[1].is_new("b", 1)


def test_without_gaps_it_remembers_a_number() -> None:
    """Protects states of earlier releases, and the way back to one."""
    parts, made = received({b"announcements/a": msgspec.msgpack.encode(7)})
    assert not made.is_new("a", 7)
    made.take("a", 8)
    assert parts.changed_state() == [(b"announcements/a", msgspec.msgpack.encode(8))]


def test_a_flood_of_gaps_closes_the_shortest() -> None:
    """Protects memory from a stranger who leaves gaps, and the party from being taken for one that has sent
    all that the stranger left out."""
    parts, made = received({})
    made.take("a", 1000)
    for number in range(1002, 1002 + 4 * MOST_GAPS, 2):
        made.take("a", number)
    assert made.is_new("a", 999)
    assert len(msgspec.msgpack.decode(dict(parts.changed_state())[b"announcements/a"] or b"")) < 520


@pytest.mark.parametrize(
    "value", [[], [3, 1], [3, 0, 1], [3, 2, 1], [3, 2, 3], [9, 1, 2, 3, 4], ["a"], -1, [5, 1.5, 2]]
)
def test_state_that_was_never_written_is_refused(value: object) -> None:
    """Protects from damage: a value that no release writes is no state."""
    with pytest.raises((BadRecord, ValueError)):
        received({b"announcements/a": msgspec.msgpack.encode(value)})
