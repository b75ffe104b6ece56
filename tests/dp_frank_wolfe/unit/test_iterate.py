"""The server's iterate: in its balls, moved by those who answered, and predictions that are made of x
anew."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.dp_frank_wolfe.learning.blocks import Block, step_length
from streamfl.dp_frank_wolfe.learning.iterate import SUM_BITS, Iterate, Vertex, quantise

BLOCKS = [Block("a", (0, 1), 0.4), Block("a", (2,), 0.1), Block("b", (0, 1, 2), 0.5)]


def make() -> Iterate:
    return Iterate(BLOCKS, {"a": 3, "b": 3})


def test_the_iterate_stays_in_its_balls_for_a_thousand_steps() -> None:
    """Protects feasibility: rounding of many steps does not carry x out, and a step that would is an
    assertion."""
    iterate, random = make(), np.random.default_rng(0)
    for t in range(1000):
        answers = {
            n: Vertex(int(random.choice(b.columns)), int(random.choice([-1, 1])))
            for n, b in enumerate(BLOCKS)
        }
        iterate.step(answers, step_length(t, 1.0))
    assert iterate.l1_norm <= 1 + 1e-12
    with pytest.raises(AssertionError, match="left its ball"):
        iterate.step({0: Vertex(0, 1)}, 1.5)


def test_what_is_no_vertex_of_its_block_changes_nothing() -> None:
    """Protects the model from a party that answers for columns that it does not have."""
    iterate = make()
    iterate.step({0: Vertex(0, 1)}, 1.0)
    for wrong in (
        {1: Vertex(0, 1)},
        {0: Vertex(5, 1)},
        {0: Vertex(0, 2)},
        {2: Vertex(0, 1), 0: Vertex(1, 0)},
    ):
        with pytest.raises(ValueError, match="no vertex"):
            iterate.step(wrong, 0.5)
    np.testing.assert_allclose(iterate.x["a"], [0.4, 0.0, 0.0])
    np.testing.assert_allclose(iterate.x["b"], 0.0)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e200])
def test_quantised_numbers_are_whole_and_sum_to_what_is_exact(scale: float) -> None:
    """Protects exact sums: whatever a server sends, whole numbers of it cannot add up beyond what doubles
    hold."""
    values = scale * np.random.default_rng(0).normal(size=1000)
    for bits in (SUM_BITS, 20):
        found = quantise(values, bits)
        assert np.array_equal(found.numbers, np.rint(found.numbers))
        assert np.abs(found.numbers).sum() < 2.0**bits
        if scale == 1.0:
            most = 2.0 ** (1 - bits) * float(np.abs(values).sum()) + 2.0**-61
            np.testing.assert_allclose(np.ldexp(found.numbers, -found.bits), values, rtol=0, atol=most)
    assert not quantise(np.zeros(3)).numbers.any()


def test_a_party_gets_what_the_others_predict() -> None:
    """Protects predictions: the sum over the other parties' columns with a weight, and nothing of the party's
    own."""
    iterate = make()
    iterate.show("a", 0, np.array([1.0, 2.0]))
    iterate.show("b", 2, np.array([10.0, 0.0]))
    np.testing.assert_allclose(iterate.others("a", 2), 0.0)
    iterate.step({0: Vertex(0, 1), 2: Vertex(2, -1)}, 1.0)
    np.testing.assert_allclose(iterate.others("a", 2), [-5.0, 0.0])
    np.testing.assert_allclose(iterate.others("b", 2), [0.4, 0.8])
