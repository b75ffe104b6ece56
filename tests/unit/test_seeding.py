"""The documented derivation of random streams, in plain Python integers, gives streamfl's numbers."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfl.contract.seeding import UniformSequence, cauchy, normal, philox_key, rng_for, uniform

MASK = 2**64 - 1
paths = st.lists(st.one_of(st.text(max_size=6), st.integers(-(2**63), 2**63 - 1)), max_size=3)
seeds = st.integers(-(2**63), 2**63 - 1)


def key_of(seed: int, path: list[str | int]) -> list[int]:
    """Steps 1 and 2 of the derivation: the two key words."""
    name = b"streamfl/1" + (seed % 2**64).to_bytes(8, "little")
    for element in path:
        content = (
            element.encode("utf-8") if isinstance(element, str) else (element % 2**64).to_bytes(8, "little")
        )
        name += (b"s" if isinstance(element, str) else b"i") + len(content).to_bytes(4, "little") + content
    digest = hashlib.blake2b(name, digest_size=16).digest()
    return [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")]


def philox_block(counter: int, key: list[int]) -> list[int]:
    """Philox4x64-10 of Salmon et al. 2011, from the paper's definition."""
    words = [counter >> (64 * i) & MASK for i in range(4)]
    k0, k1 = key
    for _ in range(10):
        product0, product1 = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
        words = [
            product1 >> 64 ^ words[1] ^ k0,
            product1 & MASK,
            product0 >> 64 ^ words[3] ^ k1,
            product0 & MASK,
        ]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return words


def stream(count: int, seed: int, path: list[str | int]) -> list[float]:
    """Steps 2 and 3 of the derivation: the counter is 1 at the first block."""
    key = key_of(seed, path)
    words = [word for block in range(-(-count // 4)) for word in philox_block(block + 1, key)]
    return [float((Fraction(word >> 11) + Fraction(1, 2)) / 2**53) for word in words[:count]]


def test_the_plain_philox_is_philox() -> None:
    """The oracle reproduces a published vector of the Random123 library, so that two equal mistakes cannot
    agree."""
    assert philox_block(0, [0, 0]) == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]


@given(seed=seeds, path=paths, count=st.integers(0, 40))
def test_uniforms_follow_the_documentation(seed: int, path: list[str | int], count: int) -> None:
    """A client in another language draws the federation's frequencies from the documentation alone."""
    assert philox_key(seed, *path).tolist() == key_of(seed, path)
    assert uniform(count, seed, *path).tolist() == stream(count, seed, path)


@given(seed=seeds, path=paths)
def test_normal_and_cauchy_are_inverse_distribution_functions(seed: int, path: list[str | int]) -> None:
    """One word a number, by inversion: any other method would need its rejection loop in every language."""
    uniforms = stream(20, seed, path)
    np.testing.assert_allclose(
        normal(20, seed, *path), [NormalDist().inv_cdf(u) for u in uniforms], rtol=1e-12
    )
    expected = [math.tan(math.pi * (u - 0.5)) for u in uniforms]
    np.testing.assert_allclose(cauchy(20, seed, *path), expected, rtol=1e-9)


@given(seed=seeds, path=paths, indices=st.lists(st.integers(0, 300), min_size=1, max_size=12))
def test_random_access_equals_reading_in_order(seed: int, path: list[str | int], indices: list[int]) -> None:
    """A restored client continues at element n without reading the earlier ones, across the blocks'
    borders."""
    sequence = UniformSequence(seed, *path)
    in_order = uniform(301, seed, *path)
    assert [sequence[index] for index in indices] == [in_order[index] for index in indices]


def test_random_access_far_into_a_stream() -> None:
    """A client that has run for years is at element 10^10: its draw uses the full counter, not a wrapped
    one."""
    index = 10**10 + 7
    block, offset = divmod(index, 4)
    word = philox_block(block + 1, key_of(5, ["bin"]))[offset]
    assert UniformSequence(5, "bin")[index] == float((Fraction(word >> 11) + Fraction(1, 2)) / 2**53)


@pytest.mark.parametrize(
    "other", [("1",), (1, 1), ("i",), (), (2,), ("a", "b"), ("ab",), ("a", "", "b"), (-1,)]
)
def test_different_paths_are_different_streams(other: tuple[str | int, ...]) -> None:
    """Paths that look alike when joined must not share a stream: two clients would draw the same bins."""
    named = [philox_key(0, *path).tobytes() for path in [(1,), ("a", "b", ""), other]]
    assert len(set(named)) == 3


def test_a_generator_stands_on_the_same_stream() -> None:
    """rng_for must only depend on seed and path, so that a simulation's seed reproduces it."""
    assert rng_for(3, "x").bit_generator.random_raw(8).tolist() == [
        word for block in (1, 2) for word in philox_block(block, key_of(3, ["x"]))
    ]


def test_no_word_gives_nought_or_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects normals and Cauchy variables from infinity: the largest words round to 1. All other words give
    the same as before."""
    largest = [MASK, (2**53 - 1) << 11]
    words = [0, 1, 2**11, 2**63 - 1, 2**63, 2**63 + 2**11, (2**53 - 1 << 11) - 1, 2**53 - 2 << 11, *largest]

    class Words:
        def __init__(self, key: object, counter: int = 0) -> None:
            pass

        def random_raw(self, count: int) -> np.ndarray:
            return np.array((words * count)[:count], np.uint64)

    monkeypatch.setattr("streamfl.contract.seeding.np.random.Philox", Words)
    found = uniform(len(words), 7)
    assert found[0] > 0
    assert found.max() < 1
    assert np.isfinite(normal(len(words), 7)).all()
    assert UniformSequence(7)[len(words) - 1] == found[-1] == 1 - 2.0**-53
    assert found[-2] == found[-1]
    before = ((np.array(words, np.uint64) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    assert found[:-2].tolist() == before[:-2].tolist()
    assert before[-2:].tolist() == [1.0, 1.0]
