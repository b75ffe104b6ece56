"""A party's releases for an estimator that chooses columns once."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.learning.selection import Floats, Integers, SelectionPlan, row_bits
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext, column_scores
from streamfl.dp_frank_wolfe.party.window import CHUNK, FEATURE_ONE, RESIDUAL_ONE, Window, correlations
from streamfl.encoding.wire import Count
from streamfl.privacy.exponential_mechanism import exponential_mechanism
from streamfl.privacy.release_bits import Release, release_bits

__all__ = ["PartySelection", "SelectionState"]


class SelectionState(msgspec.Struct, array_like=True, frozen=True):
    """A party's progress. transcript: digest of all that was read and released. chosen: its columns."""

    transcript: bytes
    chosen: tuple[Count, ...]


class PartySelection:
    """One party's releases. Call the methods in the order in which they are defined, each once."""

    def __init__(self, window: Window, plan: SelectionPlan, place: ReleaseContext) -> None:
        self._window = window
        self._plan = plan
        self._place = place
        self._transcript = hashlib.sha256(b"streamfl selection/1" + window.digest).digest()
        self.chosen: list[int] = []

    @property
    def state(self) -> SelectionState:
        """The state to remember. Setting it continues the releases from there."""
        return SelectionState(self._transcript, tuple(self.chosen))

    @state.setter
    def state(self, state: SelectionState) -> None:
        self._transcript, self.chosen = state.transcript, list(state.chosen)

    def choose(self) -> list[int]:
        """N_k columns, best first: the exponential mechanism over +-a_i'y of the columns that are left, N_k
        times."""
        scores = correlations(self._window.columns, self._window.labels, RESIDUAL_ONE)
        left = np.arange(len(scores))
        for number in range(min(self._plan.columns, len(scores))):
            # At x = 0 the gradient is -A'y.
            signed = column_scores(-scores[left])
            if self._plan.rate is None:
                found = int(np.argmax(signed))
            else:
                found = int(
                    exponential_mechanism(signed, self._plan.rate).draw(
                        self._bits(f"choice {number}", 1, (self._plan.rate,))
                    )[0]
                )
            self.chosen.append(int(left[found % len(left)]))
            left = np.delete(left, found % len(left))
            self._hear(b"%d" % self.chosen[-1])
        return self.chosen

    def values(self) -> Floats:
        """a_i'y / n of the chosen columns."""
        sums = correlations(self._own, self._window.labels, RESIDUAL_ONE)
        return self._noisy("values", sums) / (FEATURE_ONE * RESIDUAL_ONE * len(self._own))

    def norms(self) -> Floats:
        """|a_i|^2 / n of the chosen columns."""
        sums = np.sum(self._own.astype(np.int64) ** 2, axis=0)
        return self._noisy("norms", sums) / (FEATURE_ONE**2 * len(self._own))

    def rows(self) -> Floats:
        """The chosen columns' rows: (rows, N_k), in features of 1."""
        return self._noisy("rows", self._own.astype(np.int64).ravel()).reshape(self._own.shape) / FEATURE_ONE

    def gram(self) -> Floats:
        """A_k'A_k / n. The upper triangle is released, then mirrored."""
        own = self._own.astype(np.float64)
        above = np.triu_indices(own.shape[1])
        found = np.zeros((own.shape[1], own.shape[1]))
        found[above] = self._noisy("gram", (own.T @ own).astype(np.int64)[above]) / (
            FEATURE_ONE**2 * len(own)
        )
        return found + np.triu(found, 1).T

    def products(self, others: Integers) -> Floats:
        """A_k'Z / n: (N_k, others). others: the other parties' rows, clipped."""
        self._hear(others.astype("<i8").tobytes())
        sums = np.zeros((self._own.shape[1], others.shape[1]), dtype=np.int64)
        for start in range(0, len(others), CHUNK):
            part = self._own[start : start + CHUNK].astype(np.float64).T @ others[
                start : start + CHUNK
            ].astype(np.float64)
            sums += part.astype(np.int64)
        told = self._noisy("products", sums.ravel()).reshape(sums.shape)
        return np.ldexp(told, -row_bits(self._plan.row_bound)) / (FEATURE_ONE * len(others))

    @property
    def _own(self) -> NDArray[np.int16]:
        return self._window.columns[:, self.chosen]

    def _noisy(self, kind: str, sums: Integers) -> Floats:
        """The sums as the server gets them: with fresh noise, unless epsilon is infinite."""
        if self._plan.rate is None:
            return sums.astype(np.float64)
        noise = self._plan.noises[kind]
        bits = self._bits(kind, len(sums), (noise.variance, noise.unit))
        told = noise.add(sums, bits)
        self._hear(kind.encode(), told.astype("<i8").tobytes())
        return told.astype(np.float64) * noise.unit

    def _bits(self, kind: str, draws: int, given: tuple[Fraction | int, ...]) -> bytes:
        place = self._place
        every = (FEATURE_ONE, RESIDUAL_ONE, self._plan.columns, self._plan.row_bound, *given)
        release = Release(
            place.ledger, place.federation, place.party, place.window, 0, kind, every, self._transcript
        )
        return release_bits(place.secret, release, draws)

    def _hear(self, *parts: bytes) -> None:
        content = b"".join(len(part).to_bytes(8, "big") + part for part in (self._transcript, *parts))
        self._transcript = hashlib.sha256(content).digest()
