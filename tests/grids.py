"""The grid on which numbers lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def grid(numbers: NDArray[Any]) -> float:
    """The largest power of two of which all numbers are multiples."""
    step = 2.0**10
    while not (numbers / step == np.rint(numbers / step)).all():
        step /= 2
        assert step > 2.0**-200
    return step
