"""The server's steps on its clients' rows: the averaged gradients of equation (10), or learning from target
rows.

A *target row* h = y z belongs to one sample and one kernel: z, 2 D numbers of norm 1, are the sample's random
features, y its label, standardised by its client and clipped to +-LARGEST_TARGET. A gradient depends on the
parameters that its client knew; h does not. Since |z| = 1,

        z z' = h h' / |h|^2    and    z y = h,

each step computes what it needs from h at its own newest parameters. So no row is stale, and no step corrects
for staleness. z and y are known up to a common sign, which changes neither z z' nor z y. The rows of several
samples must not be added up: neither equation holds for a sum. h is 0 where the label is its client's mean.
Such a row does not show its sample, so it is skipped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from streamfl.contract.role import BadRecord

__all__ = ["AveragedStep", "ServerStep"]

# The largest label that a client of the paper's preset learns, and the tolerance for the rounding of its
# rows.
LARGEST_LABEL, LARGEST_ROUNDING = 2.0, 1.001


class ServerStep(Protocol):
    """Moves the parameters of one shard, and keeps the state that this needs."""

    @property
    def largest_norm(self) -> float | None:
        """The Euclidean norm above which a row is refused; None: its numbers are bounded by ``LARGEST_STEP``
        alone."""

    @property
    def shortened(self) -> int:
        """Rows since the step was created that were longer than an honest client's and were shortened."""

    def apply(
        self, parameters: NDArray[Any], kernels: NDArray[np.intp], rows: NDArray[Any]
    ) -> NDArray[np.float64]:
        """The parameters after these rows, taken in order.

        parameters: of the shard's n kernels, (n, 2 D); not changed here.
        kernels: of each row, (R,), counted within the shard.
        rows: (R, 2 D), finite and within the bounds.

        Returns (n, 2 D) in double precision, so that several calls are rounded only once.
        """

    def changed_state(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Keys and values that changed since the last call, in their order; None deletes the key."""

    def restore(self, key: bytes, value: bytes) -> None:
        """Restore what ``changed_state`` gave, in any order of the keys; BadRecord if it is malformed."""


class AveragedStep:
    """Gradients, of one or several samples each, added up and divided by the size K of the federation
    (POF-MKL, eq. 10):

    theta_i <- theta_i - (1/K) sum over the rows delta_ik of kernel i.

    A client's row is the sum over its samples of (eta / p) (L'(theta_i . z, y) z + 2 lambda theta_i),
    equation (9). |z| = 1, and y is clipped to -1 to 2, so the norm of a row of one sample is at most

        eta / p (2 (|theta_i| + 2) + 2 lambda |theta_i|).

    A row that is longer than ``factor`` times the bracket is shortened to that, and counted in ``shortened``.

    clients: K.
    factor: at least eta / p for the smallest p, times the most samples in a row.
    regularisation: lambda.
    """

    largest_norm: float | None = None

    def __init__(self, clients: int, factor: float = np.inf, regularisation: float = 0.0) -> None:
        self._clients = clients
        self._factor = factor
        self._regularisation = regularisation
        self.shortened = 0

    def apply(
        self, parameters: NDArray[Any], kernels: NDArray[np.intp], rows: NDArray[Any]
    ) -> NDArray[np.float64]:
        lengths = np.linalg.norm(parameters.astype(np.float64), axis=1)
        longest = (
            self._factor * (2.0 * (lengths + LARGEST_LABEL) + 2.0 * self._regularisation * lengths)[kernels]
        )
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        too_long = norms > LARGEST_ROUNDING * longest
        if too_long.any():
            self.shortened += int(too_long.sum())
            rows = rows * np.where(too_long, longest / np.maximum(norms, longest), 1.0)[:, np.newaxis]
        selection = csr_array(
            (np.ones(len(rows)), (kernels, np.arange(len(rows)))), shape=(len(parameters), len(rows))
        )
        averaged: NDArray[np.float64] = parameters - selection @ rows.astype(np.float64) / self._clients
        return averaged

    def changed_state(self) -> Iterable[tuple[bytes, bytes | None]]:
        return ()

    def restore(self, key: bytes, value: bytes) -> None:
        raise BadRecord("malformed", f"step state {key!r}: the averaged step has none")
