"""The ledger of releases: no entity exceeds its budget, and none is forgotten, through any restart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfl.contract.role import BadRecord
from streamfl.privacy.ledger import KIND, Ledger, promise_ended

RELEASES = st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0.0, 2.0)), max_size=40)
LIMIT, BUDGET = 3, 2.25


def restored(changes: list[tuple[bytes, bytes]]) -> Ledger:
    ledger = Ledger(LIMIT, BUDGET)
    for key, value in dict(changes).items():
        kind, _, name = key.partition(b"/")
        assert kind == KIND
        ledger.restore(name, value)
    return ledger


@given(RELEASES, st.integers(0, 40))
def test_nobody_passes_the_budget_through_any_restart(releases: list[tuple[str, float]], stop: int) -> None:
    """Protects the promise: costs stay within the budget, entities within the limit, and no restart changes
    an answer."""
    never, again, changes = Ledger(LIMIT, BUDGET), Ledger(LIMIT, BUDGET), []
    for number, (entity, cost) in enumerate(releases):
        if number == stop:
            again = restored(changes)
        refusal = never.refusal(entity, cost)
        assert refusal == again.refusal(entity, cost)
        if refusal is None:
            assert never.spend(entity, cost) == again.spend(entity, cost)
            changes += again.changed_state()
    assert never.largest == again.largest <= BUDGET * (1 + 1e-9)
    assert len(never) == len(again) <= LIMIT
    assert all(never.spent(entity) == again.spent(entity) for entity in "abcde")


def test_an_entity_without_room_is_refused_and_the_others_are_not() -> None:
    """Protects the promise when memory is full: a release that cannot be counted is not made."""
    ledger = Ledger(1, None)
    assert ledger.refusal("a", 1e9) is None
    ledger.spend("a", 1e9)
    assert (ledger.refusal("b", 0.0), ledger.refusal("a", 1e9)) == ("ledger", None)


def test_a_budget_can_be_spent_to_the_end() -> None:
    """Protects a budget's last release from rounding: ten times a tenth is the whole."""
    ledger = Ledger(1, 1.0)
    for _ in range(10):
        assert ledger.refusal("a", 0.1) is None
        ledger.spend("a", 0.1)
    assert ledger.refusal("a", 0.1) == "budget"
    assert ledger.largest == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "value"), [(b"a", b"\x92\xcb" + b"\x7f\xf0" + bytes(6) + b"\x01"), (b"", b"\x92\x00\x01")]
)
def test_a_damaged_entry_is_refused(name: bytes, value: bytes) -> None:
    """Protects the ledger from an infinite amount and from an entity without a name."""
    with pytest.raises((BadRecord, ValueError)):
        Ledger(1, None).restore(name, value)


def test_noise_is_not_left_out_without_a_word() -> None:
    """Protects a claim of privacy: a member with a ledger stops, unless the operator confirms that it goes on
    without noise."""
    with pytest.raises(BadRecord, match="without_noise"):
        promise_ended("bank", "[privacy]", without_noise=False)
    assert promise_ended("bank", "[privacy]", without_noise=True).reason == "without_noise"
    assert math.isfinite(Ledger(1, None).largest)


def test_an_infinite_cost_is_remembered_and_ends_every_budget() -> None:
    """Protects entities with a release without noise: nothing is promised about them again, through any
    restart."""
    never = Ledger(LIMIT, None)
    never.spend("a", math.inf)
    assert never.refusal("a", math.inf) is None
    assert math.isinf(never.largest)
    again = restored(list(never.changed_state()))
    assert math.isinf(again.spent("a"))
    assert again.refusal("a", 0.1) == "budget"
    again.spend("a", 1.0)
    assert math.isinf(restored(list(again.changed_state())).spent("a"))


def test_many_are_charged_together_or_not_at_all() -> None:
    """Protects the limits from several releases that are within them one by one but not together."""
    ledger = Ledger(LIMIT, BUDGET)
    ledger.spend("a", 2.0)
    assert ledger.refusal_of_all("abc", 0.2) is None
    assert ledger.refusal_of_all("abc", 0.5) == "budget"
    assert ledger.refusal_of_all("bcd", 0.2) == "ledger"
