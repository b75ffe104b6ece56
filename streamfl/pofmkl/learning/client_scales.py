"""The scale of each client's inputs and labels in the default learner: running moments, and the range of the
labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.learning.online_scaling import bounded, clipped, moments_with, predictive_deviation
from streamfl.pofmkl.learning.neighbours import Projection
from streamfl.pofmkl.learning.views import LAGS, ViewedFeatures

__all__ = ["LARGEST_TARGET", "ClientScales", "Scale"]

# Standardised labels and deviations are clipped here: one outlier must not undo what was learnt.
LARGEST_TARGET = 3.0
LEAST_DEVIATION = 1e-3
# Labels before and after a change hardly overlap if their means are this many deviations apart. From 1 to 2
# it hardly matters.
ANOTHER_LEVEL = 2.0

Floats = NDArray[np.float64]


@dataclass
class Scale:
    """The scale of each sample's client just before the sample's label was learnt: one row per sample.

    known (samples,): labels that the scale is made of.
    kept (samples,): samples of the client that are kept, with those that have left the ring.
    mean, deviation (samples,): of the labels.
    low, high (samples,): bounds to which predictions are clipped.
    squares (samples,): sum of the squared deviations of the labels from their mean.
    lags (samples, 2): the two labels before, newest first; NaN where there was none.
    scaled_lags (samples, 2): the same, standardised; 0 where there was none.
    views: the kernels' inputs, an array (samples, columns) for each view.
    queries (samples, p): the projected inputs, minus those of the client's first sample.
    variances (samples, p): of the projected inputs.
    """

    known: NDArray[np.int64]
    kept: NDArray[np.int64]
    mean: Floats
    deviation: Floats
    low: Floats
    high: Floats
    squares: Floats
    lags: Floats
    scaled_lags: Floats
    views: list[NDArray[Any]]
    queries: Floats
    variances: Floats

    def at(self, index: NDArray[np.intp]) -> Scale:
        """Some of the samples."""
        parts = {name: value[index] for name, value in vars(self).items() if name != "views"}
        return Scale(views=[view[index] for view in self.views], **parts)

    @staticmethod
    def joined(scales: Sequence[Scale]) -> Scale:
        """The samples of several scales, concatenated."""
        names = [name for name in vars(scales[0]) if name != "views"]
        parts = {name: np.concatenate([getattr(scale, name) for scale in scales]) for name in names}
        return Scale(
            views=[np.concatenate(views) for views in zip(*(scale.views for scale in scales), strict=True)],
            **parts,
        )

    def bounded(self, labels: Floats) -> Floats:
        """Labels as they are learnt, clipped to the reach of the scale: (samples,)."""
        return bounded(self.known, self.mean, self.squares, labels)

    def target(self, labels: Floats) -> Floats:
        """y_n = clip((y - m) / s, +-3): (samples,)."""
        return clipped((labels - self.mean) / self.deviation, -LARGEST_TARGET, LARGEST_TARGET)


class ClientScales:
    """Running moments, one row of ``layout`` per client.

    features: the kernels, whose views use the scales.
    project: projects inputs onto the columns of the neighbour search.
    logistic: predictions are probabilities; their range depends on the number of labels only.
    """

    def __init__(self, features: ViewedFeatures, project: Projection, logistic: bool) -> None:
        self._features = features
        self._project = project
        self._logistic = logistic
        number = np.dtype("<f8")
        self.layout = np.dtype(
            [
                ("entries", "<i8"),
                ("samples", "<i8"),
                ("labels", "<i8"),
                ("kept", "<i8"),
                ("origin", number, (project.width,)),
                ("input_mean", number, (features.dimension,)),
                ("input_squares", number, (features.dimension,)),
                ("label_mean", number),
                ("label_squares", number),
                ("low", number),
                ("high", number),
                ("lags", number, (LAGS,)),
            ]
        )
        self._empty = np.zeros((), self.layout)
        self._empty["lags"] = np.nan
        self._moments = np.empty(0, self.layout)

    def __len__(self) -> int:
        return len(self._moments)

    def grow(self, count: int) -> None:
        """Add empty rows."""
        self._moments = np.concatenate([self._moments, np.full(count, self._empty)])

    def forget(self, row: int) -> None:
        self._moments[row] = self._empty

    def entries(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """How many journal entries each client's moments contain."""
        return np.asarray(self._moments["entries"][rows])

    def kept(self, row: int) -> int:
        """How many of the client's samples were put into the ring, including those that have left it."""
        return int(self._moments["kept"][row])

    def see(self, rows: NDArray[np.intp], inputs: Floats) -> Floats:
        """Learn the inputs of a sample of each of these clients. Returns the inputs clipped to the reach of
        their means."""
        self._moments[rows], near = self.seen(rows, inputs)
        return near

    def seen(self, rows: NDArray[np.intp], inputs: Floats) -> tuple[NDArray[Any], Floats]:
        """What ``see`` would make of these clients, rows of ``layout``, and of their inputs. Changes no
        state."""
        moments = self._moments[rows]
        counts = moments["samples"] + 1
        first = counts == 1
        if first.any():
            moments["origin"][first] = self._project(inputs[first])
        means, squares = moments["input_mean"], moments["input_squares"]
        near = bounded((counts - 1)[:, None], means, squares, inputs)
        means, squares = moments_with(counts, means, squares, near)
        moments["samples"], moments["input_mean"], moments["input_squares"] = counts, means, squares
        moments["entries"] += 1
        return moments, near

    def learn(self, rows: NDArray[np.intp], labels: Floats, *, late: bool = False) -> None:
        """Learn a label of each of these clients, clipped by ``Scale.bounded``. late: its sample had a
        journal entry of its own."""
        moments = self._moments[rows]
        if late:
            moments["entries"] += 1
        counts = moments["labels"] + 1
        means, squares = moments_with(counts, moments["label_mean"], moments["label_squares"], labels)
        moments["labels"], moments["label_mean"], moments["label_squares"] = counts, means, squares
        moments["kept"] += 1
        first = counts == 1
        moments["low"] = np.where(first, labels, np.minimum(moments["low"], labels))
        moments["high"] = np.where(first, labels, np.maximum(moments["high"], labels))
        lags = moments["lags"]
        lags[:, 1] = lags[:, 0]
        lags[:, 0] = labels
        self._moments[rows] = moments

    def scale(self, rows: NDArray[np.intp], inputs: Floats, lags: Floats | None = None) -> Scale:
        """The scale of a sample of each of these clients. lags: the labels before it; None: the client's
        latest."""
        return self.scale_by(self._moments[rows], inputs, lags)

    def scale_by(self, moments: NDArray[Any], inputs: Floats, lags: Floats | None = None) -> Scale:
        """The same from given moments, such as ``seen`` returns."""
        if lags is None:
            lags = moments["lags"]
        known, mean = moments["labels"], moments["label_mean"]
        deviation = predictive_deviation(known, moments["label_squares"], LEAST_DEVIATION)
        if self._logistic:
            low = 0.5 / (known + 1.0)
            high = 1.0 - low
        else:
            # The largest of n values is expected to be exceeded by the range / (n - 1).
            margin = (moments["high"] - moments["low"]) / np.maximum(known - 1, 1)
            low, high = moments["low"] - margin, moments["high"] + margin
        scaled_lags = clipped((lags - mean[:, None]) / deviation[:, None], -LARGEST_TARGET, LARGEST_TARGET)
        np.copyto(scaled_lags, 0.0, where=np.isnan(scaled_lags))
        variances = moments["input_squares"] / np.maximum(moments["samples"], 1)[:, None]
        return Scale(
            known=known,
            kept=moments["kept"],
            mean=mean,
            deviation=deviation,
            low=low,
            high=high,
            squares=moments["label_squares"],
            lags=lags,
            scaled_lags=scaled_lags,
            views=self._features.inputs(inputs, moments["input_mean"], variances, scaled_lags),
            # Differences from the first sample: they are kept in single precision, which loses digits far
            # from zero.
            queries=self._project(inputs) - moments["origin"],
            variances=self._project.variances(variances),
        )

    def begin_anew(self, row: int, labels: Floats) -> None:
        """Note that only the client's latest samples, with these labels, are kept. If the scale of labels is
        far off, refit it."""
        moments = self._moments[row : row + 1]
        since = len(labels)
        deviation = predictive_deviation(moments["labels"], moments["label_squares"], LEAST_DEVIATION)
        # The kernels were trained on the scale as it is. It changes only where it has little to do with the
        # labels.
        if (np.abs(np.median(labels) - moments["label_mean"]) > ANOTHER_LEVEL * deviation)[0]:
            moments["labels"], moments["label_mean"] = since, labels.mean()
            moments["label_squares"] = np.square(labels - labels.mean()).sum()
            moments["low"], moments["high"] = labels.min(), labels.max()
        moments["kept"] = since

    def content(self, row: int) -> bytes:
        """The client's moments as they are remembered."""
        return bytes(self._moments[row].tobytes())

    def restore(self, row: int, moments: Any) -> None:
        """Take back what ``content`` gave, decoded by ``layout``."""
        self._moments[row] = moments

    def snapshot(self, row: int) -> dict[str, Any]:
        """A copy of a client's moments, by the names of ``layout``."""
        return {name: self._moments[name][row].copy() for name in self.layout.names or ()}
