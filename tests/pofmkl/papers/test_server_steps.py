"""The server's steps against their equations, written row by row in double precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.pofmkl.learning.gradient_steps import AdaGradStep, StochasticGradientStep
from streamfl.pofmkl.learning.recursive_least_squares import RecursiveLeastSquares
from streamfl.pofmkl.learning.server_steps import AveragedStep, ServerStep

KERNELS, LENGTH, RIDGE, LEAK, BLOCK = 3, 10, 0.1, 3e-3, 8
Samples = tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]


def samples(count: int, seed: int = 0, length: int = LENGTH) -> Samples:
    """Kernels, features of norm 1 and labels within +-3 that depend on them."""
    rng = np.random.default_rng(seed)
    units = rng.standard_normal((count, length)) * np.linspace(0.2, 2, length)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    labels = np.clip(2 * units[:, 0] - units[:, 1] + 0.3 * rng.standard_normal(count), -3, 3)
    return rng.integers(0, KERNELS, count), units, labels


def learnt(
    step: ServerStep, kernels: NDArray[np.intp], rows: NDArray[Any], sizes: Sequence[int] = (10**9,)
) -> NDArray[np.float64]:
    """The parameters after the rows, applied in blocks of these sizes in turn."""
    theta = np.zeros((KERNELS, rows.shape[1]))
    start = number = 0
    while start < len(rows):
        stop = start + sizes[number % len(sizes)]
        theta = step.apply(theta, kernels[start:stop], rows[start:stop])
        start, number = stop, number + 1
    return theta


def least_squares(leak: float = LEAK, **changes: Any) -> RecursiveLeastSquares:
    return RecursiveLeastSquares(
        KERNELS, LENGTH, ridge=RIDGE, leak=leak, dtype=np.float64, block=BLOCK, **changes
    )


def one_by_one(
    kernels: NDArray[np.intp], units: NDArray[np.float64], labels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Recursive least squares in its residual form, theta <- theta - r' G, r at the newest theta, and the
    leak after a block."""
    theta = np.zeros((KERNELS, LENGTH))
    p = np.array([np.eye(LENGTH) / RIDGE] * KERNELS)
    counts = [0] * KERNELS
    for i, z, y in zip(kernels.tolist(), units, labels.tolist(), strict=True):
        gain = p[i] @ z / (1 + z @ p[i] @ z)
        theta[i] -= (z @ theta[i] - y) * gain
        p[i] -= np.outer(gain, z @ p[i])
        counts[i] += 1
        if counts[i] % BLOCK == 0:
            for _ in range(BLOCK):
                p[i] = (1 - LEAK) * p[i] + LEAK * np.eye(LENGTH) / RIDGE
    return theta


def test_a_row_of_each_kernel_is_learnt_alike_with_and_without_a_memory() -> None:
    """Protects the estimators, which take the short way: the same parameters to the last bit, beyond the end
    of a block."""
    step, short = least_squares(), least_squares(remembered=False)
    theta = of_short = np.zeros((KERNELS, LENGTH))
    for row in range(BLOCK + 3):
        _, units, labels = samples(KERNELS, seed=row)
        theta = step.apply(theta, np.arange(KERNELS), units * labels[:, None])
        of_short = short.apply_to_all(of_short, units * labels[:, None])
        np.testing.assert_array_equal(of_short, theta)


def snapshots(step: RecursiveLeastSquares, length: int, dtype: Any) -> dict[int, NDArray[Any]]:
    """P of each kernel as it was last remembered."""
    found = {}
    for key, value in step.changed_state():
        if key.startswith(b"snapshot/"):
            assert value is not None
            kernel, _, content = msgspec.msgpack.decode(value)
            upper = np.zeros((length, length), dtype)
            upper[np.triu_indices(length)] = np.frombuffer(content, dtype)
            found[kernel] = upper + np.triu(upper, 1).T
    return found


@pytest.mark.parametrize("sizes", [(1,), (7, 1, 20), (10**9,)])
def test_without_a_leak_it_is_the_ridge_solution(sizes: Sequence[int]) -> None:
    """Protects what the server claims to learn: whatever the order and the blocks, the minimum of the
    regularised squared error."""
    kernels, units, labels = samples(200)
    order = np.random.default_rng(1).permutation(200)
    found = learnt(least_squares(leak=0.0), kernels[order], (labels[:, None] * units)[order], sizes)
    for kernel in range(KERNELS):
        z, y = units[kernels == kernel], labels[kernels == kernel]
        expected = np.linalg.solve(z.T @ z + RIDGE * np.eye(LENGTH), z.T @ y)
        np.testing.assert_allclose(found[kernel], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sizes", [(1,), (5, 30, 2), (10**9,)])
def test_with_a_leak_it_is_the_loop_row_by_row(sizes: Sequence[int]) -> None:
    """Protects the residual form and the times of the leak, which must not depend on how rows were polled."""
    kernels, units, labels = samples(300)
    found = learnt(least_squares(), kernels, labels[:, None] * units, sizes)
    np.testing.assert_allclose(found, one_by_one(kernels, units, labels), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("cut", [0, 1, 23, 24, 25, 100, 150])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_restored_matrix_is_the_same_to_the_last_bit(cut: int, backwards: bool) -> None:
    """Protects a restart: P is written now and then only, and must come back from the rows since, in whatever
    order they lie."""
    kernels, units, labels = samples(200)
    rows = labels[:, None] * units
    stayed, moved = least_squares(blocks_per_snapshot=2), least_squares(blocks_per_snapshot=2)
    theta = np.zeros((KERNELS, LENGTH))
    remembered: dict[bytes, bytes | None] = {}
    for start in range(0, cut, 5):
        part = slice(start, min(cut, start + 5))
        theta = stayed.apply(theta, kernels[part], rows[part])
        remembered.update(stayed.changed_state())
    assert any(key.startswith(b"snapshot/") for key in remembered) == (cut >= 100)
    for key, value in reversed(remembered.items()) if backwards else remembered.items():
        assert value is not None
        moved.restore(key, value)
    assert list(moved.changed_state()) == []
    np.testing.assert_array_equal(
        moved.apply(theta, kernels[cut:], rows[cut:]), stayed.apply(theta, kernels[cut:], rows[cut:])
    )
    assert list(moved.changed_state()) == list(stayed.changed_state())


def test_what_is_remembered_of_a_kernel_is_bounded() -> None:
    """Protects the changelog: a slot a row would grow for ever, a matrix a commit would flood it."""
    kernels, units, labels = samples(3000)
    step = least_squares(blocks_per_snapshot=2)
    learnt(step, kernels, labels[:, None] * units)
    keys = [key for key, _ in step.changed_state()]
    assert sorted(keys) == sorted(
        [b"snapshot/%d" % kernel for kernel in range(KERNELS)]
        + [b"slot/%d/%d" % (kernel, slot) for kernel in range(KERNELS) for slot in range(2 * BLOCK)]
    )


@pytest.mark.parametrize("sizes", [(1,), (40,)])
def test_the_gradient_steps_are_their_loops(sizes: Sequence[int]) -> None:
    """Protects the two cheaper steps: each row's gradient is at the parameters that the rows before it
    left."""
    kernels, units, labels = samples(200)
    rows = labels[:, None] * units
    sgd = np.zeros((KERNELS, LENGTH))
    adagrad = np.zeros((KERNELS, LENGTH))
    squares = np.zeros((KERNELS, LENGTH))
    for i, z, y in zip(kernels.tolist(), units, labels.tolist(), strict=True):
        sgd[i] -= 0.5 * (z @ sgd[i] - y) * z
        gradient = (z @ adagrad[i] - y) * z
        squares[i] += gradient**2
        adagrad[i] -= 0.2 * gradient / np.sqrt(squares[i])
    np.testing.assert_allclose(
        learnt(StochasticGradientStep(0.5), kernels, rows, sizes), sgd, rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(
        learnt(AdaGradStep(KERNELS, LENGTH, 0.2), kernels, rows, sizes), adagrad, rtol=1e-4, atol=1e-6
    )


def test_adagrad_goes_on_with_its_squares() -> None:
    """Protects AdaGrad's rate from a restart, which would set it back to that of the first row."""
    kernels, units, labels = samples(100)
    rows = labels[:, None] * units
    stayed, moved = AdaGradStep(KERNELS, LENGTH, 0.2), AdaGradStep(KERNELS, LENGTH, 0.2)
    theta = stayed.apply(np.zeros((KERNELS, LENGTH)), kernels[:50], rows[:50])
    for key, value in stayed.changed_state():
        assert value is not None
        moved.restore(key, value)
    np.testing.assert_array_equal(
        moved.apply(theta, kernels[50:], rows[50:]), stayed.apply(theta, kernels[50:], rows[50:])
    )
    only_first = np.zeros(1, np.intp)
    list(stayed.changed_state())
    stayed.apply(theta, only_first, rows[:1])
    assert [key for key, _ in stayed.changed_state()] == [b"squares/0"]


def test_a_row_of_the_paper_is_as_long_as_a_client_can_make_it() -> None:
    """Protects the paper's preset without keys: an update of 1e18 moves a kernel as far as the longest honest
    one, and is counted.

    The longest honest row is equation (9) for |y| = 2 and z opposite to theta.
    """
    eta, penalty, clients = 0.1, 0.01, 4
    theta = np.zeros((KERNELS, LENGTH))
    theta[0, 0] = 3.0
    z = np.zeros(LENGTH)
    z[0] = -1.0
    honest = eta * (2 * (theta[0] @ z - 2.0) * z + 2 * penalty * theta[0])
    step = AveragedStep(clients, eta, penalty)
    kernels, rows = np.array([0, 1]), np.stack([honest, honest])
    plain = AveragedStep(clients).apply(theta, kernels[:1], rows[:1])
    np.testing.assert_array_equal(step.apply(theta, kernels[:1], rows[:1]), plain)
    assert step.shortened == 0
    moved = step.apply(theta, kernels, 1e18 * rows)
    np.testing.assert_allclose(moved[0], plain[0], rtol=1e-12)
    # A kernel of which nothing was learnt yet: 2 eta |y| is the most.
    np.testing.assert_allclose(np.linalg.norm(moved[1]), 4 * eta / clients, rtol=1e-12)
    assert step.shortened == 2


def test_the_averaged_step_is_equation_ten() -> None:
    """Protects the paper's preset: theta_i - (1/K) sum of delta_ik, K the federation's size and not that of
    those heard."""
    kernels, units, _ = samples(50)
    start = np.random.default_rng(3).standard_normal((KERNELS, LENGTH))
    expected = start.copy()
    for i in range(KERNELS):
        expected[i] -= sum(delta for kernel, delta in zip(kernels, units, strict=True) if kernel == i) / 80
    np.testing.assert_allclose(AveragedStep(80).apply(start, kernels, units), expected, rtol=1e-12)


STEPS: dict[str, Callable[[], ServerStep]] = {
    "least squares": least_squares,
    "gradient": lambda: StochasticGradientStep(0.5),
    "adagrad": lambda: AdaGradStep(KERNELS, LENGTH, 0.2),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_zero_row_says_nothing(name: str) -> None:
    """Protects the model from 0 / 0: a label at the mean gives a row of zeros, and nobody can tell whose
    features they were."""
    kernels, units, labels = samples(60)
    rows = labels[:, None] * units
    with_zeros = np.insert(rows, [5, 5, 30, 60], 0.0, axis=0)
    of_kernel = np.insert(kernels, [5, 5, 30, 60], 1)
    with_zeros[6] = 1e-14
    np.testing.assert_array_equal(
        learnt(STEPS[name](), of_kernel, with_zeros), learnt(STEPS[name](), kernels, rows)
    )
    step, start = STEPS[name](), np.ones((KERNELS, LENGTH))
    np.testing.assert_array_equal(step.apply(start, np.zeros(1, np.intp), np.zeros((1, LENGTH))), start)
    assert list(step.changed_state()) == []


@pytest.mark.parametrize("name", STEPS)
def test_opposite_labels_of_one_sample_keep_predictions_within_the_labels(name: str) -> None:
    """Protects every client from one that contradicts itself as loudly as it may, or shouts one thing for
    ever."""
    _, units, _ = samples(1)
    labels = np.concatenate((np.tile([3.0, -3.0], 1000), np.full(2000, 3.0), np.full(2000, -3.0)))
    kernels = np.zeros(len(labels), np.intp)
    step, theta = STEPS[name](), np.zeros((KERNELS, LENGTH))
    for start in range(0, len(labels), 50):
        part = slice(start, start + 50)
        theta = step.apply(theta, kernels[part], labels[part, None] * units)
        assert abs(theta[0] @ units[0]) <= 3 + 1e-9
    assert not theta[1:].any()
    assert step.largest_norm == pytest.approx(3, rel=0.01)


def test_least_squares_stay_within_their_bound_whatever_comes() -> None:
    """Protects the model for good: |theta| <= 3 sqrt(n / ridge) after n rows that all push along one hidden
    direction."""
    n = 20_000
    shown, hidden = np.eye(LENGTH)[:2]
    labels = np.where(np.arange(n) % 2, 3.0, -3.0)
    # All they share cancels in the labels, what tells them apart is so small that the ridge hardly holds it.
    rows = labels[:, None] * (
        np.sqrt(1 - RIDGE / n) * shown + np.sqrt(RIDGE / n) * np.sign(labels)[:, None] * hidden
    )
    theta = learnt(least_squares(), np.zeros(n, np.intp), rows, (64,))
    assert 100 < np.linalg.norm(theta) <= 3 * np.sqrt(n / RIDGE)


@pytest.mark.parametrize("kind", ["spread", "equal", "two"])
def test_long_streams_keep_the_matrix_positive_definite_in_single_precision(kind: str) -> None:
    """Protects a server that runs for months: rounding must neither add up in P nor take its last positive
    eigenvalue."""
    count, length = 100_000, 40
    _, units, labels = samples(count, length=length)
    if kind != "spread":
        # The same one or two samples for ever: nothing but the leak fills the other directions.
        units = units[: 1 if kind == "equal" else 2][np.arange(count) % (1 if kind == "equal" else 2)]
        labels = np.full(count, 2.0)
    rows = (labels[:, None] * units).astype(np.float32)
    step, theta = RecursiveLeastSquares(1, length), np.zeros((1, length), np.float32)
    precise, expected = RecursiveLeastSquares(1, length, dtype=np.float64), np.zeros((1, length))
    for start in range(0, count, 1000):
        part = slice(start, start + 1000)
        theta = step.apply(theta, np.zeros(1000, np.intp), rows[part]).astype(np.float32)
        expected = precise.apply(expected, np.zeros(1000, np.intp), rows[part].astype(np.float64))
        (p,) = snapshots(step, length, np.float32).values()
        eigenvalues = np.linalg.eigvalsh(p.astype(np.float64))
        assert eigenvalues[0] > 1e-4
        assert eigenvalues[-1] <= 10 * (1 + 1e-5)
        np.testing.assert_allclose(theta, expected, atol=1e-3)
    (q,) = snapshots(precise, length, np.float64).values()
    np.testing.assert_allclose(p, q, rtol=1e-3, atol=1e-3 * np.abs(q).max())


def test_a_malformed_state_is_refused() -> None:
    """Protects a server's start: state of another step, size or precision is named instead of being added
    up."""
    step = least_squares()
    encode = msgspec.msgpack.encode
    row, triangle = np.ones(LENGTH).tobytes(), (0.01 * np.eye(LENGTH))[np.triu_indices(LENGTH)].tobytes()
    wrong: list[tuple[ServerStep, bytes, bytes]] = [
        (step, b"squares/0", encode([0, row])),
        (step, b"slot/0/1", b"\xc1"),
        (step, b"slot/0/1", encode([KERNELS, 1, 1, row])),
        (step, b"slot/0/1", encode([0, BLOCK + 1, BLOCK, row])),
        (step, b"slot/0/1", encode([0, 1, 1, row[:-4]])),
        (step, b"snapshot/0", encode([0, 4 * BLOCK - 1, triangle])),
        (step, b"snapshot/0", encode([0, 4 * BLOCK, np.ones(LENGTH * (LENGTH + 1) // 2).tobytes()])),
        (step, b"snapshot/0", encode([0, 4 * BLOCK, triangle[:-8]])),
        (step, b"snapshot/0", encode([0, 4 * BLOCK, np.full(LENGTH * (LENGTH + 1) // 2, np.nan).tobytes()])),
        (AdaGradStep(KERNELS, LENGTH, 0.2), b"slot/0/1", encode([0, row])),
        (AdaGradStep(KERNELS, LENGTH, 0.2), b"squares/0", encode([-1, row])),
        (StochasticGradientStep(0.5), b"squares/0", encode([0, row])),
        (AveragedStep(2), b"squares/0", encode([0, row])),
    ]
    for of, key, value in wrong:
        with pytest.raises(BadRecord):
            of.restore(key, value)
    step.restore(b"slot/0/1", encode([0, 1, 1, row]))
    step.restore(b"snapshot/0", encode([0, 4 * BLOCK, triangle]))
