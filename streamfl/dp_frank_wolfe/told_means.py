"""The server's side of means: what the parties told as they froze a window, and what the model's intercept is by that."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from streamfl.changelog import ChangedParts
from streamfl.dp_frank_wolfe.means import intercept
from streamfl.dp_frank_wolfe.public import Public
from streamfl.role import PeerError
from streamfl.value_fragments import ValueFragments

__all__ = ["ToldMeans"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class ToldMeans:
    """The owner of the present window's means, under ``means/PARTY/NUMBER``, as they came."""

    def __init__(self, public: Public, parts: ChangedParts) -> None:
        self._public = public
        self._plans = {party: public.means_plan(party) for party in public.parties}
        self._told = {party: ValueFragments(parts, f"means/{party}", 8 * (plan.columns + 1)) for party, plan in self._plans.items()}

    @property
    def numbers(self) -> int:
        """How many were released."""
        return sum(len(fragments.content) // 8 for fragments in self._told.values())

    def begin(self) -> None:
        """A window, instead of what was."""
        for fragments in self._told.values():
            fragments.clear()

    def has(self, party: str) -> bool:
        """Whether the party has centred its window: one of the release before does not, and tells none."""
        return bool(self._told[party])

    def take(self, party: str, content: bytes, weight: int) -> None:
        """A party's means, 64-bit whole numbers in the noise's units, or nothing. PeerError for what no rows can have led to.

        weight: how many times the label's sum is told.
        """
        if content:
            if weight != (wanted := self._plans[party].weight):
                raise PeerError("configuration", f"{party!r} tells the label's sum {weight} times, and this release {wanted} times")
            self._read(party, content)
            self._told[party].write(content)

    def intercept(self, x: Mapping[str, Floats]) -> float:
        """b of the model with these weights, by party."""
        rows = self._public.settings.window.rows
        read = {party: self._read(party, fragments.content) for party, fragments in self._told.items() if fragments}
        return intercept({party: self._plans[party].means(told, rows) for party, told in read.items()}, self._plans, x)

    def restore(self, key: bytes, value: bytes) -> bool:
        """Restores a piece. False if the key belongs to another owner."""
        return any(fragments.restore(key, value) for fragments in self._told.values())

    def _read(self, party: str, content: bytes) -> Integers:
        plan = self._plans[party]
        if len(content) != 8 * (plan.columns + 1):
            raise PeerError("shape", f"{len(content)} bytes are not the means of {plan.columns} columns and the label")
        told = np.frombuffer(content, "<i8").astype(np.int64)
        most = plan.largest(self._public.settings.window.rows)
        if not ((told >= -most) & (told <= most)).all():
            text = f"a sum of a column is beyond {most[0]}, or the label's beyond {most[-1]}, which no noise takes them to"
            raise PeerError("out_of_bounds", text)
        return told
