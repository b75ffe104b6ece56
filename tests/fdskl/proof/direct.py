"""What a federation learns, computed in arrays: the same features, windows, blocks and steps, without
parties, rounds or masks."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.learning.doubly_stochastic import decay, step_alphas, step_size
from streamfl.fdskl.learning.iteration import FEWEST_DISTANCES
from streamfl.fdskl.learning.losses import loss_named
from streamfl.fdskl.learning.newton import of_few, solve_block
from streamfl.fdskl.learning.schedule import ends_of_iterations
from streamfl.fdskl.learning.section import KernelLearningSection
from streamfl.fdskl.sums.circle import from_circle, to_circle
from streamfl.fdskl.sums.frequencies import Frequencies, SpectralDensity
from streamfl.fdskl.sums.standardisation import moments_of, scaling_of

__all__ = ["DirectModel", "Party", "learn", "median_distance", "standardised"]

Floats = NDArray[np.float64]
# Most distances between entities for the bandwidth, which is their median; rows whose features are computed
# at a time.
MOST_DISTANCES, CHUNK = 256, 4096


@dataclass(frozen=True)
class Party:
    """names: of its columns. inputs: standardised, (entities, columns). secret: None for shared
    frequencies."""

    names: Sequence[str]
    inputs: Floats
    secret: bytes | None = None


@dataclass
class DirectModel:
    """A model and how it was learnt.

    outputs: f of each entity that was shown, in that order, by the model before it learnt from the entity.
    bandwidth: of the kernel.
    first: number of the oldest kept feature.
    alphas: of the kept ones.
    iterations, features_dropped: how many.
    phases: numbers that each party put into sums, except for predictions.
    """

    outputs: list[float] = field(default_factory=list)
    bandwidth: float = 0.0
    first: int = 0
    alphas: Floats = field(default_factory=lambda: np.zeros(0))
    iterations: int = 0
    features_dropped: int = 0
    phases: int = 0
    _features: _Features | None = None

    def evaluate(self, inputs: Sequence[Floats]) -> Floats:
        """f of other entities, (n,); inputs: by party, (n, columns)."""
        assert self._features is not None
        found = np.zeros(len(inputs[0]))
        if len(self.alphas):
            for start in range(0, len(found), CHUNK):
                part = [own[start : start + CHUNK] for own in inputs]
                found[start : start + CHUNK] = (
                    self._features.of(part, self.first, len(self.alphas)) @ self.alphas
                )
        return found


def standardised(inputs: Floats, first: int) -> Floats:
    """Columns that are standardised by a party's first entities, (n, columns); a missing number becomes the
    mean.

    first: the number of these entities.
    """
    rows = np.asarray(inputs, dtype=np.float64)
    return scaling_of(moments_of(rows[:first])).apply(rows)


def median_distance(inputs: Sequence[Floats], entities: Sequence[int], laplacian: bool = False) -> float:
    """The median distance of pairs of these entities, without distances of 0; 1 if all are 0."""
    whole = np.concatenate([own[list(entities)[: len(entities) // 2 * 2]] for own in inputs], axis=1)
    differences = whole[0::2] - whole[1::2]
    distances = np.abs(differences).sum(axis=1) if laplacian else np.linalg.norm(differences, axis=1)
    return float(np.median(distances[distances > 0])) if (distances > 0).any() else 1.0


class _Features:
    """phi of entities from the columns of all parties. bits: None: phases are sums of floats; 32 or 64: of
    circle numbers."""

    def __init__(
        self, parties: Sequence[Party], density: SpectralDensity, seed: int, root: int, bits: int | None
    ) -> None:
        self._bits = bits
        self._drawn = [
            Frequencies(density, party.names, seed, party.secret, len(parties), own, root)
            for own, party in enumerate(parties)
        ]

    def of(self, inputs: Sequence[Floats], first: int, count: int) -> Floats:
        """sqrt(2) cos(omega_i' x + b_i), (n, count); inputs: by party."""
        parts = [
            drawn.partial_phases(own, [(first, count)])
            for drawn, own in zip(self._drawn, inputs, strict=True)
        ]
        if self._bits is None:
            phases = sum(parts[1:], parts[0])
        else:
            numbers = [to_circle(part, self._bits) for part in parts]
            phases = from_circle(sum(numbers[1:], numbers[0]))
        return np.asarray(math.sqrt(2.0) * np.cos(phases))


def learn(
    parties: Sequence[Party],
    labels: Floats,
    learning: KernelLearningSection,
    entities: Sequence[int] | None = None,
    *,
    seed: int = 0,
    root: int = 0,
    bits: int | None = None,
) -> DirectModel:
    """Learn from entities in the order in which their labels come.

    labels: (entities,), -1 and +1, or real ones for the square loss.
    entities: rows, as often as they are shown; left out: all of them once.
    seed: of the federation.
    root: place of the active party.
    bits: of a phase, None for one without rounding.
    """
    order = np.arange(len(labels)) if entities is None else np.asarray(entities)
    inputs = [party.inputs for party in parties]
    learnt = DirectModel()
    latest = order[: max(learning.first_block, 2 * FEWEST_DISTANCES)][-2 * MOST_DISTANCES :].tolist()
    laplacian = learning.kernel == "laplacian"
    median = learning.bandwidth or learning.bandwidth_multiplier * median_distance(inputs, latest, laplacian)
    learnt.bandwidth = median
    density = SpectralDensity(learning.kernel, median, learning.matern_nu, learning.columns_share)
    learnt._features = features = _Features(parties, density, seed, root, bits)
    solver = (_Newton if learning.solver == "newton" else _Sgd)(learning, features, inputs, labels, learnt)
    start = 0
    for end in ends_of_iterations(learning.first_block, learning.block_instances):
        shown = order[start:end].tolist()
        learnt.outputs += solver.show(shown).tolist()
        if len(shown) < end - start:
            break
        solver.iterate(shown)
        learnt.iterations += 1
        start = end
    learnt.first, learnt.alphas = solver.model()
    return learnt


class _Newton:
    """A window of rows, each with f and its features in blocks by their numbers."""

    def __init__(
        self,
        learning: KernelLearningSection,
        features: _Features,
        inputs: Sequence[Floats],
        labels: Floats,
        learnt: DirectModel,
    ) -> None:
        self._learning = learning
        self._phi = features
        self._inputs = inputs
        self._labels = labels
        self._learnt = learnt
        self._loss = loss_named(learning.loss, learning.positive_weight)
        self._size = learning.block_features
        self._most = learning.features_limit // self._size
        rows = min(max(learning.window, learning.block_instances), len(labels))
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._rows = np.zeros(rows, np.int64)
        self._outputs = np.zeros(rows)
        self._free = list(range(rows - 1, -1, -1))
        self._alphas: dict[int, Floats] = {}
        self._features: dict[int, NDArray[np.float32]] = {}
        self._next = self._visits = self._version = 0

    def show(self, rows: list[int]) -> Floats:
        """Take rows into the window, and return their f by the model as it is."""
        fresh: dict[int, None] = {}
        for row in rows:
            if row in self._slots:
                self._slots.move_to_end(row)
                continue
            if not self._free:
                self._free.append(self._slots.popitem(last=False)[1])
            self._slots[row] = self._free.pop()
            fresh[row] = None
        if fresh:
            slots = np.array([self._slots[row] for row in fresh])
            self._rows[slots] = list(fresh)
            self._outputs[slots] = 0.0
            for block, alphas in self._alphas.items():
                exact = self._of(list(fresh), block)
                self._features[block][slots] = exact
                self._outputs[slots] += exact @ alphas
        return self._outputs[[self._slots[row] for row in rows]]

    def iterate(self, rows: list[int]) -> None:
        """Solve for the blocks whose turn it is, over the whole window."""
        learning = self._learning
        blocks, replaces = self._plan()
        slots = np.sort(np.fromiter(self._slots.values(), np.int64, len(self._slots)))
        used: slice | NDArray[np.int64] = slice(0, len(slots)) if slots[-1] == len(slots) - 1 else slots
        outputs, labels = self._outputs[used], self._labels[self._rows[used]]
        regularisation = of_few(learning.regularisation, len(labels))
        if replaces:
            oldest = min(self._alphas)
            outputs = outputs - self._features.pop(oldest)[used] @ self._alphas.pop(oldest)
            self._learnt.features_dropped += self._size
        for block in blocks:
            if block not in self._alphas:
                self._alphas[block] = np.zeros(self._size)
                self._features[block] = np.zeros((len(self._rows), self._size), np.float32)
                for start in range(0, len(slots), CHUNK):
                    part = slots[start : start + CHUNK]
                    self._features[block][part] = self._of(self._rows[part].tolist(), block)
                self._next = block + 1
            features, alphas = self._features[block][used], self._alphas[block]
            limit = self._most * self._size
            step = solve_block(features, outputs, labels, alphas, limit, regularisation, self._loss)
            outputs = outputs + features @ step.astype(np.float32)
            self._alphas[block] = alphas + step
        self._outputs[used] = outputs
        self._visits += len(blocks)
        self._version += 1

    def model(self) -> tuple[int, Floats]:
        """Number of the oldest kept feature, and the coefficients from it on."""
        kept = sorted(self._alphas)
        return (
            (kept[0] * self._size, np.concatenate([self._alphas[block] for block in kept]))
            if kept
            else (0, np.zeros(0))
        )

    def _plan(self) -> tuple[list[int], bool]:
        """Blocks of this iteration, and whether the first replaces the oldest."""
        learning, kept = self._learning, sorted(self._alphas)
        if room := self._most - len(kept):
            return list(range(self._next, self._next + min(room, learning.visits))), False
        count = min(learning.visits, self._most)
        if learning.sweeps is not None and self._version % math.ceil(learning.sweeps / learning.visits) == 0:
            others = [kept[1 + (self._visits + number) % (self._most - 1)] for number in range(count - 1)]
            return [self._next, *others], True
        return [kept[(self._visits + number) % self._most] for number in range(count)], False

    def _of(self, rows: list[int], block: int) -> Floats:
        self._learnt.phases += len(rows) * self._size
        return self._phi.of([own[rows] for own in self._inputs], block * self._size, self._size)


class _Sgd:
    """Coefficients over a common scale. (Algorithm 1 for B instances and R features at a time.)"""

    def __init__(
        self,
        learning: KernelLearningSection,
        features: _Features,
        inputs: Sequence[Floats],
        labels: Floats,
        learnt: DirectModel,
    ) -> None:
        self._learning = learning
        self._phi = features
        self._inputs = inputs
        self._labels = labels
        self._learnt = learnt
        self._loss = loss_named(learning.loss, learning.positive_weight)
        self._size = learning.block_features
        self._most = learning.features_limit // self._size * self._size
        self._stored, self._scale = np.zeros(0), 1.0
        self._first = self._version = 0
        self._shown = np.zeros((0, 0))

    def show(self, rows: list[int]) -> Floats:
        """f of the rows by the model as it is."""
        kept = len(self._stored)
        self._learnt.phases += len(rows) * (kept + self._size)
        self._shown = self._phi.of([own[rows] for own in self._inputs], self._first, kept + self._size)
        return np.asarray(self._scale * (self._shown[:, :kept] @ self._stored))

    def iterate(self, rows: list[int]) -> None:
        """One step from the rows that were shown last."""
        learning, kept = self._learning, len(self._stored)
        outputs = self._scale * (self._shown[:, :kept] @ self._stored)
        gamma = step_size(
            learning.step_rule, self._version, learning.step, learning.regularisation, learning.horizon
        )
        alphas = step_alphas(self._shown[:, kept:], outputs, self._labels[rows], gamma, self._loss)
        self._scale = decay(self._scale, gamma, learning.regularisation)
        if kept >= self._most:
            self._stored = self._stored[self._size :]
            self._first += self._size
            self._learnt.features_dropped += self._size
        self._stored = np.concatenate([self._stored, alphas / self._scale])
        self._version += 1

    def model(self) -> tuple[int, Floats]:
        """Number of the oldest kept feature, and the coefficients from it on."""
        return self._first, self._stored * self._scale
