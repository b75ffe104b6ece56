"""One client of the default preset with the server's step beside it: no federation, no journal, and no array
longer than a sample.

It does what :class:`~streamfl.pofmkl.learning.default_learner.DefaultLearner` does for one labelled sample,
with the same owners of state and in the same order. Then it does what the server does with the client's rows.
It keeps no sums for regret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamfl.kernels import LOGISTIC, Loss
from streamfl.learning.one_thread import one_thread
from streamfl.learning.online_scaling import clipped
from streamfl.pofmkl.learning.client_journal import ChangedClientParts, Forecast
from streamfl.pofmkl.learning.client_mixtures import MIXTURES, ClientMixtures
from streamfl.pofmkl.learning.client_scales import ClientScales, Scale
from streamfl.pofmkl.learning.local_experts import LOCAL_EXPERTS, LocalExperts
from streamfl.pofmkl.learning.neighbours import Projection
from streamfl.pofmkl.learning.recursive_least_squares import RecursiveLeastSquares
from streamfl.pofmkl.learning.step_rows import SMALLEST_TARGET_NORM
from streamfl.pofmkl.learning.views import ViewedFeatures

__all__ = ["LoneClient"]

# Up to this many learnt samples, a copy holds the samples instead of the step's matrices, and learns them
# again.
LOG_ROWS = 512

Floats = NDArray[np.float64]
_ROW = np.zeros(1, np.intp)


class _NothingRemembered(ChangedClientParts):
    """Drops all changes: this client is never restored from a changelog."""

    def put(self, row: int, key: bytes, content: bytes) -> None:
        pass


class LoneClient:
    """Predicts one sample and learns one sample.

    features: the kernels.
    loss: of predictions and labels.
    seed: of the projection that neighbours are searched in.
    river: more experts.
    detector: with "none" the client never forgets.
    """

    def __init__(
        self,
        features: ViewedFeatures,
        loss: Loss,
        seed: int,
        river: Sequence[str] = (),
        detector: Literal["adwin", "none"] = "adwin",
    ) -> None:
        self._features = features
        logistic = loss is LOGISTIC
        project = Projection(features.dimension, seed)
        self._scales = ClientScales(features, project, logistic)
        self._mixtures = ClientMixtures(features.kernels, len(LOCAL_EXPERTS) + len(river), MIXTURES, loss)
        other_bytes = self._scales.layout.itemsize + self._mixtures.layout.itemsize
        kind: Literal["square", "logistic"] = "logistic" if logistic else "square"
        self._local = LocalExperts(
            LOCAL_EXPERTS, project.width, other_bytes, river, kind, detector != "none", _NothingRemembered()
        )
        for owner in (self._scales, self._mixtures, self._local):
            owner.grow(1)
        self._step = self._new_step()
        self._parameters: NDArray[Any] = np.zeros((features.kernels, 2 * features.count), features.dtype)
        # Views and target of each sample that the step has learnt: all, or at least those since its present
        # blocks began.
        self._log: list[NDArray[Any]] = []
        self._looked_at: _LookedAt | None = None

    def _new_step(self) -> RecursiveLeastSquares:
        features = self._features
        return RecursiveLeastSquares(
            features.kernels, 2 * features.count, dtype=features.dtype.type, remembered=False
        )

    @property
    def log_weights(self) -> Floats:
        """Log-weights of the kernels, (kernels,)."""
        return np.asarray(self._mixtures.log_weights(*self._mixtures.kernel_weights(_ROW))[0])

    def predict(self, inputs: Floats) -> float:
        """The prediction of a sample, inputs (1, d). Nothing is learnt. Results are cached to save
        :meth:`learn` the same work."""
        return float(self._look_at(inputs).forecast.predictions[0])

    def learn(self, inputs: Floats, label: float) -> None:
        """Learn a sample, inputs (1, d), and its label."""
        seen, self._looked_at = self._look_at(inputs), None
        scale, forecast = seen.scale, seen.forecast
        labels = scale.bounded(np.array([label]))
        self._scales.restore(0, seen.moments[0])
        self._scales.learn(_ROW, labels)
        self._mixtures.learn(_ROW, forecast, scale.deviation, labels)
        errors = self._mixtures.errors(forecast.predictions, labels, scale.deviation)
        self._local.keep(_ROW, scale, labels, errors)
        self._react()
        if scale.known[0] >= 2:
            self._learn_kernels(scale, seen.rows, scale.target(labels))

    def _look_at(self, inputs: Floats) -> _LookedAt:
        content = inputs.tobytes()
        if self._looked_at is not None and self._looked_at.content == content:
            return self._looked_at
        moments, inputs = self._scales.seen(_ROW, inputs)
        scale = self._scales.scale_by(moments, inputs)
        rows = self._features.rows_of_all(scale.views)
        raw = np.einsum("kd,kd->k", rows, self._parameters)
        of_kernels = scale.mean[:, None] + scale.deviation[:, None] * raw
        experts = np.concatenate([of_kernels, self._local.predict(_ROW, scale)], axis=1)
        np.copyto(experts, 0.0, where=np.isnan(experts))
        experts = clipped(experts, scale.low[:, None], scale.high[:, None])
        experts = experts.astype(self._features.dtype).astype(np.float64)
        predictions, pivot = self._mixtures.mix(_ROW, experts, scale)
        forecast = Forecast(predictions, experts, pivot, scale.known, inputs, scale.lags, np.dtype([]))
        self._looked_at = _LookedAt(content, moments, scale, rows, forecast)
        return self._looked_at

    def _learn_kernels(self, scale: Scale, rows: NDArray[Any], target: Floats) -> None:
        # All kernels or none: the norm of a kernel's row is the target up to rounding.
        if abs(target[0]) < 2 * SMALLEST_TARGET_NORM:
            return
        self._log.append(np.concatenate([*(view[0] for view in scale.views), target.astype(rows.dtype)]))
        self._parameters = self._stepped(self._parameters, rows, target)
        if len(self._log) > LOG_ROWS:
            del self._log[: len(self._log) - self._step.rows_in_block]

    def _stepped(
        self, parameters: NDArray[Any], rows: NDArray[Any], target: Floats | NDArray[Any]
    ) -> NDArray[Any]:
        return self._step.apply_to_all(parameters, rows * target.astype(rows.dtype)).astype(rows.dtype)

    def _react(self) -> None:
        """Forget the samples from before the client's errors rose."""
        if self._local.finds_changes:
            kept = self._scales.kept(0)
            since = self._local.samples_since_change(0, kept)
            if since:
                self._scales.begin_anew(0, self._local.begin_anew(0, kept, since))

    def __getstate__(self) -> dict[str, Any]:
        """The state without the cache, and with samples instead of the step's matrices: a tenth of the bytes.

        Few samples replace all matrices. Later the matrices are from the start of the present block, and its
        samples follow."""
        step, log = None, self._log
        if len(log) < self._step.rows_learnt:
            step, log = self._step.at_block_begin(), log[len(log) - self._step.rows_in_block :]
        return self.__dict__ | {"_looked_at": None, "_log": np.array(log), "_step": step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._log = []
        step, log = state["_step"], state["_log"]
        self._step = self._new_step()
        if step is not None:
            self._step.begin_at(*step)
        ends = np.cumsum([self._features.dimension_of(view) for view in self._features.views])
        # On two threads BLAS rounds differently.
        with one_thread:
            for entry in log:
                *views, target = np.split(entry[None], ends, axis=1)
                self._stepped(self._parameters, self._features.rows_of_all(views), target[0])
                self._log.append(entry)


class _LookedAt:
    """The cached results of a sample.

    content: the sample's inputs.
    moments: of the client, with this sample's inputs.
    scale: of the sample.
    rows (kernels, 2 D): the sample's features.
    forecast: the prediction.
    """

    __slots__ = ("content", "forecast", "moments", "rows", "scale")

    def __init__(
        self, content: bytes, moments: Any, scale: Scale, rows: NDArray[Any], forecast: Forecast
    ) -> None:
        self.content = content
        self.moments = moments
        self.scale = scale
        self.rows = rows
        self.forecast = forecast
