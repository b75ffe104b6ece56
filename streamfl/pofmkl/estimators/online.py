"""River estimators: POF-MKL without a federation, the learner that a federation has to beat to be worth it.

One client has parameters of its own. It uses the random features and kernel weights of
:mod:`streamfl.kernels`, and equations (4) and (6) to (10) with K = 1. Every sample updates every kernel, so
there is one bin, of probability 1, and the server's step (10) is the client's own.

Source: Ghari & Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from river import base
from scipy.special import expit

from streamfl.contract.role import ConfigurationError
from streamfl.contract.seeding import philox_key
from streamfl.kernels import (
    LOGISTIC,
    SQUARE,
    FeatureMap,
    Kernel,
    Loss,
    frequencies,
    paper_dictionary,
    random_features,
)
from streamfl.pofmkl.learning.log_weights import normalised

__all__ = ["POFMKLClassifier", "POFMKLRegressor"]

PRECISIONS = ("float32", "float64")

# Features of this many rows are held at once while learning: 51 kernels of 100 float64 features are 82 kB a
# row.
BLOCK_ROWS = 32


class _LocalLearner(base.Estimator):  # type: ignore[misc]
    """What the regressor and the classifier share: everything but the loss and the meaning of a
    prediction."""

    _loss: Loss

    def __init__(
        self,
        kernels: tuple[Kernel, ...] | None = None,
        features_per_kernel: int = 100,
        learning_rate: float = 0.03,
        regularisation: float = 1e-3,
        precision: str = "float64",
        seed: int = 0,
    ) -> None:
        self.kernels = kernels
        self.features_per_kernel = features_per_kernel
        self.learning_rate = learning_rate
        self.regularisation = regularisation
        self.precision = precision
        self.seed = seed
        self._columns: dict[Hashable, int] = {}
        self._feature_blocks = 0
        self._feature_map: FeatureMap | None = None
        self._parameters = np.zeros((0, 0))
        self._log_weights = np.zeros(0)
        self._label_name: Hashable = None

    @property
    def kernel_weights(self) -> NDArray[np.float64]:
        """The weight of each kernel in the prediction, shape (kernels,), summing to one; empty before any
        sample."""
        return normalised(self._log_weights) if len(self._log_weights) else self._log_weights.copy()

    def learn_one(self, x: Mapping[Hashable, Any], y: Any) -> None:
        """Learn from one sample. ValueError, and nothing learnt, if a feature or the label is not a finite
        number."""
        new = self._new_names(x)
        inputs = self._row(x, [*self._columns, *new])
        labels = _finite(np.array([y], dtype=np.float64), "the label")
        self._learn(new, inputs, labels)

    def learn_many(self, X: pd.DataFrame, y: pd.Series[Any]) -> None:
        """Learn from the rows in order, as ``learn_one`` does, to rounding. ValueError as there, and no row
        is learnt."""
        new = self._new_names(X.columns)
        inputs = self._rows(X, [*self._columns, *new])
        labels = _finite(y.to_numpy(dtype=np.float64), "the label")
        if len(labels) != len(inputs):
            raise ValueError(f"{len(inputs)} rows of features come with {len(labels)} labels")
        self._label_name = y.name
        if len(labels):
            self._learn(new, inputs, labels)

    def _learn(self, new: list[Hashable], inputs: NDArray[np.float64], labels: NDArray[np.float64]) -> None:
        features_of = self._grown(new).frequencies
        for start in range(0, len(inputs), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            for features, label in zip(
                random_features(inputs[block], features_of), labels[block], strict=True
            ):
                self._step(features.astype(np.float64, copy=False), label)

    def _step(self, features: NDArray[np.float64], label: np.float64) -> None:
        predictions = np.einsum("nd,nd->n", self._parameters, features)
        squared_norms = np.einsum("nd,nd->n", self._parameters, self._parameters)
        self._log_weights -= self.learning_rate * (
            self._loss.value(predictions, label) + self.regularisation * squared_norms
        )
        # Only differences of log-weights matter. Without this they would lose digits as the stream grows.
        self._log_weights -= self._log_weights.max()
        gradient = self._loss.gradient(predictions, label)
        self._parameters *= 1.0 - 2.0 * self.learning_rate * self.regularisation
        self._parameters -= (self.learning_rate * gradient)[:, None] * features

    def _combined_one(self, x: Mapping[Hashable, Any]) -> float:
        if self._feature_map is None:
            return 0.0
        return float(self._combined(self._feature_map, self._row(x, self._columns))[0])

    def _combined_many(self, X: pd.DataFrame) -> NDArray[np.float64]:
        if self._feature_map is None:
            return np.zeros(len(X))
        return self._combined(self._feature_map, self._rows(X, list(self._columns)))

    def _combined(self, feature_map: FeatureMap, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        predictions = feature_map.predict(inputs, self._parameters).astype(np.float64, copy=False)
        return np.asarray(predictions @ normalised(self._log_weights), dtype=np.float64)

    def _grown(self, new: list[Hashable]) -> FeatureMap:
        """The feature map, with columns for new features behind those it has."""
        if self._feature_map is not None and not new:
            return self._feature_map
        if self.precision not in PRECISIONS:
            raise ConfigurationError(f"precision {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        kernels = paper_dictionary() if self.kernels is None else self.kernels
        # The first block has the same frequencies as a federation with this seed; later blocks must not
        # repeat them.
        seed = self.seed
        if self._feature_blocks:
            seed = int(philox_key(self.seed, "feature block", self._feature_blocks).view(np.int64)[0])
        drawn = frequencies(kernels, self.features_per_kernel, len(new), seed, np.dtype(self.precision))
        if self._feature_map is None:
            self._parameters = np.zeros((len(kernels), 2 * self.features_per_kernel))
            self._log_weights = np.zeros(len(kernels))
        else:
            drawn = np.concatenate([self._feature_map.frequencies, drawn], axis=2)
        self._feature_map = FeatureMap(drawn)
        self._feature_blocks += 1
        for name in new:
            self._columns[name] = len(self._columns)
        return self._feature_map

    def _new_names(self, names: Iterable[Hashable]) -> list[Hashable]:
        # Sorted, so that the order of the features within a sample does not matter.
        return sorted((name for name in names if name not in self._columns), key=repr)

    def _row(self, x: Mapping[Hashable, Any], names: Iterable[Hashable]) -> NDArray[np.float64]:
        return _finite(np.array([[x.get(name, 0.0) for name in names]], dtype=np.float64), "a feature")

    def _rows(self, X: pd.DataFrame, names: list[Hashable]) -> NDArray[np.float64]:
        return _finite(X.reindex(columns=names, fill_value=0.0).to_numpy(dtype=np.float64), "a feature")

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"features_per_kernel": 20}


class POFMKLRegressor(_LocalLearner, base.MiniBatchRegressor):  # type: ignore[misc]
    """Regression with a personal mixture of kernels, online.

    Each kernel learns by gradient steps on the square loss over random Fourier features; the kernels'
    predictions are averaged by weights that fall exponentially with each kernel's own losses. Scale the
    features and the target to the order of one, for instance with ``preprocessing.StandardScaler`` and
    ``preprocessing.TargetStandardScaler``: the bandwidths are in the unit of the features, and the learning
    rate depends on the unit of the squared target.

    A missing feature counts as 0. A feature that first appears in a later sample gets its own frequencies
    then. A feature that appears only in a prediction is ignored.

    Parameters
    ----------
    kernels
        The dictionary, see ``streamfl.kernels.grid``; None: 51 Gaussian kernels with bandwidths from 0.01 to
        100.
    features_per_kernel
        Random frequencies D of each kernel; a kernel has 2 D parameters.
    learning_rate
        eta, for the parameters and for the weights. Theory gives 1 / sqrt(T) for T samples; above 1 the
        square loss diverges.
    regularisation
        The factor lambda of the squared norm of a kernel's parameters in its loss.
    precision
        ``float32`` or ``float64``: number type of the features. Parameters and weights are always float64.
    seed
        Seed of the random frequencies.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamfl.pofmkl.estimators.online import POFMKLRegressor
    >>> model = preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(POFMKLRegressor())
    >>> error = evaluate.progressive_val_score(datasets.TrumpApproval().take(300), model, metrics.MAE())
    >>> error.get() < 1.0
    True

    References
    ----------
    [^1]: Ghari & Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022.
    """

    _loss = SQUARE

    def predict_one(self, x: Mapping[Hashable, Any]) -> float:
        """The prediction for one sample, in the unit of the target; 0 before anything was learnt."""
        return self._combined_one(x)

    def predict_many(self, X: pd.DataFrame) -> pd.Series[Any]:
        """The prediction for each row, with the frame's index."""
        return pd.Series(self._combined_many(X), index=X.index, name=self._label_name)


class POFMKLClassifier(_LocalLearner, base.MiniBatchClassifier):  # type: ignore[misc]
    """Classification of True and False with a personal mixture of kernels, online.

    As :class:`POFMKLRegressor`, with the logistic loss: each kernel predicts log-odds, and their weighted
    average gives the probability. Scale the features to the order of one.

    Parameters
    ----------
    kernels
        The dictionary, see ``streamfl.kernels.grid``; None: 51 Gaussian kernels with bandwidths from 0.01 to
        100.
    features_per_kernel
        Random frequencies D of each kernel; a kernel has 2 D parameters.
    learning_rate
        eta, for the parameters and for the weights.
    regularisation
        The factor lambda of the squared norm of a kernel's parameters in its loss.
    precision
        ``float32`` or ``float64``: number type of the features. Parameters and weights are always float64.
    seed
        Seed of the random frequencies.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamfl.pofmkl.estimators.online import POFMKLClassifier
    >>> model = POFMKLClassifier(learning_rate=0.3)
    >>> accuracy = evaluate.progressive_val_score(datasets.Phishing().take(500), model, metrics.Accuracy())
    >>> accuracy.get() > 0.8
    True

    References
    ----------
    [^1]: Ghari & Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022.
    """

    _loss = LOGISTIC

    def predict_proba_one(self, x: Mapping[Hashable, Any]) -> dict[bool, float]:
        """The probabilities of False and True for one sample; a half each before anything was learnt."""
        probability = float(expit(self._combined_one(x)))
        return {False: 1.0 - probability, True: probability}

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The probabilities for each row: columns False and True, with the frame's index."""
        probability = expit(self._combined_many(X))
        return pd.DataFrame({False: 1.0 - probability, True: probability}, index=X.index)

    def predict_many(self, X: pd.DataFrame) -> pd.Series[Any]:
        """The likelier label of each row, False where both are equally likely, with the frame's index."""
        return pd.Series(self._combined_many(X) > 0.0, index=X.index, name=self._label_name)


def _finite(numbers: NDArray[np.float64], what: str) -> NDArray[np.float64]:
    # A NaN would make every later prediction NaN. A finite sum means that all are finite; otherwise each is
    # checked.
    if not math.isfinite(numbers.sum()) and not np.isfinite(numbers).all():
        raise ValueError(f"{what} is a NaN or an infinity")
    return numbers
