"""A party's noise in one partition, keyed so that no draw ever hides two values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import uniform
from streamfl.privacy.keyed_noise import ROUNDING, noisy
from streamfl.vafl.party.life import PartyLife
from streamfl.vafl.privacy import Mechanism

__all__ = ["PartyNoise"]


class PartyNoise:
    """Noise on embeddings and on steps.

    Reusing one noise draw at two scales lets an observer solve for the value beneath. So everything that
    scales the noise is in its key. The epoch is not: the clock gives it, and repeated work may fall into
    another one.

    mechanism: norms, strengths and the secret.
    fingerprint: of the settings that all members have to agree on.
    name: of the party.
    partition: where the entities lie.
    life: has the start of the parameters, and the digest of what they learnt from.
    """

    def __init__(
        self, mechanism: Mechanism, fingerprint: int, name: str, partition: int, life: PartyLife
    ) -> None:
        self._mechanism = mechanism
        self._fingerprint = fingerprint
        self._name = name
        self._partition = partition
        self._life = life

    @property
    def bound(self) -> float | None:
        """The norm that each gradient of a step is clipped to; None: steps have no noise."""
        norm = self._mechanism.gradient_norm
        return None if norm is None or self._mechanism.gradient_noise is None else norm * (1 - ROUNDING)

    @property
    def of_steps(self) -> tuple[float | None, float | None]:
        """S and sigma of the noise on steps; None without noise."""
        return self._mechanism.gradient_norm, self._mechanism.gradient_noise

    @property
    def step_noise(self) -> float:
        """sigma of the noise on steps; 0 without noise."""
        return self._mechanism.gradient_noise or 0.0

    def onto_embedding(
        self, values: NDArray[Any], sequence: int, entity: str, features: bytes
    ) -> NDArray[np.float64]:
        """An embedding with its noise, (embedding size,).

        values: the embedding, (embedding size,).
        sequence: its number.
        entity: its entity's name.
        features: the features that it was computed from, raw numbers.
        """
        mechanism = self._mechanism
        place = (*self._place("embedding"), sequence, entity, features)
        return noisy(values, mechanism.embedding_noise, mechanism.embedding_norm, mechanism.secret, *place)

    def onto_step(self, total: NDArray[Any], strength: float) -> NDArray[np.float64]:
        """A sum of gradients with its noise, (size,).

        total: the sum, (size,), of gradients with norms up to :attr:`bound`.
        strength: sigma, in units of the norm.
        """
        norm = self._mechanism.gradient_norm
        assert norm is not None
        return noisy(total, strength * norm, norm, self._mechanism.secret, *self._place("gradient"))

    def inside(self, units: int, sequences: Sequence[int]) -> NDArray[Any] | None:
        """Noise inside the function's hidden layers, (embeddings, units), from -1 to 1; the same for an
        embedding and its gradient.

        units: numbers of noise per embedding; 0: none.
        sequences: numbers of the embeddings.
        """
        if not units:
            return None
        path = ("hidden", self._mechanism.secret, self._partition)
        return np.stack([2 * uniform(units, 0, *path, sequence) - 1 for sequence in sequences])

    def _place(self, kind: str) -> tuple[str | int | float | bytes, ...]:
        mechanism, life = self._mechanism, self._life
        norms = mechanism.embedding_norm, mechanism.gradient_norm or 0.0
        strengths = mechanism.embedding_noise, mechanism.gradient_noise or 0.0
        return (
            self._fingerprint,
            self._name,
            self._partition,
            kind,
            life.start,
            life.learnt,
            *norms,
            *strengths,
        )
