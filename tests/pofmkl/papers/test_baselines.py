"""The relatives of POF-MKL beside plain float64 loops written from their equations, a client and a kernel at
a time.

The oracles share no code with streamfl. They take from a run what is random, the frequencies, the kernels
drawn and the first weights of the network, from the streams that the documentation names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.contract.seeding import normal, uniform
from streamfl.kernels import FeatureMap, Kernel, frequencies, grid
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.estimators.baselines import Baseline, em_kofl, ofmkl_avg, ofskl, per_fed_avg, vm_kofl
from streamfl.pofmkl.tools.federation import simulate

ROUNDS, CLIENTS, DIMENSION, FEATURES, SEED = 60, 4, 3, 15, 11
RATE, PENALTY, NETWORK_RATE, HIDDEN = 0.15, 0.02, 0.05, 5
BANDWIDTHS = [0.1, 0.3, 1.0, 3.0, 10.0]
TOLERANCE = 1e-5

Array = NDArray[np.float64]


def streams() -> tuple[Array, Array]:
    """Inputs (T, K, d) and labels (T, K) of clients that differ."""
    rng = np.random.default_rng(5)
    inputs = rng.uniform(-0.5, 0.5, (ROUNDS, CLIENTS, DIMENSION))
    labels = (
        0.5
        + 0.4 * np.sin(6 * inputs[..., 0] + np.arange(CLIENTS))
        + 0.05 * rng.standard_normal((ROUNDS, CLIENTS))
    )
    return inputs, np.clip(labels, 0, 1)


def kernels(method: Callable[..., Baseline], **options: Any) -> Callable[[Array, Array, float], Baseline]:
    return lambda x, y, scale: method(x, y, learning_rate=scale * RATE, regularisation=PENALTY, **options)


FEATURE_MAP = FeatureMap(frequencies(grid(["gaussian"], BANDWIDTHS), FEATURES, DIMENSION, SEED))
# Every method on inputs and labels, its step size times the third argument.
METHODS: dict[str, Callable[[Array, Array, float], Baseline]] = {
    "ofskl": kernels(ofskl, features_per_kernel=FEATURES, seed=SEED),
    "ofmkl_avg": kernels(ofmkl_avg, features=FEATURE_MAP),
    "vm_kofl sum": kernels(vm_kofl, features=FEATURE_MAP, hedge="sum"),
    "vm_kofl mean": kernels(vm_kofl, features=FEATURE_MAP, hedge="mean"),
    "em_kofl sum": kernels(em_kofl, features=FEATURE_MAP, hedge="sum", seed=SEED),
    "em_kofl mean": kernels(em_kofl, features=FEATURE_MAP, hedge="mean", seed=SEED),
    "per_fed_avg": lambda x, y, scale: per_fed_avg(
        x, y, seed=SEED, learning_rate=scale * NETWORK_RATE, hidden_units=HIDDEN
    ),
}


def kernel_oracle(
    inputs: Array,
    labels: Array,
    omegas: NDArray[Any],
    mixture: Literal["average", "weights", "draw"],
    hedge: str = "sum",
) -> Array:
    """Predictions (T, K) of the methods that learn kernels; omegas (N, D, d)."""
    rounds, clients, _ = inputs.shape
    kernels, count, _ = omegas.shape
    theta = [np.zeros(2 * count) for _ in range(kernels)]
    weights = np.ones(kernels)
    predictions = np.zeros((rounds, clients))
    for t in range(rounds):
        shares = weights / weights.sum()
        drawn = int((np.cumsum(shares) <= uniform(rounds, SEED, "em-kofl")[t]).sum())
        losses = np.zeros(kernels)
        steps = [np.zeros(2 * count) for _ in range(kernels)]
        for k in range(clients):
            alone = np.zeros(kernels)
            for i in range(kernels):
                phases = omegas[i].astype(np.float64) @ inputs[t, k]
                z = np.concatenate([np.sin(phases), np.cos(phases)]) / np.sqrt(count)
                alone[i] = theta[i] @ z
                losses[i] += (alone[i] - labels[t, k]) ** 2 + PENALTY * theta[i] @ theta[i]
                steps[i] += RATE * (2 * (alone[i] - labels[t, k]) * z + 2 * PENALTY * theta[i])
            predictions[t, k] = {"average": alone.mean(), "weights": shares @ alone, "draw": alone[drawn]}[
                mixture
            ]
        for i in range(kernels):
            if mixture != "draw" or i == drawn:
                theta[i] = theta[i] - steps[i] / clients
        weights = weights * np.exp(-RATE * (losses if hedge == "sum" else losses / clients))
    return predictions


def maml_oracle(inputs: Array, labels: Array) -> Array:
    """Predictions (T, K) of Per-FedAvg: all parameters of the network in one vector, its Hessian as a full
    matrix."""
    rounds, clients, dimension = inputs.shape
    ends = np.cumsum([HIDDEN * dimension, HIDDEN, HIDDEN, 1])

    def network(w: Array, x: Array) -> tuple[float, Array, Array]:
        """net(x), its gradient by w and its Hessian."""
        A, a, b, c = np.split(w, ends[:-1])
        value, gradient, hessian = float(c[0]), np.zeros(len(w)), np.zeros((len(w), len(w)))
        gradient[-1] = 1.0
        for h in range(HIDDEN):
            row = A[h * dimension : (h + 1) * dimension]
            before = row @ x + a[h]
            if before > 0:
                value += b[h] * before
                places = [*range(h * dimension, (h + 1) * dimension), ends[0] + h]
                inner = np.append(x, 1.0)
                gradient[places] = b[h] * inner
                gradient[ends[1] + h] = before
                hessian[places, ends[1] + h] = inner
                hessian[ends[1] + h, places] = inner
        return value, gradient, hessian

    w = np.zeros(ends[-1])
    w[: ends[0]] = normal(HIDDEN * dimension, SEED, "per-fed-avg", 0) * np.sqrt(2 / dimension)
    w[ends[1] : ends[2]] = normal(HIDDEN, SEED, "per-fed-avg", 1) * np.sqrt(2 / HIDDEN)
    predictions = np.zeros((rounds, clients))
    for t in range(rounds):
        total = np.zeros(len(w))
        for k in range(clients):
            phi, jacobian = w, np.eye(len(w))
            if t > 0:
                value, gradient, hessian = network(w, inputs[t - 1, k])
                error = value - labels[t - 1, k]
                phi = w - NETWORK_RATE * 2 * error * gradient
                jacobian = np.eye(len(w)) - NETWORK_RATE * (
                    2 * np.outer(gradient, gradient) + 2 * error * hessian
                )
            value, gradient, _ = network(phi, inputs[t, k])
            predictions[t, k] = value
            total += jacobian @ (2 * (value - labels[t, k]) * gradient)
        w = w - NETWORK_RATE * total / clients
    return predictions


def expected(method: str, inputs: Array, labels: Array) -> Array:
    if method == "per_fed_avg":
        return maml_oracle(inputs, labels)
    if method == "ofskl":
        omegas = frequencies([Kernel("gaussian", 1.0)], FEATURES, DIMENSION, SEED)
        return kernel_oracle(inputs, labels, omegas, "average")
    name, _, hedge = method.partition(" ")
    mixtures: dict[str, Literal["average", "weights", "draw"]] = {
        "ofmkl_avg": "average",
        "vm_kofl": "weights",
        "em_kofl": "draw",
    }
    return kernel_oracle(inputs, labels, FEATURE_MAP.frequencies, mixtures[name], hedge)


@pytest.mark.parametrize("method", METHODS)
def test_method_equals_its_equations(method: str) -> None:
    """Protects what a comparison calls by the method's name: another step, weight or average is another
    method."""
    inputs, labels = streams()
    found = METHODS[method](inputs, labels, 1.0).predictions
    np.testing.assert_allclose(found, expected(method, inputs, labels), rtol=0, atol=TOLERANCE)


def test_bytes_are_those_of_the_federation() -> None:
    """Protects errors against bytes: the same rows cost a baseline what they cost POF-MKL's clients on the
    wire."""
    inputs, labels = streams()
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "relatives", "clients": CLIENTS, "seed": SEED},
            "role": {"kind": "pofmkl-client"},
            "learning": {"staleness": "lockstep", "learning_rate": RATE, "features_per_kernel": FEATURES},
            "kernels": {"bandwidths": BANDWIDTHS},
            "uplink": {"kernels_per_upload": len(BANDWIDTHS)},
        }
    )
    outcome = simulate(settings, inputs, labels, local_only=False)
    assert METHODS["ofmkl_avg"](inputs, labels, 1.0).uplink_bytes == outcome.uplink_bytes


def test_bytes_hold_every_number_sent() -> None:
    """Protects what each method is charged: rows of 2 D float32 numbers, a loss a kernel where the server
    weighs the kernels."""
    inputs, labels = streams()
    sent = {name: method(inputs, labels, 1.0).uplink_bytes for name, method in METHODS.items()}
    messages, row, losses = ROUNDS * CLIENTS, 2 * FEATURES * 4, len(BANDWIDTHS) * 4
    kernels_more = len(BANDWIDTHS) - 1
    assert sent["vm_kofl sum"] == sent["vm_kofl mean"] == sent["ofmkl_avg"] + messages * losses
    # The length of 256 bytes and more is one byte longer to write; a kernel's number is one byte.
    assert sent["ofmkl_avg"] == sent["ofskl"] + messages * (kernels_more * (row + 1) + 1)
    assert sent["em_kofl sum"] == sent["em_kofl mean"] == sent["ofskl"] + messages * losses
    assert sent["per_fed_avg"] == sent["ofskl"] + messages * ((HIDDEN * (DIMENSION + 2) + 1) * 4 - row)


@pytest.mark.parametrize("method", METHODS)
def test_divergence_shows_in_the_predictions(method: str) -> None:
    """Protects a comparison over many sets: a method that diverges on one of them is a figure that says so,
    not a crash."""
    inputs, labels = streams()
    predictions = METHODS[method](np.tile(inputs, (4, 1, 1)), np.tile(labels, (4, 1)), 200.0).predictions
    assert predictions.shape == (4 * ROUNDS, CLIENTS)
    assert not (np.abs(predictions) < 1e6).all()


@pytest.mark.parametrize("method", METHODS)
def test_streams_that_do_not_fit_are_named(method: str) -> None:
    """Protects from labels that broadcast: (T, 1) labels would teach every client those of the first."""
    inputs, labels = streams()
    with pytest.raises(ValueError, match=r"\(60, 4, 3\) and labels of shape \(60, 1\)"):
        METHODS[method](inputs, labels[:, :1], 1.0)
