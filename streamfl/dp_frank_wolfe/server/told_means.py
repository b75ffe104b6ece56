"""The server's side of means: what parties released when they froze a window, and the model's intercept from
that."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.learning.means import intercept
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.state import MEANS
from streamfl.state.changelog import ChangedParts
from streamfl.state.value_fragments import ValueFragments

__all__ = ["ToldMeans"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class ToldMeans:
    """The present window's means, remembered as they came."""

    def __init__(self, public: Public, parts: ChangedParts) -> None:
        self._public = public
        self._plans = {party: public.means_plan(party) for party in public.parties}
        self._told = {
            party: ValueFragments(parts, MEANS, 8 * (plan.columns + 1), party)
            for party, plan in self._plans.items()
        }

    @property
    def numbers(self) -> int:
        """How many numbers were released."""
        return sum(len(fragments.content) // 8 for fragments in self._told.values())

    def begin(self) -> None:
        """Begins a window: forgets the last one's means."""
        for fragments in self._told.values():
            fragments.clear()

    def has(self, party: str) -> bool:
        """Whether the party has centred its window. A party of the release before does not, and sends no
        means."""
        return bool(self._told[party])

    def take(self, party: str, content: bytes, weight: int) -> None:
        """Takes a party's means: 64-bit whole numbers in the noise's units, or nothing. Raises BadRecord for
        impossible means.

        weight: w, which the label's sum is multiplied by.
        """
        if content:
            if weight != (wanted := self._plans[party].weight):
                raise BadRecord(
                    "configuration",
                    f"{party!r} tells the label's sum {weight} times, and this release {wanted} times",
                )
            self._read(party, content)
            self._told[party].write(content)

    def intercept(self, x: Mapping[str, Floats]) -> float:
        """b, the intercept of the model with these weights. x: by party."""
        rows = self._public.settings.window.rows
        read = {
            party: self._read(party, fragments.content)
            for party, fragments in self._told.items()
            if fragments
        }
        return intercept(
            {party: self._plans[party].means(told, rows) for party, told in read.items()}, self._plans, x
        )

    def _read(self, party: str, content: bytes) -> Integers:
        plan = self._plans[party]
        if len(content) != 8 * (plan.columns + 1):
            raise BadRecord(
                "shape", f"{len(content)} bytes are not the means of {plan.columns} columns and the label"
            )
        told = np.frombuffer(content, "<i8").astype(np.int64)
        most = plan.largest(self._public.settings.window.rows)
        if not ((told >= -most) & (told <= most)).all():
            text = (
                f"a sum of a column is beyond {most[0]}, or the label's beyond {most[-1]}, more than noise "
                "can explain"
            )
            raise BadRecord("out_of_bounds", text)
        return told
