"""Reads target rows, and the stored state of a step, for the server's steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.pofmkl.messages import LARGEST_TARGET

__all__ = ["LARGEST_TARGET_NORM", "SMALLEST_TARGET_NORM", "samples_of"]

# A row's norm is |y| only up to the rounding of its features.
LARGEST_TARGET_NORM = LARGEST_TARGET * 1.001
SMALLEST_TARGET_NORM = 1e-12


def samples_of(
    kernels: NDArray[np.intp], rows: NDArray[Any]
) -> tuple[NDArray[np.intp], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Kernels and rows without those of norm 0, and the sample in each row: h = y z as (h/|h|, |h|)."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    telling = norms >= SMALLEST_TARGET_NORM
    if not telling.all():
        kernels, rows, norms = kernels[telling], rows[telling], norms[telling]
    return kernels, rows, rows / norms[:, np.newaxis], norms
