"""Noise on whole numbers: the distance of neighbours after rounding, and its cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streamfl.privacy.integer_distribution import discrete_gaussian
from streamfl.privacy.integer_noise import IntegerNoise
from streamfl.privacy.zcdp import cost_of_gaussian


@pytest.mark.parametrize("cost", [1e-4, 0.02, 1.0, 60.0])
@pytest.mark.parametrize("count", [1, 20, 300])
def test_rounding_to_the_grid_moves_neighbours_no_further_apart(cost: float, count: int) -> None:
    """Protects the price: rounded neighbours are never farther apart than the noise allows, and some are
    exactly that far."""
    moved = 2**15
    noise = IntegerNoise.of_box(moved, count, cost)
    random = np.random.default_rng(count)
    furthest = 0.0
    for trial in range(100):
        values = random.integers(-(2**30), 2**30, count)
        change = (
            random.choice([-moved, moved], count) if trial % 2 else random.integers(-moved, moved + 1, count)
        )
        rounded = [(given + noise.unit // 2) // noise.unit for given in (values, values + change)]
        furthest = max(furthest, float(np.linalg.norm(rounded[0] - rounded[1])))
    assert cost_of_gaussian(furthest, math.sqrt(noise.variance)) == pytest.approx(cost, rel=1e-12)
    assert noise.variance >= 64**2 or noise.unit == 1
    assert noise.deviation == pytest.approx(math.sqrt(count) * moved / math.sqrt(2 * cost))


def test_numbers_that_move_together_pay_for_rounding() -> None:
    """Protects the price if only the length of a change is bounded: rounding may add half a unit to each
    number on both sides."""
    random = np.random.default_rng(0)
    for count, cost in ((16, 0.005), (300, 0.1)):
        length = 12345.5
        noise = IntegerNoise.of_length(length, count, cost)
        for _ in range(300):
            values = random.integers(-(2**30), 2**30, count)
            change = random.normal(size=count)
            change = np.trunc(change * length / np.linalg.norm(change)).astype(np.int64)
            rounded = [(given + noise.unit // 2) // noise.unit for given in (values, values + change)]
            assert (
                cost_of_gaussian(float(np.linalg.norm(rounded[0] - rounded[1])), math.sqrt(noise.variance))
                <= cost
            )
        assert noise.deviation < 1.2 * length / math.sqrt(2 * cost)


def test_noise_is_added_in_units_and_from_the_bits() -> None:
    """Protects the release: the noise is the discrete Gaussian of these bits; with zero values only the noise
    is left."""
    noise = IntegerNoise.of_box(2**15, 4, 0.1)
    bits = bytes(range(64))
    np.testing.assert_array_equal(
        noise.add(np.zeros(4, dtype=np.int64), bits), discrete_gaussian(noise.variance).draw(bits)
    )
    values = noise.unit * np.array([3, -5, 0, 2**20])
    np.testing.assert_array_equal(noise.add(values, bits) - noise.add(0 * values, bits), values // noise.unit)
    assert noise.variation == discrete_gaussian(noise.variance).variation
