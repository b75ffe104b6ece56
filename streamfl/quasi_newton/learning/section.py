"""How the model is learnt: the settings of the section learning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from streamfl.configuration.settings import Section
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.state.changeable import CHANGEABLE

__all__ = ["ITERATIONS", "CurvatureLearningSection"]

# One batch of 500 or 1,000 rows needs 20 to 100 iterations to converge.
ITERATIONS = 400


class CurvatureLearningSection(Section):
    """How the model is learnt. Every member has to be given the same values.

    learning_rate, largest_step, freeze_below, tolerance and epochs may change at a restart. Change them at
    the guest last: it then tries a failed training again.
    """

    optimiser: Literal["quasi-newton", "sgd"] = "quasi-newton"
    """The optimiser. `sgd`: the same without curvature."""
    batch: int = Field(default=1000, ge=1, le=100_000)
    """Entities of a batch. Batches are fixed once; entities that fill none wait. One batch comes nearest to
    the optimum: with up to some 5,000 entities it may hold them all. If the first training has fewer, because
    some are held out or not common, they form one batch, and all later batches have its size. It must be at
    least half of this, min_batch, and 20 for each of a party's columns."""
    memory: int = Field(default=20, ge=1, le=100)
    """Most curvature pairs that are kept."""
    curvature_every: int = Field(default=4, ge=1, le=10_000)
    """Iterations from one curvature pair to the next."""
    regularisation: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    """The L2 penalty: lambda in lambda |w|^2 / 2, without the intercept."""
    learning_rate: Annotated[float, CHANGEABLE] = Field(
        default=DescentSettings().learning_rate, gt=0, le=1e6, allow_inf_nan=False
    )
    """The factor that each step is multiplied by."""
    largest_step: Annotated[float, CHANGEABLE] = Field(
        default=DescentSettings().largest_step, gt=0, le=1e6, allow_inf_nan=False
    )
    """Largest Euclidean length of a step. With one or two batches the limit grows, up to ten times this,
    while it shortens each step and losses fall."""
    freeze_below: Annotated[float, CHANGEABLE] = Field(
        default=DescentSettings().freeze_below, ge=0, allow_inf_nan=False
    )
    """No curvature pairs are taken while the losses of two epochs in a row differ by less than this."""
    tolerance: Annotated[float, CHANGEABLE] = Field(default=1e-5, ge=0, allow_inf_nan=False)
    """The training ends when the losses of two epochs in a row differ by less than this. With one or two
    batches: when those of three in a row differ by less than a tenth of it."""
    epochs: Annotated[int, CHANGEABLE] = Field(default=20, ge=1, le=100_000)
    """Most epochs of a training. Left out: 20, or as many as 400 iterations take, so that few batches
    converge, too."""
    min_batch: int = Field(default=256, ge=1, le=100_000)
    """Fewest entities of a batch. A smaller one is refused, and one smaller than 20 times a party's
    columns."""
    min_support: int = Field(default=10, ge=1, le=100_000)
    """Fewest entities of a batch that must differ from a column's most common value. A column with fewer is
    left out; in a batch of a later training it gets its most common value instead."""
    largest_leverage: float = Field(default=0.2, gt=0, le=1)
    """Largest share of a batch's gradient that an entity may have to itself (its leverage). An entity so far
    out in a party's columns that it exceeds this is learnt from with zeros in place of these columns. Before
    that, columns are cut at the range of the entities that are not far out. 1: nothing is cut, and no entity
    is left out."""
    input_bound: float = Field(default=256.0, ge=1, le=1e6, allow_inf_nan=False)
    """Largest size of an input after preprocessing. Inputs beyond it are cut to it."""
    output_bound: float = Field(default=64.0, gt=0, le=1e6, allow_inf_nan=False)
    """Largest size of a party's inner product. One beyond it ends the training."""

    @property
    def descent(self) -> DescentSettings:
        """These settings as the arithmetic takes them."""
        return DescentSettings(
            optimiser=self.optimiser,
            batch=self.batch,
            memory=self.memory,
            curvature_every=self.curvature_every,
            regularisation=self.regularisation,
            learning_rate=self.learning_rate,
            largest_step=self.largest_step,
            freeze_below=self.freeze_below,
            tolerance=self.tolerance,
            epochs=self.epochs,
            iterations=0 if "epochs" in self.model_fields_set else ITERATIONS,
        )
