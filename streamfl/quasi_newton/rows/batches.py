"""A fixed partition of the records into batches, and the checks that a batch has to pass before anyone learns
from it.

A party receives X'D of every batch. Each partition gives it new equations for the same residuals D: with
reshuffled batches a host with ten columns solves for the labels after one pass. With one partition for life,
each batch gives only as many equations as the party has columns.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "COLUMNS_FACTOR",
    "LEAST_BATCH",
    "FrozenBatches",
    "check_batch",
    "check_support",
    "far_rows",
    "least_batch",
    "secret_start",
]

LEAST_BATCH = 256
COLUMNS_FACTOR = 20


class FrozenBatches:
    """Records in batches of one size. A batch is never mixed again, and is forgotten as a whole.

    size: records of a batch.
    seed: known to all parties. It only orders records that are added together, because their own order may
    mean something."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = seed
        self._waiting: list[str] = []
        self._known: set[str] = set()
        self._batches: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._next = 0

    @property
    def batches(self) -> Mapping[int, tuple[str, ...]]:
        """The identifiers of each batch, by the batch's number, oldest first."""
        return self._batches

    @property
    def waiting(self) -> int:
        """Number of records that fill no batch yet. They wait, because a batch of fewer records would reveal
        more about each."""
        return len(self._waiting)

    def add(self, identifiers: Iterable[str]) -> list[int]:
        """Add new records. Returns the numbers of the batches that they fill. A known record stays where it
        is.

        All parties have to add the same records in one call; their order within the call does not matter.
        """
        fresh = {identifier for identifier in identifiers if identifier not in self._known}
        self._known |= fresh
        self._waiting += sorted(fresh, key=self._place)
        filled = []
        while len(self._waiting) >= self._size:
            self._batches[self._next] = tuple(self._waiting[: self._size])
            del self._waiting[: self._size]
            filled.append(self._next)
            self._next += 1
        return filled

    def expire(self, batches: int) -> list[int]:
        """Forget this number of the oldest batches, each as a whole. Returns their numbers.

        Their records stay known: a record in a second batch would give a party two sums whose difference
        reveals it.
        """
        return [self._batches.popitem(last=False)[0] for _ in range(min(batches, len(self._batches)))]

    def _place(self, identifier: str) -> bytes:
        return hashlib.sha256(f"{self._seed} {identifier}".encode()).digest()


def least_batch(columns: int, least: int = LEAST_BATCH) -> int:
    """The fewest rows of a batch for a party with this number of columns: max(least, 20 columns). A batch of
    as many rows as columns reveals every label."""
    return max(least, COLUMNS_FACTOR * columns)


def check_batch(rows: int, columns: int, least: int = LEAST_BATCH) -> None:
    """ValueError if a batch is too small for a party's columns, the intercept included."""
    if rows < (needed := least_batch(columns, least)):
        raise ValueError(
            f"a batch of {rows} rows with {columns} columns would show labels: at least {needed} rows are "
            "needed"
        )


def check_support(inputs: NDArray[np.float64], least: int) -> list[int]:
    """Columns of a batch in which some rows, but fewer than ``least``, differ from the most common value.

    The gradient of such a column is a constant's gradient plus the residuals of these few rows. A single such
    row's label shows.

    inputs: of one party, (rows, columns).
    """
    refused = []
    for column in range(inputs.shape[1]):
        _, counts = np.unique(inputs[:, column], return_counts=True)
        others = len(inputs) - int(counts.max(initial=0))
        if 0 < others < least:
            refused.append(column)
    return refused


def far_rows(inputs: NDArray[np.float64], largest: float, *, intercept: bool = False) -> NDArray[np.bool_]:
    """Rows of a batch that have to be left out of its gradient so that no leverage is above ``largest``:
    (rows,).

    The leverage of row i is h_i = x_i (X'X)^+ x_i', the diagonal of the hat matrix (Hoaglin and Welsch 1978).
    The row stands out most along one weighted sum of the columns. In the gradient along this sum the row's
    residual, which reveals its label, has the weight h_i, and the residuals of all other rows together
    sqrt(h_i (1 - h_i)). At h_i = 1 it is alone. Leaving a row out raises the leverages of others and lowers
    none, so the order in which rows are left out changes nothing.

    inputs: of one party, rounded, (rows, columns).
    intercept: whether a column of ones is beside them.
    """
    columns = np.hstack([inputs, np.ones((len(inputs), 1))]) if intercept else np.array(inputs)
    far = np.zeros(len(columns), dtype=np.bool_)
    # Each turn leaves a row out, or is the last.
    for _ in range(len(columns)):
        found = (_leverages(columns) > largest) & ~far
        if not found.any():
            break
        far |= found
        columns[found] = 0.0
    return far


def _leverages(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    # Not from X'X, whose condition number is the square of X's: columns that differ by little in one row have
    # to be detected.
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    rank = int(np.sum(sizes > max(columns.shape) * np.finfo(np.float64).eps * max(sizes, default=0.0)))
    # Rounded, because processors differ in the last bits, and leverages such as 1 / 5 are common.
    return np.asarray(np.round(np.sum(left[:, :rank] ** 2, axis=1), 6))


def secret_start(secret: bytes, context: bytes, columns: int, size: float = 0.05) -> NDArray[np.float64]:
    """First weights, uniform between -size and size: (columns,).

    A peer that knows the first weights knows the residuals before the first step except for the labels, and
    so finds the labels.

    secret: 32 bytes or more, of the party alone; ValueError for fewer. The federation's seed will not do:
    peers know it.
    context: federation, run and party, as bytes.
    """
    if len(secret) < 32:
        raise ValueError(f"{len(secret)} bytes are too few for a secret")
    named = b"".join(len(part).to_bytes(4, "big") + part for part in (b"quasi-newton start", secret, context))
    drawn = np.frombuffer(hashlib.shake_256(named).digest(8 * columns), dtype=">u8")
    return (drawn.astype(np.float64) * 2.0**-63 - 1.0) * size
