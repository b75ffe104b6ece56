"""What bounds an input, a label and an update: nothing counts as further out than what is usual, however far out it is.

Usual is what was declared: a label in ``samples.label_range``, an input up to ``samples.input_norm``. There every number counts as
it is. Beyond, the preset default goes by what the numbers before it were like (:func:`streamfl.kernels.online_scaling.reach`), and
the preset paper, which knows the declared range alone, takes one range more. An update moves no prediction by more than one range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from streamfl.kernels.online_scaling import clipped
from streamfl.role import Measurement, Notice

__all__ = ["HIGHEST", "LOWEST", "Bounds", "longest_step"]

# A number that is too far out counts as one that is so much as far: the usual ones end there, and the views of inputs.
COUNTED = 0.3
# In units of samples.label_range, which is 0 to 1.
LOWEST, HIGHEST = -1.0, 2.0

Floats = NDArray[np.float64]
_WHAT = {
    "labels": "labels were further out than any before them could be, or than one range beyond samples.label_range, and counted as "
    "the furthest that could",
    "inputs": "inputs were further out than any before them could be, and counted as the furthest that could",
    "updates": "steps of a kernel would have moved predictions by more than one range of samples.label_range, and were shortened",
}


def longest_step(clients: int) -> float:
    """The norm of a kernel's row that moves predictions by one label range, where the server divides by so many clients."""
    return float(clients)


class Bounds:
    """Brings numbers to their bounds, and counts how many it changed since it was made."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._told: Counter[str] = Counter()
        self._latest: dict[str, float] = {}

    def within(self, what: str, numbers: Floats, means: Floats | float, far: Floats | float, low: float, high: float) -> Floats:
        """The numbers; one that is further than ``far`` from its mean, and not from ``low`` to ``high``, as it counts.

        what: "labels" or "inputs".
        """
        outside = ((numbers < low) | (numbers > high)) & (np.abs(numbers - means) > far)
        if not outside.any():
            return numbers
        self.note(what, int(np.count_nonzero(outside)), float(numbers[outside][-1]))
        counted = COUNTED * far
        return np.where(outside, clipped(numbers, np.minimum(means - counted, low), np.maximum(means + counted, high)), numbers)

    def note(self, what: str, count: int, latest: float) -> None:
        """So many were brought to their bounds; the latest was as large as this."""
        self.counts[what] += count
        self._latest[what] = latest

    def take(self) -> Counter[str]:
        """How many were brought to their bounds since the last call."""
        if self._told == self.counts:
            return Counter()
        taken, self._told = self.counts - self._told, self.counts.copy()
        return taken

    def notices(self) -> Iterable[Notice]:
        """The same, for the log."""
        for what, more in self.take().items():
            text = _WHAT[what]
            yield Notice(f"bounded_{what}", f"{more} {text}; the last was {self._latest[what]:g}, on the learner's scale")

    def measure(self) -> Iterable[Measurement]:
        """How many were bounded."""
        text = "Labels that were too far out and counted as the furthest that could be"
        yield Measurement("bounded_labels", "counter", text, self.counts["labels"])
        text = "Inputs that were too far out and counted as the furthest that could be"
        yield Measurement("bounded_inputs", "counter", text, self.counts["inputs"])
        text = "Steps of a kernel that were too long and were shortened before they were sent"
        yield Measurement("bounded_steps", "counter", text, self.counts["updates"])
