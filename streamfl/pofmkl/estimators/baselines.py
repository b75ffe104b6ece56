"""Methods related to POF-MKL, as baselines for comparison: whole streams at once, all clients of a round in
one operation.

All are lockstep: round t is sample t of each of K clients, then one step of the server. A client without
further samples has NaN for labels. It does not take part, and K is the number of the others. Labels are on
the learning scale. Features have the precision of the feature map (float32 as deployed); parameters and
weights are float64. If a method diverges, its predictions grow without bound and may become infinite or NaN;
no error is raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import normal, uniform
from streamfl.encoding.wire import VERSION, encoded_size
from streamfl.kernels import FeatureMap, Kernel, frequencies, random_features
from streamfl.pofmkl.learning.log_weights import normalised
from streamfl.pofmkl.messages import UPDATE, Update

__all__ = ["Baseline", "em_kofl", "ofmkl_avg", "ofskl", "per_fed_avg", "vm_kofl"]

# The largest fingerprint. All but one in two million take as many bytes.
_FINGERPRINT = 2**53 - 1


@dataclass(frozen=True)
class Baseline:
    """What one method did with the streams.

    predictions: (T, K), each made before its label was used.
    uplink_bytes: total of all clients. Each upload is encoded as the update of a POF-MKL client in lockstep,
        framing included. Numbers are counted as float32, but not rounded to it.
    """

    predictions: NDArray[np.float64]
    uplink_bytes: float


def ofskl(
    inputs: Any,
    labels: NDArray[Any],
    *,
    features_per_kernel: int,
    learning_rate: float,
    regularisation: float,
    seed: int,
) -> Baseline:
    """All clients together learn one Gaussian kernel of bandwidth 1: Fed-OMD on its random features.

    f = theta . z(x);  theta <- theta - (eta / K) sum_k grad l_k   (Mitra et al. 2021; l as in
    :func:`ofmkl_avg`)

    inputs: (T, K, d), read only where there are labels.
    labels: (T, K).
    features_per_kernel: D.
    learning_rate: eta.
    regularisation: lambda.
    seed: the federation's. The features are drawn from it as for its first kernel.

    Raises ValueError if the shapes do not fit.
    """
    drawn = frequencies([Kernel("gaussian", 1.0)], features_per_kernel, inputs.shape[-1], seed)
    return ofmkl_avg(
        inputs, labels, FeatureMap(drawn), learning_rate=learning_rate, regularisation=regularisation
    )


@np.errstate(over="ignore", invalid="ignore")
def ofmkl_avg(
    inputs: Any, labels: NDArray[Any], features: FeatureMap, *, learning_rate: float, regularisation: float
) -> Baseline:
    """Every kernel is learnt as in :func:`ofskl`; the prediction is their plain average.

    f = (1/N) sum_i f_i with f_i = theta_i . z_i(x);  theta_i <- theta_i - (eta / K) sum_k grad l_ik,
    l_ik = (f_i - y_k)^2 + lambda ||theta_i||^2   (Mitra et al. 2021, as in the comparison of Ghari and Shen,
    NeurIPS 2022)

    inputs: (T, K, d), read only where there are labels.
    labels: (T, K).
    features: of N kernels. Every client sends N rows of 2 D numbers a round.
    learning_rate: eta.
    regularisation: lambda.

    Raises ValueError if the shapes do not fit, or if an upload is larger than any receiver accepts.
    """
    labels = _checked(inputs, labels)
    kernels = _Kernels(features, learning_rate, regularisation)
    predictions = np.full(labels.shape, np.nan)
    for number, clients in _rounds(labels):
        predictions[number, clients] = kernels.step(inputs[number, clients], labels[number, clients])[0].mean(
            axis=0
        )
    everything = tuple(range(features.kernels))
    return Baseline(
        predictions,
        _uplink_bytes(inputs, labels, [everything] * len(labels), 2 * features.count * features.kernels),
    )


@np.errstate(over="ignore", invalid="ignore")
def vm_kofl(
    inputs: Any,
    labels: NDArray[Any],
    features: FeatureMap,
    *,
    learning_rate: float,
    regularisation: float,
    hedge: Literal["sum", "mean"],
) -> Baseline:
    """All clients together learn every kernel. Weights that all clients share mix the kernels: Hedge at the
    server.

    f = sum_i w_i f_i / sum_i w_i;  w_i <- w_i exp(-eta sum_k l_ik), or with the mean over k for
    ``hedge="mean"``;
    theta_i and l_ik as in :func:`ofmkl_avg`   (vM-KOFL, Hong and Chae 2021)

    inputs: (T, K, d), read only where there are labels.
    labels: (T, K).
    features: of N kernels. Every client sends N rows of 2 D numbers and its N losses a round.
    learning_rate: eta.
    regularisation: lambda.
    hedge: whether the losses of the clients are summed or averaged.

    Raises ValueError if the shapes do not fit, or if an upload is larger than any receiver accepts.
    """
    labels = _checked(inputs, labels)
    kernels = _Kernels(features, learning_rate, regularisation)
    log_weights = np.zeros(features.kernels)
    predictions = np.full(labels.shape, np.nan)
    for number, clients in _rounds(labels):
        by_kernel, losses = kernels.step(inputs[number, clients], labels[number, clients])
        predictions[number, clients] = normalised(log_weights) @ by_kernel
        log_weights -= _hedge_rate(learning_rate, hedge, len(clients)) * losses
    everything = tuple(range(features.kernels))
    numbers = (2 * features.count + 1) * features.kernels
    return Baseline(predictions, _uplink_bytes(inputs, labels, [everything] * len(labels), numbers))


@np.errstate(over="ignore", invalid="ignore")
def em_kofl(
    inputs: Any,
    labels: NDArray[Any],
    features: FeatureMap,
    *,
    learning_rate: float,
    regularisation: float,
    hedge: Literal["sum", "mean"],
    seed: int,
) -> Baseline:
    """vM-KOFL with one kernel a round, which the server draws by its weights. Only this kernel predicts and
    learns.

    i ~ w / sum_j w_j;  f = f_i;  theta_i <- theta_i - (eta / K) sum_k grad l_ik;  every w_j as in
    :func:`vm_kofl` (eM-KOFL, Hong and Chae 2021). Round t draws the first kernel whose cumulated weight
    exceeds uniform t of (seed, "em-kofl").

    inputs: (T, K, d), read only where there are labels.
    labels: (T, K).
    features: of N kernels. Every client sends one row of 2 D numbers and its N losses a round.
    learning_rate: eta.
    regularisation: lambda.
    hedge: whether the losses of the clients are summed or averaged.
    seed: of the server's draws.

    Raises ValueError if the shapes do not fit.
    """
    labels = _checked(inputs, labels)
    kernels = _Kernels(features, learning_rate, regularisation)
    log_weights = np.zeros(features.kernels)
    draws = uniform(len(labels), seed, "em-kofl")
    drawn: list[int] = []
    predictions = np.full(labels.shape, np.nan)
    for number, clients in _rounds(labels):
        cumulated = np.cumsum(normalised(log_weights))
        # By rounding the last sum may be below one, and so below the draw.
        drawn.append(min(int(np.searchsorted(cumulated, draws[number], side="right")), features.kernels - 1))
        learnt = slice(drawn[-1], drawn[-1] + 1)
        by_kernel, losses = kernels.step(inputs[number, clients], labels[number, clients], learnt)
        predictions[number, clients] = by_kernel[drawn[-1]]
        log_weights -= _hedge_rate(learning_rate, hedge, len(clients)) * losses
    numbers = 2 * features.count + features.kernels
    return Baseline(predictions, _uplink_bytes(inputs, labels, [(kernel,) for kernel in drawn], numbers))


@np.errstate(over="ignore", invalid="ignore")
def per_fed_avg(
    inputs: Any, labels: NDArray[Any], *, seed: int, learning_rate: float, hidden_units: int = 32
) -> Baseline:
    """One-step MAML over all clients, on a fully connected network of one hidden layer.

    phi_k = w - eta grad L(w; x_k(t-1), y_k(t-1));  prediction net(phi_k; x_k(t));
    w <- w - (eta / K) sum_k [I - eta H(w; x_k(t-1), y_k(t-1))] grad L(phi_k; x_k(t), y_k(t))
    (Per-FedAvg, Fallah et al. 2020, one local step a round; L = (net - y)^2, H its Hessian, exact)

    The sources leave the following open. The network is net(x) = b . relu(A x + a) + c, where A has
    ``hidden_units`` rows. At first A ~ N(0, 2/d), b ~ N(0, 2/hidden_units) (He et al. 2015), and a = c = 0. A
    and b are drawn from the streams (seed, "per-fed-avg", 0) and (seed, "per-fed-avg", 1). Both step sizes
    are eta, as in the other methods. A client adapts to its last labelled sample, and does not adapt before
    its first. There is no regularisation.

    inputs: (T, K, d), read only where there are labels.
    labels: (T, K). Every client sends one row of hidden_units (d + 2) + 1 numbers a round.
    seed: of the first parameters.
    learning_rate: eta.
    hidden_units: in the one hidden layer.

    Raises ValueError if the shapes do not fit, or if an upload is larger than any receiver accepts.
    """
    labels = _checked(inputs, labels)
    dimension = inputs.shape[2]
    first, last = np.zeros((hidden_units, dimension + 1)), np.zeros(hidden_units + 1)
    drawn = normal(hidden_units * dimension, seed, "per-fed-avg", 0).reshape(hidden_units, dimension)
    first[:, :-1] = drawn * np.sqrt(2 / dimension)
    last[:-1] = normal(hidden_units, seed, "per-fed-avg", 1) * np.sqrt(2 / hidden_units)
    predictions = np.full(labels.shape, np.nan)
    for number, clients in _rounds(labels):
        adaptation, before = (learning_rate, number - 1) if number else (0.0, 0)
        x, x_before = (
            np.column_stack([inputs[at, clients], np.ones(len(clients))]) for at in (number, before)
        )
        y, y_before = labels[number, clients], labels[before, clients]
        # The first layer's gradient is an outer product with the input: only its left factor is kept for each
        # client, no matrix.
        output, active_before, left_before, hidden_before = _network(x_before @ first.T, last)
        error_before = 2 * (output - y_before)[:, None]
        inner = (x * x_before).sum(axis=-1, keepdims=True)
        adapted = x @ first.T - adaptation * error_before * left_before * inner
        predicted, _, left, hidden = _network(adapted, last - adaptation * error_before * hidden_before)
        predictions[number, clients] = predicted
        error = 2 * (predicted - y)[:, None]
        left, hidden = error * left, error * hidden
        # H v = 2 (grad net . v) grad net + 2 (net - y) (Hessian of net) v, with v the gradient (left x',
        # hidden).
        along = (
            2
            * (inner[:, 0] * (left_before * left).sum(axis=-1) + (hidden_before * hidden).sum(axis=-1))[
                :, None
            ]
        )
        curved_left = along * left_before + error_before * active_before * hidden[:, :-1]
        curved_hidden = along * hidden_before
        curved_hidden[:, :-1] += error_before * active_before * left * inner
        first -= learning_rate / len(clients) * (left.T @ x - adaptation * curved_left.T @ x_before)
        last -= learning_rate / len(clients) * (hidden - adaptation * curved_hidden).sum(axis=0)
    return Baseline(predictions, _uplink_bytes(inputs, labels, [(0,)] * len(labels), first.size + last.size))


class _Kernels:
    """Parameters theta_i of every kernel, shared by all clients and learnt by the average of their gradient
    steps."""

    def __init__(self, features: FeatureMap, learning_rate: float, regularisation: float) -> None:
        self._frequencies = features.frequencies
        self._learning_rate, self._regularisation = learning_rate, regularisation
        self._parameters = np.zeros((features.kernels, 2 * features.count))

    def step(
        self, inputs: NDArray[Any], labels: NDArray[np.float64], learnt: slice = slice(None)
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Predictions (N, K) and losses (N,) of every kernel, losses summed over the clients. Then the
        ``learnt`` kernels step."""
        features = random_features(inputs, self._frequencies).swapaxes(0, 1).astype(np.float64)
        predictions = (features @ self._parameters[..., None])[..., 0]
        errors = predictions - labels
        penalties = self._regularisation * np.square(self._parameters).sum(axis=-1)
        losses = np.square(errors).sum(axis=-1) + len(labels) * penalties
        mean = (errors[learnt, None] @ features[learnt])[:, 0] / len(labels)
        self._parameters[learnt] -= (
            self._learning_rate * 2 * (mean + self._regularisation * self._parameters[learnt])
        )
        return predictions, losses


def _network(
    before_relu: NDArray[np.float64], last: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:
    """Output (K,), active units (K, H), and its gradients by ``before_relu`` (K, H) and ``last`` (K, H +
    1)."""
    active = before_relu > 0
    hidden = np.concatenate([np.maximum(before_relu, 0.0), np.ones((len(before_relu), 1))], axis=-1)
    return (last * hidden).sum(axis=-1), active, active * last[..., :-1], hidden


def _hedge_rate(learning_rate: float, hedge: Literal["sum", "mean"], clients: int) -> float:
    return learning_rate if hedge == "sum" else learning_rate / clients


def _checked(inputs: Any, labels: NDArray[Any]) -> NDArray[np.float64]:
    if len(inputs.shape) != 3 or labels.shape != inputs.shape[:2]:
        raise ValueError(
            f"inputs of shape {inputs.shape} and labels of shape {labels.shape} are not (T, K, d) and (T, K)"
        )
    return np.asarray(labels, dtype=np.float64)


def _rounds(labels: NDArray[np.float64]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """The number of each round, and the clients that take part."""
    for number, given in enumerate(labels):
        yield number, np.flatnonzero(~np.isnan(given))


def _uplink_bytes(
    inputs: Any, labels: NDArray[np.float64], kernels_of_rounds: Sequence[tuple[int, ...]], numbers: int
) -> float:
    """The bytes of all clients if each sends these kernels and ``numbers`` float32 numbers in each round."""
    content = bytes(numbers * np.dtype(np.float32).itemsize)
    total = 0
    for number, clients in _rounds(labels):
        for name in [f"client-{client}" for client in clients]:
            update = Update(
                VERSION,
                _FINGERPRINT,
                inputs.shape[2],
                name,
                0,
                number + 1,
                number,
                1,
                kernels_of_rounds[number],
                content,
            )
            total += encoded_size(name.encode(), UPDATE.encode(update))
    return float(total)
