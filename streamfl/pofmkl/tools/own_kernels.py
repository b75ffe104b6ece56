"""The kernels that one client trains for itself: many samples at a time, each predicted only from those
before it.

A simulation knows a client's samples beforehand, so a stretch of samples takes a few matrix products.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from streamfl.pofmkl.learning.recursive_least_squares import BLOCK, LEAK, RIDGE
from streamfl.pofmkl.learning.server_steps import ServerStep
from streamfl.pofmkl.learning.step_rows import SMALLEST_TARGET_NORM

__all__ = ["OneByOne", "OwnKernels", "OwnLeastSquares"]

Array = NDArray[Any]


class OwnKernels(Protocol):
    """The parameters of one client's N kernels, and how they move."""

    def foresee(self, asked: Array, features: Array, targets: Array, learns: int) -> tuple[Array, Array]:
        """Learn some samples in order. Returns every kernel's prediction of each sample before it is learnt.

        asked: features of the predicted samples, (N, samples, 2 D).
        features: of the samples learnt after each prediction, (N, samples, 2 D); ``asked`` itself if they are
        the same.
        targets: of the learnt samples, (samples,).
        learns: how many samples at the end are learnt; the others are only predicted.

        Returns theta_i . z_i of ``asked`` and of ``features``, (samples, N) each, at the parameters of their
        turn.
        """

    def take_back(self) -> None:
        """Undo the latest call of :meth:`foresee`."""


class OneByOne:
    """Any step of the server, sample by sample."""

    def __init__(self, step: ServerStep, kernels: int, row_length: int, dtype: Any) -> None:
        self._state = step, np.zeros((kernels, row_length), dtype)
        self._before = self._state

    def foresee(self, asked: Array, features: Array, targets: Array, learns: int) -> tuple[Array, Array]:
        self._before = copy.deepcopy(self._state)
        step, parameters = self._state
        kernels = np.arange(len(parameters))
        said = np.empty((2, asked.shape[1], len(parameters)), asked.dtype)
        for number in range(asked.shape[1]):
            for place, given in enumerate((asked, features)):
                said[place, number] = np.einsum("nd,nd->n", given[:, number], parameters)
            if number >= asked.shape[1] - learns:
                rows = features[:, number] * targets[number].astype(features.dtype)
                parameters = step.apply(parameters, kernels, rows).astype(parameters.dtype)
        self._state = step, parameters
        return said[0], said[1]

    def take_back(self) -> None:
        self._state = self._before


class OwnLeastSquares:
    """``RecursiveLeastSquares`` of a lone client, whose rows reach all its kernels alike.

    Rows Z with targets y are learnt from theta_0 and P at once. With L L' = I + Z P Z' and U = L^-1 Z P, as
    there, and
    v = L^-1 (Z theta_0 - y), the parameters after the first j rows are theta_j = theta_0 - sum_{i <= j} v_i
    U_i. So the prediction of any z after j rows is z . theta_0 - sum_{i <= j} v_i (U_i . z). No row depends
    on later ones.
    """

    def __init__(self, kernels: int, row_length: int, dtype: Any) -> None:
        self._dtype = dtype
        self._kept = (1 - LEAK) ** BLOCK
        # None: it still is I / ridge.
        self._inverse: Array | None = None
        self._factors = np.empty((kernels, BLOCK, row_length), dtype)
        self._parameters = np.zeros((kernels, row_length), dtype)
        self._begun = 0
        self._solve: Any = get_lapack_funcs("trtrs", dtype=dtype)
        self._before = self._state

    @staticmethod
    def most_bytes(kernels: int, row_length: int, dtype: Any) -> int:
        """Most bytes that one object takes."""
        return kernels * row_length * (row_length + BLOCK + 1) * int(np.dtype(dtype).itemsize)

    @property
    def _state(self) -> tuple[Array | None, Array, Array, int]:
        return self._inverse, self._factors, self._parameters, self._begun

    def foresee(self, asked: Array, features: Array, targets: Array, learns: int) -> tuple[Array, Array]:
        count = asked.shape[1]
        if self._begun == BLOCK:
            # This block is never taken back, so one P is enough.
            self._end_block(in_place=True)
        self._before = self._state
        # A row of norm 0 does not show its sample: the server skips it.
        learnt = np.abs(targets) >= SMALLEST_TARGET_NORM
        learnt[: count - learns] = False
        said, said_of_learnt = np.empty((2, count, len(self._parameters)), self._dtype)
        start = 0
        while start < count:
            filled = np.flatnonzero(np.cumsum(learnt[start:]) == BLOCK - self._begun)
            stop = start + int(filled[0]) + 1 if len(filled) else count
            part = slice(start, stop)
            given = features[:, part]
            queries = given if asked is features else asked[:, part]
            said[part], said_of_learnt[part] = self._learn(
                queries, given, targets[part].astype(self._dtype), learnt[part]
            )
            start = stop
            if start < count:
                self._end_block(in_place=False)
        return said, said_of_learnt

    def take_back(self) -> None:
        self._inverse, self._factors, self._parameters, self._begun = self._before

    def _learn(
        self, asked: Array, features: Array, targets: Array, learnt: NDArray[np.bool_]
    ) -> tuple[Array, Array]:
        """As :meth:`foresee`, for rows that all belong to the present block."""
        begun, parameters = self._begun, self._parameters
        rows = features if learnt.all() else features[:, learnt]
        count = rows.shape[1]
        earlier, added = self._factors[:, :begun], self._factors[:, begun : begun + count]
        projected = rows * self._dtype(1 / RIDGE) if self._inverse is None else rows @ self._inverse
        if begun:
            projected -= (rows @ earlier.swapaxes(1, 2)) @ earlier
        spread = projected @ rows.swapaxes(1, 2)
        diagonal = np.arange(count)
        spread[:, diagonal, diagonal] += 1
        plain = np.matmul(features, parameters[:, :, None])[..., 0]
        lower = np.linalg.cholesky(spread)
        wanted = np.concatenate((projected, (plain[:, learnt] - targets[learnt])[..., None]), axis=2)
        solve = self._solve
        gains = np.empty((len(parameters), count), self._dtype)
        for kernel in range(len(parameters) if count else 0):
            solved, _ = solve(lower[kernel], wanted[kernel], lower=1)
            added[kernel], gains[kernel] = solved[:, :-1], solved[:, -1]
        # The number of rows learnt before each prediction.
        before: NDArray[np.intp] = np.cumsum(learnt) - learnt
        known = np.arange(count) < before[:, None]

        def in_turn(features: Array, plain: Array, cross: Array) -> Array:
            return np.asarray((plain - np.matmul(cross * known, gains[..., None])[..., 0]).T)

        # For learnt rows, L already has U_i . z_j.
        cross = lower if count == len(targets) else features @ added.swapaxes(1, 2)
        said = said_of_learnt = in_turn(features, plain, cross)
        if asked is not features:
            said = in_turn(
                asked, np.matmul(asked, parameters[:, :, None])[..., 0], asked @ added.swapaxes(1, 2)
            )
        self._parameters = parameters - np.matmul(gains[:, None], added)[:, 0]
        self._begun += count
        return said, said_of_learnt

    def _end_block(self, in_place: bool) -> None:
        """P <- (1 - leak)^block (P - U' U) + (1 - (1 - leak)^block) I / ridge."""
        learnt = self._factors.swapaxes(1, 2) @ self._factors
        diagonal = np.arange(learnt.shape[1])
        if self._inverse is None:
            inverse = np.negative(learnt, out=learnt)
            inverse[:, diagonal, diagonal] += self._dtype(1 / RIDGE)
        else:
            inverse = np.subtract(self._inverse, learnt, out=self._inverse if in_place else learnt)
        inverse *= self._dtype(self._kept)
        inverse[:, diagonal, diagonal] += self._dtype((1 - self._kept) / RIDGE)
        self._inverse, self._begun = inverse, 0
        if not in_place:
            self._factors = np.empty_like(self._factors)
