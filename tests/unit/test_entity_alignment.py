"""Rows of entities: bounded, expiring, never shared by two entities, and unchanged by any restart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfl.records.alignment import AlignedEntities

LIMIT, EXPIRY = 3, 10.0
# Each step: seconds that pass, and the entities that occur then. Every second step is followed by a commit.
STEPS = st.lists(
    st.tuples(st.floats(0.0, 6.0), st.lists(st.sampled_from("abcdef"), max_size=3, unique=True)), max_size=15
)


class Owner:
    """Counts how often each entity occurred, and commits the counts."""

    def __init__(self) -> None:
        self.rows = AlignedEntities(LIMIT, EXPIRY)
        self.counts = np.zeros(0, int)
        self.changelog: dict[str, tuple[float, int]] = {}

    def blank(self) -> None:
        self.counts = np.concatenate([self.counts, np.zeros(self.rows.capacity - len(self.counts), int)])
        self.counts[self.rows.given_out()] = 0

    def hear(self, names: list[str], now: float) -> None:
        for name in names:
            while name not in self.rows and self.rows.full:
                self.rows.remove(self.rows.oldest)
            rows = self.rows.hear([name])
            self.blank()
            self.rows.mark(rows, now)
            self.counts[rows] += 1

    def expire(self, now: float) -> list[str]:
        gone = []
        for name, _ in self.rows.overdue(now):
            self.rows.remove(name)
            gone.append(name)
        return gone

    def commit(self) -> None:
        gone, names, rows = self.rows.take_changed()
        for name in (*gone, *names):
            self.changelog.pop(name, None)
        for name, since, count in zip(names, self.rows.since(rows), self.counts[rows], strict=True):
            self.changelog[name] = float(since), int(count)

    def again(self) -> Owner:
        """A process that restores the committed state."""
        other = Owner()
        for name, (since, count) in self.changelog.items():
            row = other.rows.restore(name, since)
            other.blank()
            other.counts[row] = count
        other.changelog = dict(self.changelog)
        return other

    @property
    def held(self) -> list[tuple[str, float, int]]:
        rows = [self.rows[name] for name in self.rows]
        assert len(set(rows)) == len(rows)
        return list(
            zip(
                self.rows,
                self.rows.since(np.array(rows, np.intp)).tolist(),
                self.counts[rows].tolist(),
                strict=True,
            )
        )


@given(STEPS, st.integers(0, 15))
def test_a_restart_changes_nothing(steps: list[tuple[float, list[str]]], stop: int) -> None:
    """Protects memory and order through a restart: never more than the limit, nothing too old, the oldest
    first."""
    owner, now = Owner(), 0.0
    expected: dict[str, tuple[float, int]] = {}
    for number, (seconds, names) in enumerate(steps):
        now += seconds
        old = [name for name, (since, _) in expected.items() if since + EXPIRY <= now]
        assert owner.expire(now) == old
        for name in old:
            del expected[name]
        owner.hear(names, now)
        for name in names:
            _, count = expected.pop(name, (0.0, 0))
            if len(expected) >= LIMIT:
                del expected[next(iter(expected))]
            expected[name] = now, count + 1
        assert owner.held == [(name, *content) for name, content in expected.items()]
        assert len(owner.rows) <= LIMIT
        assert owner.rows.wake_at == (next(iter(expected.values()))[0] + EXPIRY if expected else None)
        owner.commit()
        assert not owner.rows.touched
        if number == stop:
            owner = owner.again()


def test_what_is_forgotten_before_it_was_written_leaves_no_trace() -> None:
    """Protects the changelog from a tombstone for every entity that came and went between two commits."""
    rows = AlignedEntities(LIMIT, EXPIRY)
    rows.mark(rows.hear(["a"]), 0.0)
    rows.remove("a")
    assert not rows.touched
    rows.mark(rows.hear(["a"]), 1.0)
    assert rows.take_changed()[:2] == ([], ["a"])
    rows.remove("a")
    assert rows.take_changed()[:2] == (["a"], [])


def test_a_clock_that_was_ahead_keeps_nothing_for_longer() -> None:
    """Protects expiry: an entity with a time in the future counts as seen now, and is the youngest."""
    rows = AlignedEntities(LIMIT, EXPIRY)
    rows.mark(rows.hear(["ahead"]), 1e9)
    rows.mark(rows.hear(["now"]), 100.0)
    names, found = rows.set_back(100.0)
    assert (names, rows.since(found).tolist(), list(rows)) == (["ahead"], [100.0], ["now", "ahead"])
    assert [name for name, _ in rows.overdue(109.9)] == []
    assert rows.wake_at == 110.0


@pytest.mark.parametrize("limit", [1, 100])
def test_more_than_the_limit_can_be_taken_back(limit: int) -> None:
    """Protects a restart with a lower limit: all entities are restored, until a new one needs the room."""
    rows = AlignedEntities(limit, EXPIRY)
    for number in range(50):
        rows.restore(f"e{number}", float(number))
    assert (len(rows), rows.oldest, rows.full) == (50, "e0", limit == 1)
    assert len({rows[name] for name in rows}) == 50
    assert rows.capacity >= 50
