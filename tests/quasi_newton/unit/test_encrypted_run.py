"""Twenty iterations with encryption, packing and masks against the plain run: weights, pairs and losses to
the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from quasi_newton.makers import problem, split

from streamfl.quasi_newton.encryption.encryptor import Encryptor
from streamfl.quasi_newton.encryption.fixed_point import FixedPoint, kinds
from streamfl.quasi_newton.encryption.keys import PaillierPrivateKey
from streamfl.quasi_newton.encryption.masks import Masks
from streamfl.quasi_newton.encryption.packing import Packing
from streamfl.quasi_newton.encryption.products import add, add_plain, transposed_product
from streamfl.quasi_newton.encryption.randomness import RandomnessContext
from streamfl.quasi_newton.learning import taylor
from streamfl.quasi_newton.learning.descent import Descent, DescentSettings
from streamfl.quasi_newton.learning.own_columns import PRODUCTS, PartyArithmetic, loss_product
from streamfl.quasi_newton.tools.direct import Party, partition, train

BATCH, PARTIES = 24, 3
LEARNING = DescentSettings(batch=BATCH, epochs=4, tolerance=0.0, regularisation=0.01)
KINDS = kinds(PARTIES, BATCH, BATCH)
Floats = NDArray[np.float64]


class Encrypted:
    """The steps of a run of which a plain one has numbers. The guest is the first party."""

    def __init__(self, private: PaillierPrivateKey, parties: Sequence[Party], labels: Floats) -> None:
        self.private, self.key = private, private.public
        self.own = [
            PartyArithmetic(party.inputs, LEARNING, KINDS, party.start, intercept=number == 0)  # type: ignore[arg-type]
            for number, party in enumerate(parties)
        ]
        secrets = [bytes([number]) * 32 for number in range(PARTIES)]
        self.encryptors = [Encryptor(self.key, secret) for secret in secrets]
        self.masks = [Masks(self.key, secret) for secret in secrets]
        self.signs, self.labels = KINDS.inputs.encode(labels), KINDS.labels.encode(labels)
        self.iteration = 0

    def place(self, party: int, kind: str) -> RandomnessContext:
        return RandomnessContext("credit", "run", f"party {party}", self.iteration, kind)

    def hidden_sum(self, numbers: Sequence[NDArray[Any]], kind: str) -> list[int]:
        """Encrypted by the hosts, added by the guest, whose own numbers are added in the clear."""
        total: list[int] | None = None
        for host in range(1, PARTIES):
            sent = self.encryptors[host].encrypt(numbers[host].tolist(), self.place(host, kind))
            total = sent if total is None else add(self.key, total, sent)
        assert total is not None
        return add_plain(self.key, total, numbers[0].tolist())

    def column_sums(
        self, party: int, hidden: list[int], columns: NDArray[Any], number: FixedPoint, kind: str
    ) -> NDArray[Any]:
        """X'n of ciphertexts, read by the coordinator behind a mask."""
        packing = Packing(self.key, number)
        packed = packing.pack_ciphertexts(transposed_product(self.key, hidden, columns))
        masked, digest = self.masks[party].mask(packed, self.place(party, kind))
        answer = self.private.decrypt(self.encryptors[party].rerandomise(masked, self.place(party, kind)))
        sums = packing.unpack(
            self.masks[party].unmask(answer, self.place(party, kind), digest), columns.shape[1]
        )
        return np.array(sums, dtype=object)

    def read_sum(self, numbers: Sequence[NDArray[Any]], kind: str) -> Floats:
        """Inner products summed over the parties, of which the coordinator decrypts the sum alone."""
        packing, total = Packing(self.key, PRODUCTS.sum_of(PARTIES)), None
        for party, own in enumerate(numbers):
            packed = packing.pack([int(number) for number in own.flat])
            sent = self.encryptors[party].encrypt(packed, self.place(party, kind))
            total = sent if total is None else add(self.key, total, sent)
        assert total is not None
        found = packing.unpack(self.private.decrypt(total), numbers[0].size)
        return PRODUCTS.decode(np.array(found, dtype=object).reshape(numbers[0].shape))

    def iterate(
        self, rows: NDArray[np.intp], descent: Descent
    ) -> tuple[float, Floats, list[tuple[Floats, Floats]]]:
        """Loss, coefficients, and each party's part of a pair if one was offered."""
        self.iteration += 1
        outputs = [party.outputs(rows) for party in self.own]
        hidden = self.hidden_sum([taylor.residuals(outputs[0], self.labels[rows]), *outputs[1:]], "outputs")
        found, label_residual = [], np.zeros(1, dtype=object)
        for number, party in enumerate(self.own):
            columns = party.integers[rows]
            if number == 0:
                columns = np.column_stack([columns, self.signs[rows]])
            sums = self.column_sums(number, hidden, columns, KINDS.gradients, "gradients")
            if number == 0:
                label_residual, sums = sums[-1:], sums[:-1]
            found.append(party.gradient(sums))
        parts = [PRODUCTS.encode(np.array([product])) for _, product in found]
        parts[0] = np.array([loss_product(found[0][1], label_residual, KINDS.gradients, BATCH)], dtype=object)
        loss = taylor.loss_from_products(float(self.read_sum(parts, "loss")[0]))
        products = [party.products(gradient) for party, (gradient, _) in zip(self.own, found, strict=True)]
        coefficients = descent.step(self.read_sum(products, "products"))
        steps = [
            party.step(gradient, coefficients) for party, (gradient, _) in zip(self.own, found, strict=True)
        ]
        changes = [step for step in steps if step is not None]
        pairs: list[tuple[Floats, Floats]] = []
        if changes and not descent.frozen:
            moved = [party.changes(rows, step) for party, step in zip(self.own, changes, strict=True)]
            hidden = self.hidden_sum(moved, "changes")
            for number, (party, step) in enumerate(zip(self.own, changes, strict=True)):
                sums = self.column_sums(number, hidden, party.integers[rows], KINDS.curvature, "curvature")
                pairs.append((step, party.curvature(sums, step)))
            both = self.read_sum(
                [party.pair_products(*pair) for party, pair in zip(self.own, pairs, strict=True)], "pairs"
            )
            if descent.offer(both[0], both[1]):
                for party, pair in zip(self.own, pairs, strict=True):
                    party.keep_pair(*pair)
        return loss, coefficients, pairs


def test_an_encrypted_run_is_the_plain_one(private: PaillierPrivateKey) -> None:
    """Protects what the plain run is for: tables and tests of accuracy are those of the encrypted protocol,
    exactly."""
    inputs, labels = problem(rows=5 * BATCH, columns=7)
    parties, batches = split(inputs, 3, 5, secret=2), partition(5 * BATCH, BATCH, 0)
    plain = train(parties, labels, LEARNING, batches, numbers=KINDS)
    encrypted, descent = Encrypted(private, parties, labels), Descent(LEARNING)
    offered = 0
    for epoch in range(LEARNING.epochs):
        losses = []
        for number, rows in enumerate(batches):
            iteration = epoch * len(batches) + number
            loss, coefficients, pairs = encrypted.iterate(rows, descent)
            losses.append(loss)
            assert loss == plain.batch_losses[iteration]
            np.testing.assert_array_equal(coefficients, plain.coefficients[iteration])
            for party, weights in zip(encrypted.own, plain.weights, strict=True):
                np.testing.assert_array_equal(party.weights, weights[iteration + 1])
            for party, (step, curvature) in enumerate(pairs):
                np.testing.assert_array_equal(step, plain.steps[party][offered])
                np.testing.assert_array_equal(curvature, plain.curvatures[party][offered])
            offered += bool(pairs)
        descent.end_epoch(float(np.mean(losses)), len(losses))
        for party, model in zip(encrypted.own, plain.models[epoch], strict=True):
            np.testing.assert_array_equal(party.end_epoch(), model)
    assert encrypted.iteration == 20
    assert offered == len(plain.pairs) > 2
