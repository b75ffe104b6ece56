"""The default learner as River estimators: what the service runs by default, with one client and no
federation.

The client's learner and the server's step are those of the service. Every sample updates every kernel at
once, as for the client alone that ``streamfl simulate`` shows beside the federation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from river import base

from streamfl.contract.role import ConfigurationError
from streamfl.kernels import LOGISTIC, SQUARE, Loss
from streamfl.learning.challengers import challenger
from streamfl.learning.one_thread import one_thread
from streamfl.pofmkl.config import BANDWIDTHS
from streamfl.pofmkl.estimators.features import FeatureColumns, Sample, number_of, sample_of, shown
from streamfl.pofmkl.estimators.lone_client import LoneClient
from streamfl.pofmkl.estimators.tables import columns_like, name_of, numbers_or_labels, rows_of, values_like
from streamfl.pofmkl.learning.log_weights import normalised
from streamfl.pofmkl.learning.views import VIEWS, ViewedFeatures

__all__ = ["Classifier", "Regressor"]

PRECISIONS: dict[str, type[np.float32] | type[np.float64]] = {"float32": np.float32, "float64": np.float64}
DETECTORS = ("adwin", "none")
# As many samples as a client keeps for its neighbours. They are learnt again when new features need more room
# than there is.
KEPT = 256
# The largest label, and the largest one in units of the distance between the first two: squares in float32
# end at 3e38.
LARGEST_LABEL, LARGEST_SCALED = 1e18, 1e36
# The learner of each class holds 5 MB. More classes than this are more likely numbers, for Regressor, or
# identifiers.
MOST_CLASSES = 100
# A seed is written as eight bytes with a sign.
LARGEST_SEED = 2**63 - 1

Floats = NDArray[np.float64]


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
        self._columns = FeatureColumns()
        # Each learns the label, or whether the label is one class.
        self._clients: list[LoneClient] = []
        self._latest: deque[tuple[Sample, Any]] = deque(maxlen=KEPT)
        self._label_name: Hashable = None

    @property
    def kernel_weights(self) -> Floats:
        """The weight of each kernel among the kernels, shape (kernels,), summing to one; empty before any
        sample.

        With one learner per class, these are the weights of the first class.
        """
        return normalised(self._clients[0].log_weights) if self._clients else np.zeros(0)

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn from the rows in order, as ``learn_one`` does. ValueError at a broken row; the rows before it
        stay learnt.

        X is a DataFrame of pandas or polars, or a NumPy array, whose columns are called 0, 1, 2 …; y a
        series, an array or a list."""
        rows, labels = rows_of(X), numbers_or_labels(y)
        if len(X) != len(labels):
            raise ValueError(f"{len(X)} rows of features come with {len(labels)} labels")
        self._label_name = name_of(y)
        for x, label in zip(rows, labels, strict=True):
            self.learn_one(x, label)

    def learn_one(self, x: Mapping[Hashable, Any], y: Any) -> None:
        raise NotImplementedError

    def _targets(self, label: Any) -> list[float]:
        """The target of each client for a label."""
        raise NotImplementedError

    def _learn(self, x: Sample, label: Any) -> None:
        with one_thread:
            new = self._columns.new(x)
            if new or not self._clients:
                room = self._columns.room
                self._columns.add(new, x)
                if self._columns.room > room:
                    self._clients = []
            for place in range(len(self._clients), len(self._targets(label))):
                self._clients.append(self._begun(place))
            self._columns.see(x)
            self._latest.append((x, label))
            for client, target in zip(self._clients, self._targets(label), strict=True):
                client.learn(self._columns.row(x), target)

    def _begun(self, place: int) -> LoneClient:
        """A new client with room for the columns, trained on the latest samples."""
        if self.precision not in PRECISIONS:
            raise ConfigurationError(f"precision {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if self.detector not in DETECTORS:
            raise ConfigurationError(f"detector {self.detector!r} is not one of {', '.join(DETECTORS)}")
        _check_whole("features_per_kernel", self.features_per_kernel, 1)
        _check_whole("seed", self.seed, -LARGEST_SEED - 1)
        if isinstance(self.river, str):
            raise ConfigurationError(f"river = {self.river!r}: a tuple of names is expected")
        for name in self.river or ():
            challenger(name, "logistic" if self._loss is LOGISTIC else "square")
        features = ViewedFeatures(
            VIEWS,
            BANDWIDTHS,
            self.features_per_kernel,
            self._columns.room,
            self.seed,
            PRECISIONS[self.precision],
        )
        client = LoneClient(features, self._loss, self.seed, self.river or (), self.detector)
        for x, label in self._latest:
            client.learn(self._columns.row(x), self._targets(label)[place])
        return client

    def _predicted(self, x: Sample) -> list[float]:
        """Each client's prediction; empty before anything was learnt. Changes no state."""
        with one_thread:
            return [client.predict(self._columns.row(x)) for client in self._clients]

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"features_per_kernel": 10}


def _check_whole(name: str, value: Any, least: int) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not least <= value <= LARGEST_SEED:
        raise ConfigurationError(f"{name} = {value!r}: a whole number of at least {least} is expected")


class Regressor(_Alone, base.MiniBatchRegressor):  # type: ignore[misc]
    """Regression with streamfl's default learner, on one stream and without a federation.

    The experts are kernels on scaled views of the sample, the running mean, the last label and two kinds of
    nearest neighbours. A mixture weighs them by their recent errors. Inputs and labels are scaled as they
    come, so there is nothing to tune, and no scaler is needed. The last two labels are inputs too: if labels
    come much later than their samples, errors are larger than here.

    A feature that is missing, None, NaN or NA is replaced by its mean so far. A feature that first appears in
    a later sample is learnt from then on. Text is refused: put ``preprocessing.OneHotEncoder`` in front of
    it.

    Parameters
    ----------
    features_per_kernel
        Random frequencies D of each of the 24 kernels; a kernel has 2 D parameters.
    river
        More experts: any that ``[experts] river`` may name, such as ``"linear"`` or
        ``"package.module:function"``.
    detector
        ``"adwin"``: when errors rise, samples from before are no longer neighbours. ``"none"``: they stay
        neighbours.
    precision
        ``"float32"`` or ``"float64"``: number type of the kernels.
    seed
        Seed of the random frequencies.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> import streamfl
    >>> stream = datasets.TrumpApproval().take(200)
    >>> error = evaluate.progressive_val_score(stream, streamfl.Regressor(), metrics.MAE())
    >>> error.get() < 1.0
    True

    References
    ----------
    [^1]: Ghari & Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022, from
    which it was developed."""

    _loss = SQUARE

    # Labels are learnt as their difference from the first one, in units of the first difference, so any range
    # of labels will do.
    _origin: float | None = None
    _unit: float | None = None

    def learn_one(self, x: Mapping[Hashable, Any], y: Any) -> None:
        """Learn from one sample. ValueError, and nothing learnt, if a feature is text or infinite, or the
        label not finite."""
        self._learn(sample_of(x), self._scaled(y))

    def predict_one(self, x: Mapping[Hashable, Any]) -> float:
        """The prediction for one sample, in the unit of the target; 0 before anything was learnt."""
        predicted = self._predicted(sample_of(x))
        if not predicted or self._origin is None:
            return 0.0
        return self._origin + predicted[0] * (self._unit or 1.0)

    def predict_many(self, X: Any) -> Any:
        """The prediction for each row: a series of pandas with the index, a series of polars, or an array."""
        return values_like(X, [self.predict_one(x) for x in rows_of(X)], self._label_name, np.float64)

    def _targets(self, label: float) -> list[float]:
        return [label]

    def _scaled(self, y: Any) -> float:
        label = number_of(y, "the label")
        if label is None:
            raise ValueError(f"the label is missing: it is {shown(y)}, and a number is expected")
        if abs(label) > LARGEST_LABEL:
            raise ValueError(
                f"the label is {label:g}: at most {LARGEST_LABEL:g} in size is expected; change its unit"
            )
        origin = label if self._origin is None else self._origin
        unit = self._unit or abs(label - origin)
        scaled = (label - origin) / (unit or 1.0)
        if abs(scaled) > LARGEST_SCALED:
            raise ValueError(
                f"the label is {label:g}: that is too far from the first ones, which are {unit:g} apart"
            )
        self._origin, self._unit = origin, unit or None
        return scaled


class Classifier(_Alone, base.MiniBatchClassifier):  # type: ignore[misc]
    """Classification with streamfl's default learner, on one stream and without a federation.

    As :class:`Regressor`, with ``learning.loss = "logistic"``: every expert gives a probability. Labels are
    texts, whole numbers, True and False, or anything else that is hashable. Two classes share one learner.
    With more, each class has a learner of its own, against the rest: three classes take three times the time
    and the memory. The learner of a class that appears late begins with the latest samples.

    Parameters
    ----------
    features_per_kernel
        Random frequencies D of each of the 24 kernels; a kernel has 2 D parameters.
    river
        More experts: any that ``[experts] river`` may name, such as ``"linear"`` or
        ``"package.module:function"``.
    detector
        ``"adwin"``: when errors rise, samples from before are no longer neighbours. ``"none"``: they stay
        neighbours.
    precision
        ``"float32"`` or ``"float64"``: number type of the kernels.
    seed
        Seed of the random frequencies.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> import streamfl
    >>> stream = datasets.Phishing().take(300)
    >>> accuracy = evaluate.progressive_val_score(stream, streamfl.Classifier(), metrics.Accuracy())
    >>> accuracy.get() > 0.8
    True

    References
    ----------
    [^1]: Ghari & Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022, from
    which it was developed."""

    _loss = LOGISTIC

    _classes: tuple[Hashable, ...] = ()

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Mapping[Hashable, Any], y: Any) -> None:
        """Learn from one sample. ValueError, and nothing learnt, if a feature is text or infinite, or the
        label is no class."""
        sample, label = sample_of(x), self._class(y)
        if not self._classes and isinstance(label, bool):
            self._classes = (False, True)
        elif label not in self._classes:
            if len(self._classes) == MOST_CLASSES:
                raise ValueError(
                    f"the label is {shown(y)}: more than {MOST_CLASSES} classes came; Regressor learns "
                    "numbers"
                )
            self._classes = (*self._classes, label)
        self._learn(sample, label)

    def predict_proba_one(self, x: Mapping[Hashable, Any]) -> dict[Hashable, float]:
        """The probability of each class that was learnt, for one sample; empty before anything was learnt."""
        sample = sample_of(x)
        if len(self._classes) == 1:
            return {self._classes[0]: 1.0}
        found = self._predicted(sample)
        if len(self._classes) == 2:
            either, first = (1.0 - found[0], found[0]), bool(self._classes[0])
            return dict(zip(self._classes, (either[first], either[not first]), strict=True))
        likely = [one if known else 1.0 - one for one, known in zip(found, self._classes, strict=True)]
        return {known: one / sum(likely) for one, known in zip(likely, self._classes, strict=True)}

    def predict_proba_many(self, X: Any) -> Any:
        """The probabilities for each row: a column for each class, in a frame or an array."""
        return columns_like(X, [self.predict_proba_one(x) for x in rows_of(X)], self._classes)

    def predict_many(self, X: Any) -> Any:
        """The likeliest class of each row, the first of equally likely ones; a series of pandas or polars, or
        an array."""
        return values_like(X, [self.predict_one(x) for x in rows_of(X)], self._label_name)

    def _targets(self, label: Any) -> list[float]:
        """For each learner, 1 if the label is its class, else 0. False and 0: reversed, as in the service."""
        learnt = self._classes if len(self._classes) > 2 else self._classes[:1]
        return [float((label == one) == bool(one)) for one in learnt]

    def _class(self, y: Any) -> Hashable:
        label = y.item() if isinstance(y, np.generic) else y
        gap = label is None or type(label).__name__ in ("NAType", "NaTType")
        # A NaN and an infinity are no whole numbers either.
        if gap or not isinstance(label, Hashable) or (isinstance(label, float) and not label.is_integer()):
            raise ValueError(
                f"the label is {shown(y)}: a text, a whole number, or True or False is expected; Regressor "
                "learns numbers"
            )
        return label
