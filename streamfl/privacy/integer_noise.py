"""Discrete Gaussian noise on whole numbers, on a grid chosen so that rounding costs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streamfl.privacy.integer_distribution import DEVIATIONS, discrete_gaussian, gaussian_variation

__all__ = ["IntegerNoise"]

Integers = NDArray[np.int64]
# Fewest grid steps in a deviation. With fewer, rounding would be visible beside the noise.
FEWEST_STEPS = 64
# Grid steps in a deviation if the grid may be as fine as wanted.
FINE_STEPS = 4096


@dataclass(frozen=True)
class IntegerNoise:
    """Values are rounded to multiples of ``unit``, and noise is added in units.

    unit: the grid's step, a whole number.
    variance: sigma^2 in units^2.
    cost: of a release, in zCDP.
    """

    unit: int
    variance: Fraction
    cost: float

    @classmethod
    def of_box(cls, moved: int, count: int, cost: float) -> IntegerNoise:
        """Noise on numbers that each move by at most ``moved`` between neighbours: sensitivity sqrt(count)
        moved.

        ``moved`` is a whole number D of units, so two values that differ by at most ``moved`` are rounded to
        multiples that differ by at most D: rounding commutes with a shift of D units, and keeps the order.
        The sensitivity is exactly sqrt(count) D units, and sigma^2 = count D^2 / (2 cost).

        moved: a power of two.
        count: how many of the numbers may move.
        """
        steps = 1
        while 2 * cost * FEWEST_STEPS**2 > count * steps**2 and steps < moved:
            steps *= 2
        return cls(moved // steps, count * steps**2 / (2 * Fraction(cost)), cost)

    @classmethod
    def of_length(cls, length: float, count: int, cost: float) -> IntegerNoise:
        """Noise on ``count`` numbers that move together by a Euclidean length of at most ``length`` between
        neighbours.

        Rounding moves each of two values by at most half a unit: the sensitivity is length / unit +
        sqrt(count) units."""
        unit = max(1, int(length / math.sqrt(2 * cost) / FINE_STEPS))
        sensitivity = -(-math.ceil(length) // unit) + math.isqrt(count) + 1
        return cls(unit, sensitivity**2 / (2 * Fraction(cost)), cost)

    @property
    def deviation(self) -> float:
        """sigma in the values' own steps of 1."""
        return math.sqrt(self.variance) * self.unit

    @property
    def largest(self) -> int:
        """The largest distance of a draw from 0, in units."""
        return math.ceil(DEVIATIONS * math.sqrt(self.variance)) + 1

    @property
    def variation(self) -> float:
        """Total variation between one number's noise and the discrete Gaussian.

        ValueError for a variance that cannot be drawn.
        """
        return gaussian_variation(self.variance)

    def add(self, values: Integers, bits: bytes) -> Integers:
        """Round values to multiples of the unit and add noise: (count,) in units.

        values: (count,).
        bits: uniform, 16 bytes for each number.
        """
        return np.asarray(
            (values + self.unit // 2) // self.unit + discrete_gaussian(self.variance).draw(bits),
            dtype=np.int64,
        )
