"""Blocks and samplings: who takes part, how often, and that everybody comes to the same schedule."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.dp_frank_wolfe.learning.blocks import Block, Sampling, step_length

BLOCKS = [Block(party, (0, 1), 1.0) for party in ("a", "a", "b", "b", "b", "c", "c")]


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (Sampling("full", BLOCKS, 0), [1.0] * 7),
        (Sampling("uniform", BLOCKS, 0), [1 / 7] * 7),
        (Sampling("nice", BLOCKS, 0, count=3), [3 / 7] * 7),
        (Sampling("distributed", BLOCKS, 0, count=2), [1.0, 1.0, 2 / 3, 2 / 3, 2 / 3, 1.0, 1.0]),
        (
            Sampling("importance", BLOCKS, 0, probabilities=(0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)),
            [0.4] + [0.1] * 6,
        ),
    ],
    ids=lambda given: given.name if isinstance(given, Sampling) else "",
)
def test_blocks_take_part_as_often_as_the_theorem_says(sampling: Sampling, wanted: list[float]) -> None:
    """Protects the rate: each block's share of 1,500 iterations, and p, which the step's length follows."""
    # A share is off by .0125 at most, times 4.9: one run of a million with other signs.
    shares = np.bincount([number for t in range(1500) for number in sampling.blocks_of(1, t)], minlength=7)
    np.testing.assert_allclose(shares / 1500, wanted, atol=0.062)
    assert sampling.least == pytest.approx(min(wanted))


def test_a_schedule_is_public_and_counts_a_party_s_choices() -> None:
    """Protects the charge: what a party pays for is the number of its turns, the same on every machine,
    another in each window."""
    sampling = Sampling("nice", BLOCKS, 7, count=3)
    again = Sampling("nice", BLOCKS, 7, count=3)
    assert [sampling.blocks_of(1, t) for t in range(20)] == [again.blocks_of(1, t) for t in range(20)]
    assert [sampling.blocks_of(1, t) for t in range(20)] != [again.blocks_of(2, t) for t in range(20)]
    assert sum(sampling.answers_of(party, 1, 50) for party in "abc") == 150
    assert Sampling("full", BLOCKS, 7).answers_of("b", 1, 50) == 150


def test_samplings_and_blocks_that_cannot_be_are_refused() -> None:
    """Protects a fit from settings that would only fail within it."""
    for name, options in (("nice", {"count": 8}), ("nice", {"count": 0}), ("distributed", {"count": 3})):
        with pytest.raises(ValueError, match="cannot be sampled"):
            Sampling(name, BLOCKS, 0, **options)
    for probabilities in ((), (1.0,) * 7, (0.0, 1.0, 0, 0, 0, 0, 0)):
        with pytest.raises(ValueError, match="probability"):
            Sampling("importance", BLOCKS, 0, probabilities=probabilities)
    for columns, radius in (((), 1.0), ((1, 1), 1.0), ((1,), 0.0), ((1,), np.inf)):
        with pytest.raises(ValueError, match=r"block|radius"):
            Block("a", columns, radius)
    assert step_length(0, 0.1) == 1.0
