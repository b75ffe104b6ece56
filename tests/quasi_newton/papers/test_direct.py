"""A whole run without encryption: against whole numbers of Python's, against floats, and against the
optimum."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from quasi_newton.makers import problem, split

from streamfl.quasi_newton.encryption.fixed_point import OutOfBounds, kinds
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.tools.direct import Party, Trace, partition, train

Floats = NDArray[np.float64]


def whole(parts: Sequence[Floats]) -> Floats:
    """Weights in the columns' order, the intercept last; the guest comes first."""
    return np.concatenate([parts[0][:-1], *parts[1:], parts[0][-1:]])


def with_ones(inputs: Floats) -> Floats:
    return np.hstack([inputs, np.ones((len(inputs), 1))])


def optimum(inputs: Floats, labels: Floats, regularisation: float = 0.0) -> Floats:
    columns = with_ones(inputs)
    penalty = regularisation * np.diag([*np.ones(inputs.shape[1]), 0.0])
    return np.linalg.solve(
        columns.T @ columns / (4 * len(labels)) + penalty, columns.T @ labels / (2 * len(labels))
    )


def run(
    learning: DescentSettings, inputs: Floats, labels: Floats, *ends: int, secret: int | None = 3
) -> Trace:
    return train(
        split(inputs, *ends, secret=secret), labels, learning, partition(len(labels), learning.batch, 0)
    )


def test_sums_and_losses_are_those_of_whole_numbers_written_out() -> None:
    """Protects what an encrypted run is compared with: each gradient sum, by Python's integers of any size,
    three hosts."""
    inputs, labels = problem(rows=300)
    parties = split(50 * inputs, 2, 4, 5, secret=1)
    trace = train(
        parties, labels, DescentSettings(batch=100, epochs=2, tolerance=0.0), partition(300, 100, 0)
    )
    columns = [
        with_ones(party.inputs) if number == 0 else party.inputs for number, party in enumerate(parties)
    ]
    for iteration, batch in enumerate(trace.visited):
        residuals, loss = [], Fraction(0)
        for row in trace.batches[batch]:
            output = 0
            for own, weights in zip(columns, trace.weights, strict=True):
                total = 0.0
                for value, weight in zip(own[row], weights[iteration], strict=True):
                    total += round(min(max(value, -256.0), 256.0) * 2**8) / 2**8 * weight
                output += round(total * 2**24)
            residuals.append(output - 2 * int(labels[row]) * 2**24)
            score = Fraction(output, 2**24)
            loss += -int(labels[row]) * score / 2 + score**2 / 8
        for own, sums in zip(columns, trace.gradients, strict=True):
            integers = [[round(value * 2**8) for value in own[row]] for row in trace.batches[batch]]
            expected = [
                sum(d * x[column] for d, x in zip(residuals, integers, strict=True))
                for column in range(own.shape[1])
            ]
            assert sums[iteration].tolist() == expected
        assert trace.batch_losses[iteration] == pytest.approx(np.log(2) + float(loss) / 100, abs=1e-4)


def test_fewer_epochs_than_first_order() -> None:
    """Protects the purpose: on columns of unlike curvature quasi-Newton needs a quarter of the epochs of SGD,
    or less."""
    inputs, labels = problem(rows=8000, columns=8)
    inputs = inputs @ np.linalg.cholesky(np.full((8, 8), 0.9) + 0.1 * np.eye(8)).T
    inputs /= inputs.std(axis=0)
    best = optimum(inputs, labels)

    def gap(learning: DescentSettings) -> float:
        trace = run(learning, inputs, labels, 4, secret=None)
        return float(np.mean(np.square(with_ones(inputs) @ (whole(trace.model) - best))) / 8)

    assert gap(DescentSettings(batch=400, epochs=4, tolerance=0.0)) < 3e-4
    for rate in (0.3, 1.0):
        assert (
            gap(DescentSettings(batch=400, epochs=16, tolerance=0.0, optimiser="sgd", learning_rate=rate))
            > 3e-4
        )


def test_outliers_do_not_throw_it_away() -> None:
    """Protects from a batch with huge rows: without a bound on the step it diverges."""
    inputs, labels = problem(rows=3000)
    inputs[5, 0] = inputs[1700, 3] = 60.0
    numbers = kinds(2, 300, 300, inner_bound=2.0**20)
    parties, batches = split(inputs, 3), partition(3000, 300, 0)
    bounded = train(parties, labels, DescentSettings(batch=300), batches, numbers=numbers)
    assert bounded.losses[-1] < np.log(2)
    with pytest.raises(OutOfBounds):
        train(parties, labels, DescentSettings(batch=300, largest_step=1e9), batches, numbers=numbers)


def test_outputs_beyond_the_bound_are_refused() -> None:
    """Protects from silent garbage: a number that a slot does not hold would flow into its neighbour."""
    inputs, labels = problem(rows=300)
    parties = [Party(inputs[:, :3], np.full(4, 0.0)), Party(inputs[:, 3:], np.full(3, 40.0))]
    with pytest.raises(OutOfBounds):
        train(parties, labels, DescentSettings(batch=100), partition(300, 100, 0))
    with pytest.raises(ValueError, match="of 100 rows each"):
        train(parties, labels, DescentSettings(batch=100), partition(300, 50, 0))


def test_sums_of_inner_products_tell_no_direction() -> None:
    """Protects the model from a coordinator that sees masked gradients: a host's columns that are turned give
    it the same sums, to rounding. So it learns lengths and angles, and not which column has which weight."""
    inputs, labels = problem(rows=1000, columns=20)
    learning = DescentSettings(batch=200, memory=4, epochs=6, tolerance=0.0)
    batches, numbers = partition(1000, 200, 0), kinds(2, 200, 200, input_fraction_bits=16)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(10, 10)))[0]
    guest, host = split(inputs, 10, secret=3)
    assert host.start is not None
    plain = train([guest, host], labels, learning, batches, numbers=numbers)
    turned_host = Party(host.inputs @ turn, host.start @ turn)
    turned = train([guest, turned_host], labels, learning, batches, numbers=numbers)
    assert max(len(one) for one in plain.coefficients) > 5
    for one, two in zip(plain.coefficients, turned.coefficients, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-3 * np.abs(one).max())
    np.testing.assert_allclose(plain.losses, turned.losses, rtol=1e-4)
    assert np.abs(plain.model[1] - turned.model[1]).max() > 0.1
