"""The default learner as River estimators: what the service runs where nothing else is said, with one client and no federation.

The client's learner and the server's step are those of the service: every kernel is sent at every sample, and the step follows at
once, as for the client alone that ``streamfl simulate`` shows beside the federation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from river import base

from streamfl.kernels import LOGISTIC, SQUARE, Loss
from streamfl.kernels.log_weights import normalised
from streamfl.learning.challengers import challenger
from streamfl.learning.one_thread import one_thread
from streamfl.pofmkl.config import BANDWIDTHS
from streamfl.pofmkl.lone_client import LoneClient
from streamfl.pofmkl.views import VIEWS, ViewedFeatures
from streamfl.role import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Classifier", "Regressor"]

PRECISIONS: dict[str, type[np.float32] | type[np.float64]] = {"float32": np.float32, "float64": np.float64}
DETECTORS = ("adwin", "none")
# As many as a client keeps for its neighbours: they are learnt again where there are suddenly more features than there is room for.
KEPT = 256
# Of a label, and of one in units of how far the first two are apart: squares in float32 end at 3e38.
LARGEST_LABEL, LARGEST_SCALED = 1e18, 1e36

Floats = NDArray[np.float64]
_Sample = dict[Hashable, float]


class _Columns:
    """Which feature is which column. Room for new features is made by doubling, so that making room stays rare.

    A column that is added later is told from its first value: before that value, all samples have 0 there.
    """

    def __init__(self) -> None:
        self.room = 0
        self._places: dict[Hashable, int] = {}
        # Lists: a number of an array takes Python longer than the sum that it is for.
        self._origins: list[float] = []
        self._sums: list[float] = []
        self._counts: list[int] = []

    def new(self, x: Iterable[Hashable]) -> list[Hashable]:
        # Sorted, so that the order of the features within a sample does not matter.
        return sorted((name for name in x if name not in self._places), key=repr)

    def add(self, names: list[Hashable], x: _Sample) -> None:
        """Give these features of a sample a column each. More room is made where there is too little."""
        first = not self.room
        # A learner has a column at least, where the first sample has no feature.
        needed = max(1, len(self._places) + len(names))
        if needed > self.room:
            self.room = needed if first else max(needed, 2 * self.room)
        for name in names:
            self._places[name] = len(self._places)
            self._origins.append(0.0 if first else x[name])
            self._sums.append(0.0)
            self._counts.append(0)

    def row(self, x: _Sample) -> Floats:
        """The sample as (1, room); what it lacks is the mean of what came so far."""
        row = np.zeros((1, self.room))
        row[0, : len(self._sums)] = [
            x[name] - self._origins[place] if name in x else self._sums[place] / max(self._counts[place], 1)
            for name, place in self._places.items()
        ]
        return row

    def see(self, x: _Sample) -> None:
        """Count the sample among what came so far."""
        for name, value in x.items():
            place = self._places[name]
            self._sums[place] += value - self._origins[place]
            self._counts[place] += 1


class _Alone(base.Estimator):  # type: ignore[misc]
    """What the regressor and the classifier share."""

    _loss: Loss

    def __init__(
        self,
        features_per_kernel: int = 100,
        river: tuple[str, ...] | None = None,
        detector: Literal["adwin", "none"] = "adwin",
        precision: Literal["float32", "float64"] = "float32",
        seed: int = 0,
    ) -> None:
        self.features_per_kernel = features_per_kernel
        self.river = river
        self.detector = detector
        self.precision = precision
        self.seed = seed
        self._columns = _Columns()
        self._client: LoneClient | None = None
        self._latest: deque[tuple[_Sample, float]] = deque(maxlen=KEPT)
        self._label_name: Hashable = None

    @property
    def kernel_weights(self) -> Floats:
        """The weight of each kernel among the kernels, shape (kernels,), summing to one; empty before any sample."""
        return np.zeros(0) if self._client is None else normalised(self._client.log_weights)

    def learn_many(self, X: pd.DataFrame, y: pd.Series[Any]) -> None:
        """Learn from the rows in order, as ``learn_one`` does; ValueError at a broken row, with those before it learnt."""
        if len(X) != len(y):
            raise ValueError(f"{len(X)} rows of features come with {len(y)} labels")
        self._label_name = y.name
        for x, label in zip(_rows(X), y.tolist(), strict=True):
            self._learn(_sample(x), self._number(label))

    def _number(self, y: Any) -> float:
        raise NotImplementedError

    def _learn(self, x: _Sample, label: float) -> None:
        with one_thread:
            new = self._columns.new(x)
            if new or self._client is None:
                room = self._columns.room
                self._columns.add(new, x)
                if self._columns.room > room or self._client is None:
                    self._client = self._begun()
            self._columns.see(x)
            self._latest.append((x, label))
            self._client.learn(self._columns.row(x), label)

    def _begun(self) -> LoneClient:
        """A client with room for the columns, that has learnt the latest samples."""
        if self.precision not in PRECISIONS:
            raise ConfigurationError(f"precision {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if self.detector not in DETECTORS:
            raise ConfigurationError(f"detector {self.detector!r} is not one of {', '.join(DETECTORS)}")
        for name in self.river or ():
            challenger(name, "logistic" if self._loss is LOGISTIC else "square")
        features = ViewedFeatures(
            VIEWS, BANDWIDTHS, self.features_per_kernel, self._columns.room, self.seed, PRECISIONS[self.precision]
        )
        client = LoneClient(features, self._loss, self.seed, self.river or (), self.detector)
        for x, label in self._latest:
            client.learn(self._columns.row(x), label)
        return client

    def _predicted(self, x: _Sample) -> float | None:
        """What the learner predicts, nothing of which stays; None before it has learnt anything."""
        if self._client is None:
            return None
        with one_thread:
            return self._client.predict(self._columns.row(x))

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"features_per_kernel": 10}


class Regressor(_Alone, base.MiniBatchRegressor):  # type: ignore[misc]
    """Regression with what streamfl runs by default, on one stream and without a federation.

    Kernels on scaled views of the sample, the running mean, the last label and two kinds of nearest neighbours are experts. A
    mixture of them follows their recent errors. Inputs and labels are scaled as they come, so there is nothing to tune, and no
    scaler is needed. The last two labels are inputs too: where labels come much later than their samples, errors are larger than
    here.

    A feature that a sample lacks, or that is None, NaN or NA, counts as its mean so far. One that first appears in a later sample
    is learnt from then on. Text is refused: put ``preprocessing.OneHotEncoder`` in front of it.

    Parameters
    ----------
    features_per_kernel
        Random frequencies D of each of the 24 kernels; a kernel has 2 D parameters.
    river
        More experts: any that ``[experts] river`` may name, such as ``"linear"`` or ``"package.module:function"``.
    detector
        ``"adwin"``: where errors have risen, samples from before that are no neighbours any more. ``"none"``: they stay.
    precision
        ``"float32"`` or ``"float64"``: of the kernels.
    seed
        Of the random frequencies.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> import streamfl
    >>> error = evaluate.progressive_val_score(datasets.TrumpApproval().take(200), streamfl.Regressor(), metrics.MAE())
    >>> error.get() < 1.0
    True

    References
    ----------
    [^1]: Ghari & Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022, which it grew out of.
    """

    _loss = SQUARE

    def __init__(
        self,
        features_per_kernel: int = 100,
        river: tuple[str, ...] | None = None,
        detector: Literal["adwin", "none"] = "adwin",
        precision: Literal["float32", "float64"] = "float32",
        seed: int = 0,
    ) -> None:
        super().__init__(features_per_kernel, river, detector, precision, seed)
        # Labels are told from the first one, in units of how far the first other one is from it: any range of labels will do.
        self._origin: float | None = None
        self._unit: float | None = None

    def learn_one(self, x: Mapping[Hashable, Any], y: Any) -> None:
        """Learn from one sample; ValueError, and nothing learnt, if one of them is no finite number, or the label missing."""
        self._learn(_sample(x), self._number(y))

    def predict_one(self, x: Mapping[Hashable, Any]) -> float:
        """The prediction for one sample, in the unit of the target; 0 before anything was learnt."""
        predicted = self._predicted(_sample(x))
        if predicted is None or self._origin is None:
            return 0.0
        return self._origin + predicted * (self._unit or 1.0)

    def predict_many(self, X: pd.DataFrame) -> pd.Series[Any]:
        """The prediction for each row, with the frame's index."""
        import pandas as pd

        return pd.Series([self.predict_one(x) for x in _rows(X)], index=X.index, name=self._label_name, dtype=np.float64)

    def _number(self, y: Any) -> float:
        label = _number(y, "the label")
        if label is None:
            raise ValueError(f"the label is missing: it is {_shown(y)}, and a number is expected")
        if abs(label) > LARGEST_LABEL:
            raise ValueError(f"the label is {label:g}: at most {LARGEST_LABEL:g} in size is expected; change its unit")
        origin = label if self._origin is None else self._origin
        unit = self._unit or abs(label - origin)
        scaled = (label - origin) / (unit or 1.0)
        if abs(scaled) > LARGEST_SCALED:
            raise ValueError(f"the label is {label:g}: that is too far from the first ones, which are {unit:g} apart")
        self._origin, self._unit = origin, unit or None
        return scaled


class Classifier(_Alone, base.MiniBatchClassifier):  # type: ignore[misc]
    """Classification of True and False with what streamfl runs by default, on one stream and without a federation.

    As :class:`Regressor`, with ``learning.loss = "logistic"``: every expert gives a probability.

    Parameters
    ----------
    features_per_kernel
        Random frequencies D of each of the 24 kernels; a kernel has 2 D parameters.
    river
        More experts: any that ``[experts] river`` may name, such as ``"linear"`` or ``"package.module:function"``.
    detector
        ``"adwin"``: where errors have risen, samples from before that are no neighbours any more. ``"none"``: they stay.
    precision
        ``"float32"`` or ``"float64"``: of the kernels.
    seed
        Of the random frequencies.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> import streamfl
    >>> accuracy = evaluate.progressive_val_score(datasets.Phishing().take(300), streamfl.Classifier(), metrics.Accuracy())
    >>> accuracy.get() > 0.8
    True

    References
    ----------
    [^1]: Ghari & Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022, which it grew out of.
    """

    _loss = LOGISTIC

    def learn_one(self, x: Mapping[Hashable, Any], y: Any) -> None:
        """Learn from one sample; ValueError, and nothing learnt, if a feature is text or infinite, or the label no truth value."""
        self._learn(_sample(x), self._number(y))

    def predict_proba_one(self, x: Mapping[Hashable, Any]) -> dict[bool, float]:
        """The probabilities of False and True for one sample; a half each before anything was learnt."""
        predicted = self._predicted(_sample(x))
        probability = 0.5 if predicted is None else predicted
        return {False: 1.0 - probability, True: probability}

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The probabilities for each row: columns False and True, with the frame's index."""
        import pandas as pd

        found = [self.predict_proba_one(x) for x in _rows(X)]
        return pd.DataFrame(found, index=X.index, columns=[False, True], dtype=np.float64)

    def predict_many(self, X: pd.DataFrame) -> pd.Series[Any]:
        """The likelier label of each row, False where both are equally likely, with the frame's index."""
        import pandas as pd

        likely = [self.predict_proba_one(x)[True] > 0.5 for x in _rows(X)]
        return pd.Series(likely, index=X.index, name=self._label_name, dtype=bool)

    def _number(self, y: Any) -> float:
        try:
            # Any text is true in Python, "no" as well.
            known = not isinstance(y, str) and y in (0, 1)
        # Some signs for a gap, and arrays, cannot be compared.
        except (TypeError, ValueError):
            known = False
        if not known:
            raise ValueError(f"the label is {_shown(y)}: True or False is expected, or 1 or 0")
        return float(y)


def _rows(X: pd.DataFrame) -> Iterator[dict[Hashable, Any]]:
    names = list(X.columns)
    columns = [X[name].tolist() for name in names]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)) if names else ({} for _ in range(len(X)))


def _sample(x: Mapping[Hashable, Any]) -> _Sample:
    """The features that are there."""
    sample = {}
    for name, value in x.items():
        # Most are plain numbers; a NaN is in no range.
        number = value if type(value) is float and -math.inf < value < math.inf else _number(value, f"the feature {name!r}")
        if number is not None:
            sample[name] = number
    return sample


def _number(value: Any, what: str) -> float | None:
    # pandas has signs of its own for a gap, which are no numbers.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, str):
        raise ValueError(f"{what} is the text {_shown(value)}: a number is expected")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{what} is {_shown(value)}…, too large: change its unit") from None
    except (TypeError, ValueError):
        raise ValueError(f"{what} is {_shown(value)}, a {type(value).__name__}: a number is expected") from None
    if math.isinf(number):
        raise ValueError(f"{what} is infinite: a finite number is expected")
    return None if math.isnan(number) else number


def _shown(value: Any) -> str:
    return repr(value)[:60]
