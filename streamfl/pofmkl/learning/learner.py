"""The interface between a client of POF-MKL and its learner, for every preset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Measurement
from streamfl.kernels import Loss
from streamfl.pofmkl.learning.own_steps import OwnSteps

__all__ = ["Batch", "Learner", "Learnt", "PendingPredictions", "waves"]


@dataclass(frozen=True)
class Batch:
    """The samples of a poll, grouped by client, each client's in order.

    rows (clients,): each client's row in the learner.
    starts, counts (clients,): the place of its first sample, and their number. inputs (samples, d).
    labels (samples,): 0 where ``labelled`` (samples,) is False.
    """

    rows: NDArray[np.intp]
    starts: NDArray[np.intp]
    counts: NDArray[np.intp]
    inputs: NDArray[Any]
    labels: NDArray[np.float64]
    labelled: NDArray[np.bool_]


def waves(batch: Batch) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Cuts the batch into waves with at most one sample a client. Yields the clients' rows and the places of
    their samples."""
    for number in range(int(batch.counts.max())):
        clients = np.flatnonzero(batch.counts > number)
        yield batch.rows[clients], batch.starts[clients] + number


class Learnt(Protocol):
    """A batch after learning. Each sample was predicted before its label was used."""

    @property
    def predictions(self) -> NDArray[np.float64]:
        """The published predictions, (samples,): with the logistic loss the probability of label 1."""

    @property
    def scores(self) -> NDArray[np.float64]:
        """The kernels' combined predictions, (samples,): log-odds with the logistic loss   (POF-MKL, eq.
        6)."""

    @property
    def kernel_predictions(self) -> NDArray[Any]:
        """f_i of every kernel, (samples, kernels)   (POF-MKL, eq. 6)."""

    @property
    def log_weights(self) -> NDArray[np.float64]:
        """The log-weights before each sample's label was learnt, (samples, kernels): bins are drawn from them
        (Algorithm 1)."""

    @property
    def log_weights_after(self) -> NDArray[np.float64]:
        """The log-weights after each sample's label was learnt, (samples, kernels)."""

    def steps(
        self, samples: NDArray[np.intp], kernels: NDArray[np.intp], probabilities: NDArray[np.float64]
    ) -> NDArray[Any]:
        """The rows to send to the server, (r, 2 D): row r is for sample samples[r] and kernel kernels[r],
        drawn with probabilities[r]."""


class PendingPredictions(Protocol):
    """Predicted samples whose labels are still to come."""

    @property
    def predictions(self) -> NDArray[np.float64]:
        """The published predictions, (samples,), as in :class:`Learnt`."""

    def encoded(self) -> list[bytes]:
        """The bytes that are kept of each sample until its label comes. All have the same length."""


class Learner(Protocol):
    """Predicts and learns for many clients at once. Keeps each client's personal state in a row that the
    client borrows."""

    loss: Loss
    kernels: int
    row_length: int
    """2 D, the numbers of one kernel's step."""
    dtype: type[np.float32] | type[np.float64]
    input_dtype: type[np.float32] | type[np.float64]
    """Type of the inputs: double if they are scaled first, otherwise the type of the features."""
    dimension: int
    summed: bool
    """Whether the steps of several samples may be added up; otherwise each labelled sample is an upload of
    its own."""
    drifts: int
    """Changes found in the clients' errors since the learner was created."""
    bounded: int
    """Predictions far beyond samples.label_range that were clipped, since the learner was created. 0 if the
    learner assumes no range."""

    @property
    def own_steps(self) -> OwnSteps | None:
        """The clients' own steps on the model while no server answers; None: this learner takes none."""

    def borrow(self) -> int:
        """An empty row for a new client."""

    def give_back(self, row: int) -> None:
        """Forget a client."""

    def predict_and_learn(
        self, batch: Batch, parameters: NDArray[Any], squared_norms: NDArray[np.float64]
    ) -> Learnt:
        """Predict and learn every sample. The server's parameters are (kernels, 2 D), their squared norms
        (kernels,)."""

    def predict(
        self, rows: NDArray[np.intp], inputs: NDArray[Any], parameters: NDArray[Any]
    ) -> PendingPredictions:
        """Predict one sample of each of these clients, inputs (clients, d). Only the inputs are learnt
        from."""

    def learn(
        self,
        rows: NDArray[np.intp],
        forecasts: Sequence[bytes],
        labels: NDArray[np.float64],
        parameters: NDArray[Any],
        squared_norms: NDArray[np.float64],
    ) -> Learnt:
        """Learn the labels, (clients,), of one sample of each of these clients that :meth:`predict` predicted
        earlier."""

    @property
    def forecast_bytes(self) -> int:
        """Bytes of one forecast, as :meth:`PendingPredictions.encoded` gives it."""

    def check_forecast(self, content: bytes) -> None:
        """Raises BadRecord if a stored forecast is from another learner, or damaged."""

    @property
    def record_bytes(self) -> int:
        """Bytes of a client in :meth:`remember`."""

    @property
    def part_bytes(self) -> int:
        """Bytes of the longest part in :meth:`parts`; 0: there are none."""

    def remember(self, rows: Sequence[int]) -> list[bytes]:
        """The learner's share of each client's record."""

    def parts(self, row: int) -> Iterable[tuple[bytes, bytes]]:
        """Keys and values of the client's state outside its record that have changed since the last call."""

    def restore(self, row: int, remembered: bytes) -> None:
        """Restore what ``remember`` gave; BadRecord if it is from another learner."""

    def restore_part(self, row: int, key: bytes, value: bytes) -> None:
        """Restore a part from ``parts``, before or after the record; BadRecord as above."""

    def part_keys(self, row: int) -> Iterable[bytes]:
        """Every key that ``parts`` may have used for this client."""

    def measure(self) -> Iterable[Measurement]:
        """Metrics that only this learner has."""

    def sums(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """Each client's sums: samples, labels, squared errors, losses: (clients, 4)."""

    def weights(self, row: int) -> NDArray[np.float64]:
        """A client's weights of its kernels and other experts, (experts,)."""

    def kernel_losses(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """The loss of each kernel alone, without regularisation: (clients, kernels)."""
