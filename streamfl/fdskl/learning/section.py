"""What is learnt and how: the settings of the section learning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from streamfl.configuration.settings import Section
from streamfl.configuration.shared import SHARED
from streamfl.state.changeable import CHANGEABLE

__all__ = ["MOST_FEATURES", "KernelLearningSection"]

MOST_FEATURES = 65_536


class KernelLearningSection(Section):
    """What is learnt and how. Every member has to be given the same kernel."""

    loss: Literal["logistic", "square", "smooth-hinge"] = "logistic"
    """The loss: `square` for numbers, `logistic` or `smooth-hinge` for labels 0 and 1. Only the active party
    uses it."""
    positive_weight: Annotated[float, CHANGEABLE] = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    """Weight of a label 1 against a label 0. Above 1 the model finds more of the 1s where they are rare, and
    predictions are above their share. Only the active party uses it."""
    kernel: Annotated[Literal["gaussian", "laplacian", "matern"], SHARED] = "gaussian"
    """The kernel: how similar two entities are at a given distance."""
    matern_nu: Annotated[float, SHARED] = Field(default=1.5, ge=0.5, le=50, allow_inf_nan=False)
    """Smoothness of the kernel `matern`."""
    bandwidth: Annotated[float | None, CHANGEABLE] = Field(default=None, ge=1e-9, le=1e9, allow_inf_nan=False)
    """The kernel's bandwidth: the distance at which entities stop being similar. Left out: the median
    distance between entities, measured by masked sums before the first feature is drawn, times
    bandwidth_multiplier."""
    bandwidth_multiplier: Annotated[float, CHANGEABLE] = Field(
        default=0.7, ge=1e-3, le=1e3, allow_inf_nan=False
    )
    """Factor of the median distance, where bandwidth is left out."""
    solver: Annotated[Literal["newton", "sgd"], CHANGEABLE] = "newton"
    """How coefficients are learnt. `newton`: one block of features at a time is solved for over the window.
    `sgd`: the paper's stochastic gradient."""
    features_limit: Annotated[int, CHANGEABLE] = Field(default=2048, ge=1, le=MOST_FEATURES)
    """Most random features kept, rounded down to whole blocks. New ones beyond it replace the oldest."""
    block_features: int = Field(default=128, ge=1, le=MOST_FEATURES)
    """Random features in a block. An iteration has one block with `sgd`, `visits` blocks with `newton`."""
    block_instances: Annotated[int, CHANGEABLE] = Field(default=256, ge=1, le=1_000_000)
    """New labels that start an iteration."""
    first_instances: Annotated[int, CHANGEABLE] = Field(default=32, ge=1, le=1_000_000)
    """With `newton`: labels that start the first iteration. Each later one takes as many new labels as all
    before it together, up to block_instances."""
    window: Annotated[int, CHANGEABLE] = Field(default=20_000, ge=1, le=10_000_000)
    """With `newton`: number of labelled entities that are learnt from, the latest ones."""
    visits: Annotated[int, CHANGEABLE] = Field(default=4, ge=1, le=1_000)
    """With `newton`: blocks of features in an iteration. They are new until features_limit features are kept;
    then the kept ones are solved for again in turn."""
    sweeps: Annotated[int | None, CHANGEABLE] = Field(default=None, ge=1, le=1_000_000)
    """With `newton`: turns after which, on average, new features replace a block. Set it for a stream that
    drifts: the model forgets what no longer holds. Left out: never."""
    cache_bytes: Annotated[int, CHANGEABLE] = Field(default=268_435_456, ge=0)
    """Memory, in bytes, for features of a partition's labelled entities at the active party. Features that do
    not fit are asked for in each iteration."""
    columns_share: Annotated[float, SHARED] = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    """Probability that a random feature looks at a column. Below 1 the model is a sum over few columns at a
    time, which suits many tables. A feature that looks at one column shows it to the active party, up to
    scale and shift."""
    regularisation: Annotated[float, CHANGEABLE] = Field(default=1e-5, gt=0, le=1e6, allow_inf_nan=False)
    """Strength of the penalty: lambda of lambda |f|^2 / 2."""
    step: Annotated[float, CHANGEABLE] = Field(default=1.0, gt=0, le=1e6, allow_inf_nan=False)
    """With `sgd`: the step size gamma. gamma times regularisation has to be below 1."""
    step_rule: Annotated[Literal["constant", "horizon", "inverse"], CHANGEABLE] = "constant"
    """With `sgd`: the step size over time. `constant`: gamma. `horizon`: log(T) / (lambda T) with T =
    horizon, at most gamma. `inverse`: gamma / (1 + lambda gamma t) at iteration t."""
    horizon: Annotated[int | None, CHANGEABLE] = Field(default=None, ge=2, le=2**53)
    """With step_rule = "horizon": the number of iterations of the whole run."""
    catch_up_samples: Annotated[int, CHANGEABLE] = Field(default=64, ge=0)
    """Unread records at or below which the active party has caught up. Until then, after its start or after
    too much waited, it predicts an entity once the labels of the entities before it are learnt. 0: it
    predicts a history at once, with the model as it is."""
    catch_up_patience_seconds: Annotated[float, CHANGEABLE] = Field(
        default=30.0, gt=0, le=1e6, allow_inf_nan=False
    )
    """Seconds that a backlog waits while learning makes no progress, for instance because a party is away.
    Then the active party predicts without waiting, until there is a new version of the model."""

    @property
    def first_block(self) -> int:
        """Labels of the first iteration."""
        return (
            min(self.first_instances, self.block_instances)
            if self.solver == "newton"
            else self.block_instances
        )

    @model_validator(mode="after")
    def _numbers_fit(self) -> KernelLearningSection:
        if self.loss == "square" and self.positive_weight != 1:
            raise ValueError(
                f'positive_weight = {self.positive_weight:g}: with learning.loss = "square" only 1 has a '
                "meaning"
            )
        if self.step * self.regularisation >= 1:
            raise ValueError(
                f"step = {self.step:g}: learning.step times learning.regularisation has to be below 1"
            )
        if (self.step_rule == "horizon") != (self.horizon is not None):
            text = "is missing" if self.horizon is None else "has no meaning"
            raise ValueError(f'horizon {text}: it belongs to learning.step_rule = "horizon"')
        if self.block_features > self.features_limit:
            raise ValueError(
                f"block_features = {self.block_features}: at most learning.features_limit = "
                f"{self.features_limit} is expected"
            )
        return self
