"""Fits that are run on one window and replayed on another, released number by released number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from streamfl.dp_frank_wolfe.tools.direct import DirectFit
from streamfl.privacy.exponential_mechanism import exponential_mechanism
from streamfl.privacy.integer_distribution import IntegerDistribution
from streamfl.privacy.integer_noise import IntegerNoise


@dataclass
class Chosen:
    """One choice: what it was of, and what came of it."""

    scores: np.ndarray
    rate: Fraction
    found: np.ndarray


@dataclass
class Told:
    """One noisy release: the values beneath, and what was released."""

    noise: IntegerNoise
    values: np.ndarray
    found: np.ndarray


@dataclass
class Transcript:
    choices: list[Chosen] = field(default_factory=list)
    releases: list[Told] = field(default_factory=list)


class _Recorded:
    def __init__(
        self, transcript: Transcript, scores: np.ndarray, rate: Fraction, forced: Transcript | None
    ) -> None:
        self._transcript, self._scores, self._rate, self._forced = transcript, scores, rate, forced
        self._real: IntegerDistribution = exponential_mechanism(scores, rate)

    def draw(self, bits: bytes) -> np.ndarray:
        number = len(self._transcript.choices)
        found = self._forced.choices[number].found if self._forced else self._real.draw(bits)
        self._transcript.choices.append(Chosen(self._scores, self._rate, found))
        return found


def transcript(
    run: Callable[[], DirectFit], module: str, forced: Transcript | None = None
) -> tuple[DirectFit, Transcript]:
    """Run it, and note every release; with ``forced`` everything that is released is what was released
    there."""
    found = Transcript()
    add = IntegerNoise.add

    def told(noise: IntegerNoise, values: np.ndarray, bits: bytes) -> np.ndarray:
        released = forced.releases[len(found.releases)].found if forced else add(noise, values, bits)
        found.releases.append(Told(noise, values, released))
        return released

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            f"streamfl.dp_frank_wolfe.{module}.exponential_mechanism",
            lambda scores, rate: _Recorded(found, scores, rate, forced),
        )
        patch.setattr(IntegerNoise, "add", told)
        fit = run()
    return fit, found
