"""State in parts: each change is written once, in the order of the last write, and is restored unchanged."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfl.contract.role import PeerError
from streamfl.encoding.changelog_checks import check_within
from streamfl.encoding.wire import MAXIMUM_BYTES
from streamfl.state.changelog import CHUNK_BYTES, ChangedParts, changed_chunks, restore_chunk

# Keys and values; None deletes the key.
CHANGES = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c/1"]), st.none() | st.integers(0, 9)), max_size=30)


@given(CHANGES, st.sets(st.integers(0, 30)))
def test_what_is_written_leads_to_what_is_remembered(changes: list[tuple[bytes, int | None]], commits: set[int]) -> None:
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
    found = {name: msgspec.msgpack.decode(content) for name, content in changelog.items() if content is not None}
    assert list(found.items()) == list(expected.items())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES // 4 - 1, CHUNK_BYTES // 4, CHUNK_BYTES // 2 + 3])
def test_arrays_come_back_from_their_chunks(dtype: type, size: int) -> None:
    """Protects large models: every chunk fits into a record, and the chunks in any order give the arrays to the last bit."""
    arrays = {"parameters": np.random.default_rng(size).normal(size=size).astype(dtype), "squares": np.arange(5.0)}
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
    with pytest.raises(PeerError):
        restore_chunk(arrays, key, value, lambda name, numbers: check_within(numbers, 0.0, 100.0, name))
    np.testing.assert_array_equal(arrays["squares"], [4.0, 9.0])
