"""Masks: they cancel over all parties and never otherwise, nothing of them is used twice, and under them
nothing is seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray
from scipy.stats import kstest, uniform

from streamfl.fdskl.sums import masks
from streamfl.fdskl.sums.circle import number_type, to_circle
from streamfl.fdskl.sums.keystream import Keystream, keystream
from streamfl.fdskl.sums.masks import (
    CHECK_WORDS,
    OwnIncarnation,
    checked,
    masked,
    paper_mask,
)
from streamfl.fdskl.sums.topology import Aggregation, aggregation

WIDTHS = (32, 64)
Secrets = list[dict[int, bytes]]


def incarnations(parties: int, life: int = 0) -> list[OwnIncarnation]:
    return [OwnIncarnation(bytes([party + 1, life]) + bytes(30)) for party in range(parties)]


def agreed(lives: list[OwnIncarnation]) -> Secrets:
    """Of each party, its secrets with the others."""
    return [
        {peer: one.pair_secret(two.public) for peer, two in enumerate(lives) if peer != own}
        for own, one in enumerate(lives)
    ]


def summed(tree: Aggregation, parts: list[NDArray[Any]], worker: int | None = None) -> NDArray[Any]:
    """As workers add: its own, and its children's sums."""
    at = tree.root if worker is None else worker
    total = parts[at].copy()
    for child in tree.children[at]:
        total += summed(tree, parts, child)
    return total


def one_time_mask(
    pair_secrets: Mapping[int, bytes], own: int, round_id: bytes, purpose: bytes, count: int, bits: int
) -> NDArray[Any]:
    """The mask that is added to ``count`` numbers."""
    total = np.zeros(count, number_type(bits))
    masks._add_mask(total, pair_secrets, own, round_id, purpose)
    return total


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("parties", [2, 5, 16])
def test_masks_cancel_exactly_in_every_topology(parties: int, bits: int) -> None:
    """Protects the phases: the sum under masks is the sum, to the last bit, whoever adds first, whichever
    party is the root."""
    secrets = agreed(incarnations(parties))
    numbers = [to_circle(np.random.default_rng(own).normal(size=37), bits) for own in range(parties)]
    parts = [masked(one, secrets[own], own, b"round", b"phases") for own, one in enumerate(numbers)]
    expected = np.sum(numbers, axis=0, dtype=number_type(bits))
    for kind, root in itertools.product(("tree", "star", "ring"), {0, parties // 2, parties - 1}):
        total = summed(aggregation(kind, parties, root), parts)  # type: ignore[arg-type]
        found = checked(total)
        assert found is not None
        assert found.dtype == expected.dtype
        assert (found == expected).all()
    order = np.random.default_rng(0).permutation(parties)
    assert (checked(np.sum([parts[own] for own in order], axis=0, dtype=number_type(bits))) == expected).all()


def test_one_party_alone_has_no_mask() -> None:
    """Protects the case of one party: it is its own sum, and the check passes."""
    numbers = np.arange(5, dtype=np.uint32)
    assert (checked(masked(numbers, {}, 0, b"r", b"p")) == numbers).all()
    with pytest.raises(ValueError, match="peer"):
        one_time_mask({0: bytes(32)}, 0, b"r", b"p", 4, 32)


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_mask_is_its_definition(bits: int) -> None:
    """Protects members in other languages: X25519, HKDF, AES-256 in counter mode, little-endian, plus from
    the lower number."""
    lives = incarnations(3)
    secrets = agreed(lives)
    expected = [0] * 9
    for peer in (0, 2):
        entropy = bytes([2, 0]) + bytes(30)
        private = X25519PrivateKey.from_private_bytes(
            HKDF(SHA256(), 32, None, b"streamfl/1 fdskl incarnation").derive(entropy)
        )
        shared = private.exchange(X25519PublicKey.from_public_bytes(lives[peer].public))
        keys = b"".join(sorted([lives[1].public, lives[peer].public]))
        pair = HKDF(SHA256(), 32, None, b"streamfl/1 fdskl pair " + keys).derive(shared)
        assert pair == secrets[1][peer]
        info = b"fdskl mask %d " % bits + b"\0\0\0\5round\0\0\0\6phases"
        key = HKDFExpand(SHA256(), 32, info).derive(pair)
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(9 * bits // 8))
        for place in range(9):
            number = int.from_bytes(stream[place * bits // 8 : (place + 1) * bits // 8], "little")
            expected[place] = (expected[place] + (number if peer > 1 else -number)) % 2**bits
    assert one_time_mask(secrets[1], 1, b"round", b"phases", 9, bits).tolist() == expected


@pytest.mark.parametrize("bits", WIDTHS)
def test_any_part_of_a_keystream_alone_is_what_it_is_within_the_whole(bits: int) -> None:
    """Protects rounds in parts: number n is the same wherever reading begins, also far away and over a
    megabyte."""
    key = bytes(range(32))
    whole = keystream(key, 300_000, bits)
    for first, count in ((0, 1), (1, 7), (3, 100), (4, 4), (262_140, 9), (299_999, 1), (17, 0)):
        assert (keystream(key, count, bits, first) == whole[first : first + count]).all()
    far = keystream(key, 9, bits, 2**60)
    assert (keystream(key, 4, bits, 2**60 + 5) == far[5:]).all()
    assert len({*far.tolist()} | {*whole[:9].tolist()}) == 18
    assert (
        one_time_mask({1: key}, 0, b"r", b"p", 20, bits)
        == one_time_mask({1: key}, 0, b"r", b"p", 90, bits)[:20]
    ).all()


def test_no_keystream_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects columns from a subtraction: no two pairs, rounds, purposes, lives or widths have a key in
    common, also where round and purpose run together into the same bytes; within a mask a key is used once,
    from its beginning.
    """
    used: list[tuple[bytes, int]] = []

    class Recorded(Keystream):
        def __init__(self, key: bytes, bits: int, first: int = 0) -> None:
            used.append((key, first))
            super().__init__(key, bits, first)

    monkeypatch.setattr(masks, "Keystream", Recorded)
    for life in range(2):
        secrets = agreed(incarnations(4, life))
        for round_id, purpose in itertools.product(
            (b"", b"r", b"ro", b"2"), (b"phases", b"ophases", b"", b"f")
        ):
            for bits in WIDTHS:
                for own in range(4):
                    one_time_mask(secrets[own], own, round_id, purpose, 3, bits)
    # Both of a pair use the same, and nobody else.
    keys = {key for key, _ in used}
    assert len(used) == 2 * 4 * 4 * 2 * 4 * 3
    assert len(keys) == len(used) / 2
    assert {first for _, first in used} == {0}


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("parties", [2, 8])
def test_masks_that_do_not_cancel_are_found(parties: int, bits: int) -> None:
    """Protects the model from sums that look like phases and are chance: a party of another life, another
    round or another purpose, one that is missing, and one that is there twice.
    """
    lives = incarnations(parties)
    secrets = agreed(lives)
    again = incarnations(parties, life=1)
    numbers = np.zeros(5, number_type(bits))

    def part(
        own: int, of: Mapping[int, bytes], round_id: bytes = b"r", purpose: bytes = b"p"
    ) -> NDArray[Any]:
        return masked(numbers, of, own, round_id, purpose)

    def total(parts: list[NDArray[Any]]) -> NDArray[Any]:
        return np.sum(parts, axis=0, dtype=number_type(bits))

    right = [part(own, secrets[own]) for own in range(parties)]
    assert checked(total(right)) is not None
    last = parties - 1
    restarted = {peer: again[last].pair_secret(one.public) for peer, one in enumerate(lives) if peer != last}
    one_stale = {**secrets[last], 0: secrets[last][0][::-1]}
    another = part(last, secrets[last], b"s"), part(last, secrets[last], b"r", b"q")
    for wrong in (part(last, restarted), part(last, one_stale), *another):
        assert checked(total([*right[:-1], wrong])) is None
    assert checked(total(right[:-1])) is None
    assert checked(total([*right, right[0]])) is None
    assert checked(numbers[: CHECK_WORDS - 1]) is None
    changed = total(right)
    changed[-1] += 1
    assert checked(changed) is None


def test_every_life_of_a_task_has_another_number() -> None:
    """Protects rounds that name incarnations: the number is 53 bits of the public key, and a key that is none
    is refused."""
    many = [OwnIncarnation(bytes([number, 1]) + bytes(30)) for number in range(200)]
    assert len({one.number for one in many}) == 200
    assert all(0 <= one.number < 2**53 for one in many)
    assert max(one.number for one in many) > 2**51
    one = many[0]
    for wrong in (bytes(32), b"short", bytes([1]) + bytes(31), one.public):
        with pytest.raises(ValueError):
            one.pair_secret(wrong)
    with pytest.raises(ValueError, match="too few"):
        OwnIncarnation(bytes(31))
    # X25519 alone would make one key of these two.
    assert OwnIncarnation(bytes(32)).public != OwnIncarnation(bytes([1]) + bytes(31)).public


def test_the_papers_masks_are_uniform_and_a_secrets() -> None:
    """Protects the comparison with the paper: b_p ~ U[0, 2 pi), the same for a feature whenever it is asked
    for."""
    whole = paper_mask(bytes(32), 0, 20_000)
    assert kstest(whole, uniform(0, 2 * math.pi).cdf).pvalue > 1e-3
    assert (paper_mask(bytes(32), 777, 5) == whole[777:782]).all()
    assert not np.isclose(paper_mask(bytes([1]) * 32, 0, 1000), whole[:1000]).any()
