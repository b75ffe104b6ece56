"""Fixed point: one exponent whatever the values, bounds that hold, kinds that are derived."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfl.quasi_newton.encryption.fixed_point import FixedPoint, OutOfBounds, kinds


@given(st.lists(st.floats(-64, 64), min_size=1), st.integers(0, 40))
@settings(deadline=None)
def test_a_value_is_rounded_once_to_the_nearest_step(values: list[float], bits: int) -> None:
    """Protects the iterates: they are those of plain numbers to half a step. The oracle is exact
    fractions."""
    kind = FixedPoint.bounded(64, bits)
    encoded = kind.encode(np.array(values))
    assert encoded.dtype == np.int64
    assert [int(number) for number in encoded] == [round(Fraction(value) * 2**bits) for value in values]
    assert np.abs(kind.decode(encoded) - values).max() <= 2.0 ** -(bits + 1)


def test_numbers_beyond_64_bits_are_pythons_own() -> None:
    """Protects sums of squares: int64 would wrap around and say nothing."""
    kind = FixedPoint.bounded(2.0**40, 48)
    values = np.array([[2.0**40, -(2.0**40)], [1.5, 2.0**-48]])
    encoded = kind.encode(values)
    assert encoded.tolist() == [[2**88, -(2**88)], [3 * 2**47, 1]]
    assert encoded.dtype == object
    assert np.array_equal(kind.decode(encoded), values)
    # The kind says so, and not the values: a sum of small ones may be large.
    assert kind.encode(np.array([0.0])).dtype == object
    # 2^90 is far from what a double holds exactly beside 1.
    assert kind.decode(np.array([2**90 + 1], dtype=object))[0] == 2.0**42


@pytest.mark.parametrize("value", [64.0 + 2.0**-24, -65.0, np.nan, np.inf, 1e300, 1.7e308])
def test_what_is_beyond_the_bound_is_refused(value: float) -> None:
    """Protects neighbouring slots: one number too large runs into the next."""
    kind = FixedPoint.bounded(64, 24)
    assert kind.encode(np.array([64.0, -64.0])).tolist() == [2**30, -(2**30)]
    with pytest.raises(OutOfBounds):
        kind.encode(np.array([0.0, value]))


def test_inputs_are_clipped_to_their_bound() -> None:
    """Protects a federation from an outlier, as public bounds promise; what is no number at all is still
    refused."""
    kind = FixedPoint.bounded(256, 8)
    assert kind.clip(np.array([1000.0, -1e300, 3.0])).tolist() == [256.0, -256.0, 3.0]
    with pytest.raises(OutOfBounds):
        kind.encode(kind.clip(np.array([np.nan])))


def test_a_bound_between_two_steps_is_rounded_down() -> None:
    """Protects the bound: a number that is allowed is never larger than the public one."""
    assert FixedPoint.bounded(0.3, 1).largest == 0
    assert FixedPoint.bounded(0.3, 8).largest == 76
    with pytest.raises(ValueError, match="above 0"):
        FixedPoint.bounded(0.0, 8)


def test_extremes_reach_the_derived_bound_and_no_further() -> None:
    """Protects slots: a kind that is derived holds the worst case exactly. The oracle is the sum written out
    in integers."""
    parties, batch = 3, 40
    of = kinds(
        parties, batch, 25, input_bound=16, input_fraction_bits=8, inner_bound=8, inner_fraction_bits=24
    )
    u, x, y = 8 * 2**24, 16 * 2**8, 2**24
    assert of.residuals.largest == parties * u + 2 * y
    assert of.gradients.largest == batch * (parties * u + 2 * y) * x
    assert of.gradients.fraction_bits == 32
    assert of.changes_sum.largest == parties * 2 * u
    assert of.curvature.largest == 25 * parties * 2 * u * x
    assert of.labels.encode(np.array([1.0, -1.0])).tolist() == [y, -y]
    assert of.labels.fraction_bits == of.inner_products.fraction_bits
    assert 2 ** (of.gradients.slot_bits - 1) > of.gradients.largest >= 2 ** (of.gradients.slot_bits - 2)


def test_exponents_that_differ_are_not_added() -> None:
    """Protects a sum from values that are 2^8 times too large."""
    with pytest.raises(ValueError, match="cannot be added"):
        FixedPoint.bounded(1, 24) + FixedPoint.bounded(1, 16)
    with pytest.raises(ValueError, match="a label is 1"):
        kinds(2, 10, 10, input_bound=0.5)
