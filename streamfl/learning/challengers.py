"""Models that a user might pick instead, one per client on its own samples: River's, and two trivial
predictors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from streamfl.contract.role import ConfigurationError
from streamfl.learning.own_models import OwnChallenger, OwnModel, is_own

__all__ = [
    "Challenger",
    "LastLabel",
    "Probability",
    "RiverChallenger",
    "RiverClassifier",
    "RunningMean",
    "challenger",
    "challenger_about",
    "challenger_names",
    "model_name",
    "own_model",
]


class Challenger(Protocol):
    """A model of one client: it predicts a sample, then learns the label."""

    def predict(self, inputs: dict[int, float]) -> float:
        """The prediction of a sample whose label is not known yet."""

    def learn(self, inputs: dict[int, float], label: float) -> None:
        """Learn the label of a sample."""


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
    """The previous label, 0 before the first."""

    def __init__(self) -> None:
        self._label = 0.0

    def predict(self, inputs: dict[int, float]) -> float:
        return self._label

    def learn(self, inputs: dict[int, float], label: float) -> None:
        self._label = label


class RiverChallenger:
    """A River regressor, its predictions clipped to the range of the labels seen.

    Unclipped, linear models and trees on scaled inputs are off by orders of magnitude for their first
    samples.
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


class RiverClassifier:
    """A River classifier of labels 0 and 1. Predicts the probability of 1; one half if River returns no
    probabilities."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def predict(self, inputs: dict[int, float]) -> float:
        probabilities = self._model.predict_proba_one(inputs)
        # River leaves out a class that it has never seen.
        return float(probabilities.get(True, 0.0)) if probabilities else 0.5

    def learn(self, inputs: dict[int, float], label: float) -> None:
        self._model.learn_one(inputs, bool(label))


class Probability:
    """A challenger whose predictions are kept away from 0 and 1 by 1 / (2 n + 2) after n labels.

    Nearest neighbours, trees and the last label predict 0 and 1, and one error would cost infinite log loss.
    The margin is what the Krichevsky-Trofimov estimator gives the other label after n equal labels.
    """

    def __init__(self, model: Challenger) -> None:
        self._model = model
        self._labels = 0

    def predict(self, inputs: dict[int, float]) -> float:
        least = 0.5 / (self._labels + 1)
        return min(max(self._model.predict(inputs), least), 1.0 - least)

    def learn(self, inputs: dict[int, float], label: float) -> None:
        self._model.learn(inputs, label)
        self._labels += 1


def _linear() -> Any:
    from river import linear_model, preprocessing

    return preprocessing.StandardScaler() | linear_model.LinearRegression()


def _logistic() -> Any:
    from river import linear_model, preprocessing

    return preprocessing.StandardScaler() | linear_model.LogisticRegression()


# River's default engine, SWINN, searches the same 1000 samples approximately and at random, in a multiple of
# the time.
def _knn() -> Any:
    from river import neighbors

    return neighbors.KNNRegressor(engine=neighbors.LazySearch(window_size=1000))


def _knn_classifier() -> Any:
    from river import neighbors

    return neighbors.KNNClassifier(engine=neighbors.LazySearch(window_size=1000))


def _scaled_knn() -> Any:
    from river import preprocessing

    return preprocessing.StandardScaler() | _knn()


def _scaled_knn_classifier() -> Any:
    from river import preprocessing

    return preprocessing.StandardScaler() | _knn_classifier()


def _hoeffding() -> Any:
    from river import preprocessing, tree

    return preprocessing.StandardScaler() | tree.HoeffdingAdaptiveTreeRegressor(seed=0)


def _hoeffding_classifier() -> Any:
    from river import preprocessing, tree

    return preprocessing.StandardScaler() | tree.HoeffdingAdaptiveTreeClassifier(seed=0)


_REGRESSORS: dict[str, Callable[[], Any]] = {
    "linear": _linear,
    "knn": _knn,
    "scaled-knn": _scaled_knn,
    "hoeffding": _hoeffding,
}
_CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "linear": _logistic,
    "knn": _knn_classifier,
    "scaled-knn": _scaled_knn_classifier,
    "hoeffding": _hoeffding_classifier,
}
_TRIVIAL: dict[str, Callable[[], Challenger]] = {"running-mean": RunningMean, "last-label": LastLabel}
_ABOUT = {
    "running-mean": "mean of the client's labels so far",
    "last-label": "the client's last label",
    "linear": "River's linear regression",
    "knn": "River's nearest neighbours",
    "scaled-knn": "River's nearest neighbours, inputs scaled",
    "hoeffding": "River's decision tree",
}


def challenger_names() -> tuple[str, ...]:
    """Every name that :func:`challenger` knows, whatever the loss."""
    return (*_TRIVIAL, *_REGRESSORS)


def challenger_about(name: str) -> str | None:
    """What a challenger is, in a few words; None for a user's own model."""
    return _ABOUT.get(name)


def challenger(name: str | OwnModel, loss: Literal["square", "logistic"] = "square") -> Challenger:
    """A new challenger: for numeric labels, or with loss = "logistic" for labels 0 and 1; it then predicts
    the probability of 1.

    name: one of :func:`challenger_names`; or a user's own model, or "package.module:function" for one without
    parameters. ConfigurationError lists the known names, or says what is wrong with the model.

    >>> mean = challenger("running-mean")
    >>> mean.learn({0: 1.0}, 4.0)
    >>> mean.predict({0: 2.0})
    4.0
    >>> share = challenger("running-mean", "logistic")
    >>> share.learn({0: 1.0}, 1.0)
    >>> share.predict({0: 2.0})
    0.75
    """
    if isinstance(name, OwnModel) or is_own(name):
        return OwnChallenger(own_model(name), loss)
    if name not in challenger_names():
        raise ConfigurationError(f"challenger {name!r}: known are {', '.join(challenger_names())}")
    if loss == "logistic":
        return Probability(_TRIVIAL[name]() if name in _TRIVIAL else RiverClassifier(_CLASSIFIERS[name]()))
    return _TRIVIAL[name]() if name in _TRIVIAL else RiverChallenger(_REGRESSORS[name]())


def own_model(name: str | OwnModel) -> OwnModel:
    """The user's own model of this name, "package.module:function", without parameters."""
    return name if isinstance(name, OwnModel) else OwnModel(name, name)


def model_name(model: str | OwnModel) -> str:
    """The model's name in settings and metrics."""
    return model.name if isinstance(model, OwnModel) else model
