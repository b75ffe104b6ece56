"""State in parts: each change is written once, in the order of the last write, and is restored unchanged."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_name, check_within
from streamfl.encoding.wire import MAXIMUM_BYTES
from streamfl.state.changelog import CHUNK_BYTES, ChangedParts, changed_chunks, restore_chunk
from streamfl.state.table import StateTable

# Keys and values; None deletes the key.
CHANGES = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c/1"]), st.none() | st.integers(0, 9)), max_size=30
)


@given(CHANGES, st.sets(st.integers(0, 30)))
def test_what_is_written_leads_to_what_is_remembered(
    changes: list[tuple[bytes, int | None]], commits: set[int]
) -> None:
    """Protects restarts: whatever the commits, the compacted changelog holds every part's last value."""
    parts, changelog, expected = ChangedParts(), {}, {}
    for number, (key, value) in enumerate(changes):
        if value is None:
            parts.forget(key)
            expected.pop(key, None)
        else:
            parts.remember(key, value)
            expected.pop(key, None)
            expected[key] = value
        if number in commits:
            written = parts.changed_state()
            assert len(dict(written)) == len(written)
            for name, content in written:
                changelog.pop(name, None)
                changelog[name] = content
    for name, content in parts.changed_state():
        changelog.pop(name, None)
        changelog[name] = content
    found = {
        name: msgspec.msgpack.decode(content) for name, content in changelog.items() if content is not None
    }
    assert list(found.items()) == list(expected.items())


class Owner:
    """Remembers a value of each kind."""

    TABLE = StateTable()
    COUNT = TABLE.row("count", "", "")
    ENTITY = TABLE.row("entity/NAME", "", "")
    BLOCK = TABLE.row("block/NUMBER", "", "")

    def __init__(self, parts: ChangedParts) -> None:
        self.found: dict[str | int, object] = {}
        self.remember_count = parts.single(self.COUNT, int, lambda count: self.found.update(count=count))
        self.entities = parts.named(
            self.ENTITY, check_name, list, lambda name, content: self.found.update({name: content})
        )
        self.blocks = parts.named(
            self.BLOCK, int, bytes, lambda number, content: self.found.update({number: content})
        )


def test_a_part_is_restored_by_its_owner() -> None:
    """Protects a restart: each value comes back under its name, as its own type, and what was forgotten does
    not."""
    parts, again = ChangedParts(), ChangedParts()
    owner, other = Owner(parts), Owner(again)
    owner.remember_count(3)
    owner.entities.remember("a/b", [1, "x"])
    owner.entities.remember("gone", [])
    owner.blocks.remember(12, b"\xc1 is no MessagePack")
    owner.entities.forget("gone")
    changes = parts.changed_state()
    assert [key for key, _ in changes] == [b"count", b"entity/a/b", b"entity/gone", b"block/12"]
    for key, value in changes:
        if value is not None:
            again.restore(key, value)
    assert other.found == {"count": 3, "a/b": [1, "x"], 12: b"\xc1 is no MessagePack"}


@pytest.mark.parametrize(
    "key", [b"", b"/", b"counts", b"count/1", b"entities/a", b"block", b"other", b"other/a", b"\xff"]
)
def test_a_key_that_nobody_owns_is_refused(key: bytes) -> None:
    """Protects a role from another role's changelog: what it does not know it must not pass over, because it
    would be lost."""
    parts = ChangedParts("a counter")
    owner = Owner(parts)
    with pytest.raises(BadRecord, match="is not of a counter"):
        parts.restore(key, b"\x01")
    assert not owner.found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"count", b"\xa1x"),
        (b"entity/", b"\x90"),
        (b"entity/a", b"\x01"),
        (b"block/x", b""),
        (b"block/", b""),
    ],
)
def test_a_part_that_cannot_have_been_written_is_refused(key: bytes, value: bytes) -> None:
    """Protects a start from a damaged changelog."""
    parts = ChangedParts()
    owner = Owner(parts)
    with pytest.raises((BadRecord, ValueError)):
        parts.restore(key, value)
    assert not owner.found


def test_a_row_has_one_owner() -> None:
    """Protects state from two owners that write the same keys: only one of them would be restored."""
    parts = ChangedParts()
    Owner(parts)
    with pytest.raises(AssertionError, match="count has two owners"):
        Owner(parts)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES // 4 - 1, CHUNK_BYTES // 4, CHUNK_BYTES // 2 + 3])
def test_arrays_come_back_from_their_chunks(dtype: type, size: int) -> None:
    """Protects large models: every chunk fits into a record, and the chunks in any order give the arrays to
    the last bit."""
    arrays = {
        "parameters": np.random.default_rng(size).normal(size=size).astype(dtype),
        "squares": np.arange(5.0),
    }
    chunks = list(changed_chunks(arrays))
    assert all(len(value) < MAXIMUM_BYTES for _, value in chunks)
    again = {name: np.zeros_like(array) for name, array in arrays.items()}
    for key, value in reversed(chunks):
        restore_chunk(again, key, value, lambda name, numbers: None)
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"array/other/0", bytes(16)),
        (b"array/squares/1", bytes(16)),
        (b"array/squares/-1", bytes(16)),
        (b"array/squares/x", bytes(16)),
        (b"array/squares/0", bytes(15)),
        (b"array/squares/0", np.array([1.0, np.nan]).tobytes()),
        (b"array/squares/0", np.array([1.0, -1.0]).tobytes()),
        (b"squares", bytes(16)),
    ],
)
def test_a_chunk_that_is_not_of_these_arrays_is_refused(key: bytes, value: bytes) -> None:
    """Protects a model from a changelog of another layout, or a damaged one: nothing of it is restored."""
    arrays = {"squares": np.array([4.0, 9.0])}
    with pytest.raises(BadRecord):
        restore_chunk(arrays, key, value, lambda name, numbers: check_within(numbers, 0.0, 100.0, name))
    np.testing.assert_array_equal(arrays["squares"], [4.0, 9.0])
