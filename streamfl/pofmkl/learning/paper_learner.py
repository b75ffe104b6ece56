"""The paper's learner at the clients: personal kernel weights over shared parameters.

Ghari and Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022:
equations (4), (6), (7) and (9).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from streamfl.contract.role import BadRecord, Measurement
from streamfl.encoding.changelog_checks import check_within
from streamfl.encoding.wire import decode_array, encode_array
from streamfl.kernels import LOGISTIC, FeatureMap, Loss
from streamfl.pofmkl.learning.changelog_checks import check_inputs
from streamfl.pofmkl.learning.learner import Batch
from streamfl.pofmkl.learning.log_weights import normalised
from streamfl.pofmkl.learning.rows import RowPool, final_sums, running_sums
from streamfl.records.fields import LARGEST_NUMBER

__all__ = ["PaperLearner"]

# A score is a mean of predictions, and these are cut at LARGEST_NUMBER.
LARGEST_SCORE = 1.001 * LARGEST_NUMBER
# The largest sum of losses, each of them the square of such a number.
LARGEST_SUM = 1e60
# Predictions are published at most one label range beyond either end of the range: a model that diverged or
# that somebody else wrote could predict anything. A label that is farther away is learnt as the bound, too:
# the paper's labels are within the range, and the operator of such a client has to correct label_range.
LOWEST, HIGHEST = -1.0, 2.0


class PaperLearner:
    """Each client weighs the kernels by their losses on its own samples. All clients share the kernels'
    parameters.

    learning_rate eta, regularisation lambda, loss L. One object serves one thread, as its ``features`` do.
    """

    own_steps = None
    summed = True
    drifts = 0
    part_bytes = 0

    def __init__(
        self, *, features: FeatureMap, learning_rate: float, regularisation: float, loss: Loss
    ) -> None:
        self.features = features
        self.learning_rate = learning_rate
        self.regularisation = regularisation
        self.loss = loss
        self.kernels: int = features.kernels
        self.row_length: int = 2 * features.count
        self.dimension: int = features.dimension
        self.dtype: type[np.float32] | type[np.float64] = (
            np.float64 if features.dtype == np.float64 else np.float32
        )
        self.input_dtype = self.dtype
        number = np.dtype(self.dtype).newbyteorder("<")
        self._forecast_type = np.dtype(
            [
                ("score", "<f8"),
                ("inputs", number, (self.dimension,)),
                ("kernel_predictions", number, (self.kernels,)),
            ]
        )
        # A row a client: its log-weights, its loss with each kernel alone, then the four sums.
        self._personal = RowPool(2 * self.kernels + 4)
        self.bounded = 0

    def borrow(self) -> int:
        return self._personal.borrow(1)[0]

    def give_back(self, row: int) -> None:
        self._personal.give_back([row])

    def predict_and_learn(
        self, batch: Batch, parameters: NDArray[Any], squared_norms: NDArray[np.float64]
    ) -> _Learnt:
        kernels, labelled = self.kernels, batch.labelled
        labels = np.clip(batch.labels, LOWEST, HIGHEST)
        kernel_predictions = self._kernel_predictions(batch.inputs, parameters)
        # l_i = L(f_i, y) + lambda ||theta_i||^2
        plain_losses = self.loss.value(kernel_predictions, labels[:, None]) * labelled[:, None]
        losses = plain_losses + self.regularisation * np.outer(labelled, squared_norms)
        # (7): log w_i <- log w_i - eta l_i after each sample, so that sample s of a client is predicted with
        # the losses before it.
        changes = -self.learning_rate * losses
        personal = self._personal.numbers[batch.rows]
        log_weights, personal[:, :kernels] = running_sums(
            personal[:, :kernels], changes, batch.starts, batch.counts
        )
        # (6): f = sum_i w_bar_i f_i
        scores = np.einsum("bn,bn->b", normalised(log_weights), kernel_predictions, dtype=np.float64)
        predictions = self._published(scores)
        self._count_bounded(scores)

        errors = np.where(labelled, np.square(predictions - batch.labels), 0.0)
        own_losses = self.loss.value(scores, labels) * labelled
        sums = np.column_stack([plain_losses, np.ones(len(labels)), labelled, errors, own_losses])
        personal[:, kernels:] = final_sums(
            personal[:, kernels:], sums, np.arange(len(sums)), batch.starts, batch.counts
        )
        self._personal.numbers[batch.rows] = personal
        batch = replace(batch, labels=labels)
        return _Learnt(self, batch, parameters, predictions, scores, kernel_predictions, log_weights, changes)

    def _published(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        # With the logistic loss f is the log-odds of label 1, and the published prediction is its
        # probability.
        return np.asarray(expit(scores) if self.loss is LOGISTIC else np.clip(scores, LOWEST, HIGHEST))

    def _count_bounded(self, scores: NDArray[np.float64]) -> None:
        if self.loss is not LOGISTIC:
            self.bounded += int(np.count_nonzero((scores < LOWEST) | (scores > HIGHEST)))

    def _kernel_predictions(self, inputs: NDArray[Any], parameters: NDArray[Any]) -> NDArray[Any]:
        # (4), (6): f_i = theta_i . z_i(x)
        kernel_predictions = self.features.predict(inputs, parameters)
        if not np.abs(kernel_predictions).max(initial=0.0) < LARGEST_NUMBER:
            # Steps that were far too long have made the model useless. Only finite numbers may be stored or
            # sent.
            kernel_predictions = np.clip(np.nan_to_num(kernel_predictions), -LARGEST_NUMBER, LARGEST_NUMBER)
        return kernel_predictions

    def predict(self, rows: NDArray[np.intp], inputs: NDArray[Any], parameters: NDArray[Any]) -> _Forecast:
        kernel_predictions = self._kernel_predictions(inputs, parameters)
        weights = normalised(self._personal.numbers[rows, : self.kernels])
        content = np.empty(len(rows), self._forecast_type)
        content["inputs"], content["kernel_predictions"] = inputs, kernel_predictions
        content["score"] = np.einsum("bn,bn->b", weights, kernel_predictions, dtype=np.float64)
        self._personal.numbers[rows, -4] += 1
        self._count_bounded(content["score"])
        return _Forecast(content, self._published(content["score"]))

    def learn(
        self,
        rows: NDArray[np.intp],
        forecasts: Sequence[bytes],
        labels: NDArray[np.float64],
        parameters: NDArray[Any],
        squared_norms: NDArray[np.float64],
    ) -> _Learnt:
        """Equations (7) and (9) with the f_i of the forecast. Today's parameters enter the regularisation
        only."""
        then = np.frombuffer(b"".join(forecasts), self._forecast_type)
        scores, kernel_predictions = then["score"].copy(), then["kernel_predictions"].astype(self.dtype)
        predictions = self._published(scores)
        learnt = np.clip(labels, LOWEST, HIGHEST)
        plain_losses = self.loss.value(kernel_predictions, learnt[:, None])
        changes = -self.learning_rate * (plain_losses + self.regularisation * squared_norms)
        personal = self._personal.numbers[rows]
        log_weights = personal[:, : self.kernels].copy()
        personal[:, : self.kernels] += changes
        personal[:, self.kernels : -4] += plain_losses
        sums = [np.ones(len(rows)), np.square(predictions - labels), self.loss.value(scores, learnt)]
        personal[:, -3:] += np.stack(sums, axis=1)
        self._personal.numbers[rows] = personal
        one = np.ones(len(rows), np.intp)
        batch = Batch(
            rows, np.arange(len(rows)), one, then["inputs"].astype(self.dtype), learnt, one.astype(np.bool_)
        )
        return _Learnt(self, batch, parameters, predictions, scores, kernel_predictions, log_weights, changes)

    @property
    def forecast_bytes(self) -> int:
        return self._forecast_type.itemsize

    def check_forecast(self, content: bytes) -> None:
        if len(content) != self._forecast_type.itemsize:
            expected = self._forecast_type.itemsize
            raise BadRecord("shape", f"what is kept of a sample has {len(content)} bytes, not {expected}")
        forecast = np.frombuffer(content, self._forecast_type)[0]
        check_inputs(forecast["inputs"], self.dimension)
        for name in ("score", "kernel_predictions"):
            check_within(forecast[name], -LARGEST_SCORE, LARGEST_SCORE, name)

    @property
    def record_bytes(self) -> int:
        return int(self._personal.numbers.shape[1]) * 8

    def remember(self, rows: Sequence[int]) -> list[bytes]:
        content, width = encode_array(self._personal.numbers[rows]), self.record_bytes
        return [content[start : start + width] for start in range(0, len(content), width)]

    def parts(self, row: int) -> Iterable[tuple[bytes, bytes]]:
        return ()

    def part_keys(self, row: int) -> Iterable[bytes]:
        return ()

    def restore(self, row: int, remembered: bytes) -> None:
        numbers = decode_array(
            remembered, np.float64, self._personal.numbers.shape[1:], "the numbers of a client"
        )
        samples, labels = numbers[-4], numbers[-3]
        if not 0 <= labels <= samples <= 2**53 or samples % 1 or labels % 1:
            raise BadRecord(
                "malformed", f"{samples:g} samples and {labels:g} labels of a client are remembered"
            )
        check_within(numbers[: self.kernels], -LARGEST_SUM, LARGEST_SUM, "weights of kernels")
        check_within(numbers[self.kernels : -4], 0.0, LARGEST_SUM, "losses of kernels")
        check_within(numbers[-2:], 0.0, LARGEST_SUM, "losses")
        self._personal.numbers[row] = numbers

    def restore_part(self, row: int, key: bytes, value: bytes) -> None:
        raise BadRecord(
            "malformed", "a client's state has parts that preset paper does not know: it is of another preset"
        )

    def measure(self) -> Iterable[Measurement]:
        """This learner has only the metrics of every learner."""
        return ()

    def sums(self, rows: Sequence[int]) -> NDArray[np.float64]:
        return self._personal.numbers[rows, -4:]

    def weights(self, row: int) -> NDArray[np.float64]:
        """The normalised weights of a client's kernels, (kernels,)   (POF-MKL, eq. 6)."""
        return np.asarray(normalised(self._personal.numbers[[row], : self.kernels])[0])

    def kernel_losses(self, rows: Sequence[int]) -> NDArray[np.float64]:
        return self._personal.numbers[rows, self.kernels : -4]


@dataclass(frozen=True)
class _Forecast:
    """Predicted samples: for each its score (6), its inputs and the f_i."""

    content: NDArray[Any]
    predictions: NDArray[np.float64]

    def encoded(self) -> list[bytes]:
        content, size = self.content.tobytes(), self.content.itemsize
        return [content[start : start + size] for start in range(0, len(content), size)]


@dataclass(frozen=True)
class _Learnt:
    """A learnt batch. ``changes``: of its log-weights, (samples, kernels). The rest is as in
    :class:`Learnt`."""

    learner: PaperLearner
    batch: Batch
    parameters: NDArray[Any]
    predictions: NDArray[np.float64]
    scores: NDArray[np.float64]
    kernel_predictions: NDArray[Any]
    log_weights: NDArray[np.float64]
    changes: NDArray[np.float64]

    @property
    def log_weights_after(self) -> NDArray[np.float64]:
        return self.log_weights + self.changes

    def steps(
        self, samples: NDArray[np.intp], kernels: NDArray[np.intp], probabilities: NDArray[np.float64]
    ) -> NDArray[Any]:
        """(eta / p_i) grad l_i with grad l_i = L'(f_i, y) z_i(x) + 2 lambda theta_i   (POF-MKL, eq. 9)."""
        learner, batch = self.learner, self.batch
        slopes = learner.loss.gradient(self.kernel_predictions[samples, kernels], batch.labels[samples])
        rates = learner.learning_rate / probabilities
        steps: NDArray[Any] = (rates * slopes)[:, None] * learner.features.rows(
            batch.inputs[samples], kernels
        )
        steps += (2.0 * learner.regularisation * rates)[:, None] * self.parameters[kernels]
        return steps
