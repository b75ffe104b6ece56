"""The first labels of a stream without a declared range: once there are ten, they tell which of them was none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamfl.kernels.online_scaling import clipped

__all__ = ["FIRST", "settled"]

FIRST = 10
# In units of how far half of them are from their median: beyond the one nobody's label is, to the other it is brought.
TOO_FAR, FAR = 1000.0, 5.0


def settled(labels: Sequence[float]) -> list[float] | None:
    """The labels, with those that are far from all others brought near them; None: there are none such.

    >>> settled([1.0, 2.0, 3.0]), settled([1e6, 1.0, 2.0, 3.0, 4.0])
    (None, [8.0, 1.0, 2.0, 3.0, 4.0])
    """
    given = np.array(labels)
    middle = np.median(given)
    distances = np.abs(given - middle)
    usual = np.median(distances)
    if usual == 0.0 or (distances <= TOO_FAR * usual).all():
        return None
    near = clipped(given, middle - FAR * usual, middle + FAR * usual)
    return [float(number) for number in np.where(distances > TOO_FAR * usual, near, given)]
