"""What a user would pick instead: River regressors and two trivial predictors, one for each client, on its own samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from streamfl.role import ConfigurationError

__all__ = ["Challenger", "LastLabel", "RiverChallenger", "RunningMean", "challenger", "challenger_names"]


class Challenger(Protocol):
    """A learner of one client: it predicts a sample, then is told the label."""

    def predict(self, inputs: dict[int, float]) -> float:
        """The prediction of a sample whose label is not known yet."""

    def learn(self, inputs: dict[int, float], label: float) -> None:
        """Take the label in."""


class RunningMean:
    """The mean of the labels so far, 0 before the first."""

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def predict(self, inputs: dict[int, float]) -> float:
        return self._sum / self._count if self._count else 0.0

    def learn(self, inputs: dict[int, float], label: float) -> None:
        self._sum += label
        self._count += 1


class LastLabel:
    """The label before, 0 before the first."""

    def __init__(self) -> None:
        self._label = 0.0

    def predict(self, inputs: dict[int, float]) -> float:
        return self._label

    def learn(self, inputs: dict[int, float], label: float) -> None:
        self._label = label


class RiverChallenger:
    """A River regressor; its predictions are kept between the smallest and the largest label seen, as none knows better.

    Without that linear models and trees on scaled inputs are off by orders of magnitude for their first samples.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._low, self._high = 0.0, 0.0
        self._learnt = False

    def predict(self, inputs: dict[int, float]) -> float:
        return min(max(float(self._model.predict_one(inputs)), self._low), self._high)

    def learn(self, inputs: dict[int, float], label: float) -> None:
        self._model.learn_one(inputs, label)
        self._low = min(self._low, label) if self._learnt else label
        self._high = max(self._high, label) if self._learnt else label
        self._learnt = True


def _linear() -> Any:
    from river import linear_model, preprocessing

    return preprocessing.StandardScaler() | linear_model.LinearRegression()


def _knn() -> Any:
    from river import neighbors

    return neighbors.KNNRegressor()


def _scaled_knn() -> Any:
    from river import neighbors, preprocessing

    return preprocessing.StandardScaler() | neighbors.KNNRegressor()


def _hoeffding() -> Any:
    from river import preprocessing, tree

    return preprocessing.StandardScaler() | tree.HoeffdingAdaptiveTreeRegressor(seed=0)


_RIVER: dict[str, Callable[[], Any]] = {
    "linear": _linear,
    "knn": _knn,
    "scaled-knn": _scaled_knn,
    "hoeffding": _hoeffding,
}
_TRIVIAL: dict[str, Callable[[], Challenger]] = {"running-mean": RunningMean, "last-label": LastLabel}


def challenger_names() -> tuple[str, ...]:
    """Every name that :func:`challenger` knows."""
    return (*_TRIVIAL, *_RIVER)


def challenger(name: str) -> Challenger:
    """A new challenger; ConfigurationError lists the known names.

    >>> mean = challenger("running-mean")
    >>> mean.learn({0: 1.0}, 4.0)
    >>> mean.predict({0: 2.0})
    4.0
    """
    if name in _TRIVIAL:
        return _TRIVIAL[name]()
    if name in _RIVER:
        return RiverChallenger(_RIVER[name]())
    raise ConfigurationError(f"challenger {name!r}: known are {', '.join(challenger_names())}")
