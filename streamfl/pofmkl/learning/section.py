"""How clients learn: the settings of the section learning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from streamfl.configuration.settings import Section
from streamfl.configuration.shared import SHARED
from streamfl.pofmkl.kinds import CLIENT
from streamfl.state.changeable import CHANGEABLE, Changeable

__all__ = ["LearningSection"]


class LearningSection(Section):
    """How clients learn. Symbols are those of Ghari and Shen, NeurIPS 2022."""

    preset: Annotated[Literal["default", "paper"], SHARED] = "default"
    """The learner. `default`: the recommended one. `paper`: exactly the paper's; other keys set what it
    leaves open."""
    # Rounds and updates are both counted up, so the model's version goes on.
    staleness: Annotated[Literal["lockstep", "bounded", "async"], CHANGEABLE, SHARED] = "async"
    """How far a client may run ahead of the model. `async`: live records never wait. `bounded`: max_staleness
    labels on one model version. `lockstep`: in rounds, as in the paper; the default with `paper`. The server
    and the clients need the same."""
    max_staleness: Annotated[int | None, CHANGEABLE] = Field(default=None, ge=1)
    """The most labels that a client learns on one model version. Required with `bounded`, refused
    otherwise."""
    catch_up_samples: Annotated[int, CHANGEABLE] = Field(default=4, ge=0, le=1_000_000)
    """With `async`: the most labels that a client learns on one model version while it has a backlog, because
    its topic has a history or it was away. It then waits for the model to advance. It begins with one label,
    and gets one more after every 8. 0: it learns a backlog at once, with the model as it is. Live records
    never wait."""
    catch_up_patience_seconds: Annotated[float, CHANGEABLE] = Field(default=30.0, ge=0, allow_inf_nan=False)
    """With `async`: seconds that clients with a backlog wait for a new version of the model. After that they
    learn alone, until one comes."""
    precision: Annotated[Literal["float32", "float64"], SHARED] = "float32"
    """Number type of features and parameters. Weights and sums are always float64."""
    loss: Annotated[Literal["square", "logistic"], SHARED] = "square"
    """The loss. `logistic` is for labels 0 and 1: predictions are the probability of 1."""
    # The step is in the server's state only.
    server_step: Annotated[Literal["least-squares", "gradient", "adagrad"], Changeable(at=CLIENT)] = (
        "least-squares"
    )
    """With the preset `default`: the optimiser that the server applies to updates."""
    learning_rate: Annotated[float | None, CHANGEABLE, SHARED] = Field(
        default=None, gt=0, le=1e6, allow_inf_nan=False
    )
    """eta, the step size. Left out: 0.5 with `gradient`, 0.1 with `adagrad`, 1 / sqrt(horizon) with `paper`.
    `least-squares` has none."""
    horizon: Annotated[int, CHANGEABLE, SHARED] = Field(default=1000, ge=1, le=10**15)
    """With `paper`: T, the expected number of samples of a client."""
    regularisation: Annotated[float, CHANGEABLE, SHARED] = Field(
        default=1e-3, ge=0, le=1e6, allow_inf_nan=False
    )
    """With `paper`: lambda, the weight of the L2 penalty."""
    exploration: Annotated[float | None, CHANGEABLE, SHARED] = Field(default=None, ge=0, le=1)
    """xi, the uniform share when the kernels to send are drawn (equation 8). Left out: 0.2, or 1 with
    `paper`."""
    features_per_kernel: Annotated[int, SHARED] = Field(default=100, ge=1, le=100_000)
    """D, random frequencies per kernel. Kernels x D x inputs x 8 bytes may be 4 GiB at most."""
    shared_directions: Annotated[bool, SHARED] = False
    """With `paper`: whether kernels of one family share directions, scaled by bandwidth. It saves
    computation, but the draws are no longer independent."""
    round_timeout_seconds: Annotated[float, CHANGEABLE] = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds that a lockstep round waits for silent clients. The first round waits for all of
    federation.clients, a later one for those that took part in the round before. After a client missed a
    round, the server waits for it again once it takes part."""
    upload_interval_ms: Annotated[int, CHANGEABLE] = Field(default=1000, ge=1, le=86_400_000)
    """With `paper` and `bounded` or `async`: milliseconds after which a client sends an open upload even
    without a new model. The preset `default` sends each upload at once."""

    @property
    def lockstep(self) -> bool:
        """Whether clients go in rounds."""
        return self.staleness == "lockstep"

    @property
    def dtype(self) -> Any:
        """NumPy's type of features and parameters."""
        return np.float64 if self.precision == "float64" else np.float32

    @property
    def row_length(self) -> int:
        """2 D, the numbers of a kernel's parameters."""
        return 2 * self.features_per_kernel

    @property
    def rate(self) -> float:
        """eta: ``learning_rate``, or its default if it is left out."""
        if self.learning_rate is not None:
            return self.learning_rate
        if self.preset == "paper":
            return 1.0 / math.sqrt(self.horizon)
        return 0.1 if self.server_step == "adagrad" else 0.5

    @property
    def effective_exploration(self) -> float:
        """xi: ``exploration``, or its default if it is left out."""
        return self.exploration if self.exploration is not None else 1.0 if self.preset == "paper" else 0.2

    @model_validator(mode="before")
    @classmethod
    def _the_paper_is_of_rounds(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and content.get("preset") == "paper" and "staleness" not in content:
            return {**content, "staleness": "lockstep"}
        return content

    @model_validator(mode="after")
    def _bounds_belong_to_bounded(self) -> LearningSection:
        if self.staleness == "bounded" and self.max_staleness is None:
            raise ValueError(
                'max_staleness is missing: staleness = "bounded" needs it, a whole number from 1'
            )
        if self.staleness != "bounded" and self.max_staleness is not None:
            raise ValueError(
                f'max_staleness = {self.max_staleness} has no meaning with staleness = "{self.staleness}"; '
                'set staleness = "bounded" or leave it out'
            )
        return self
