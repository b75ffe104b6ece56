"""Draws by whole numbers: their probabilities, tails and bits, and the epsilon of a choice."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import chisquare

from streamfl.privacy.exponential_mechanism import exponential_mechanism
from streamfl.privacy.integer_distribution import (
    DEVIATIONS,
    DRAW_BYTES,
    ERROR_BITS,
    GAUSSIAN_LOST,
    LARGEST_DEVIATION,
    TABLE_BITS,
    WEIGHT_BITS,
    IntegerDistribution,
    discrete_gaussian,
)
from streamfl.privacy.release_bits import Release, release_bits
from streamfl.privacy.zcdp import cost_of_choice, cost_of_gaussian

SECRET = bytes(range(32))
RELEASE = Release("ledger", "federation", "party", 3, 5, "choice", (Fraction(1, 3), 7), b"digest")


def bits(draws: int, seed: int = 0) -> bytes:
    return hashlib.shake_256(b"test %d" % seed).digest(draws * DRAW_BYTES)


def probabilities(distribution: IntegerDistribution, candidates: range) -> np.ndarray:
    """Probabilities of the candidates, found by bisection over the 2^128 values of the draw's bits."""

    def begin(candidate: int) -> int:
        low, high = 0, 2**128
        while low < high:
            middle = (low + high) // 2
            if distribution.draw(middle.to_bytes(16, "big"))[0] >= candidate:
                high = middle
            else:
                low = middle + 1
        return low

    begins = [begin(candidate) for candidate in candidates] + [2**128]
    return np.array([float(Fraction(end - start, 2**128)) for start, end in pairwise(begins)])


def test_a_choice_has_the_probabilities_of_a_softmax_far_into_its_tail() -> None:
    """Protects the mechanism: candidates that are 0 to 80 scales behind have the probability that the proof
    assumes, without a visible effect of rounding their weights.
    """
    rate = Fraction(3, 1_000_003)
    scores = np.array([-(2**40), 5, 0, -(10**6), -(10**7), -2 * 10**7, -20_000_000 - 10**6, 5 - 3 * 10**6])
    found = probabilities(exponential_mechanism(scores, rate), range(len(scores)))
    wanted = np.exp(log_softmax(scores.astype(float) * float(rate)))
    assert wanted[5] < 1e-25
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-37)
    assert exponential_mechanism(scores, rate).variation < 1e-35


def test_draws_follow_the_weights() -> None:
    """Protects vectorised draws: a chi-square test of 200,000, and single draws are the same."""
    distribution = IntegerDistribution(np.array([5, 0, 1, 10, 3, 0], dtype=object), 0.0)
    drawn = distribution.draw(bits(200_000))
    counts = np.bincount(drawn, minlength=6)
    assert counts[1] == counts[5] == 0
    assert chisquare(counts[[0, 2, 3, 4]], 200_000 / 19 * np.array([5, 1, 10, 3])).pvalue > 1e-3
    content = bits(50)
    assert [
        int(distribution.draw(content[at : at + 16])[0]) for at in range(0, 800, 16)
    ] == distribution.draw(content).tolist()
    even = IntegerDistribution(np.array([1, 1], dtype=object), 0.0)
    assert [int(even.draw(edge.to_bytes(16, "big"))[0]) for edge in (0, 2**127 - 1, 2**127, 2**128 - 1)] == [
        0,
        0,
        1,
        1,
    ]
    # The upper words of these thresholds are equal.
    close = IntegerDistribution(np.array([2**100, 1, 1, 2**100], dtype=object), 0.0)
    assert probabilities(close, range(4))[1:3] == pytest.approx(2.0**-101, rel=1e-6)
    with pytest.raises(ValueError, match="weight"):
        IntegerDistribution(np.zeros(3, dtype=object), 0.0)


@pytest.mark.parametrize("variance", [Fraction(1, 50), Fraction(1), Fraction(10, 3), Fraction(10**6)])
def test_the_noise_is_a_discrete_gaussian(variance: Fraction) -> None:
    """Protects the mechanism: probabilities by the definition, up to eight deviations."""
    distribution = discrete_gaussian(variance)
    # A sum by the definition. Terms beyond this range are negligible.
    reach = 12 * math.ceil(math.sqrt(variance))
    whole = np.arange(-reach, reach + 1)
    weights = np.exp(-(whole.astype(float) ** 2) / float(2 * variance))
    total = math.fsum(weights)
    deviation = max(1, math.isqrt(int(variance)))
    for start in (-8 * deviation, -deviation, 0, 3 * deviation):
        window = range(start, start + 3)
        found = probabilities(distribution, window)[:-1]
        np.testing.assert_allclose(
            found, [weights[reach + at] / total for at in window][:-1], rtol=1e-9, atol=1e-30
        )
    drawn = distribution.draw(bits(100_000))
    assert abs(drawn.mean()) < 5 * math.sqrt(float(variance) / len(drawn)) + 1e-9
    assert np.abs(drawn).max() < 8 * math.sqrt(variance)
    assert distribution.variation < 1e-21


def test_what_a_discrete_gaussian_loses_is_within_what_is_counted() -> None:
    """Protects delta: tails and errors of weights are both part of the total variation, at the largest
    deviation too."""
    furthest = DEVIATIONS * LARGEST_DEVIATION + 2
    assert 2 * furthest + 1 <= 2**TABLE_BITS
    # A weight is a product of ratios. Weight, ratio and the ratio's factor are each off by less than one when
    # they are cut.
    error = sum(2 * number + 2 for number in range(furthest))
    assert error <= 2**ERROR_BITS
    tails = math.erfc(DEVIATIONS / math.sqrt(2))
    assert tails == pytest.approx(1.5e-23, rel=0.05)
    assert (
        tails + 2.0 ** (TABLE_BITS + ERROR_BITS - WEIGHT_BITS)
        < GAUSSIAN_LOST
        == pytest.approx(3.86e-23, rel=0.01)
    )


def test_discrete_noise_costs_what_continuous_noise_costs() -> None:
    """Protects the price: divergences between shifted discrete Gaussians are never above cost alpha."""
    for variance, moved in ((0.3, 1), (2.0, 1), (9.0, 5), (400.0, 3)):
        reach = 60 * math.ceil(math.sqrt(variance))
        whole = np.arange(-reach, reach + 1.0)
        first, second = (-((whole - centre) ** 2) / (2 * variance) for centre in (0, moved))
        first -= np.logaddexp.reduce(first)
        second -= np.logaddexp.reduce(second)
        for alpha in (1.001, 1.5, 2.0, 8.0):
            divergence = np.logaddexp.reduce(alpha * first + (1 - alpha) * second) / (alpha - 1)
            assert divergence <= cost_of_gaussian(moved, math.sqrt(variance)) * alpha * (1 + 1e-6) + 1e-12


def test_the_range_of_a_choice_is_reached_and_never_exceeded() -> None:
    """Protects the claim about a choice: if neighbours' scores differ by at most D, log-ratios lie in an
    interval of 2 rate D, and divergences stay under the cost. One score up and all others down comes nearest.
    """
    random = np.random.default_rng(0)
    rate, most = Fraction(1, 1000), 600
    claimed = 2 * float(rate) * most
    nearest = 0.0
    for trial in range(12):
        scores = random.integers(-2000, 2000, 6)
        moved = np.where(np.arange(6) == 0, most, -most) if trial % 2 else random.integers(-most, most + 1, 6)
        first, second = (
            np.log(probabilities(exponential_mechanism(given, rate), range(6)))
            for given in (scores, scores + moved)
        )
        ratios = first - second
        nearest = max(nearest, float(np.ptp(ratios)))
        for alpha in (1.01, 2.0, 10.0):
            divergence = np.logaddexp.reduce(alpha * first + (1 - alpha) * second) / (alpha - 1)
            assert divergence <= cost_of_choice(claimed) * alpha + 1e-12
    assert claimed * (1 - 1e-9) < nearest <= claimed * (1 + 1e-9)


def test_noise_that_is_too_strong_for_a_table_is_refused() -> None:
    """Protects memory: an absurd variance is an error, not a table of gigabytes."""
    for variance in (Fraction(0), Fraction(2**31)):
        with pytest.raises(ValueError, match="variance"):
            discrete_gaussian(variance)


def test_bits_are_by_everything_that_a_release_is_of() -> None:
    """Protects against one draw for two contents: if any field differs, the bits differ; the same release has
    the same bits."""
    once = release_bits(SECRET, RELEASE, 4)
    assert len(once) == 4 * DRAW_BYTES
    assert release_bits(SECRET, RELEASE, 4) == once
    others = [
        replace(RELEASE, ledger="other"),
        replace(RELEASE, federation="other"),
        replace(RELEASE, party="other"),
        replace(RELEASE, window=4),
        replace(RELEASE, iteration=6),
        replace(RELEASE, kind="noise"),
        replace(RELEASE, parameters=(Fraction(1, 4), 7)),
        replace(RELEASE, parameters=(Fraction(1, 3), 8)),
        replace(RELEASE, digest=b"other"),
        # The same bytes in a row, divided differently.
        replace(RELEASE, federation="federationp", party="arty"),
    ]
    told = [release_bits(SECRET, other, 4) for other in others] + [release_bits(SECRET[::-1], RELEASE, 4)]
    told += [release_bits(SECRET, RELEASE, 5)[: len(once)]]
    assert len({once, *told}) == len(told) + 1
    with pytest.raises(ValueError, match="secret"):
        release_bits(b"short", RELEASE, 1)
