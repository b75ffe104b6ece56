"""An iteration through all modules: three hosts and a guest at their bounds, through bytes and envelopes,
against integers."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.quasi_newton.encryption.ciphertexts import decode_ciphertexts, encode_ciphertexts
from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.end_to_end import EncryptedLink
from streamfl.quasi_newton.encryption.fixed_point import Kinds, kinds
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey
from streamfl.quasi_newton.encryption.masks import Masks
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.products import add, add_plain, transposed_product
from streamfl.quasi_newton.encryption.randomness import RandomnessContext

HOSTS, BATCH = ("bank", "shop", "phone"), 24
COLUMNS = {"bank": 5, "shop": 1, "phone": 8, "guest": 3}
SECRETS = {name: bytes([number]) * 31 + name.encode()[:1] for number, name in enumerate(COLUMNS)}
KINDS = kinds(len(COLUMNS), BATCH, BATCH)


def place(name: str, kind: str) -> RandomnessContext:
    return RandomnessContext("credit", "run", name, 1, kind)


class Federation:
    """Who computes what of an iteration. columns: (batch, n) by party. u: (batch,) by party. labels: -1 or
    1."""

    def __init__(
        self,
        private: PaillierPrivateKey,
        columns: dict[str, NDArray[np.float64]],
        u: dict[str, NDArray[np.float64]],
    ) -> None:
        self.private, self.key = private, private.public
        self.inputs = {name: KINDS.inputs.encode(values) for name, values in columns.items()}
        self.u = {name: KINDS.inner_products.encode(values) for name, values in u.items()}
        self.encryptors = {name: Encryptor(self.key, secret) for name, secret in SECRETS.items()}
        self.masks = {name: Masks(self.key, secret) for name, secret in SECRETS.items()}
        self.packing = Packing(self.key, KINDS.gradients)
        self.seen_by_coordinator: list[int] = []
        self.sent = 0

    def residuals(self, labels: NDArray[np.int64]) -> list[int]:
        """[[D]] at the guest, of all hosts' inner products."""
        total: list[int] | None = None
        for name in HOSTS:
            link = EncryptedLink(name.encode() * 16, "credit")
            ciphertexts = self.encryptors[name].encrypt(self.u[name].tolist(), place(name, "inner-products"))
            envelope = link.seal(
                encode_ciphertexts(self.key, ciphertexts), f"credit.{name}.inner-products", b"1"
            )
            payload = link.open(envelope, f"credit.{name}.inner-products", b"1")
            received = decode_ciphertexts(self.key, payload, BATCH)
            self.sent += len(received)
            total = received if total is None else add(self.key, total, received)
        assert total is not None
        own = self.u["guest"] - 2 * KINDS.labels.encode(labels.astype(np.float64))
        return add_plain(self.key, total, own.tolist())

    def gradient(self, name: str, residuals: list[int], columns: NDArray[np.int64]) -> list[int]:
        """Whole numbers of a party's columns, by way of the coordinator, which sees them masked."""
        if name != "guest":
            sent = self.encryptors["guest"].rerandomise(residuals, place("guest", f"residuals to {name}"))
            residuals = decode_ciphertexts(self.key, encode_ciphertexts(self.key, sent), BATCH)
            self.sent += len(residuals)
        packed = self.packing.pack_ciphertexts(transposed_product(self.key, residuals, columns))
        masked, digest = self.masks[name].mask(packed, place(name, "gradients"))
        upload = encode_ciphertexts(
            self.key, self.encryptors[name].rerandomise(masked, place(name, "gradients"))
        )
        count = self.packing.plaintexts(columns.shape[1])
        answer = self.private.decrypt(decode_ciphertexts(self.key, upload, count))
        self.seen_by_coordinator += answer
        self.sent += count
        return self.packing.unpack(
            self.masks[name].unmask(answer, place(name, "gradients"), digest), columns.shape[1]
        )


def at_the_bounds(
    kinds: Kinds, sign: int
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
    """Every number as large as it may be, all of one sign, so that every slot is full."""
    u, x = kinds.inner_products.bound, kinds.inputs.bound
    columns = {
        name: np.full((BATCH, count), x) * (-1.0) ** np.arange(count) for name, count in COLUMNS.items()
    }
    return columns, {name: np.full(BATCH, sign * u) for name in COLUMNS}


def drawn(kinds: Kinds, _: int) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
    generator = np.random.default_rng(0)
    columns = {
        name: kinds.inputs.clip(generator.standard_cauchy((BATCH, count))) for name, count in COLUMNS.items()
    }
    return columns, {name: generator.uniform(-3, 3, BATCH) for name in COLUMNS}


@pytest.mark.parametrize("make", [at_the_bounds, drawn])
@pytest.mark.parametrize("sign", [1, -1])
def test_gradient_and_loss_are_those_of_the_integers(private: PaillierPrivateKey, make, sign: int) -> None:  # type: ignore[no-untyped-def]
    """Protects the iterates: three hosts, masked, extremes at the bounds, to the last bit; and the count of
    ciphertexts."""
    columns, u = make(KINDS, sign)
    federation = Federation(private, columns, u)
    labels = np.where(np.arange(BATCH) % 3 == 0, 1, -1) if make is drawn else np.full(BATCH, -sign)
    residuals = federation.residuals(labels)
    # The column of the loss is the guest's: y in the exponent of inputs.
    matrices = {**federation.inputs, "guest": np.hstack([federation.inputs["guest"], 2**8 * labels[:, None]])}
    found = {name: federation.gradient(name, residuals, matrix) for name, matrix in matrices.items()}

    d = [
        sum(int(federation.u[name][i]) for name in COLUMNS) - 2 * int(labels[i]) * 2**24 for i in range(BATCH)
    ]
    for name, matrix in matrices.items():
        assert found[name] == [
            sum(d[i] * int(matrix[i, j]) for i in range(BATCH)) for j in range(matrix.shape[1])
        ]

    # Loss, equation 3, from what the parties have: log 2 - 1/2 + 1/2 sum_p w_p' g_p - 1/4 mean(y D), g = D x
    # / 4.
    total = sum(federation.u[name].astype(object) for name in COLUMNS) / 2.0**24
    expected = np.mean(math.log(2) - labels * total / 2 + np.square(total.astype(float)) / 8)
    with_residuals = (
        sum(int(federation.u[name][i]) * d[i] for name in COLUMNS for i in range(BATCH))
        / 2.0**48
        / (8 * BATCH)
    )
    last = KINDS.gradients.decode(np.array(found["guest"][-1:], dtype=object))[0]
    assert math.log(2) - 0.5 + with_residuals - last / (4 * BATCH) == pytest.approx(expected, rel=1e-12)

    uploads = sum(federation.packing.plaintexts(matrix.shape[1]) for matrix in matrices.values())
    assert federation.sent == 2 * len(HOSTS) * BATCH + uploads
    # The coordinator has seen nothing that is near a gradient: uniform numbers are not within 2^-100 of
    # either end.
    assert all(2**412 < plaintext < private.public.n - 2**412 for plaintext in federation.seen_by_coordinator)


def test_residuals_to_each_host_are_blinded_by_themselves(private: PaillierPrivateKey) -> None:
    """Protects hosts from one another: the same residuals to two of them are no equal ciphertexts."""
    columns, u = drawn(KINDS, 1)
    federation = Federation(private, columns, u)
    residuals = federation.residuals(np.full(BATCH, 1))
    sent = [
        federation.encryptors["guest"].rerandomise(residuals, place("guest", f"residuals to {name}"))
        for name in HOSTS
    ]
    assert all(not set(one) & set(two) for one, two in pairwise(sent))
