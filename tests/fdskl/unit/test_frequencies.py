"""Frequencies: each party draws its own columns, any features, and all parties together draw those of one
kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import cauchy, kstest, norm, t, uniform

from streamfl.contract.seeding import normal
from streamfl.fdskl.sums import frequencies
from streamfl.fdskl.sums.frequencies import Frequencies, SpectralDensity

COLUMNS = ("age", "income", "debt", "rooms", "Größe")
KERNELS = ("gaussian", "laplacian", "matern")
SECRETS = [bytes([number]) * 32 for number in range(5)]


def drawn(
    kernel: Any = "gaussian", secret: bytes | None = None, columns: Sequence[str] = COLUMNS, **said: Any
) -> Frequencies:
    """Of one party that is alone with these columns; ``said`` wins."""
    usual: dict[str, Any] = {"seed": 7, "parties": 1, "own": 0, "active": 0, "nu": 1.5, "bandwidth": 2.0}
    given = {**usual, **said}
    density = SpectralDensity(kernel, given.pop("bandwidth"), given.pop("nu"))
    return Frequencies(density, columns, secret=secret, **given)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("secret", [None, SECRETS[1]], ids=["shared", "private"])
def test_any_range_alone_is_what_it_is_within_a_larger_one(kernel: str, secret: bytes | None) -> None:
    """Protects the model after a restore: feature i is the same function whichever range it is drawn in, and
    after whichever."""
    one = drawn(kernel, secret, parties=4, own=2, active=1)
    whole = one.frequencies(0, 3000), one.offsets(0, 3000), one.owners(0, 3000)
    for first, count in ((0, 1), (1, 1), (2, 3), (255, 2), (256, 256), (999, 1501), (2999, 1), (40, 0)):
        parts = one.frequencies(first, count), one.offsets(first, count), one.owners(first, count)
        for part, all_of_it in zip(parts, whole, strict=True):
            assert (part == all_of_it[first : first + count]).all()
            assert len(part) == count
    far = one.frequencies(2**52, 8)
    assert (far[5] == one.frequencies(2**52 + 5, 1)[0]).all()
    assert len(np.unique(far)) == far.size


def test_frequencies_follow_their_distribution() -> None:
    """Protects the kernel, column by column: normals, Cauchy variables, Student's t of 2 nu degrees of
    freedom, by a KS test."""
    for secret in (None, SECRETS[0]):
        for kernel, law in (
            ("gaussian", norm(0, 0.5)),
            ("laplacian", cauchy(0, 0.5)),
            ("matern", t(3, 0, 0.5)),
        ):
            found = drawn(kernel, secret).frequencies(0, 20_000)
            for column in found.T:
                assert kstest(column, law.cdf).pvalue > 1e-4, (kernel, secret)
    # The columns of a feature share one scale under Matern, and nothing else does.
    for kernel, together in (("gaussian", False), ("matern", True)):
        sizes = np.abs(drawn(kernel, SECRETS[0]).frequencies(0, 20_000))
        ranks = np.argsort(np.argsort(sizes, axis=0), axis=0)
        correlation = np.corrcoef(ranks.T)[np.triu_indices(5, 1)]
        assert (correlation > 0.1).all() if together else (np.abs(correlation) < 0.04).all()


def test_shared_frequencies_are_the_documented_stream() -> None:
    """Protects members in other languages: column c of the Gaussian is the stream (seed, "fdskl",
    "frequencies", c)."""
    found = drawn("gaussian", bandwidth=0.25).frequencies(0, 50)
    for number, name in enumerate(COLUMNS):
        np.testing.assert_allclose(
            found[:, number], normal(50, 7, "fdskl", "frequencies", name) / 0.25, rtol=1e-15
        )


@pytest.mark.parametrize("kernel", KERNELS)
def test_private_frequencies_are_the_secrets(kernel: str) -> None:
    """Protects columns from a peer that knows the configuration: another secret, or none, gives other
    frequencies and offsets, independent of one another; so do another seed and another name.
    """
    same = drawn(kernel, SECRETS[0], parties=2, own=1)
    assert (same.frequencies(0, 9) == drawn(kernel, SECRETS[0], parties=2, own=1).frequencies(0, 9)).all()
    for other in (
        drawn(kernel, SECRETS[1], parties=2, own=1),
        drawn(kernel, None, parties=2, own=1),
        drawn(kernel, SECRETS[0], parties=2, own=1, seed=8),
        drawn(kernel, SECRETS[0], [f"{name} " for name in COLUMNS], parties=2, own=1),
    ):
        one, two = (np.sign(each.frequencies(0, 4000)).ravel() for each in (same, other))
        assert abs(np.mean(one * two)) < 4 / np.sqrt(len(one))
    for other in (drawn(kernel, SECRETS[1], parties=2, own=1), drawn(kernel, None, parties=2, own=1)):
        assert not np.isclose(same.offsets(0, 1000), other.offsets(0, 1000), atol=1e-6).any()


def test_a_fingerprint_tells_what_would_draw_otherwise() -> None:
    """Protects a federation from a lost secret: what was drawn before is not taken for what is drawn now."""
    first = drawn("matern", SECRETS[0]).fingerprint
    assert first == drawn("matern", SECRETS[0]).fingerprint
    others = [
        drawn("matern", SECRETS[1]),
        drawn("matern", None),
        drawn("gaussian", SECRETS[0]),
        drawn("matern", SECRETS[0], bandwidth=2.5),
        drawn("matern", SECRETS[0], nu=2.5),
        drawn("matern", SECRETS[0], seed=8),
        drawn("matern", SECRETS[0], COLUMNS[::-1]),
        drawn("matern", SECRETS[0], parties=2),
    ]
    assert len({first, *(one.fingerprint for one in others)}) == len(others) + 1


def test_each_feature_has_one_owner_who_is_not_the_active_party() -> None:
    """Protects the phase b_i: one party adds it, the same for every instance, and the active party learns
    none of them alone."""
    for parties in (2, 3, 7):
        for active in range(parties):
            all_of_them = [
                drawn("gaussian", SECRETS[0], (), parties=parties, own=own, active=active)
                for own in range(parties)
            ]
            owners = all_of_them[0].owners(0, 6000)
            assert all((one.owners(0, 6000) == owners).all() for one in all_of_them)
            counts = np.bincount(owners, minlength=parties)
            assert counts[active] == 0
            others = np.delete(counts, active) / 6000
            np.testing.assert_allclose(others, 1 / (parties - 1), atol=4 * np.sqrt(0.25 / 6000))
            for own, one in enumerate(all_of_them):
                assert ((one.offsets(0, 6000) != 0) == (owners == own)).all()
    alone = drawn("gaussian", SECRETS[0])
    assert (alone.owners(5, 9) == 0).all()
    assert kstest(alone.offsets(0, 20_000), uniform(0, 2 * np.pi).cdf).pvalue > 1e-4


def test_phases_are_the_product_and_the_offsets_whatever_was_drawn_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects phases from the store of what was drawn, and memory from it: in any order of ranges, also when
    it is full, they are omega x + b, and it holds no more than it may.
    """
    monkeypatch.setattr(frequencies, "KEPT_NUMBERS", 100_000)
    monkeypatch.setattr(frequencies, "CHUNK_NUMBERS", 20_000)
    wide = [f"c{number}" for number in range(99)]
    for columns in (COLUMNS, wide):
        one, fresh = (
            drawn("gaussian", SECRETS[3], columns, parties=3, own=2, bandwidth=30.0) for _ in range(2)
        )
        inputs = np.random.default_rng(2).normal(size=(3, len(columns)))
        for ranges in (
            [(0, 600), (250, 10)],
            [(100_000, 1300)],
            [(0, 3000)],
            [(5, 2), (9000, 900), (1, 0)],
            [(0, 600)],
            [],
        ):
            expected = [inputs @ fresh.frequencies(*each).T + fresh.offsets(*each) for each in ranges]
            found = one.partial_phases(inputs, ranges)
            np.testing.assert_allclose(found, np.hstack([np.empty((3, 0)), *expected]), rtol=0, atol=1e-9)
            assert sum(chunk.size for chunk in one._chunks.values()) <= 100_000


def test_what_cannot_be_drawn_is_refused() -> None:
    """Protects operators: a kernel, a bandwidth or columns without a meaning are an error and not a wrong
    model."""
    for wrong in ({"bandwidth": 0.0}, {"bandwidth": float("nan")}, {"nu": 0.1}, {"nu": float("nan")}):
        with pytest.raises(ValueError):
            drawn("matern", **wrong)
    with pytest.raises(ValueError, match="kernel"):
        drawn("polynomial")
    with pytest.raises(ValueError, match="twice"):
        drawn("gaussian", None, ("a", "b", "a"))
    with pytest.raises(ValueError, match="among"):
        drawn("gaussian", own=1)
    with pytest.raises(ValueError, match="columns"):
        drawn("gaussian").partial_phases(np.zeros((2, 4)), [(0, 1)])
    with pytest.raises(ValueError, match="features"):
        drawn("gaussian").frequencies(-1, 2)
