"""A whole run without encryption: against whole numbers of Python's, against floats, and against the
optimum."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from quasi_newton.makers import problem, split
from river import datasets
from sklearn.datasets import load_breast_cancer, make_classification

from streamfl.quasi_newton.encryption.fixed_point import OutOfBounds, kinds
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.learning.section import ITERATIONS
from streamfl.quasi_newton.tools.direct import Party, Trace, partition, train

Floats = NDArray[np.float64]
SMALL = DescentSettings(batch=100, epochs=6, tolerance=0.0)


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


def floats_run(
    inputs: Floats, labels: Floats, learning: DescentSettings, batches: Floats, start: Floats
) -> tuple[Floats, list[float]]:
    """The algorithm in one place, in floats, with the matrix H written out: weights by iteration, and losses
    by batch."""
    columns, weights, pairs, sums, last = with_ones(inputs), start.copy(), [], [], None
    penalty = learning.regularisation * np.array([*np.ones(inputs.shape[1]), 0.0])
    seen, losses, means, frozen = [start.copy()], [], [], learning.optimiser == "sgd"
    for _ in range(learning.epochs):
        epoch = []
        for rows in batches:
            own, signs = columns[rows], labels[rows]
            outputs = own @ weights
            epoch.append(float(np.mean(np.log(2) - signs * outputs / 2 + outputs**2 / 8)))
            gradient = own.T @ (outputs / 4 - signs / 2) / len(rows) + penalty * weights
            inverse = np.eye(len(weights))
            if pairs:
                s, v = pairs[-1]
                inverse *= s @ s / (s @ v)
            for s, v in pairs[-learning.memory :]:
                left = np.eye(len(weights)) - np.outer(s, v) / (s @ v)
                inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ v)
            step = learning.learning_rate * inverse @ gradient
            step *= min(1.0, learning.largest_step / np.linalg.norm(step))
            weights = weights - step
            seen.append(weights)
            sums.append(weights)
            if len(sums) == learning.curvature_every:
                mean, sums = np.mean(sums, axis=0), []
                if last is not None and not frozen:
                    s = mean - last
                    v = own.T @ (own @ s) / (4 * len(rows)) + penalty * s
                    if s @ v >= 1e-4 * (s @ s):
                        pairs.append((s, v))
                last = mean
        means.append(np.mean(epoch))
        losses += epoch
        if learning.optimiser != "sgd":
            frozen = len(means) > 1 and abs(means[-1] - means[-2]) < learning.freeze_below
    return np.array(seen), losses


def run(
    learning: DescentSettings, inputs: Floats, labels: Floats, *ends: int, secret: int | None = 3
) -> Trace:
    return train(
        split(inputs, *ends, secret=secret), labels, learning, partition(len(labels), learning.batch, 0)
    )


@pytest.mark.parametrize(
    "learning", [SMALL, DescentSettings(batch=100, epochs=6, optimiser="sgd", tolerance=0.0)]
)
@pytest.mark.parametrize("ends", [(3,), (2, 3)])
def test_it_is_the_algorithm_in_floats_to_the_rounding_of_the_messages(
    learning: DescentSettings, ends: tuple[int, ...]
) -> None:
    """Protects the whole: columns over parties, products in place of vectors, and whole numbers change
    nothing that matters."""
    inputs, labels = problem()
    # Inputs that the public exponent holds exactly, so that only the messages are rounded.
    inputs = np.rint(inputs * 256) / 256
    trace = run(learning, inputs, labels, *ends)
    start = whole([own[0] for own in trace.weights])
    weights, losses = floats_run(inputs, labels, learning, trace.batches, start)
    found = np.array([whole(at) for at in zip(*trace.weights, strict=True)])
    first_ten = np.abs(found - weights)[:10].max()
    assert first_ten < 1e-6
    np.testing.assert_allclose(trace.batch_losses, losses, atol=1e-5)
    np.testing.assert_allclose(found, weights, atol=1e-4)


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


@pytest.mark.parametrize("regularisation", [0.0, 0.05])
def test_one_batch_reaches_the_optimum(regularisation: float) -> None:
    """Protects the target: L2 without the intercept, with its part in g and in v."""
    inputs, labels = problem()
    inputs = np.rint(inputs * 256) / 256
    learning = DescentSettings(
        batch=600,
        epochs=400,
        largest_step=1.0,
        tolerance=0.0,
        freeze_below=0.0,
        regularisation=regularisation,
    )
    trace = run(learning, inputs, labels, 2)
    np.testing.assert_allclose(
        whole([own[-1] for own in trace.weights]), optimum(inputs, labels, regularisation), atol=1e-5
    )


def test_mean_iterates_lose_the_batches_noise() -> None:
    """Protects the constant learning rate: without the mean, rates would have to fall, which is forbidden."""
    inputs, labels = problem(rows=6000)
    trace = run(DescentSettings(batch=300), inputs, labels, 3)
    assert trace.converged
    assert trace.epochs <= 10
    best = optimum(inputs, labels)
    columns = with_ones(inputs)

    def gap(weights: Floats) -> float:
        return float(np.mean(np.square(columns @ (weights - best))) / 8)

    assert gap(whole(trace.model)) < 2e-4
    np.testing.assert_allclose(
        trace.outputs([inputs[:, :3], inputs[:, 3:]]), columns @ whole(trace.model), atol=1e-12
    )
    assert gap(whole(trace.model)) < 0.5 * np.mean(
        [gap(whole(at)) for at in list(zip(*trace.weights, strict=True))[-20:]]
    )


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
    for rate in (0.3, 0.6, 1.0):
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


def test_warm_start_goes_on_where_it_was() -> None:
    """Protects retraining: from the last model the first epoch's loss is that of the last."""
    inputs, labels = problem(rows=4000)
    cold = run(DescentSettings(batch=400), inputs, labels, 3)
    warm_parties = [Party(party.inputs, own) for party, own in zip(split(inputs, 3), cold.model, strict=True)]
    warm = train(warm_parties, labels, DescentSettings(batch=400), cold.batches)
    assert warm.losses[0] < cold.losses[0] - 0.01
    assert warm.losses[0] == pytest.approx(cold.losses[-1], abs=2e-3)
    assert warm.epochs < cold.epochs


def test_outputs_beyond_the_bound_are_refused() -> None:
    """Protects from silent garbage: a number that a slot does not hold would flow into its neighbour."""
    inputs, labels = problem(rows=300)
    parties = [Party(inputs[:, :3], np.full(4, 0.0)), Party(inputs[:, 3:], np.full(3, 40.0))]
    with pytest.raises(OutOfBounds):
        train(parties, labels, DescentSettings(batch=100), partition(300, 100, 0))
    with pytest.raises(ValueError, match="of 100 rows each"):
        train(parties, labels, DescentSettings(batch=100), partition(300, 50, 0))


@pytest.mark.parametrize("rows", [500, 1000])
@pytest.mark.parametrize("name", ["made", "breast cancer", "Phishing", "Bananas"])
def test_one_batch_converges(name: str, rows: int) -> None:
    """Protects small tables: within 2e-4 of the optimum of Taylor's loss, which a least squares solves.
    Twenty passes over one batch are twenty steps, which used to be all.
    """
    inputs, labels = _table(name)
    rows = min(rows, len(labels))
    inputs, labels = inputs[:rows], labels[:rows]
    inputs = np.clip((inputs - inputs.mean(axis=0)) / inputs.std(axis=0), -5, 5)
    half = inputs.shape[1] // 2
    learning = DescentSettings(batch=rows, iterations=ITERATIONS)
    trace = train(
        [Party(inputs[:, :half]), Party(inputs[:, half:])], labels, learning, partition(rows, rows, 0)
    )
    joined = with_ones(inputs)
    best = np.linalg.lstsq(joined.T @ joined / 4, joined.T @ labels / 2, rcond=None)[0]

    def loss(margins: Floats) -> float:
        return float(np.mean(np.log(2) - margins / 2 + margins**2 / 8))

    assert loss(joined @ whole(trace.models[-1]) * labels) - loss(joined @ best * labels) <= 2e-4
    # Its columns nearly repeat one another: it gains to the last of its 400 iterations.
    assert trace.converged or name == "breast cancer"


def _table(name: str) -> tuple[Floats, Floats]:
    """Inputs, and labels -1 and 1, in a random order."""
    if name == "made":
        inputs, labels = make_classification(1000, 20, n_informative=8, class_sep=0.7, random_state=1)
        inputs = inputs * np.logspace(-1, 1, 20)
    elif name == "breast cancer":
        inputs, labels = load_breast_cancer(return_X_y=True)
    else:
        taken = list(getattr(datasets, name)())
        inputs = np.array([list(x.values()) for x, _ in taken], float)
        labels = np.array([bool(y) for _, y in taken])
    order = np.random.default_rng(0).permutation(len(labels))
    return inputs[order], np.where(labels[order] > 0, 1.0, -1.0)
