"""Entries by name: which are forgotten, in which order, and what a restart and a clock set back do to
them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import Time
from streamfl.state.changelog import ChangedParts
from streamfl.state.expiring_entries import ExpiringEntries
from streamfl.state.table import StateTable

EXPIRY, LIMIT = 10.0, 3
ROW = StateTable().row("entry/NAME", "", "")


class Entry(msgspec.Struct, array_like=True):
    since: Time
    content: int


class Entries(ExpiringEntries[Entry]):
    """Takes contents above 0. Counts those that expire with the content 7 apart."""

    def __init__(self, parts: ChangedParts, limit: int = LIMIT) -> None:
        self.counts = dict.fromkeys(("expired", "displaced", "seven"), 0)
        super().__init__(parts, ROW, Entry, EXPIRY, limit, self.counts)

    def take(self, name: str, content: int, now: float) -> None:
        self._put(name, Entry(now, content))

    def change(self, name: str, content: int) -> None:
        """Change an entry that keeps its age."""
        entry = self._entries[name]
        entry.content = content
        self._remembered.remember(name, entry)

    def restore(self, name: str, entry: Entry) -> None:
        if entry.content < 1:
            raise BadRecord("malformed", "a content below 1")
        super().restore(name, entry)

    def reason(self, entry: Entry, why: str) -> str:
        return "seven" if why == "expired" and entry.content == 7 else why

    @property
    def names(self) -> list[str]:
        self._sort()
        return list(self._entries)


def restored(changelog: dict[bytes, bytes], limit: int = LIMIT) -> Entries:
    parts = ChangedParts()
    entries = Entries(parts, limit)
    for key, value in changelog.items():
        parts.restore(key, value)
    return entries


def note(changelog: dict[bytes, bytes], parts: ChangedParts) -> dict[bytes, bytes]:
    """The compacted changelog: keys in the order of their last writing."""
    for key, value in parts.changed_state():
        changelog.pop(key, None)
        if value is not None:
            changelog[key] = value
    return changelog


def test_the_oldest_is_forgotten_beyond_the_limit() -> None:
    """Protects memory, and from forgetting what came last."""
    parts = ChangedParts()
    entries = Entries(parts)
    for now, name in enumerate("abcad"):
        entries.take(name, 1, float(now))
    assert (entries.names, entries.counts) == (["c", "a", "d"], {"expired": 0, "displaced": 1, "seven": 0})
    assert entries.get("b") is None
    assert dict(parts.changed_state())[b"entry/b"] is None


def test_entries_expire_the_oldest_first() -> None:
    """Protects memory, and the counts by which an operator sees why entries are forgotten."""
    entries = Entries(ChangedParts())
    for now, name, content in ((0.0, "a", 7), (1.0, "b", 1), (5.0, "c", 1)):
        entries.take(name, content, now)
    assert entries.wake_at == 10.0
    entries.expire(9.9)
    assert len(entries) == 3
    entries.expire(11.0)
    assert (entries.names, entries.wake_at) == (["c"], 15.0)
    assert entries.counts == {"expired": 1, "displaced": 0, "seven": 1}
    entries.forget("c")
    assert (len(entries), entries.wake_at, entries.counts["expired"]) == (0, None, 1)


def test_a_clock_that_was_ahead_delays_no_expiry() -> None:
    """Protects expiry from an hour of waiting after a clock was set right: in the changelog too, and the
    others keep their age."""
    parts = ChangedParts()
    entries = Entries(parts)
    for now, name in ((5000.0, "a"), (1.0, "b"), (4000.0, "c")):
        entries.take(name, 1, now)
    changelog = note({}, parts)
    entries.set_back(3.0)
    assert [key for key, _ in parts.changed_state()] == [b"entry/a", b"entry/c"]
    assert (entries.names, entries.wake_at) == (["b", "a", "c"], 11.0)
    late = restored(changelog)
    late.set_back(3.0)
    assert late.wake_at == 11.0


def test_what_cannot_have_been_written_is_refused() -> None:
    """Protects a start from a damaged changelog, whether the type or the owner finds it."""
    for value in ([0.0, 0], [float("nan"), 1], [0.0], "x"):
        with pytest.raises((BadRecord, msgspec.ValidationError)):
            restored({b"entry/a": msgspec.msgpack.encode(value)})
    with pytest.raises(BadRecord):
        restored({b"entry/": msgspec.msgpack.encode([0.0, 1])})


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans(), st.integers(0, 4)), max_size=40))
def test_a_restart_changes_no_order(steps: list[tuple[str, bool, int]]) -> None:
    """Protects from forgetting another entry than a role that never stopped: the one written last may be the
    oldest."""
    parts, changelog, now = ChangedParts(), dict[bytes, bytes](), 0.0
    entries = Entries(parts)
    for name, changes, passed in steps:
        now += 1.0 + passed
        if changes and entries.get(name) is not None:
            entries.change(name, 2)
        else:
            entries.take(name, 1, now)
        note(changelog, parts)
        again = restored(changelog)
        assert again.names == entries.names
        assert again.wake_at == entries.wake_at
    # If the limit was lowered, the oldest gives way to each new entry.
    lowered = restored(changelog, limit=1)
    lowered.take("new", 1, now + 1)
    assert lowered.names == [*entries.names[1:], "new"] if len(entries) else ["new"]
