"""A party's part of a sum: its part of phases, distances or outputs as whole numbers, under masks.

FDSKL, Algorithm 3: party p sends omega_p' x_p + b_p. Here phases are numbers on an integer circle, so that a
uniform mask hides them entirely. Each pair of parties agrees on masks for one round, and these cancel in the
sum. ``masks`` draws the masks, and ``sums`` adds the parts and sends them on.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.messages import DISTANCES, KNOWN, OUTPUTS, Round
from streamfl.fdskl.sums.circle import from_circle, number_type, to_circle
from streamfl.fdskl.sums.frequencies import Frequencies, SpectralDensity
from streamfl.fdskl.sums.masks import CHECK_WORDS, masked, paper_mask
from streamfl.identity.keys import derive
from streamfl.privacy.keyed_noise import ROUNDING, noisy

__all__ = [
    "DISTANCE_BITS",
    "LARGEST_PART",
    "OUTPUT_BITS",
    "Contributions",
    "features_of",
    "numbers_of",
    "opened_distances",
    "opened_outputs",
]

# A squared distance between entities as a whole number of 2^-24, at most 2^30, so that 64 parties' parts fit
# into 64 bits.
DISTANCE_BITS, DISTANCE_STEPS, FARTHEST = 64, 2.0**24, 2.0**30
# f_l' as a whole number of 2^-40, at most 2^16, so that 64 parties' parts fit into 63 bits with their sign.
OUTPUT_BITS, OUTPUT_STEPS, LARGEST_PART = 64, 2.0**40, 2.0**16
SUM = b"sum"
# Numbers that are converted together, so that intermediate results stay in the processor's caches.
BLOCK = 16_384


class Contributions:
    """One party's part of the sums of one partition.

    settings: of the party.
    secret: of the party in this partition.
    noise_secret: that noise on the columns is drawn from.
    partition: its number.
    """

    def __init__(self, settings: FdsklSettings, secret: bytes, noise_secret: str, partition: int) -> None:
        self._settings = settings
        self._secret = secret
        self._noise_secret = noise_secret
        # The noise depends on it.
        self._place = settings.fingerprint, partition
        self._own = settings.own
        self._mask = settings.aggregation.mask
        self._bits = settings.aggregation.circle_bits
        self._laplacian = settings.learning.kernel == "laplacian"
        self._frequencies: Frequencies | None = None
        self._bandwidth = math.nan
        self.first_bandwidth: float | None = None
        """Bandwidth of the first round that asked for features; None: there was none."""

    def frequencies(self, bandwidth: float) -> Frequencies:
        """The party's part of the random features of a kernel with this bandwidth.

        With any but the first bandwidth private frequencies are drawn anew: the same draws at two scales,
        with the same offset, would show how many whole turns there are.
        """
        if self._frequencies is None or bandwidth != self._bandwidth:
            learning, federation = self._settings.learning, self._settings.federation
            density = SpectralDensity(learning.kernel, bandwidth, learning.matern_nu, learning.columns_share)
            secret = None if self._settings.aggregation.frequencies == "shared" else self._secret
            if secret is not None and self.first_bandwidth not in (None, bandwidth):
                secret = derive(secret, b"fdskl bandwidth " + struct.pack("<d", bandwidth))
            parties, columns = len(federation.parties), self._settings.columns
            self._frequencies = Frequencies(
                density, columns, federation.seed, secret, parties, self._own, federation.root
            )
            self._bandwidth = bandwidth
        return self._frequencies

    def numbers(
        self, announced: Round, identity: bytes, secrets: Mapping[int, bytes], rows: NDArray[np.float64]
    ) -> NDArray[Any]:
        """This party's part of the sum, with check words at its end, (numbers + CHECK_WORDS,).

        identity: of the round.
        secrets: by party, the secret that only this party's life and that party's can compute.
        rows: standardised columns of the round's entities, (n, columns); where outputs are asked for, f_l' of
        them, (n,)."""
        if announced.purpose == OUTPUTS:
            numbers = np.rint(rows * OUTPUT_STEPS).astype(np.int64).view(np.uint64)
        elif announced.purpose == KNOWN:
            numbers = np.zeros(0, number_type(self._bits))
        elif announced.purpose == DISTANCES:
            numbers = self._distances(self._hidden(announced.entities, rows))
        else:
            numbers = to_circle(
                self._phases(announced, self._hidden(announced.entities, rows)), self._bits
            ).ravel()
        return masked(numbers, secrets if self._mask == "one-time" else {}, self._own, identity, SUM)

    def owners(self, announced: Round) -> NDArray[np.int64]:
        """p'(i), the party whose b_i is the phase of each feature of the round, (features,)."""
        drawn = self.frequencies(announced.bandwidth)
        return np.concatenate([drawn.owners(one.first, one.count) for one in announced.ranges])

    def own_masks(self, announced: Round, owner: int) -> NDArray[Any]:
        """With mask = "paper": b_p of the round's features that ``owner`` owns, with check words: (its
        features + CHECK_WORDS,).

        The sum of these over all parties but the owner is taken off the sum of phases (Algorithm 3, lines 9
        to 11).
        """
        masks = np.concatenate([paper_mask(self._secret, one.first, one.count) for one in announced.ranges])
        return masked(to_circle(masks[self.owners(announced) == owner], self._bits), {}, self._own, b"", SUM)

    def _phases(self, announced: Round, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """omega_i x_p, plus b_p: of the features that this party owns, or with mask = "paper" of all, (n,
        features)."""
        phases = self.frequencies(announced.bandwidth).partial_phases(
            rows, [(one.first, one.count) for one in announced.ranges]
        )
        if self._mask == "paper":
            masks = np.concatenate(
                [paper_mask(self._secret, one.first, one.count) for one in announced.ranges]
            )
            phases = phases + np.where(self.owners(announced) == self._own, 0.0, masks)
        return phases

    def _distances(self, rows: NDArray[np.float64]) -> NDArray[Any]:
        """Squared distances between entities 0 and 1, 2 and 3, …, for the L1 kernel their L1 distances:
        (pairs,)."""
        differences = rows[0::2] - rows[1::2]
        parts = np.abs(differences).sum(axis=1) if self._laplacian else np.square(differences).sum(axis=1)
        return np.asarray(np.rint(np.minimum(parts, FARTHEST) * DISTANCE_STEPS).astype(np.uint64))

    def _hidden(self, entities: Sequence[str], rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows shortened to a norm, with noise on them; as they are without ``privacy.input_noise``."""
        norm, noise = self._settings.privacy.input_norm, self._settings.privacy.input_noise
        if norm is None or noise is None:
            return rows
        bound = norm * (1 - ROUNDING)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        short = rows * np.minimum(1.0, bound / np.maximum(lengths, bound))
        return np.array(
            [
                noisy(row, noise, norm, self._noise_secret, *self._place, self._own, entity)
                for entity, row in zip(entities, short, strict=True)
            ]
        ).reshape(rows.shape)


def numbers_of(announced: Round, bits: int) -> tuple[int, Any]:
    """How many numbers a sum of this round has, with check words, and of which type."""
    if announced.purpose == DISTANCES:
        return len(announced.entities) // 2 + CHECK_WORDS, number_type(DISTANCE_BITS)
    if announced.purpose == OUTPUTS:
        return len(announced.entities) + CHECK_WORDS, number_type(OUTPUT_BITS)
    if announced.purpose == KNOWN:
        return CHECK_WORDS, number_type(bits)
    features = sum(one.count for one in announced.ranges)
    return len(announced.entities) * features + CHECK_WORDS, number_type(bits)


def features_of(total: NDArray[Any], entities: int) -> NDArray[np.float64]:
    """phi_i(x) = sqrt(2) cos(omega_i' x + b_i)   (FDSKL, eq. 7), (entities, features), from a complete sum of
    phases."""
    features = np.empty(len(total))
    for start in range(0, len(total), BLOCK):
        part = features[start : start + BLOCK]
        np.cos(from_circle(total[start : start + BLOCK]), out=part)
        part *= math.sqrt(2)
    return features.reshape(entities, -1)


def opened_distances(total: NDArray[Any], laplacian: bool) -> NDArray[np.float64]:
    """Distances of pairs of entities, (pairs,), from a complete sum of distances."""
    distances = total.astype(np.float64) / DISTANCE_STEPS
    return distances if laplacian else np.sqrt(distances)


def opened_outputs(total: NDArray[Any]) -> NDArray[np.float64]:
    """f of entities, (n,), from a complete sum of the active parties' f_l' (FDSKL, Algorithm 1, line 6)."""
    return np.asarray(total.view(np.int64) / OUTPUT_STEPS)
