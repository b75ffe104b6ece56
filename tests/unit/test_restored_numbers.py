"""Restored numbers are checked alike, a few one by one and many together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import FEW, check_within

SIZES = (1, FEW, FEW + 1)
# Warnings are errors in tests: comparing a signalling NaN with NumPy warns.
SIGNALLING = {
    np.float32: np.array([0x7FA00000], np.uint32).view(np.float32),
    np.float64: np.array([0x7FF4000000000000], np.uint64).view(np.float64),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_the_bounds_belong_to_what_is_accepted(size: int, dtype: Any) -> None:
    """Protects what a role wrote: it must come back. A bound beyond single precision counts too."""
    check_within(np.resize(np.array([-2, 0, 3], dtype), size), -2.0, 3.0, "numbers")
    check_within(np.resize(np.array([-2, 0, 3], dtype), size), -1e300, 1e300, "numbers")
    check_within(np.empty(0, dtype), 1.0, 0.0, "numbers")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_bad_number_among_others_is_found(size: int, dtype: Any) -> None:
    for bad in (np.nan, np.inf, -np.inf, -2.001, 3.001, SIGNALLING[dtype]):
        numbers = np.zeros(size, dtype)
        numbers[-1:] = bad
        with pytest.raises(BadRecord, match="numbers: a number is not within -2 and 3"):
            check_within(numbers, -2.0, 3.0, "numbers")


def test_numbers_of_python_are_taken_too() -> None:
    check_within(3, 0, 3, "a count")
    check_within([0.5, 1.0], 0.0, 1.0, "shares")
    with pytest.raises(BadRecord):
        check_within(float("nan"), 0.0, 1.0, "a share")
