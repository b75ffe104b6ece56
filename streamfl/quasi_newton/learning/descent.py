"""The coordinator's decisions: coefficients of a step, pairs to keep, and when to end. It sees nothing but
inner products.

The learning rate is constant and a step's length is bounded. Falling rates are not needed: the mean of an
epoch's iterates has averaged out the batches' noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.learning.curvature import is_usable, two_loop
from streamfl.quasi_newton.learning.taylor import loss_bounds, loss_from_products

__all__ = ["Descent", "DescentSettings", "DescentState"]

# With fewer batches an epoch has one or two steps.
FEW_BATCHES = 3
# With so few batches, the bound on a step doubles after an epoch in which it shortened every step, while
# losses fall. It grows to this many times its first value at most. Weights of columns that nearly repeat one
# another lie far from the start.
FARTHEST = 10.0
# Most that rounding adds to an inner product.
ROUNDED = 2.0**-40
# Most that rounding of outputs adds to a loss.
SLACK = 1e-3
Floats = NDArray[np.float64]


class DescentState(msgspec.Struct, array_like=True):
    """The state of a :class:`Descent`.

    side, pairs: side and numbers of the Gram matrix of the pairs.
    stretch: factor on the bound of a step.
    shortened: whether the bound shortened each step of the epoch so far.
    settled: whether the latest two epochs' losses agree.
    """

    side: Annotated[int, msgspec.Meta(ge=0, le=2048)]
    pairs: bytes
    last_loss: float | None
    epochs: Annotated[int, msgspec.Meta(ge=0)]
    skipped: Annotated[int, msgspec.Meta(ge=0)]
    fallbacks: Annotated[int, msgspec.Meta(ge=0)]
    frozen: bool
    converged: bool
    stretch: Annotated[float, msgspec.Meta(ge=1, le=FARTHEST)] = 1.0
    shortened: bool = True
    settled: bool = False


@dataclass(frozen=True)
class DescentSettings:
    """How the model is learnt: made of the section ``learning`` of the settings. ValueError for values that
    cannot work.

    optimiser: "quasi-newton", or "sgd", which is the same with the curvature off (Hardy et al. 2017).
    batch: |S|, rows of a batch.
    memory: M, pairs that are kept. With at least as many as columns H can become exact.
    curvature_every: L, iterations from pair to pair. S_H is the batch of the iteration: other rows would
        reveal more.
    regularisation: lambda of lambda |w|^2 / 2, without the intercept. The reported loss does not include it.
    learning_rate: eta, constant.
    largest_step: the largest Euclidean length of a step; it keeps a batch with outliers from throwing the
        weights far away. With fewer than ``FEW_BATCHES`` it may become ``FARTHEST`` times as long.
    initial_scale: of the first H, by the newest pair: "long" s's / s'v, or the paper's "short" s'v / v'v, as
        Barzilai and Borwein (1988) call them. With the short one, directions of little curvature wait until a
        pair has seen them.
    freeze_below: once two epochs' losses differ by less, no pairs are taken until they differ by more. The
        steps of an epoch are then the same linear map each time, and the iterates settle. With fewer than
        ``FEW_BATCHES`` they settle without that, and freezing would leave directions that no pair has seen
        yet to steps that are far too short.
    tolerance: the training ends when the losses of two epochs in a row differ by less; with so few batches,
        when those of three in a row differ by less than a tenth of it.
    epochs: most epochs.
    iterations: iterations that may be taken even if they need more epochs than that.
    """

    optimiser: Literal["quasi-newton", "sgd"] = "quasi-newton"
    batch: int = 1000
    memory: int = 20
    curvature_every: int = 4
    regularisation: float = 0.0
    learning_rate: float = 0.4
    largest_step: float = 0.1
    initial_scale: Literal["long", "short"] = "long"
    freeze_below: float = 1e-3
    tolerance: float = 1e-5
    epochs: int = 20
    iterations: int = 0

    def __post_init__(self) -> None:
        if min(self.batch, self.memory, self.curvature_every, self.epochs) < 1:
            raise ValueError("batch, memory, curvature_every and epochs have to be at least 1")
        if not (self.learning_rate > 0 and self.largest_step > 0):
            raise ValueError("learning_rate and largest_step have to be above 0")
        if not (self.regularisation >= 0 and self.tolerance >= 0 and self.freeze_below >= 0):
            raise ValueError("regularisation, tolerance and freeze_below are at least 0")


class Descent:
    """The coordinator's arithmetic over inner products that are summed over the parties."""

    def __init__(self, learning: DescentSettings) -> None:
        self._learning = learning
        self._pairs = np.zeros((0, 0))
        self._last_loss: float | None = None
        self.epochs = 0
        self.skipped = 0
        self.fallbacks = 0
        self.frozen = learning.optimiser == "sgd"
        self.converged = False
        self._stretch = 1.0
        self._shortened = True
        self._settled = False

    @property
    def state(self) -> DescentState:
        """The state, for :meth:`restore`."""
        return DescentState(
            len(self._pairs),
            self._pairs.astype("<f8").tobytes(),
            self._last_loss,
            self.epochs,
            self.skipped,
            self.fallbacks,
            self.frozen,
            self.converged,
            self._stretch,
            self._shortened,
            self._settled,
        )

    def restore(self, state: DescentState) -> None:
        """Continue from ``state``. ValueError if the matrix is malformed."""
        self._pairs = np.frombuffer(state.pairs, "<f8").reshape(state.side, state.side).astype(np.float64)
        self._last_loss, self.epochs, self.skipped = state.last_loss, state.epochs, state.skipped
        self.fallbacks, self.frozen, self.converged = state.fallbacks, state.frozen, state.converged
        self._stretch, self._shortened, self._settled = state.stretch, state.shortened, state.settled

    @property
    def last_loss(self) -> float | None:
        """The latest epoch's loss; None before the first."""
        return self._last_loss

    @property
    def pairs(self) -> int:
        """Number of pairs that are kept."""
        return len(self._pairs) // 2

    def check_step(self, products: Floats, outputs: float) -> None:
        """BadRecord if no vectors have such inner products (Cauchy, Schwarz), or no outputs within the bound
        have such a loss.

        products: inner products of g with the basis, then the argument of :func:`loss_from_products`: (2
        pairs + 2,).
        outputs: the bound on |u|.
        """
        least, most = loss_bounds(outputs)
        _check_products(products[:-2], np.diag(self._pairs), float(products[-2]))
        if not least - SLACK <= loss_from_products(float(products[-1])) <= most + SLACK:
            raise BadRecord("out_of_bounds", f"no outputs up to {outputs:g} have such a loss")

    def check_pair(self, products: Floats, outputs: float) -> None:
        """The same check for a new pair, which has no loss. products: the two arguments of :meth:`offer`,
        concatenated."""
        steps, curvatures = products.reshape(2, -1)
        kept, place, squares = self.pairs, 2 * self.pairs + 1, np.diag(self._pairs)
        squares = np.array([*squares[:kept], steps[kept], *squares[kept:], curvatures[place]])
        _check_products(steps, squares, float(steps[kept]))
        _check_products(curvatures, squares, float(curvatures[place]))

    def offer(self, steps: Floats, curvatures: Floats) -> bool:
        """Decide from a new pair's inner products with the basis (without g) whether the parties keep the
        pair.

        steps: products of s with each pair's s, the new one last, then with each pair's v, the new one last:
        (2 pairs + 2,).
        curvatures: products of v, in the same order.
        """
        kept, place = self.pairs, 2 * self.pairs + 1
        if not is_usable(float(steps[kept]), float(steps[place]), float(curvatures[place])):
            self.skipped += 1
            return False
        gram = np.empty((place + 1, place + 1))
        old = [index for index in range(place) if index != kept]
        gram[np.ix_(old, old)] = self._pairs
        gram[kept, :] = gram[:, kept] = steps
        gram[place, :] = gram[:, place] = curvatures
        if kept + 1 > self._learning.memory:
            without = [index for index in range(place + 1) if index not in (0, kept + 1)]
            gram = gram[np.ix_(without, without)]
        self._pairs = gram
        return True

    def step(self, products: Floats) -> Floats:
        """Coefficients of the basis vectors whose weighted sum the parties subtract from their weights: (2
        pairs + 1,).

        products: inner products of g with the basis, (2 pairs + 1,).
        """
        size = len(products)
        gram = np.empty((size, size))
        gram[:-1, :-1] = self._pairs
        gram[-1, :] = gram[:, -1] = products
        coefficients = two_loop(gram, self._scale())
        slope = float(coefficients @ products)
        length = float(coefficients @ gram @ coefficients)
        if not (math.isfinite(length) and slope > 0 and length > 0):
            # H has lost positive definiteness to rounding. The gradient alone still goes downhill.
            self.fallbacks += self.pairs > 0
            coefficients = np.zeros(size)
            coefficients[-1] = 1.0
            length = float(products[-1])
        rate = self._learning.learning_rate
        longest, bound = rate * math.sqrt(max(length, 0.0)), self._stretch * self._learning.largest_step
        self._shortened = self._shortened and longest > bound
        return coefficients * (rate * min(1.0, bound / longest if longest > 0 else 1.0))

    def end_epoch(self, loss: float, batches: int) -> bool:
        """End an epoch; returns whether the training is over.

        loss: mean over the epoch's batches, each at the weights it was visited with.
        batches: batches of an epoch.
        """
        self.epochs += 1
        few = batches < FEW_BATCHES
        gain = math.inf if self._last_loss is None else self._last_loss - loss
        change = abs(gain)
        self._last_loss = loss
        settled = change < self._learning.tolerance * (0.1 if few else 1.0)
        self.converged = settled and (self._settled or not few)
        self._settled = settled
        if few and gain < 0:
            self._stretch = max(1.0, self._stretch / 2)
        elif few and self._shortened:
            self._stretch = min(FARTHEST, self._stretch * 2)
        self._shortened = True
        if self._learning.optimiser == "quasi-newton":
            self.frozen = change < self._learning.freeze_below and not few
        return self.converged or self.epochs >= max(
            self._learning.epochs, -(-self._learning.iterations // batches)
        )

    def _scale(self) -> float:
        if not self.pairs:
            return 1.0
        newest_s, newest_v = self.pairs - 1, 2 * self.pairs - 1
        ss, sv, vv = (
            float(self._pairs[at])
            for at in ((newest_s, newest_s), (newest_s, newest_v), (newest_v, newest_v))
        )
        return ss / sv if self._learning.initial_scale == "long" else sv / vv


def _check_products(products: Floats, squares: Floats, square: float) -> None:
    """BadRecord if a vector of squared length ``square`` cannot have these products with vectors of
    ``squares``: (vectors,)."""
    most = (np.maximum(squares, 0.0) + ROUNDED) * (max(square, 0.0) + ROUNDED) * (1 + 1e-6)
    if square < -ROUNDED or bool(np.any(np.square(products) > most)):
        raise BadRecord("out_of_bounds", "no vectors have such inner products")
