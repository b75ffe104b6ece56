"""The default preset computed a second time, in plain float64 loops written from its equations, beside the
whole federation.

The oracle shares no code with streamfl. It takes from a run what is random, the frequencies and the bins
drawn, and computes everything else from the same inputs and labels, a sample at a time.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.direct import federated
from streamfl.pofmkl.tools.federation import simulate

# Neighbours are kept and their distances computed in single precision, whatever the precision of the rest.
TOLERANCE = {"float32": 1e-3, "float64": 1e-7}
VIEWS = ("standardised", "centred", "standardised-lags", "centred-lags")

Floats = NDArray[np.float64]


class OracleClient:
    """One client: what it knows, what it predicts, what it sends."""

    def __init__(self, dimension: int, kernels: int, logistic: bool) -> None:
        experts = kernels + 4
        self.kernels, self.logistic = kernels, logistic
        self.samples, self.input_mean, self.input_squares = 0, np.zeros(dimension), np.zeros(dimension)
        self.labels, self.mean, self.squares, self.low, self.high = 0, 0.0, 0.0, 0.0, 0.0
        self.lags: list[float] = []
        self.losses, self.count = np.zeros(experts), 0.0
        self.weights, self.covariance = np.zeros(experts), np.eye(experts) / 10.0
        self.kept: list[tuple[Floats, list[float], float]] = []
        self.ring = RING
        self.prior = np.array([0.5 / kernels] * kernels + [0.5 / 4] * 4)

    def see(self, x: Floats) -> list[Floats]:
        """The sample is counted, and then seen from every view."""
        if self.samples == 0:
            self.origin = x
        x = np.array(
            [within(x[j], self.input_mean[j], self.input_squares[j], self.samples) for j in range(len(x))]
        )
        self.samples += 1
        before = x - self.input_mean
        self.input_mean = self.input_mean + before / self.samples
        self.input_squares = self.input_squares + before * (x - self.input_mean)
        self.variances = self.input_squares / self.samples
        n = max(self.labels, 1)
        self.deviation = max(np.sqrt(self.squares / max(self.labels - 1, 1) * (1 + 1 / n)), 1e-3)
        self.scaled_lags = self.scaled(self.lags)
        self.query = (x - self.origin).astype(np.float32).astype(float)
        varying = [j for j in range(len(x)) if self.variances[j] > 0]
        standardised, centred = np.zeros(len(x)), np.zeros(len(x))
        for j in varying:
            standardised[j] = np.clip(
                (x[j] - self.input_mean[j]) / np.sqrt(self.variances[j]), -3, 3
            ) / np.sqrt(len(varying))
        if varying:
            centred = (x - self.input_mean) / np.sqrt(self.variances.sum())
            centred = centred * min(1.0, 3.0 / np.linalg.norm(centred)) if centred.any() else centred
        return [
            standardised,
            centred,
            np.concatenate([standardised, 0.5 * self.scaled_lags]),
            np.concatenate([centred, 0.5 * self.scaled_lags]),
        ]

    def scaled(self, lags: list[float]) -> Floats:
        values = [float(np.clip((lag - self.mean) / self.deviation, -3, 3)) for lag in lags]
        return np.array(values + [0.0] * (2 - len(values)))

    def predict(self, raw: Floats) -> float:
        self.experts = np.concatenate(
            [self.mean + self.deviation * raw, [self.mean], self.lags[:1] or [self.mean]]
        )
        self.experts = np.concatenate([self.experts, [self.neighbours(False), self.neighbours(True)]])
        if self.logistic:
            bounds = (0.5 / (self.labels + 1), 1 - 0.5 / (self.labels + 1))
        else:
            margin = (self.high - self.low) / max(self.labels - 1, 1)
            bounds = (self.low - margin, self.high + margin)
        self.experts = np.clip(self.experts, *bounds)
        own = self.experts[: self.kernels]
        by_kernels = self.posterior(self.losses[: self.kernels], np.ones(self.kernels)) @ own
        self.pivot = self.posterior(self.losses, self.prior) @ self.experts
        self.deviations = np.clip((self.experts - self.pivot) / self.deviation, -3, 3)
        spread = self.deviations @ self.covariance @ self.deviations
        corrected = self.pivot + self.deviation * (self.weights @ self.deviations) / (1 + spread)
        return float((by_kernels + self.pivot + np.clip(corrected, *bounds)) / 3)

    def posterior(self, losses: Floats, prior: Floats) -> Floats:
        excess = losses - losses.min()
        if not self.logistic:
            excess = excess / (2 * max(losses.min() / max(self.count, 1.0), 1e-9))
        weights = prior * np.exp(-excess)
        return np.asarray(weights / weights.sum())

    def log_weights(self) -> Floats:
        """Of the kernels, the largest 0."""
        excess = self.losses[: self.kernels] - self.losses[: self.kernels].min()
        return (
            -excess
            if self.logistic
            else -excess / (2 * max(self.losses[: self.kernels].min() / max(self.count, 1.0), 1e-9))
        )

    def neighbours(self, scaled: bool) -> float:
        if not self.kept:
            return self.mean
        squares = []
        for inputs, lags, _ in self.kept:
            if scaled:
                square = sum(
                    (a - b) ** 2 / v
                    for a, b, v in zip(inputs, self.query, self.variances, strict=True)
                    if v > 0
                )
                square += 0.25 * float(((self.scaled(lags) - self.scaled_lags) ** 2).sum())
            else:
                square = float(((inputs - self.query) ** 2).sum())
            squares.append(square)
        # What differs by less than one part in 8192 is equally near, and the first kept goes first.
        nearest = sorted(range(len(squares)), key=lambda j: (coarse(squares[j]), j))[:NEIGHBOURS]
        distances = np.sqrt([squares[j] for j in nearest])
        mean = distances.mean()
        shares = 1 / (distances / (mean if mean > 0 else 1.0) + 0.1)
        return float(
            sum(share * self.kept[j][2] for share, j in zip(shares, nearest, strict=True)) / shares.sum()
        )

    def learn(self, y: float) -> float:
        """Returns the standardised label, 0 where too little is known."""
        y = within(y, self.mean, self.squares, self.labels)
        if self.labels >= 1:
            losses = (
                -np.log(self.experts if y > 0.5 else 1 - self.experts)
                if self.logistic
                else (self.experts - y) ** 2
            )
            self.losses, self.count = MEMORY * self.losses + losses, MEMORY * self.count + 1
            u = self.deviations
            target = np.clip((y - self.pivot) / self.deviation, -3, 3)
            gain = self.covariance @ u / (1 + u @ self.covariance @ u)
            self.weights = self.weights + gain * (target - self.weights @ u)
            shrunk = self.covariance - np.outer(gain, u @ self.covariance)
            self.covariance = 0.995 * shrunk + 0.005 * np.eye(len(u)) / 10.0
        sent = float(np.clip((y - self.mean) / self.deviation, -3, 3)) if self.labels >= 2 else 0.0
        self.kept.append((self.query, [float(np.float32(lag)) for lag in self.lags], float(np.float32(y))))
        self.kept = self.kept[-self.ring :]
        self.low, self.high = (min(self.low, y), max(self.high, y)) if self.labels else (y, y)
        self.labels += 1
        before = y - self.mean
        self.mean += before / self.labels
        self.squares += before * (y - self.mean)
        self.lags = [y, *self.lags][:2]
        return sent


NEIGHBOURS, MEMORY, RING = 3, 0.97, 256


def within(value: float, mean: float, squares: float, count: int) -> float:
    """As far from the mean as any of those before it could have been, or 8 deviations and more of few."""
    if squares == 0 or count < 5:
        return value
    reach = max(np.sqrt(squares), 8 * (1 + 16 / count) * np.sqrt(squares / count))
    return float(min(max(value, mean - reach), mean + reach))


def coarse(square: float) -> float:
    mantissa, exponent = np.frexp(square)
    return float(np.ldexp(np.floor(mantissa * 2**14), int(exponent)))


class OracleServer:
    """Recursive least squares of one kernel, a row at a time."""

    def __init__(self, length: int) -> None:
        self.theta, self.p, self.rows = np.zeros(length), np.eye(length) / 0.1, 0

    def learn(self, row: Floats) -> None:
        norm = np.linalg.norm(row)
        if norm < 1e-12:
            return
        z = row / norm
        gain = self.p @ z / (1 + z @ self.p @ z)
        self.theta = self.theta + gain * (norm - z @ self.theta)
        self.p = self.p - np.outer(gain, z @ self.p)
        self.rows += 1
        if self.rows % 64 == 0:
            kept = (1 - 3e-6) ** 64
            self.p = kept * self.p + (1 - kept) * np.eye(len(z)) / 0.1


def oracle(
    inputs: Floats, labels: Floats, trace: dict[str, NDArray[Any]], size: int, logistic: bool
) -> dict[str, NDArray[Any]]:
    """inputs (T, K, d), labels (T, K); of the trace the frequencies, kernel orders and bins drawn are
    followed."""
    rounds, clients, dimension = inputs.shape
    frequencies = [trace[f"frequencies_{view}"].astype(float) for view in VIEWS]
    each, features = frequencies[0].shape[:2]
    kernels = each * len(VIEWS)
    members = [OracleClient(dimension, kernels, logistic) for _ in range(clients)]
    servers = [OracleServer(2 * features) for _ in range(kernels)]
    shape = (rounds, clients, kernels)
    result: dict[str, NDArray[Any]] = {
        "predictions": np.zeros((rounds, clients)),
        "bin_probability": np.zeros((rounds, clients)),
        "kernel_predictions": np.zeros(shape),
        "kernel_log_weights": np.zeros(shape),
        "own_log_weights": np.zeros(shape),
        "sent": np.zeros(shape, bool),
    }
    for t in range(rounds):
        rows: list[tuple[int, Floats]] = []
        for k, member in enumerate(members):
            z = []
            for view, drawn in zip(member.see(inputs[t, k]), frequencies, strict=True):
                for omega in drawn:
                    z.append(np.concatenate([np.sin(omega @ view), np.cos(omega @ view)]) / np.sqrt(features))
            prediction = member.predict(np.array([z[i] @ servers[i].theta for i in range(kernels)]))
            result["predictions"][t, k] = np.log(prediction / (1 - prediction)) if logistic else prediction
            result["kernel_predictions"][t, k] = member.experts[:kernels]
            result["own_log_weights"][t, k] = member.log_weights()
            weights = member.posterior(member.losses[:kernels], np.ones(kernels))
            order = trace["kernel_order"][t, k]
            bins = [order[start : start + size] for start in range(0, kernels, size)]
            drawn_bin = int(trace["drawn_bin"][t, k])
            result["bin_probability"][t, k] = 0.8 * weights[bins[drawn_bin]].sum() + 0.2 / len(bins)
            target = member.learn(float(labels[t, k]))
            result["kernel_log_weights"][t, k] = member.log_weights()
            for i in bins[drawn_bin]:
                result["sent"][t, k, i] = True
                rows.append((i, target * z[i]))
        for i, row in rows:
            servers[i].learn(row)
    result["parameters"] = np.array([server.theta for server in servers])
    return result


def difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference, relative to the largest magnitude of the expected array."""
    assert found.shape == expected.shape
    return float(np.abs(np.asarray(found, dtype=np.float64) - expected).max() / np.abs(expected).max())


def settings_of(clients: int, precision: str, loss: str, size: int, features: int) -> PofmklSettings:
    return PofmklSettings.model_validate(
        {
            "federation": {"name": "oracle", "clients": clients, "seed": 11},
            "role": {"kind": "pofmkl-client"},
            "learning": {
                "staleness": "lockstep",
                "precision": precision,
                "loss": loss,
                "features_per_kernel": features,
            },
            "kernels": {"bandwidths": [0.5, 1.4, 2.8]},
            "uplink": {"kernels_per_upload": size},
        }
    )


def replay(
    inputs: Floats, labels: Floats, precision: str, *, loss: str = "square", size: int = 5, features: int = 10
) -> None:
    """Run the federation and the oracle side by side, and the federation called directly."""
    settings = settings_of(labels.shape[1], precision, loss, size, features)
    outcome = simulate(settings, inputs, labels, trace=True, local_only=False)
    trace = outcome.trace()
    expected = oracle(inputs, labels, trace, size, loss == "logistic")
    np.testing.assert_array_equal(trace["sent"], expected["sent"])
    compared = ("predictions", "kernel_predictions", "kernel_log_weights", "bin_probability", "parameters")
    differences = {name: difference(trace[name], expected[name]) for name in compared}
    ordered = np.take_along_axis(expected["own_log_weights"], trace["kernel_order"], axis=2)
    differences["kernel_order"] = float(np.diff(ordered, axis=2).max() / np.abs(ordered).max())
    too_large = {name: value for name, value in differences.items() if not value <= TOLERANCE[precision]}
    assert not too_large, f"allowed is {TOLERANCE[precision]}; all: {differences}"
    names = [f"client-{k}" for k in range(labels.shape[1])]
    np.testing.assert_allclose(
        federated(settings, inputs, labels, names), outcome.predictions, rtol=1e-12, atol=1e-12
    )


def independent(rounds: int, clients: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """A column that is constant, a client whose label is."""
    inputs = rng.standard_normal((rounds, clients, 4)) * [1.0, 10.0, 0.1, 0.0] + [0.0, 5.0, -2.0, 7.0]
    labels = 0.5 + 0.3 * np.sin(inputs[..., 0]) + 0.1 * rng.standard_normal((rounds, clients))
    labels[:, 1] = 0.25
    return inputs, labels


def time_series(rounds: int, clients: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Random walks, whose label is near the last one."""
    inputs = np.cumsum(rng.standard_normal((rounds, clients, 2)), axis=0)
    return inputs, 0.5 + 0.02 * np.cumsum(rng.standard_normal((rounds, clients)), axis=0) + 0.1 * np.sin(
        inputs[..., 1]
    )


def damaged(rounds: int, clients: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Values that no sensor meant, early and late, one and several in a row."""
    inputs, labels = independent(rounds, clients, rng)
    labels[[4, 40, 41], 0] = 50.0
    labels[60, 2], inputs[20, 2, 0], inputs[50, 3, 1] = -3.0, 1e3, -1e4
    return inputs, labels


@pytest.mark.parametrize(
    ("precision", "stream"),
    [("float32", damaged), ("float64", time_series)],
)
def test_synthetic_federation_equals_the_equations(precision: str, stream: Any) -> None:
    """Protects every equation of the default preset wherever the data sets are missing, constant columns and
    labels included."""
    inputs, labels = stream(90, 4, np.random.default_rng(5))
    replay(inputs, labels, precision)


def test_what_left_the_ring_is_nobodys_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects long streams: neighbours are sought among a client's latest samples, not among its first."""
    monkeypatch.setattr("streamfl.pofmkl.learning.local_experts.MOST_KEPT", 8)
    monkeypatch.setitem(globals(), "RING", 8)
    replay(*independent(90, 4, np.random.default_rng(7)), "float64")


def test_probabilities_equal_the_equations() -> None:
    """Protects the logistic loss: its bounds of a probability, its weights, and a client that sees one class
    only."""
    rng = np.random.default_rng(6)
    inputs = rng.standard_normal((90, 4, 2))
    labels = (inputs[..., 0] + 0.3 * rng.standard_normal((90, 4)) > 0).astype(float)
    labels[:, 2] = 1.0
    replay(inputs, labels, "float64", loss="logistic", size=7)


@pytest.mark.parametrize(("name", "precision"), [("air", "float64"), ("naval", "float32")])
def test_data_sets_equal_the_equations(name: str, precision: str, streams_of_sets: ModuleType) -> None:
    """Protects the default preset on real data, with their rows that come twice and columns of all scales."""
    inputs, labels, _ = streams_of_sets.make(name, clients=6, samples=40, seed=0)
    replay(np.swapaxes(inputs, 0, 1), np.swapaxes(labels, 0, 1), precision, features=20)
