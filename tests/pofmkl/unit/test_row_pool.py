"""Rows of numbers that have many owners."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamfl.pofmkl.learning.rows import RowPool


@given(rows=st.lists(st.integers(0, 30), max_size=80), seed=st.integers(0, 100))
def test_terms_are_added_one_after_another(rows: list[int], seed: int) -> None:
    """A client's steps must have the same bits however its samples are cut into polls; a sum of sums has
    others. Drawn are few rows with many terms, many rows with one term, and all between."""
    terms = np.random.default_rng(seed).normal(size=(len(rows), 3)).astype(np.float32)
    pool = RowPool(3)
    pool.borrow(31)
    pool.numbers[:31] = 0.1
    expected = pool.numbers.copy()
    for row, term in zip(rows, terms, strict=True):
        expected[row] += term
    pool.add(np.array(rows, dtype=np.intp), terms)
    np.testing.assert_array_equal(pool.numbers, expected)
