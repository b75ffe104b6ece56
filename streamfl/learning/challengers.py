"""What a user would pick instead: River's models and two trivial predictors, one for each client, on its own samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from streamfl.learning.own_models import OwnChallenger, OwnModel, is_own
from streamfl.role import ConfigurationError

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


class RiverClassifier:
    """A River classifier of labels 0 and 1; its predictions are the probability of 1, and one half where it has no opinion."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def predict(self, inputs: dict[int, float]) -> float:
        probabilities = self._model.predict_proba_one(inputs)
        # A class that was never seen is left out.
        return float(probabilities.get(True, 0.0)) if probabilities else 0.5

    def learn(self, inputs: dict[int, float], label: float) -> None:
        self._model.learn_one(inputs, bool(label))


class Probability:
    """A challenger whose predictions are kept away from 0 and 1 by 1 / (2 n + 2) after n labels.

    Nearest neighbours, trees and the last label say 0 and 1, and a single error would cost them infinite log loss. It is what
    Krichevsky and Trofimov's estimator leaves to the other kind after n labels of one kind.
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


# River's own choice, SWINN, searches the same 1000 samples: approximately, by chance, and at a multiple of the time.
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
    """What a challenger is, in a few words; None for a model of one's own."""
    return _ABOUT.get(name)


def challenger(name: str | OwnModel, loss: Literal["square", "logistic"] = "square") -> Challenger:
    """A new challenger for labels that are numbers, or with loss = "logistic" for labels 0 and 1, of which it gives probabilities.

    name: one of :func:`challenger_names`; or a model of one's own, or "package.module:function" for one without parameters.
    ConfigurationError lists the known names, or says what is wrong with the model.

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
    """How the model of one's own is made that a name, "package.module:function", stands for."""
    return name if isinstance(name, OwnModel) else OwnModel(name, name)


def model_name(model: str | OwnModel) -> str:
    """As settings and metrics name it."""
    return model.name if isinstance(model, OwnModel) else model
