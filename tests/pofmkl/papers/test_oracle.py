"""POF-MKL computed a second time, in plain float64 loops written from the paper's equations, beside the whole
federation.

The oracle shares no code with streamfl. It takes from a run what is random, the frequencies and the bins
drawn, and computes everything else from the same inputs and labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.federation import simulate

# uji, 520 inputs wide, comes to 0.9e-5 or 1.02e-5 by the processor: the sines of its vector units differ in
# the last digit.
TOLERANCE = {"float32": 2e-5, "float64": 1e-9}


@dataclass
class Constants:
    """eta, lambda, xi and M, as the test chose them."""

    learning_rate: float
    regularisation: float
    exploration: float
    kernels_per_upload: int


def oracle(
    constants: Constants,
    inputs: NDArray[np.float64],
    labels: NDArray[np.float64],
    frequencies: NDArray[np.float64],
    orders: NDArray[np.int64],
    drawn_bins: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:
    """The rounds of Algorithm 1 and equation (10).

    inputs (T, K, d), labels (T, K), frequencies (N, D, d). orders (T, K, N) and drawn_bins (T, K) are
    followed; ``own_log_weights`` are the log-weights before each sample, from which the caller judges the
    order.
    """
    rounds, clients, dimension = inputs.shape
    kernels, features = frequencies.shape[:2]
    eta, penalty, xi = constants.learning_rate, constants.regularisation, constants.exploration
    size = constants.kernels_per_upload
    theta = np.zeros((kernels, 2 * features))
    log_weights = np.zeros((clients, kernels))
    result: dict[str, NDArray[Any]] = {
        "predictions": np.zeros((rounds, clients)),
        "kernel_predictions": np.zeros((rounds, clients, kernels)),
        "kernel_log_weights": np.zeros((rounds, clients, kernels)),
        "own_log_weights": np.zeros((rounds, clients, kernels)),
        "bin_probability": np.zeros((rounds, clients)),
        "sent": np.zeros((rounds, clients, kernels), dtype=bool),
    }
    for t in range(rounds):
        phases = inputs[t] @ frequencies.reshape(kernels * features, dimension).T
        phases = phases.reshape(clients, kernels, features)
        total = np.zeros_like(theta)
        norms = (theta * theta).sum(axis=1)
        for k in range(clients):
            # (4)
            z = np.concatenate([np.sin(phases[k]), np.cos(phases[k])], axis=1) / np.sqrt(features)
            # (6)
            f = (theta * z).sum(axis=1)
            weights = np.exp(log_weights[k] - log_weights[k].max())
            weights = weights / weights.sum()
            result["predictions"][t, k] = (weights * f).sum()
            result["kernel_predictions"][t, k] = f
            result["own_log_weights"][t, k] = log_weights[k]
            # Algorithm 1 and (8), on the weights that predicted
            bins = [orders[t, k, start : start + size] for start in range(0, kernels, size)]
            shares = [weights[held].sum() for held in bins]
            q = [(1 - xi) * share / sum(shares) + xi / len(bins) for share in shares]
            p = q[drawn_bins[t, k]]
            result["bin_probability"][t, k] = p
            # (9)
            for i in bins[drawn_bins[t, k]]:
                gradient = 2 * (f[i] - labels[t, k]) * z[i] + 2 * penalty * theta[i]
                total[i] += eta / p * gradient
                result["sent"][t, k, i] = True
            # (7)
            log_weights[k] = log_weights[k] - eta * ((f - labels[t, k]) ** 2 + penalty * norms)
            log_weights[k] -= log_weights[k].max()
            result["kernel_log_weights"][t, k] = log_weights[k]
        # (10)
        theta = theta - total / clients
    result["parameters"] = theta
    return result


def difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference, relative to the largest magnitude of the expected array."""
    assert found.shape == expected.shape
    return float(np.abs(np.asarray(found, dtype=np.float64) - expected).max() / np.abs(expected).max())


def replay(
    inputs: NDArray[np.float64],
    labels: NDArray[np.float64],
    precision: str,
    kernels_per_upload: int,
    *,
    learning: dict[str, Any],
    bandwidths: list[float] | None = None,
) -> dict[str, float]:
    """Run the federation and the oracle side by side; the largest relative difference of each array."""
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "oracle", "clients": labels.shape[1], "seed": 11},
            "role": {"kind": "pofmkl-client"},
            "learning": {"preset": "paper", "staleness": "lockstep", "precision": precision, **learning},
            "kernels": {} if bandwidths is None else {"bandwidths": bandwidths},
            "uplink": {"kernels_per_upload": kernels_per_upload},
        }
    )
    outcome = simulate(settings, inputs, labels, trace=True, local_only=False)
    trace = outcome.trace()
    np.testing.assert_array_equal(trace["inputs"], inputs.astype(precision))
    np.testing.assert_array_equal(trace["labels"], labels)
    np.testing.assert_array_equal(trace["predictions"], outcome.predictions)
    constants = Constants(
        learning_rate=learning.get("learning_rate") or 1 / np.sqrt(learning["horizon"]),
        regularisation=learning.get("regularisation", 1e-3),
        exploration=learning.get("exploration", 1.0),
        kernels_per_upload=kernels_per_upload,
    )
    expected = oracle(
        constants,
        trace["inputs"].astype(np.float64),
        labels,
        trace["frequencies"].astype(np.float64),
        trace["kernel_order"],
        trace["drawn_bin"],
    )
    np.testing.assert_array_equal(trace["sent"], expected["sent"])
    compared = ("predictions", "kernel_predictions", "kernel_log_weights", "bin_probability", "parameters")
    differences = {name: difference(trace[name], expected[name]) for name in compared}
    differences["kernel_order"] = disorder(trace["kernel_order"], expected["own_log_weights"])
    return differences


def disorder(orders: NDArray[np.int64], log_weights: NDArray[np.float64]) -> float:
    """By how much an order lets a lighter kernel go before a heavier one, relative to the largest log-weight.

    Kernels of exactly the same weight have to come by number.
    """
    np.testing.assert_array_equal(
        np.sort(orders, axis=-1), np.broadcast_to(np.arange(orders.shape[-1]), orders.shape)
    )
    ordered = np.take_along_axis(log_weights, orders, axis=-1)
    rises = np.diff(ordered, axis=-1)
    assert not ((rises == 0) & (np.diff(orders, axis=-1) < 0)).any()
    return float(max(rises.max(), 0.0) / np.abs(log_weights).max())


def assert_close(differences: dict[str, float], precision: str) -> None:
    allowed = TOLERANCE[precision]
    too_large = {name: value for name, value in differences.items() if not value <= allowed}
    assert not too_large, f"allowed is {allowed}; all: {differences}"


@pytest.mark.parametrize(
    ("precision", "kernels_per_upload", "exploration"),
    [("float64", 1, 1.0), ("float64", 2, 0.3), ("float32", 7, 0.0)],
)
def test_synthetic_federation_equals_the_paper(
    precision: str, kernels_per_upload: int, exploration: float
) -> None:
    """Protects equations (4) to (10) wherever the data sets are missing, with draws by weight and a last bin
    that is shorter."""
    rng = np.random.default_rng(5)
    inputs = rng.uniform(-0.5, 0.5, (80, 4, 3))
    labels = np.clip(0.5 + 0.4 * np.sin(6 * inputs[..., 0]) + 0.1 * rng.standard_normal((80, 4)), 0, 1)
    differences = replay(
        inputs,
        labels,
        precision,
        kernels_per_upload,
        learning={
            "learning_rate": 0.1,
            "regularisation": 0.01,
            "exploration": exploration,
            "features_per_kernel": 20,
        },
        bandwidths=[0.05, 0.1, 0.3, 0.5, 1.0, 3.0, 10.0],
    )
    assert_close(differences, precision)


@pytest.mark.parametrize(
    ("name", "precision", "kernels_per_upload", "samples"),
    # uji is 520 inputs wide.
    [("naval", "float32", 5, 60), ("uji", "float64", 1, 20)],
)
def test_data_sets_equal_the_paper(
    name: str, precision: str, kernels_per_upload: int, samples: int, streams_of_sets: ModuleType
) -> None:
    """Protects the paper preset on real data at full size: 40 clients, 51 kernels, 100 features, long enough
    for errors to grow."""
    inputs, labels, _ = streams_of_sets.make(name, clients=40, samples=samples, seed=0)
    differences = replay(
        np.swapaxes(inputs, 0, 1),
        np.swapaxes(labels, 0, 1),
        precision,
        kernels_per_upload,
        learning={"horizon": 300},
    )
    assert_close(differences, precision)
