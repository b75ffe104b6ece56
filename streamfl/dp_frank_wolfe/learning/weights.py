"""Weights of one party's columns in messages and state: only those that are not 0."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.learning.iterate import SLACK
from streamfl.encoding.changelog_checks import decode_restored
from streamfl.encoding.wire import decode_array, encode_array

__all__ = ["read_columns", "read_remembered", "read_weights", "weights_of"]

Floats = NDArray[np.float64]


def weights_of(own: Floats) -> tuple[bytes, bytes]:
    """Columns as 32-bit numbers, ascending, and their weights as 64-bit floats.

    own: (columns,).
    """
    active = np.flatnonzero(own)
    return active.astype("<u4").tobytes(), encode_array(own[active])


def read_weights(columns: bytes, weights: bytes, count: int, radius: float) -> Floats:
    """Weights, (count,), from what :func:`weights_of` gave. Raises BadRecord for unknown columns and weights
    beyond the radius.

    radius: bound on the sum of the party's absolute weights.
    """
    numbers = read_columns(columns, count)
    found = decode_array(weights, np.float64, (len(numbers),), "weights")
    if (np.diff(numbers) <= 0).any():
        raise BadRecord("malformed", "columns of weights do not ascend")
    if not float(np.sum(np.abs(found))) <= radius * (1 + SLACK):
        raise BadRecord("out_of_bounds", f"weights are beyond the ball of radius {radius:g}")
    own = np.zeros(count)
    own[numbers] = found
    return own


def read_remembered(content: bytes) -> dict[str, tuple[bytes, bytes]]:
    """By party, what :func:`weights_of` gave, from state. Raises BadRecord for anything else."""
    if not content:
        return {}
    return decode_restored(content, dict[str, tuple[bytes, bytes]], "weights in state")


def read_columns(content: bytes, count: int) -> NDArray[np.int64]:
    """Numbers of columns, each once, in the order in which they came. Raises BadRecord for unknown or
    repeated columns."""
    if len(content) % 4:
        raise BadRecord("shape", f"{len(content)} bytes are no columns' numbers")
    numbers = np.frombuffer(content, "<u4").astype(np.int64)
    if len(np.unique(numbers)) < len(numbers) or (numbers >= count).any():
        raise BadRecord("implausible", f"columns are told twice, or beyond the {count} that there are")
    return numbers
