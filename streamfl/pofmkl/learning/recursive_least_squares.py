"""Recursive least squares on the clients' target rows (see server_steps)."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import get_lapack_funcs

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_within, decode_restored
from streamfl.encoding.wire import Count, decode_array, encode_array
from streamfl.pofmkl.learning.step_rows import LARGEST_TARGET_NORM, samples_of

__all__ = ["BLOCK", "LEAK", "RIDGE", "RecursiveLeastSquares"]

# Defaults of recursive least squares.
RIDGE, LEAK, BLOCK = 0.1, 3e-6, 64


class RecursiveLeastSquares:
    """The ridge solution of all target rows so far, for each kernel, with a leak that keeps it able to learn.

    At first theta = 0 and P = I / ridge. Rows Z that are learnt together have residuals r = Z theta - y at
    the newest theta:

        G = (I + Z P Z')^-1 Z P;    theta <- theta - r' G;    P <- P - (Z P)' G.

    By Woodbury's identity theta and P are as if the rows had come one by one, however they are cut into
    groups.

    After every ``block`` rows of a kernel, counted from its first row,

        P <- (1 - leak)^block P + (1 - (1 - leak)^block) I / ridge,

    This forgets old rows. P does not wind up in directions where no rows come, and its smallest eigenvalue
    stays far above rounding in single precision. P never exceeds I / ridge. A step adds at most y^2 to theta'
    P^-1 theta, and the leak lowers that. So after n rows |theta| <= LARGEST_TARGET sqrt(n / ridge), whatever
    clients send.

    Within a block P itself stays as it was. With L L' = I + Z P Z' and U = L^-1 Z P, (Z P)' G = U' U. The
    rows of U so far, (rows, 2 D), are kept beside P. When the block is full, U' U is subtracted: one product,
    symmetric to the last bit.

    theta is stored with the model. P is written only after every ``blocks_per_snapshot`` blocks: its upper
    triangle,
    D (2 D + 1) numbers. Each row is written into a slot as well. Slots are overwritten in turn: a kernel has
    at most ``block * blocks_per_snapshot``. A restored P is the snapshot and the rows after it, learnt in the
    same groups as before, so it is the same to the last bit.

    kernels: how many the shard has.
    row_length: 2 D.
    ridge: of the solution.
    leak: how much is forgotten at each row.
    dtype: of P. Single precision is enough with a leak; without one its rounding errors add up.
    block: rows.
    blocks_per_snapshot: blocks after which P is written.
    remembered: False if the step is never restored from a changelog. ``changed_state`` is then empty.
    """

    largest_norm: float | None = LARGEST_TARGET_NORM
    shortened = 0

    def __init__(
        self,
        kernels: int,
        row_length: int,
        *,
        ridge: float = RIDGE,
        leak: float = LEAK,
        dtype: Any = np.float32,
        block: int = BLOCK,
        blocks_per_snapshot: int = 4,
        remembered: bool = True,
    ) -> None:
        self._row_length = row_length
        self._prior = 1 / ridge
        self._kept = (1 - leak) ** block
        self._dtype = dtype
        self._block = block
        self._slots = block * blocks_per_snapshot
        # P at the beginning of each kernel's block, and the rows of U since.
        self._inverses = np.tile(np.eye(row_length, dtype=dtype) / dtype(ridge), (kernels, 1, 1))
        self._factors = np.zeros((kernels, block, row_length), dtype)
        self._counts = np.zeros(kernels, np.int64)
        self._remembered = remembered
        self._triangle = np.triu_indices(row_length)
        self._changed_snapshots: dict[int, _Snapshot] = {}
        self._changed_slots: dict[bytes, _StoredTargetRow] = {}
        self._restored: dict[int, dict[int, _StoredTargetRow]] = {}

    @staticmethod
    def snapshot_bytes(row_length: int, dtype: Any) -> int:
        """Bytes of the upper triangle of a kernel's P, which is stored in one record."""
        return row_length * (row_length + 1) // 2 * int(np.dtype(dtype).itemsize)

    def apply(
        self, parameters: NDArray[Any], kernels: NDArray[np.intp], rows: NDArray[Any]
    ) -> NDArray[np.float64]:
        theta = parameters.astype(np.float64)
        order = np.argsort(kernels, kind="stable")
        kernels, rows, units, targets = samples_of(kernels[order], rows[order])
        if self._restored:
            for kernel in np.unique(kernels).tolist():
                self._replay(kernel)
        for run, start, end in self._runs(kernels):
            kernel = run.start
            while start < end:
                stop = (
                    min(end, start + self._block - self._counts[kernel] % self._block)
                    if run.stop == kernel + 1
                    else end
                )
                if self._remembered:
                    self._note(run, rows[start:stop])
                theta[run] -= self._learn(run, units[start:stop], targets[start:stop], theta[run])
                start = stop
        return theta

    def apply_to_all(self, parameters: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float64]:
        """As :meth:`apply`, for one row of each kernel in order, none of norm 0, in a step never used
        otherwise. Stores nothing."""
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        theta = parameters.astype(np.float64)
        theta -= self._learn(slice(0, len(theta)), rows / norms[:, np.newaxis], norms, theta)
        return theta

    def _runs(self, kernels: NDArray[np.intp]) -> Iterable[tuple[slice, int, int]]:
        """Cut sorted rows into runs: all rows of one kernel, or one row each of neighbouring kernels at the
        same row of a block.

        Yields the kernels, and the first row and the end.
        """
        if not len(kernels):
            return
        starts = np.concatenate(([0], np.flatnonzero(kernels[1:] != kernels[:-1]) + 1, [len(kernels)]))
        found, single = kernels[starts[:-1]], starts[1:] - starts[:-1] == 1
        begun = self._counts[found] % self._block
        joined = single[1:] & single[:-1] & (found[1:] - found[:-1] == 1) & (begun[1:] == begun[:-1])
        for first, after in pairwise([0, *(np.flatnonzero(~joined) + 1).tolist(), len(found)]):
            yield slice(int(found[first]), int(found[after - 1]) + 1), int(starts[first]), int(starts[after])

    @property
    def rows_learnt(self) -> int:
        """How many rows the first kernel has learnt."""
        return int(self._counts[0])

    @property
    def rows_in_block(self) -> int:
        """How many rows the first kernel has learnt since its present block began."""
        return self.rows_learnt % self._block

    def at_block_begin(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The upper triangles of P as every kernel's present block began, (kernels, D (2 D + 1)), and the
        rows until then."""
        return self._inverses[:, *self._triangle], self._counts - self._counts % self._block

    def begin_at(self, triangles: NDArray[Any], rows: NDArray[np.int64]) -> None:
        """Restore what :meth:`at_block_begin` gave. It is not checked, so it has to be trusted."""
        self._inverses[:, *self._triangle] = triangles
        self._inverses.transpose(0, 2, 1)[:, *self._triangle] = triangles
        self._counts[:] = rows

    def changed_state(self) -> Iterable[tuple[bytes, bytes | None]]:
        encode = msgspec.msgpack.encode
        # Snapshots first: a slot that is overwritten holds a row from before the snapshot that makes room for
        # it.
        for kernel, snapshot in self._changed_snapshots.items():
            yield b"snapshot/%d" % kernel, encode(snapshot)
        for key, slot in self._changed_slots.items():
            yield key, encode(slot)
        self._changed_snapshots, self._changed_slots = {}, {}

    def restore(self, key: bytes, value: bytes) -> None:
        if key.startswith(b"slot/"):
            slot = decode_restored(value, _StoredTargetRow, f"step state {key!r}")
            one_block = (
                0 < slot.first <= slot.number
                and (slot.first - 1) // self._block == (slot.number - 1) // self._block
            )
            if not (one_block and 0 <= slot.kernel < len(self._counts)) or key != self._slot_key(
                slot.kernel, slot.number
            ):
                raise BadRecord(
                    "malformed",
                    f"step state {key!r}: kernel {slot.kernel}, rows {slot.first} to {slot.number}",
                )
            row = decode_array(slot.row, self._dtype, (self._row_length,), "row")
            check_within(row, -LARGEST_TARGET_NORM, LARGEST_TARGET_NORM, f"step state {key!r}")
            self._restored.setdefault(slot.kernel, {})[slot.number] = slot
        elif key.startswith(b"snapshot/"):
            snapshot = decode_restored(value, _Snapshot, f"step state {key!r}")
            kernel = snapshot.kernel
            whole_blocks = snapshot.rows >= 1 and snapshot.rows % self._slots == 0
            if not (0 <= kernel < len(self._counts) and whole_blocks) or key != b"snapshot/%d" % kernel:
                raise BadRecord(
                    "malformed", f"step state {key!r}: kernel {kernel} after {snapshot.rows} rows"
                )
            self._inverses[kernel] = self._restored_inverse(snapshot.triangle)
            self._counts[kernel] = snapshot.rows
        else:
            raise BadRecord("malformed", f"step state {key!r} is neither a slot nor a snapshot")

    def _restored_inverse(self, triangle: bytes) -> NDArray[Any]:
        """P from its upper triangle; BadRecord if it is no covariance, or larger than I / ridge."""
        numbers = decode_array(triangle, self._dtype, self._triangle[0].shape, "snapshot")
        check_within(numbers, -1.001 * self._prior, 1.001 * self._prior, "snapshot")
        inverse = np.empty((self._row_length, self._row_length), self._dtype)
        inverse[self._triangle] = numbers
        inverse.T[self._triangle] = numbers
        try:
            np.linalg.cholesky(inverse.astype(np.float64))
        except np.linalg.LinAlgError:
            raise BadRecord("malformed", "a snapshot of the step is no covariance") from None
        return inverse

    def _slot_key(self, kernel: int, number: int) -> bytes:
        return b"slot/%d/%d" % (kernel, number % self._slots)

    def _note(self, run: slice, rows: NDArray[Any]) -> None:
        """Put rows that are learnt together into their slots: all of one kernel, or one of each."""
        content, of_one = encode_array(rows), run.stop == run.start + 1
        size = len(content) // len(rows)
        for place in range(len(rows)):
            kernel = run.start if of_one else run.start + place
            first = int(self._counts[kernel]) + 1
            number = first + place if of_one else first
            slot = _StoredTargetRow(kernel, number, first, content[place * size : (place + 1) * size])
            self._changed_slots[self._slot_key(kernel, number)] = slot

    def _learn(
        self, run: slice, units: NDArray[Any], targets: NDArray[Any], theta: NDArray[np.float64]
    ) -> NDArray[Any]:
        """Learn rows of one kernel that belong to its present block, or one row each of several; returns r'
        G, (kernels, 2 D)."""
        rows = len(units) // (run.stop - run.start)
        begun = int(self._counts[run.start]) % self._block
        inverses, factors = self._inverses[run], self._factors[run]
        earlier, added = factors[:, :begun], factors[:, begun : begun + rows]
        grouped = units.reshape(-1, rows, self._row_length)
        residuals = (grouped @ theta.astype(self._dtype)[:, :, None])[..., 0] - targets.reshape(-1, rows)
        projected = grouped @ inverses
        if begun:
            projected -= (grouped @ earlier.transpose(0, 2, 1)) @ earlier
        spread = projected @ grouped.transpose(0, 2, 1)
        correction: NDArray[Any]
        if rows == 1:
            # The solution of a triangular system of one row.
            root = np.sqrt(spread + 1)
            np.divide(projected, root, out=added)
            correction = (residuals / root[:, 0]) * added[:, 0]
        else:
            spread[0].flat[:: rows + 1] += 1
            # r' G = (L^-1 r)' U, so that one triangular system gives both.
            both = np.column_stack((projected[0], residuals[0]))
            solved, _ = _triangular_solver(self._dtype)(np.linalg.cholesky(spread[0]), both, lower=1)
            added[0] = solved[:, :-1]
            correction = (solved[:, -1] @ added[0])[None]
        self._counts[run] += rows
        if begun + rows == self._block:
            for kernel in range(run.start, run.stop):
                self._end_block(kernel)
        return correction

    def _end_block(self, kernel: int) -> None:
        inverse, factors = self._inverses[kernel], self._factors[kernel]
        inverse -= factors.T @ factors
        inverse *= self._kept
        inverse.flat[:: self._row_length + 1] += (1 - self._kept) * self._prior
        if self._remembered and self._counts[kernel] % self._slots == 0:
            triangle = encode_array(inverse[self._triangle])
            self._changed_snapshots[kernel] = _Snapshot(kernel, int(self._counts[kernel]), triangle)

    def _replay(self, kernel: int) -> None:
        """Bring a restored P up to the last stored row. Slots may be restored before the snapshot or after
        it."""
        slots = self._restored.pop(kernel, {})
        while (slot := slots.get(int(self._counts[kernel]) + 1)) is not None:
            together = []
            first = slot.first
            while slot is not None and slot.first == first:
                together.append(np.frombuffer(slot.row, np.dtype(self._dtype).newbyteorder("<")))
                slot = slots.get(slot.number + 1)
            _, _, units, targets = samples_of(np.full(len(together), kernel), np.array(together, self._dtype))
            self._learn(slice(kernel, kernel + 1), units, targets, np.zeros((1, self._row_length)))


class _Snapshot(msgspec.Struct, array_like=True):
    """The upper triangle of a kernel's P after ``rows`` target rows, row by row."""

    kernel: int
    rows: Count
    triangle: bytes


class _StoredTargetRow(msgspec.Struct, array_like=True):
    """A target row of a kernel.

    number: of the row, from 1.
    first: number of the first row that was learnt together with it.
    """

    kernel: int
    number: Count
    first: Count
    row: bytes


@functools.cache
def _triangular_solver(dtype: Any) -> Any:
    # LAPACK directly: for a single row, scipy's checks would take longer than everything else here. As an
    # attribute it would keep the step from being pickled.
    return get_lapack_funcs("trtrs", dtype=dtype)
