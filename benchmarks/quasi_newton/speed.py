"""Paillier at 2048 bits: encrypt, add, multiply and decrypt, and an iteration of them, against phe used
number by number.

They take turns in one run, on one thread, and the least processor's time of each counts. A step of phe is
linear in the rows, so it works on a part of them, and its time is multiplied. It is used in two ways: with
floats, as its own manual does and as whoever writes the paper's protocol down would, and with the same whole
numbers as ours, which spares it exponents. Results are compared."""

from __future__ import annotations

import hashlib
import math
import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import phe

from benchmarks.figures import Figure, size
from streamfl.quasi_newton.encryption.bignum import long, product
from streamfl.quasi_newton.encryption.ciphertexts import decode_ciphertexts, encode_ciphertexts
from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey, generate_key
from streamfl.quasi_newton.encryption.masks import Masks
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.products import add_plain, transposed_product
from streamfl.quasi_newton.encryption.randomness import RandomnessContext
from streamfl.quasi_newton.rows.alignment import Alignment

Result = TypeVar("Result")

BITS, ROWS, HOST, GUEST, ROUNDS = size(2048, 1024), size(1000, 20), 12, 11, size(3, 1)
# Rows that phe works on; ROWS is a multiple.
SAMPLE = size(50, 10)
ENTITIES = size(2000, 20)
STEPS = ("encrypt", "add", "multiply", "upload", "decrypt")


def measure() -> Iterator[Figure]:
    key = generate_key(BITS)
    for name, fineness in (("17-bit inputs", 2**16), ("standardised inputs", None)):
        run = _Run(key, fineness)
        for _ in range(ROUNDS):
            run.ours()
            run.naive("floats")
            run.naive("integers")
        yield from _compared(name, run)
        if fineness is not None:
            yield from _short_exponents(key, sum(run.least["ours"].values()))
    yield from _beside(key)


def _compared(name: str, run: _Run) -> Iterator[Figure]:
    ours, totals = run.least["ours"], {side: sum(steps.values()) for side, steps in run.least.items()}
    what = {
        "encrypt": f"encrypt {ROWS} inner products",
        "add": f"add to {ROWS} ciphertexts, blinded anew",
        "multiply": f"d'X, {ROWS} x {HOST + GUEST} and the loss",
        "upload": f"pack, mask and blind {HOST + GUEST + 1} results",
        "decrypt": f"decrypt {HOST + GUEST + 1} results",
    }
    for step in STEPS:
        yield Figure(f"paillier, {name}: {what[step]}", ours[step], "s")
        for side in ("floats", "integers"):
            taken = run.least[side][step]
            goal = 12.0 if step == "multiply" and side == "floats" else None
            yield Figure(f"paillier, {name}: the same by phe with {side}", taken, "s")
            yield Figure(
                f"paillier, {name}: {step}, phe with {side} against ours", taken / ours[step], "x", goal=goal
            )
    yield Figure(f"paillier, {name}: an iteration of {ROWS} rows", totals["ours"], "s")
    for side, goal in (("floats", 15.0), ("integers", None)):
        yield Figure(f"paillier, {name}: the same by phe with {side}", totals[side], "s")
        yield Figure(
            f"paillier, {name}: an iteration, phe with {side} against ours",
            totals[side] / totals["ours"],
            "x",
            goal=goal,
        )
    yield Figure(f"paillier, {name}: rows of an epoch", ROWS / totals["ours"], "1/s")
    for step in STEPS:
        yield Figure(f"paillier, {name}: share of {step}", 100 * ours[step] / totals["ours"], "%")


@dataclass
class _Run:
    """An iteration of one host and a guest, by both ways. fineness: the largest input, or None for standard
    normal ones."""

    key: PaillierPrivateKey
    fineness: int | None
    least: dict[str, dict[str, float]] = field(
        default_factory=lambda: {"ours": {}, "floats": {}, "integers": {}}
    )

    def __post_init__(self) -> None:
        generator = np.random.default_rng(0)
        self.of_host, self.of_guest = generator.integers(-(2**26), 2**26, (2, ROWS))
        self.added = self.of_guest - 2 * 2**24 * generator.choice([-1, 1], ROWS)
        if self.fineness is None:
            self.matrix = np.rint(
                256 * np.clip(generator.normal(size=(ROWS, HOST + GUEST)), -256, 256)
            ).astype(np.int64)
        else:
            self.matrix = generator.integers(-self.fineness, self.fineness + 1, (ROWS, HOST + GUEST))
        # The column of the loss: y, in the exponent of inputs.
        self.matrix = np.hstack([self.matrix, 256 * generator.choice([-1, 1], (ROWS, 1))])
        residuals = (self.of_host + self.added).tolist()
        self.expected = [
            sum(d * x for d, x in zip(residuals, column, strict=True)) for column in self.matrix.T.tolist()
        ]
        public = self.key.public
        self.packing = Packing(public, kinds(2, ROWS, ROWS).gradients)
        self.members = [
            (Encryptor(public, secret), Masks(public, secret))
            for secret in (bytes(range(32)), bytes(range(1, 33)))
        ]
        self.theirs = phe.PaillierPublicKey(int(public.n))
        self.their_private = phe.PaillierPrivateKey(self.theirs, int(self.key.p), int(self.key.q))

    def ours(self) -> None:
        """Host and guest, packed, masked and checked as they are on the bus."""
        public, ((host, host_masks), (guest, guest_masks)) = self.key.public, self.members
        numbers, added = self.of_host.tolist(), self.added.tolist()
        sent = self._timed(
            "ours", "encrypt", lambda: encode_ciphertexts(public, host.encrypt(numbers, _place("host", "u")))
        )

        def add() -> tuple[list[int], bytes]:
            residuals = add_plain(public, decode_ciphertexts(public, sent, ROWS), added)
            return residuals, encode_ciphertexts(public, guest.rerandomise(residuals, _place("guest", "D")))

        residuals, answer = self._timed("ours", "add", add)

        def multiply() -> tuple[list[int], list[int]]:
            at_host = transposed_product(
                public, decode_ciphertexts(public, answer, ROWS), self.matrix[:, :HOST]
            )
            return at_host, transposed_product(public, residuals, self.matrix[:, HOST:])

        products = self._timed("ours", "multiply", multiply)

        def upload() -> list[tuple[bytes, bytes]]:
            uploads = []
            for name, columns, encryptor, masks in zip(
                ("host", "guest"), products, (host, guest), (host_masks, guest_masks), strict=True
            ):
                masked, digest = masks.mask(self.packing.pack_ciphertexts(columns), _place(name, "g"))
                blinded = encryptor.rerandomise(masked, _place(name, "g"))
                uploads.append((encode_ciphertexts(public, blinded), digest))
            return uploads

        uploads = self._timed("ours", "upload", upload)

        def decrypt() -> list[int]:
            gradient = []
            for name, (content, digest), masks, columns in zip(
                ("host", "guest"), uploads, (host_masks, guest_masks), products, strict=True
            ):
                count = self.packing.plaintexts(len(columns))
                plaintexts = self.key.decrypt(decode_ciphertexts(public, content, count))
                gradient += self.packing.unpack(
                    masks.unmask(plaintexts, _place(name, "g"), digest), len(columns)
                )
            return gradient

        assert self._timed("ours", "decrypt", decrypt) == self.expected

    def naive(self, side: str) -> None:
        """The paper's protocol: inner products and their squares, number by number, on a part of the rows.

        side: "floats" or "integers", what the numbers are.
        """
        times, (one, unit) = ROWS // SAMPLE, (1, 1) if side == "integers" else (2.0**-24, 2.0**-8)
        numbers, added = (
            [one * number for number in column[:SAMPLE].tolist()] for column in (self.of_host, self.added)
        )
        columns = [[unit * number for number in column] for column in self.matrix[:SAMPLE].T.tolist()]

        def encrypt() -> list[phe.EncryptedNumber]:
            for number in numbers:
                self.theirs.encrypt(number * number)
            return [self.theirs.encrypt(number) for number in numbers]

        sent = self._timed(side, "encrypt", encrypt, times)

        def add() -> list[phe.EncryptedNumber]:
            residuals = [number + plain for number, plain in zip(sent, added, strict=True)]
            for residual in residuals:
                residual.obfuscate()
            return residuals

        residuals = self._timed(side, "add", add, times)

        def multiply() -> list[phe.EncryptedNumber]:
            results = []
            for column in columns:
                total = residuals[0] * column[0]
                for residual, number in zip(residuals[1:], column[1:], strict=True):
                    total += residual * number
                results.append(total)
            return results

        results = self._timed(side, "multiply", multiply, times)
        self._timed(side, "upload", lambda: [result.obfuscate() for result in results])
        found = self._timed(
            side, "decrypt", lambda: [self.their_private.decrypt(result) for result in results]
        )
        plain = [a + b for a, b in zip(numbers, added, strict=True)]
        expected = [sum(d * x for d, x in zip(plain, column, strict=True)) for column in columns]
        # Of these floats all sums and products are exact.
        assert found == expected

    def _timed(self, side: str, step: str, work: Callable[[], Result], times: int = 1) -> Result:
        started = time.process_time()
        result = work()
        taken = times * (time.process_time() - started)
        self.least[side][step] = min(taken, self.least[side].get(step, float("inf")))
        return result


def _short_exponents(key: PaillierPrivateKey, iteration: float) -> Iterator[Figure]:
    """What they are worth: beside blinding with exponents of half of n's bits, by the same table with
    products modulo n^2.

    iteration: seconds of one.
    """
    public, numbers = key.public, [0] * SAMPLE
    encryptor, modulus = Encryptor(public, bytes(range(32))), public.n_squared
    exponents = [hashlib.shake_256(b"%d" % number).digest(public.bits // 16) for number in range(SAMPLE)]
    table, base = [], encryptor.h
    for _ in range(public.bits // 16):
        row = [long(1)]
        for _ in range(255):
            row.append(row[-1] * base % modulus)
        table.append(row)
        base = row[-1] * base % modulus
    least = {"half": math.inf, "short": math.inf}
    for _ in range(ROUNDS):
        started = time.process_time()
        for exponent in exponents:
            product(map(operator.getitem, table, exponent), modulus)
        least["half"] = min(least["half"], (time.process_time() - started) / SAMPLE)
        started = time.process_time()
        encryptor.encrypt(numbers, _place("host", "u"))
        least["short"] = min(least["short"], (time.process_time() - started) / SAMPLE)
    yield Figure("paillier: to encrypt a number", 1e6 * least["short"], "us")
    yield Figure("paillier: only to blind it with an exponent of half of n's bits", 1e6 * least["half"], "us")
    yield Figure("paillier: that against ours", least["half"] / least["short"], "x", goal=3.0)
    longer = iteration + 2 * ROWS * (least["half"] - least["short"])
    yield Figure("paillier: an iteration with such exponents against ours", longer / iteration, "x", goal=3.0)


def _beside(key: PaillierPrivateKey) -> Iterator[Figure]:
    """What is done once a run."""
    started = time.process_time()
    Encryptor(key.public, bytes(range(32)))
    yield Figure("paillier: table of a party", time.process_time() - started, "s")
    names = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(2 * ENTITIES)]
    host = Alignment(b"h" * 32, b"bench", names[:ENTITIES], ENTITIES)
    guest = Alignment(b"g" * 32, b"bench", names[ENTITIES // 2 : ENTITIES // 2 + ENTITIES], ENTITIES)
    started = time.process_time()
    sent = host.blind_own()
    first = time.process_time()
    yield Figure("alignment: blind an own entity", 1e6 * (first - started) / ENTITIES, "us")
    others = guest.blind_own()
    started = time.process_time()
    doubled = host.blind_theirs(others)
    yield Figure("alignment: blind another's", 1e6 * (time.process_time() - started) / ENTITIES, "us")
    assert len(host.intersect(guest.blind_theirs(sent), doubled).names) == ENTITIES // 2


def _place(role: str, kind: str) -> RandomnessContext:
    return RandomnessContext("bench", "run", role, 1, kind)
