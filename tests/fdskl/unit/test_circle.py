"""Phases as whole numbers: a sum of them is exact, and is the sum of the phases to a known error."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from streamfl.fdskl.sums.circle import from_circle, number_type, to_circle

WIDTHS = (32, 64)
PI = Fraction("3.14159265358979323846264338327950288419716939937510")


@pytest.mark.parametrize("bits", WIDTHS)
def test_numbers_are_the_rounded_share_of_a_turn(bits: int) -> None:
    """Protects the encoding that all parties share: against pi of 50 digits, round(2^f phase / 2 pi) modulo
    2^f, f = 32 or 53."""
    fraction = {32: 32, 64: 53}[bits]
    phases = np.random.default_rng(1).normal(0.0, 20.0, 500)
    expected = [round(Fraction(float(phase)) / (2 * PI) * 2**fraction) for phase in phases]
    found = [int(number) for number in to_circle(phases, bits)]
    assert all(number % 2 ** (bits - fraction) == 0 for number in found)
    half = 2 ** (fraction - 1)
    far = [
        ((number >> (bits - fraction)) - one + half) % 2**fraction - half
        for number, one in zip(found, expected, strict=True)
    ]
    # A float64 of 60, ten turns, has steps of 10 times 2^-53 turns.
    assert max(map(abs, far)) <= (0 if bits == 32 else 16)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("parties", [2, 16])
def test_a_feature_is_off_by_no_more_than_its_bound(parties: int, bits: int) -> None:
    """Protects predictions: |phi - phi of the real sum| <= sqrt(2) q pi 2^-32, and the rounding of float64 at
    64 bits. At 32 bits the bound is not far from what is met, so that a coarser number would be found.
    """
    parts = np.random.default_rng(parties).normal(0.0, 3.0, (parties, 50_000))
    total = to_circle(parts, bits).sum(axis=0, dtype=number_type(bits))
    error = np.abs(math.sqrt(2) * (np.cos(from_circle(total)) - np.cos(parts.sum(axis=0)))).max()
    bound = math.sqrt(2) * parties * math.pi * 2.0**-32
    if bits == 64:
        assert error <= 40 * parties * 2.0**-53
    else:
        assert bound / 4 < error <= bound


@pytest.mark.parametrize("bits", WIDTHS)
def test_there_and_back_is_the_phase_within_one_turn(bits: int) -> None:
    """Protects phases at the edges: none is 2 pi or below 0, also just beside a whole turn, and of large
    blocks."""
    edges = [
        0.0,
        -0.0,
        2 * math.pi,
        -1e-300,
        1e-300,
        math.nextafter(2 * math.pi, 0),
        -2 * math.pi,
        math.pi,
        -math.pi,
    ]
    phases = np.concatenate([np.array(edges), np.random.default_rng(3).normal(0, 50, 39_999)]).reshape(-1, 3)
    back = from_circle(to_circle(phases, bits))
    assert back.shape == phases.shape
    assert back.min() >= 0
    assert back.max() < 2 * math.pi
    far = np.abs(np.exp(1j * back) - np.exp(1j * phases)).max()
    assert far <= (1.001 * math.pi * 2.0**-32 if bits == 32 else 1e-13)


@pytest.mark.parametrize("bits", WIDTHS)
def test_large_phases_are_as_exact_as_float64_is(bits: int) -> None:
    """Protects kernels with heavy tails: a phase of a million turns is off by 2^-52 of itself, whichever way
    it is rounded, and is the same number whatever stands beside it.
    """
    sizes = np.geomspace(1, 1e14, 5000)
    phases = sizes * np.random.default_rng(4).choice([-1.0, 1.0], 5000)
    numbers = to_circle(phases, bits)
    error = np.abs(np.exp(1j * from_circle(numbers)) - np.exp(1j * phases))
    assert (error <= 1.001 * math.pi * 2.0**-32 + 2.0**-52 * sizes).all()
    assert (
        np.array([to_circle(phases[n : n + 1], bits)[0] for n in range(0, 5000, 50)]) == numbers[::50]
    ).all()


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("wrong", [1.7e308, math.nan, math.inf, -math.inf])
def test_a_phase_that_is_none_is_refused(bits: int, wrong: float) -> None:
    """Protects the sum: a number that is none would become some phase, and nobody would see it."""
    phases = np.zeros(20_000)
    phases[-1] = wrong
    with pytest.raises(ValueError, match="finite"):
        to_circle(phases, bits)


def test_other_widths_are_refused() -> None:
    """Protects what is read from the wire: numbers of another type are no phases."""
    for bits in (0, 16, 33, 128):
        with pytest.raises(ValueError, match="bits"):
            to_circle(np.zeros(1), bits)
    with pytest.raises(ValueError, match="bits"):
        from_circle(np.zeros(1, np.uint16))


def test_the_byte_order_of_the_wire_is_read() -> None:
    """Protects members on other machines: numbers of either order are the same phases."""
    numbers = to_circle(np.linspace(-9, 9, 50), 64)
    assert (from_circle(numbers.astype(">u8")) == from_circle(numbers.astype("<u8"))).all()
