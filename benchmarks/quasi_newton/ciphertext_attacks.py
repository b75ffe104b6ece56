"""Attacks on ciphertexts by who has no key: their quotients, and what stands beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import phe
from numpy.typing import NDArray

from benchmarks.attacks import Attack
from benchmarks.quasi_newton.attacked import GUEST_SECRET, HOST_SECRET, LINK_SECRET, key_of
from streamfl.learning.accuracy import area_under_curve
from streamfl.quasi_newton.encryption.bignum import from_bytes, gcd
from streamfl.quasi_newton.encryption.ciphertexts import encode_ciphertexts
from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.end_to_end import OVERHEAD, EncryptedLink
from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, PaillierPublicKey
from streamfl.quasi_newton.encryption.masks import Masks
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.products import add_plain
from streamfl.quasi_newton.encryption.randomness import RandomnessContext, SecretRandomness

ROWS, SEED = 1000, 4
NUMBERS = kinds(2, 300, 300)
AT_HOST = RandomnessContext("credit", "1", "host", 0, "outputs")
AT_GUEST = RandomnessContext("credit", "1", "guest", 0, "residuals")
UPLOAD = RandomnessContext("credit", "1", "guest", 0, "gradient")
TOPIC = "credit.host.residuals"


def bare_plaintext(key: PaillierPublicKey, ciphertext: int) -> int | None:
    """m where the ciphertext is 1 + n m, what anybody can read; signed."""
    n = int(key.n)
    times, rest = divmod(int(ciphertext) - 1, n)
    return None if rest else signed(times, n)


def signed(number: int, n: int) -> int:
    """The number modulo n that is nearest to 0."""
    number = int(number) % n
    return number - n * (2 * number > n)


def quotient(key: PaillierPublicKey, one: int, two: int) -> int | None:
    """What the quotient of two ciphertexts shows of the difference of their plaintexts."""
    n_squared = int(key.n_squared)
    return bare_plaintext(key, int(one) * pow(int(two), -1, n_squared) % n_squared)


def numbers(rows: int = ROWS) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Outputs of host and guest in the numbers of messages, and labels -1 and +1: (rows,) each."""
    random = np.random.default_rng(SEED)
    of_host, of_guest = (NUMBERS.inner_products.encode(random.normal(0, 0.5, rows)) for _ in range(2))
    return of_host, of_guest, random.choice((-1, 1), rows)


def _found(read: Sequence[int | None], labels: NDArray[np.int64]) -> float:
    """Share of the labels that are read from u_B - 2 y, by its sign."""
    return float(
        np.mean(
            [
                number is not None and np.sign(-number) == label
                for number, label in zip(read, labels, strict=True)
            ]
        )
    )


def residuals_divided(folder: Path) -> Iterator[Attack]:
    """A host divides [[D]] by its own [[u_A]]: without new blinding that is 1 + n (u_B - 2 y)."""
    private = key_of(512)
    key = private.public
    of_host, of_guest, labels = numbers()
    sent = Encryptor(key, HOST_SECRET).encrypt(of_host.tolist(), AT_HOST)
    naive = add_plain(key, sent, (of_guest - 2 * labels * 2**NUMBERS.labels.fraction_bits).tolist())
    ours = Encryptor(key, GUEST_SECRET).rerandomise(naive, AT_GUEST)
    plain, protected = (
        _found([quotient(key, one, two) for one, two in zip(vector, sent, strict=True)], labels)
        for vector in (naive, ours)
    )
    yield Attack(
        "residuals divided by outputs",
        "a host",
        "share of labels read",
        plain,
        "blinded anew",
        protected,
        chance=0.0,
    )


def exponents(folder: Path) -> Iterator[Attack]:
    """Whoever sees a ciphertext takes the exponent beside it, or its length, for the number's size."""
    key = key_of(512).public
    random = np.random.default_rng(SEED)
    values = random.normal(size=ROWS) * 10.0 ** random.uniform(-4, 1, ROWS)
    large = (np.abs(values) > np.median(np.abs(values))).astype(float)
    theirs = phe.PaillierPublicKey(int(key.n))
    beside = [theirs.encrypt(float(value)).exponent for value in values]
    encryptor = Encryptor(key, HOST_SECRET)
    lengths = [
        len(
            encode_ciphertexts(
                key, encryptor.encrypt(NUMBERS.inner_products.encode(np.array([value])).tolist(), AT_HOST)
            )
        )
        for value in values
    ]
    plain, protected = (area_under_curve(np.array(found, float), large) for found in (beside, lengths))
    name, figure = "what stands beside a ciphertext", "AUC of whether a number is large"
    yield Attack(
        name, "who reads it", figure, plain, "one public exponent, one length", protected, chance=0.5
    )


def redone(key: PaillierPublicKey, numbers_: Sequence[int], *, counted: bool) -> tuple[list[int], list[int]]:
    """A vector as it is sent, and as it is masked for the coordinator.

    counted: the mutant whose randomness is drawn from the place alone, and not from what it hides.
    """
    encryptor, randomness = Encryptor(key, GUEST_SECRET), SecretRandomness(key, GUEST_SECRET)
    packed = Packing(key, NUMBERS.gradients).pack(numbers_)
    if not counted:
        bare = [1 + int(key.n) * number for number in packed]
        masked, _ = Masks(key, GUEST_SECRET).mask(bare, UPLOAD)
        return encryptor.encrypt(numbers_, AT_GUEST), [int(c - 1) // int(key.n) for c in masked]
    digest, n, n_squared = bytes(32), int(key.n), int(key.n_squared)
    drawn = randomness.draw(AT_GUEST, b"blinding", digest, len(numbers_), key.bits // 16)
    hidden = [
        (1 + n * (int(number) % n)) * pow(int(encryptor.h), from_bytes(exponent), n_squared) % n_squared
        for number, exponent in zip(numbers_, drawn, strict=True)
    ]
    masks = randomness.residues(UPLOAD, b"mask", digest, len(packed))
    return hidden, [(number + int(mask)) % n for number, mask in zip(packed, masks, strict=True)]


def the_same_work_with_other_numbers(folder: Path) -> Iterator[Attack]:
    """A member does its work again after its state was lost, with other numbers; whoever has both records
    divides or subtracts."""
    key = key_of(512).public
    _, of_guest, labels = numbers(60)
    before = (of_guest - 2 * labels * 2**NUMBERS.labels.fraction_bits).tolist()
    after = [number + 7 * place for place, number in enumerate(before)]
    truth = [two - one for one, two in zip(before, after, strict=True)]
    n, width = int(key.n), Packing(key, NUMBERS.gradients).width

    def found(counted: bool) -> tuple[float, float]:
        (one, masked_one), (two, masked_two) = (
            redone(key, vector, counted=counted) for vector in (before, after)
        )
        read = [quotient(key, b, a) for a, b in zip(one, two, strict=True)]
        # The difference of two packed vectors is short in its first slot, whatever the others hold.
        slots = [
            signed(signed(b - a, n) % 2**width, 2**width) for a, b in zip(masked_one, masked_two, strict=True)
        ]
        expected = truth[:: Packing(key, NUMBERS.gradients).slots]
        return float(np.mean([a == b for a, b in zip(read, truth, strict=True)])), float(
            np.mean(np.array(slots) == expected)
        )

    plain, protected = found(True), found(False)
    protection, figure = "drawn from all that it hides", "share of differences read"
    for name, by, one, two in zip(
        ("the same work with other numbers: quotients", "the same: masked residues subtracted"),
        ("who reads both", "coordinator"),
        plain,
        protected,
        strict=True,
    ):
        yield Attack(name, by, figure, one, protection, two, chance=0.0)


def _auc_of_residuals(private: PaillierPrivateKey, content: bytes, labels: NDArray[np.int64]) -> float:
    """AUC of labels by what the coordinator decrypts of bytes that may be ciphertexts."""
    size, n = private.public.ciphertext_bytes, int(private.public.n)
    ciphertexts = [from_bytes(content[at : at + size]) for at in range(0, len(labels) * size, size)]
    usable = [one if gcd(one, private.public.n) == 1 else 1 for one in ciphertexts]
    numbers_ = np.array([float(signed(number, n)) for number in private.decrypt(usable)])
    return area_under_curve(-numbers_, (labels > 0).astype(float))


def the_brokers_records(folder: Path) -> Iterator[Attack]:
    """The coordinator's organisation runs the broker as well, and decrypts what host and guest send one
    another."""
    private = key_of(512)
    of_host, of_guest, labels = numbers()
    total = (of_host + of_guest - 2 * labels * 2**NUMBERS.labels.fraction_bits).tolist()
    payload = encode_ciphertexts(
        private.public, Encryptor(private.public, GUEST_SECRET).encrypt(total, AT_GUEST)
    )
    sealed = EncryptedLink(LINK_SECRET, "credit").seal(payload, TOPIC, b"round 0")
    plain = _auc_of_residuals(private, payload, labels)
    protected = _auc_of_residuals(private, sealed[OVERHEAD:], labels)
    name, by = "residuals decrypted at the broker", "coordinator that runs the broker"
    yield Attack(name, by, "AUC of labels", plain, "sealed between host and guest", protected, chance=0.5)
