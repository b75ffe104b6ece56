"""The coordinator's own model in one partition: theta_0, its optimiser, and the gradient gathered for the
next step.

VAFL, Algorithm 1, server: theta_0 <- theta_0 - eta_0 (d l / d theta_0 + grad r(theta_0)). The gradients of
the embeddings, d l / d h, go back to the parties as ``replies``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import Count
from streamfl.learning.optimisers import LARGEST_GRADIENT, finite_step, optimiser_named
from streamfl.state.changelog import ChangedParts, changed_chunks, restore_chunk
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.entities import LARGEST_OUTPUT
from streamfl.vafl.given import CoordinatorGiven
from streamfl.vafl.messages import ANOTHER, within_bounds
from streamfl.vafl.metrics import CoordinatorMetrics
from streamfl.vafl.state import ARRAY, HEAD_COUNTERS

__all__ = ["LearningHead"]

# After so many steps, a step takes one entity more. A head that has learnt little steps on every entity; so
# few extra steps cost little.
GROWTH = 64


class HeadCounters(msgspec.Struct, array_like=True):
    """What is remembered of a head besides its arrays.

    steps: the number of steps taken.
    gathered: entities in the gradient so far.
    fingerprint: of the settings that all members have to agree on.
    released_without_noise: whether anything about a label ever was, though mu assumes noise.
    start: bytes that theta_0 was drawn from besides the seed; empty: from the seed alone.
    """

    steps: Count = 0
    gathered: Count = 0
    fingerprint: int = 0
    released_without_noise: bool = False
    start: bytes = b""


class LearningHead:
    """The head of one partition.

    settings, given: the coordinator's.
    partition: its number.
    parts: where the counters are remembered.
    metrics: count its steps, of all partitions.
    """

    def __init__(
        self,
        settings: VaflSettings,
        given: CoordinatorGiven,
        partition: int,
        parts: ChangedParts,
        metrics: CoordinatorMetrics,
    ) -> None:
        self._remember_counters = parts.single(HEAD_COUNTERS, HeadCounters, self._restore_counters)
        parts.register(ARRAY.prefix, self._restore_array)
        self._head = given.head
        self._seed = settings.federation.seed
        self._partition = partition
        self._fingerprint = settings.fingerprint
        self._metrics = metrics
        self._most = settings.batch_size
        # Whether steps begin with one entity.
        self._grows = settings.learning.batch_size is None
        self._regularisation = settings.learning.regularisation
        self._parameters = self._first_parameters(given.start)
        self._optimiser = optimiser_named(settings.optimiser, settings.head_rate, given.head.size)
        self._gradient = np.zeros(given.head.size)
        self._counters = HeadCounters(fingerprint=self._fingerprint, start=given.start)
        self._counters_written = self._gradient_changed = self._parameters_changed = False

    def _first_parameters(self, start: bytes) -> NDArray[Any]:
        return self._head.initial(self._seed, *((self._partition, start.hex()) if start else ()))

    @property
    def parameters(self) -> NDArray[Any]:
        """theta_0, (size,): a copy."""
        return self._parameters.copy()

    def evaluate(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Outputs of n entities, (n, outputs), clipped to numbers that can be remembered: too large steps may
        make them huge.

        inputs: (n, M, embedding size).
        """
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = np.nan_to_num(self._head.forward(self._parameters, inputs)[0])
        largest = min(LARGEST_OUTPUT, float(np.sqrt(np.finfo(outputs.dtype).max)))
        return np.asarray(np.clip(outputs, -largest, largest))

    @property
    def has_learnt(self) -> bool:
        """Whether the head has learnt from an entity; always False for a head without parameters."""
        return self._counters.steps > 0 or self._counters.gathered > 0

    def entities_until_step(self) -> int | None:
        """How many more entities make a step; None: there are no parameters, so no steps."""
        return max(1, self._wanted - self._counters.gathered) if self._head.size else None

    @property
    def _wanted(self) -> int:
        """Entities in the next step."""
        return min(self._most, 1 + self._counters.steps // GROWTH) if self._grows else self._most

    def learn(
        self, inputs: NDArray[Any], gradient_of: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> NDArray[Any]:
        """Learn from n entities; theta_0 steps if its batch is full. Returns d l / d h, (n, M, embedding
        size), within bounds.

        inputs: (n, M, embedding size).
        gradient_of: maps outputs (n, outputs) to d l / d outputs.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            outputs, done = self._head.forward(self._parameters, inputs)
            cotangents = np.nan_to_num(gradient_of(outputs)).astype(outputs.dtype, copy=False)
            gradient, down = self._head.backward(self._parameters, done, cotangents)
            if self._head.size:
                # A sum that is not finite could not be restored after a restart.
                self._gradient += np.clip(
                    np.nan_to_num(gradient.astype(np.float64)), -LARGEST_GRADIENT, LARGEST_GRADIENT
                )
                self._counters.gathered += len(inputs)
                self._gradient_changed = True
                if self._counters.gathered >= self._wanted:
                    self._step()
        return within_bounds(down, inputs.dtype)

    def _step(self) -> None:
        counters = self._counters
        gradient = self._gradient / counters.gathered + self._regularisation * self._parameters
        taken = finite_step(self._optimiser, self._parameters, gradient, counters.steps + 1)
        counters.steps += taken
        self._metrics.steps += taken
        self._metrics.refused_steps += not taken
        self._gradient[:] = 0.0
        counters.gathered = 0
        self._parameters_changed = True

    def note_release_without_noise(self) -> None:
        """Note that labels are released without noise. The note is committed together with the release."""
        if not self._counters.released_without_noise:
            self._counters.released_without_noise = True
            self._counters_written = False

    @property
    def released_without_noise(self) -> bool:
        return self._counters.released_without_noise

    # ---- state

    def changed_state(self, others_changed: bool) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of arrays that changed since the last call. Remembers the counters among the
        partition's parts.

        others_changed: whether other owners in the partition have changes.
        """
        if self._parameters_changed:
            yield from changed_chunks({"parameters": self._parameters, **self._optimiser.arrays})
        if self._gradient_changed:
            yield from changed_chunks({"gradient": self._gradient})
        if self._gradient_changed or (not self._counters_written and others_changed):
            self._counters_written = True
            self._remember_counters(self._counters)
        self._gradient_changed = self._parameters_changed = False

    def _restore_counters(self, counters: HeadCounters) -> None:
        """BadRecord if another federation wrote them."""
        self._counters, self._counters_written = counters, True
        if counters.fingerprint != self._fingerprint:
            raise BadRecord("configuration", ANOTHER)
        if not counters.steps:
            self._parameters[:] = self._first_parameters(counters.start)

    def _restore_array(self, name: bytes, value: bytes) -> None:
        arrays = {"parameters": self._parameters, "gradient": self._gradient, **self._optimiser.arrays}
        restore_chunk(arrays, ARRAY.prefix + name, value, self._optimiser.check)
