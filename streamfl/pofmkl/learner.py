"""What a client of POF-MKL asks of its mathematics, whatever the preset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.kernels import Loss
from streamfl.pofmkl.own_steps import OwnSteps
from streamfl.role import Measurement

__all__ = ["Batch", "Forecast", "Learner", "Learnt", "waves"]


@dataclass(frozen=True)
class Batch:
    """The samples of a poll; those of one client stand together, in its order.

    rows (clients,): the number by which the learner knows each client. starts, counts (clients,): its first sample, and how many.
    inputs (samples, d); labels (samples,), 0 where ``labelled`` (samples,) is False.
    """

    rows: NDArray[np.intp]
    starts: NDArray[np.intp]
    counts: NDArray[np.intp]
    inputs: NDArray[Any]
    labels: NDArray[np.float64]
    labelled: NDArray[np.bool_]


def waves(batch: Batch) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """The batch cut so that no client comes twice: rows of the clients, and the numbers of their samples."""
    for number in range(int(batch.counts.max())):
        clients = np.flatnonzero(batch.counts > number)
        yield batch.rows[clients], batch.starts[clients] + number


class Learnt(Protocol):
    """A batch that was predicted and then learnt from, each sample's prediction before its label was used."""

    @property
    def predictions(self) -> NDArray[np.float64]:
        """What the user reads, (samples,): with the logistic loss the probability of label 1."""

    @property
    def scores(self) -> NDArray[np.float64]:
        """What was combined of the kernels, (samples,): the predictions, but log-odds with the logistic loss   (POF-MKL, eq. 6)."""

    @property
    def kernel_predictions(self) -> NDArray[Any]:
        """f_i of every kernel, (samples, kernels)   (POF-MKL, eq. 6)."""

    @property
    def log_weights(self) -> NDArray[np.float64]:
        """The weights that each sample was predicted with, (samples, kernels): bins are drawn from them (Algorithm 1)."""

    @property
    def log_weights_after(self) -> NDArray[np.float64]:
        """The weights once its label was learnt, (samples, kernels)."""

    def steps(
        self, samples: NDArray[np.intp], kernels: NDArray[np.intp], probabilities: NDArray[np.float64]
    ) -> NDArray[Any]:
        """What the server is sent of kernel kernels[r] for sample samples[r], drawn with probabilities[r]: (r, 2 D)."""


class Forecast(Protocol):
    """Samples that were predicted and whose labels are still to come."""

    @property
    def predictions(self) -> NDArray[np.float64]:
        """What the user reads, (samples,), as :class:`Learnt` has it."""

    def encoded(self) -> list[bytes]:
        """What has to be kept of each sample until its label comes, of equal length all."""


class Learner(Protocol):
    """Predicts and learns for many clients at once; keeps what is personal, by rows that it lends."""

    loss: Loss
    kernels: int
    row_length: int
    """2 D, the numbers of one kernel's step."""
    dtype: type[np.float32] | type[np.float64]
    input_dtype: type[np.float32] | type[np.float64]
    """Of the inputs it is given: double where they are scaled first, or what the features are computed in."""
    dimension: int
    summed: bool
    """Whether the steps of several samples may be added up; otherwise each labelled sample is an upload of its own."""
    drifts: int
    """Changes found in the clients' errors since the learner was made."""
    bounded: int
    """Predictions that would have been out of all proportion to the labels, and were kept at the bound, since it was made."""

    @property
    def own_steps(self) -> OwnSteps | None:
        """What clients make of the model while no server answers; None: this learner has nothing of the kind."""

    def borrow(self) -> int:
        """A row for a new client, empty."""

    def give_back(self, row: int) -> None:
        """Forget a client."""

    def predict_and_learn(self, batch: Batch, parameters: NDArray[Any], squared_norms: NDArray[np.float64]) -> Learnt:
        """Predict and learn every sample; parameters (kernels, 2 D) and their squared norms (kernels,) are the server's."""

    def predict(self, rows: NDArray[np.intp], inputs: NDArray[Any], parameters: NDArray[Any]) -> Forecast:
        """Predict one sample, inputs (clients, d), of each of these clients, and learn nothing from it but its inputs."""

    def learn(
        self,
        rows: NDArray[np.intp],
        forecasts: Sequence[bytes],
        labels: NDArray[np.float64],
        parameters: NDArray[Any],
        squared_norms: NDArray[np.float64],
    ) -> Learnt:
        """Learn the label, (clients,), of one sample of each of these clients that :meth:`predict` predicted some time ago."""

    @property
    def forecast_bytes(self) -> int:
        """The length of what has to be kept of a sample."""

    def check_forecast(self, content: bytes) -> None:
        """PeerError if what was kept of a sample until its label comes is of another learner, or damaged."""

    @property
    def record_bytes(self) -> int:
        """The length of what :meth:`remember` gives of a client."""

    @property
    def part_bytes(self) -> int:
        """The length of the longest part that :meth:`parts` gives; 0: there are none."""

    def remember(self, rows: Sequence[int]) -> list[bytes]:
        """What belongs into each client's record."""

    def parts(self, row: int) -> Iterable[tuple[bytes, bytes]]:
        """What is remembered beside the record, in keyed parts: those that have changed since the last call."""

    def restore(self, row: int, remembered: bytes) -> None:
        """Take back what ``remember`` gave; PeerError if it is of another learner."""

    def restore_part(self, row: int, key: bytes, value: bytes) -> None:
        """Take back what ``parts`` gave, before or after the record; PeerError as above."""

    def part_keys(self, row: int) -> Iterable[bytes]:
        """Every key under which ``parts`` may have given something of this client."""

    def measure(self) -> Iterable[Measurement]:
        """Figures that only this learner has."""

    def sums(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """Samples, labels, squared errors and losses of each client, added up: (clients, 4)."""

    def weights(self, row: int) -> NDArray[np.float64]:
        """How a client weighs its kernels, and what else it predicts with, among themselves: (experts,)."""

    def kernel_losses(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """What each kernel alone would have lost, without regularisation: (clients, kernels)."""
