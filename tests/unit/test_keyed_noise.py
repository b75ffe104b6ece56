"""Keyed noise: normal, exact on its grid, the same for the same work, and independent for any other work."""

from __future__ import annotations

import math

import numpy as np
import pytest
from grids import grid
from scipy.special import ndtri
from scipy.stats import kstest

from streamfl.privacy.keyed_noise import ROUNDING, noisy, secret_noise

SECRET = "5e" * 32


@pytest.mark.parametrize("size", [1, 7, 60_000])
@pytest.mark.parametrize("noise", [1e-6, 1e5])
@pytest.mark.parametrize("length", [3e-5, 7e7])
def test_a_sum_on_a_grid_is_exact(size: int, noise: float, length: float) -> None:
    """Protects the argument: whole steps are added without rounding. Rounding a vector to the grid lengthens
    it by no more than it was shortened before, for any noise that the settings allow.
    """
    values = np.random.default_rng(size).normal(size=size)
    values *= length * (1 - ROUNDING) / np.linalg.norm(values)
    told = noisy(values, noise * length, length, SECRET, "test")
    step = grid(told)
    # Among many numbers some are odd multiples.
    assert step <= noise * length * 2.0**-16 or size < 100
    whole = told / step
    assert np.abs(whole).max() < 2.0**53
    rounded = told - step * np.rint((told - values) / step)
    assert np.linalg.norm(rounded) <= length
    assert np.abs(rounded - values).max() <= step


def test_the_noise_of_a_grid_is_normal() -> None:
    """Protects the mechanism: on the grid, noise is normal, with the right mean and deviation, and
    independent."""
    told = noisy(np.zeros(200_000), 3.0, 1.0, SECRET, "test")
    assert kstest(told / 3.0, "norm").pvalue > 1e-3
    assert abs(told.mean()) < 5 * 3 / math.sqrt(len(told))
    assert told.std() == pytest.approx(3.0, rel=5 / math.sqrt(2 * len(told)))
    assert abs((told[1:] * told[:-1]).mean()) < 5 * 9 / math.sqrt(len(told))


def test_no_numbers_and_numbers_that_are_hardly_any_do_not_end_a_member() -> None:
    """Protects a party whose model has no parameters, and one whose norm is set to almost 0."""
    assert noisy(np.zeros(0), 1.0, 1.0, SECRET, "test").shape == (0,)
    assert np.isfinite(noisy(np.zeros(3), 5e-324, 5e-324, SECRET, "test")).all()


def test_noise_is_by_all_that_it_hides_and_scales() -> None:
    """Protects from a difference without noise: other values, another strength or another grid get other
    noise; identical work gets the same noise.
    """
    values = np.array([0.25, -0.5])
    once = noisy(values, 1.0, 1.0, SECRET, "test")
    np.testing.assert_array_equal(noisy(values, 1.0, 1.0, SECRET, "test"), once)
    np.testing.assert_array_equal(
        noisy(-0.0 * values, 1.0, 1.0, SECRET, "test"), noisy(0.0 * values, 1.0, 1.0, SECRET, "test")
    )
    others = [
        noisy(values + 2.0**-16, 1.0, 1.0, SECRET, "test") - 2.0**-16,
        2 * noisy(values / 2, 0.5, 1.0, SECRET, "test"),
        noisy(values, 1.0, 0.01, SECRET, "test"),
        noisy(values, 1.0, 1.0, SECRET, "other"),
        noisy(values, 1.0, 1.0, SECRET[::-1], "test"),
    ]
    for other in others:
        assert np.abs(other - once).min() > 1e-4


def test_tails_of_the_noise_have_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the tails: the largest noise of each sign is beyond 13 deviations, with gaps smaller than any
    grid."""

    def drawn(high: int, low: int) -> float:
        class Stream:
            def __init__(self, _content: bytes) -> None:
                pass

            def digest(self, length: int) -> bytes:
                assert length == 16
                return high.to_bytes(8, "little") + low.to_bytes(8, "little")

        monkeypatch.setattr("streamfl.privacy.keyed_noise.hashlib.shake_256", Stream)
        return float(secret_noise(1, SECRET)[0])

    assert -13.2 < drawn(0, 0) < -13.0
    assert drawn(1, 0) == -drawn(0, 0)
    for low in (2**20, 2**40, 2**60):
        assert 0 <= drawn(0, low + low // 2**18) - drawn(0, low) < 2.0**-18
    # The middle, where both signs meet.
    assert abs(drawn(2**64 - 2, 2**64 - 1)) < 1e-15
    assert drawn(2**63, 0) == pytest.approx(float(ndtri(0.25)), rel=1e-15)
