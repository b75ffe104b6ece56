"""Attacks on ciphertexts: each succeeds on a naive variant, and fails on ours."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Sequence

import msgspec
import numpy as np
import phe
import pytest
from scipy.stats import kstest

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption import encryptor
from streamfl.quasi_newton.encryption.ciphertexts import encode_ciphertexts
from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, PaillierPublicKey
from streamfl.quasi_newton.encryption.masks import Masks
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.products import add_plain, transposed_product
from streamfl.quasi_newton.encryption.randomness import RandomnessContext, SecretRandomness

HOST, GUEST = bytes(range(32)), bytes(range(1, 33))
AT_HOST = RandomnessContext("credit", "run", "host", 1, "inner-products")
AT_GUEST = RandomnessContext("credit", "run", "guest", 1, "residuals")
KINDS = kinds(2, 300, 300, input_bound=16)


def bare_plaintext(key: PaillierPublicKey, ciphertext: int) -> int | None:
    """m where the ciphertext is 1 + n m, what anybody can read; signed."""
    n = int(key.n)
    quotient, rest = divmod(int(ciphertext) - 1, n)
    return None if rest else quotient - n * (2 * quotient > n)


def differences(key: PaillierPublicKey, one: Sequence[int], two: Sequence[int]) -> list[int | None]:
    """What the quotients of two vectors show of the differences of their plaintexts."""
    n_squared = int(key.n_squared)
    return [
        bare_plaintext(key, int(a) * pow(int(b), -1, n_squared) % n_squared)
        for a, b in itertools.product(one, two)
    ]


def test_the_host_reads_the_labels_of_residuals_that_are_not_blinded_anew(
    private: PaillierPrivateKey,
) -> None:
    """Protects the labels: the host knows [[u_A]], and without new blinding [[D]] [[u_A]]^-1 = 1 + n (u_B - 2
    y)."""
    generator = random.Random(0)
    of_host = [generator.randint(-(2**28), 2**28) for _ in range(20)]
    labels = [generator.choice((-1, 1)) for _ in range(20)]
    of_guest = [generator.randint(-(2**28), 2**28) for _ in range(20)]
    added = [u - 2 * y * 2**24 for u, y in zip(of_guest, labels, strict=True)]
    sent = Encryptor(private.public, HOST).encrypt(of_host, AT_HOST)

    naive = add_plain(private.public, sent, added)
    n_squared = int(private.public.n_squared)
    read = [
        bare_plaintext(private.public, int(d) * pow(int(u), -1, n_squared) % n_squared)
        for d, u in zip(naive, sent, strict=True)
    ]
    assert read == added
    assert [(u - number) // 2**25 for number, u in zip(added, of_guest, strict=True)] == labels

    ours = Encryptor(private.public, GUEST).rerandomise(naive, AT_GUEST)
    assert differences(private.public, ours, sent) == [None] * 400
    # Not against its own other ciphertexts either, and the coordinator's plaintexts are the same.
    assert set(differences(private.public, ours, ours)) == {None, 0}
    assert private.decrypt(ours) == private.decrypt(naive)


def test_phes_exponents_tell_magnitudes_and_ours_are_public(private: PaillierPrivateKey) -> None:
    """Protects magnitudes: phe's encoder puts an exponent that follows the value beside each ciphertext, in
    the clear."""
    theirs = phe.PaillierPublicKey(int(private.public.n))
    values = [2.0**-20, 0.001, 0.5, 3.7, 50.0]
    exponents = [theirs.encrypt(value).exponent for value in values]
    assert exponents == sorted(exponents)
    assert len(set(exponents)) >= 4

    encryptor = Encryptor(private.public, HOST)
    contents = [
        encode_ciphertexts(
            private.public,
            encryptor.encrypt(KINDS.inner_products.encode(np.array([value])).tolist(), AT_HOST),
        )
        for value in values
    ]
    # What is beside the ciphertext is nothing, and its length is the key's.
    assert {len(content) for content in contents} == {private.public.ciphertext_bytes}
    assert KINDS.inner_products.fraction_bits == 24


def test_no_h_comes_from_anybody(private: PaillierPrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects everything: with h = 1 each ciphertext is bare. A key is n and no more, and h is made of the
    party's secret."""
    public = private.public
    content = public.to_bytes() + (1).to_bytes(128, "big")
    with pytest.raises(BadRecord):
        PaillierPublicKey.from_bytes(content, public.bits, hashlib.sha256(content).hexdigest())
    made = {int(Encryptor(public, secret).h) for secret in (HOST, GUEST)}
    assert len(made) == 2
    assert 1 not in made
    ours = Encryptor(public, HOST).encrypt([41, -42], AT_HOST)
    assert [bare_plaintext(public, ciphertext) for ciphertext in ours] == [None, None]

    table = encryptor._fixed_base_table
    monkeypatch.setattr(encryptor, "_fixed_base_table", lambda base, bits, modulus: table(1, bits, modulus))
    naive = Encryptor(public, HOST).encrypt([41, -42], AT_HOST)
    assert [bare_plaintext(public, ciphertext) for ciphertext in naive] == [41, -42]


class Transcript(msgspec.Struct):
    """All that was written by the guest: residuals, and uploads with what the coordinator decrypts of
    them."""

    residuals: list[int]
    uploads: list[int]
    answers: list[int]


def written(
    private: PaillierPrivateKey, of_guest: list[int], sent: list[int], matrix: np.ndarray
) -> Transcript:
    """What a guest writes in an iteration, and would write again after a crash."""
    public = private.public
    encryptor, masks = Encryptor(public, GUEST), Masks(public, GUEST)
    computed = add_plain(public, sent, of_guest)
    packed = Packing(public, KINDS.gradients).pack_ciphertexts(transposed_product(public, computed, matrix))
    place = RandomnessContext("credit", "run", "guest", 1, "gradients")
    masked, _ = masks.mask(packed, place)
    uploads = encryptor.rerandomise(masked, place)
    return Transcript(encryptor.rerandomise(computed, AT_GUEST), uploads, private.decrypt(uploads))


def redo(private: PaillierPrivateKey) -> tuple[Transcript, Transcript, Transcript]:
    """An iteration, the same once more, and with one number altered: a late label, a corrected record."""
    generator = random.Random(1)
    of_guest = [generator.randint(-(2**28), 2**28) for _ in range(12)]
    sent = Encryptor(private.public, HOST).encrypt(
        [generator.randint(-(2**28), 2**28) for _ in range(12)], AT_HOST
    )
    matrix = np.random.default_rng(2).integers(-(2**12), 2**12, (12, 3))
    altered = [of_guest[0] + 2**25, *of_guest[1:]]
    return tuple(written(private, numbers, sent, matrix) for numbers in (of_guest, of_guest, altered))  # type: ignore[return-value]


def test_an_altered_redo_shows_no_difference(
    private: PaillierPrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects what was sent before a crash and read by somebody: no quotient of ciphertexts and no
    difference of masked residues shows a difference of plaintexts. Randomness that is keyed by a counter
    alone shows them all, and which number was altered."""
    first, again, altered = redo(private)
    assert first == again
    assert set(differences(private.public, first.residuals, altered.residuals)) == {None}
    assert set(differences(private.public, first.uploads, altered.uploads)) == {None}
    n = int(private.public.n)
    small = 2 ** (Packing(private.public, KINDS.gradients).width * 3)

    def shown(one: Transcript, two: Transcript) -> bool:
        """Whether the difference of the coordinator's residues is one of gradients, and not of masks."""
        return all(
            min((a - b) % n, (b - a) % n) < small for a, b in zip(one.answers, two.answers, strict=True)
        )

    assert not shown(first, altered)

    monkeypatch.setattr(SecretRandomness, "digest", lambda self, ciphertexts: bytes(32))
    first, _, altered = redo(private)
    read = differences(private.public, altered.residuals, first.residuals)
    assert read[0] == 2**25
    assert read[13] == 0
    assert shown(first, altered)


def test_the_coordinator_sees_uniform_residues(private: PaillierPrivateKey) -> None:
    """Protects gradients: masked, what is decrypted is uniform on 0 .. n - 1; unmasked, it is the gradient to
    the last bit."""
    public = private.public
    n = int(public.n)
    packing, masks = Packing(public, KINDS.gradients), Masks(public, HOST)
    encryptor = Encryptor(public, HOST)
    gradient, seen = [3, -1, 2], []
    for iteration in range(300):
        place = RandomnessContext("credit", "run", "host", iteration, "gradients")
        masked, _ = masks.mask(encryptor.encrypt(packing.pack(gradient), place), place)
        seen += private.decrypt(masked)
    assert packing.unpack(private.decrypt(encryptor.encrypt(packing.pack(gradient), AT_HOST)), 3) == gradient
    assert len(set(seen)) == len(seen)
    assert kstest([int(plaintext) / n for plaintext in seen], "uniform").pvalue > 1e-4
    # The lowest slot too: a mask of its width alone would leave carries.
    width = packing.width
    assert kstest([int(plaintext) % 2**width / 2**width for plaintext in seen], "uniform").pvalue > 1e-4
