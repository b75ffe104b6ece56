"""Views scale a sample so that one set of bandwidths suits every data set. This module also has the kernels
on them.

A view uses running statistics, so nobody has to know the data beforehand. A bandwidth of 1 then means the
same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import philox_key
from streamfl.kernels import FeatureMap, frequencies, grid
from streamfl.learning.online_scaling import LARGEST_DEVIATION, standardised

__all__ = ["VIEWS", "ViewedFeatures", "centred"]

VIEWS = ("standardised", "centred", "standardised-lags", "centred-lags")
LAGS = 2
LAG_SCALE = 0.5

Floats = NDArray[np.float64]


def centred(inputs: Floats, means: Floats, variances: Floats) -> Floats:
    """Scales all columns alike, so that they keep their proportions: (x - mean) / sqrt(sum of the variances),
    norm 3 at most.

    inputs, means, variances: (samples, d).

    Returns the same shape; 0 where nothing varied.
    """
    total = np.add.reduce(variances, axis=1, keepdims=True)
    varying = total > 0
    scaled = np.where(varying, (inputs - means) / np.sqrt(np.where(varying, total, 1.0)), 0.0)
    norms = np.sqrt(np.add.reduce(np.square(scaled), axis=1, keepdims=True))
    return np.asarray(scaled * np.minimum(1.0, LARGEST_DEVIATION / np.maximum(norms, LARGEST_DEVIATION)))


class ViewedFeatures:
    """Random features of a Gaussian kernel of every bandwidth on every view. Kernels are numbered view by
    view.

    views: names of ``VIEWS``. Those that end in "-lags" also have the last two labels as inputs, standardised
    and halved.
    bandwidths: of the kernels of each view.
    count: D, frequencies of a kernel.
    dimension: d, of the samples.
    seed: of the frequencies.
    dtype: of the features.
    """

    def __init__(
        self,
        views: Sequence[str],
        bandwidths: Sequence[float],
        count: int,
        dimension: int,
        seed: int,
        dtype: Any = np.float32,
    ) -> None:
        self.views = tuple(views)
        self.dimension = dimension
        self.count = count
        self._each = len(bandwidths)
        self.kernels = self._each * len(self.views)
        kernels = grid(["gaussian"], bandwidths)
        self._maps = [
            FeatureMap(
                frequencies(
                    kernels,
                    count,
                    self.dimension_of(view),
                    int(philox_key(seed, "view", VIEWS.index(view)).view(np.int64)[0]),
                    dtype,
                )
            )
            for view in self.views
        ]
        self.dtype = self._maps[0].dtype
        self._scale = self.dtype.type(count**-0.5)
        self._drawn_from = tuple(views), tuple(bandwidths), count, dimension, seed, dtype

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled copy holds no frequencies: they are drawn again from their seed."""
        return ViewedFeatures, self._drawn_from

    @property
    def frequencies(self) -> dict[str, NDArray[Any]]:
        """The frequencies of each view: (bandwidths, D, d) or (bandwidths, D, d + 2)."""
        return {view: features.frequencies for view, features in zip(self.views, self._maps, strict=True)}

    def inputs(self, samples: Floats, means: Floats, variances: Floats, lags: Floats) -> list[NDArray[Any]]:
        """Each view of the samples, (samples, d) or (samples, d + 2).

        samples, means, variances: (samples, d).
        lags: standardised labels, newest first, (samples, 2).
        """
        by_columns = standardised(samples, means, variances).astype(self.dtype)
        by_total = centred(samples, means, variances).astype(self.dtype)
        halved = (LAG_SCALE * lags).astype(self.dtype)
        made = {
            "standardised": by_columns,
            "centred": by_total,
            "standardised-lags": np.concatenate([by_columns, halved], axis=1),
            "centred-lags": np.concatenate([by_total, halved], axis=1),
        }
        return [made[view] for view in self.views]

    def predict(self, inputs: Sequence[NDArray[Any]], parameters: NDArray[Any]) -> NDArray[Any]:
        """theta_i . z_i of every kernel: (samples, kernels).

        inputs: as :meth:`inputs` gives them.
        parameters: (kernels, 2 D).
        """
        by_view = zip(self._maps, inputs, np.split(parameters, len(self._maps)), strict=True)
        return np.hstack([features.predict(view, theta) for features, view, theta in by_view])

    def dimension_of(self, view: str) -> int:
        """Columns of a view: d or d + 2."""
        return self.dimension + LAGS * view.endswith("-lags")

    def rows_of_all(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """z of every kernel for one sample: (kernels, 2 D), each of unit norm. inputs: as :meth:`inputs`
        gives them."""
        phases = np.concatenate(
            [features.phases(view) for features, view in zip(self._maps, inputs, strict=True)], axis=1
        )
        phases = phases.reshape(self.kernels, self.count)
        result = np.empty((self.kernels, 2 * self.count), self.dtype)
        np.sin(phases, out=result[:, : self.count])
        np.cos(phases, out=result[:, self.count :])
        result *= self._scale
        return result

    def rows(
        self, inputs: Sequence[NDArray[Any]], samples: NDArray[np.intp], kernels: NDArray[np.intp]
    ) -> NDArray[Any]:
        """z of one kernel for one sample in each row: (rows, 2 D), each of unit norm.

        inputs: as :meth:`inputs` gives them.
        samples: the place of each row's sample, (rows,).
        kernels: each row's kernel, (rows,).
        """
        result = np.empty((len(samples), 2 * self.count), self.dtype)
        of_view = kernels // self._each
        for number, features in enumerate(self._maps):
            chosen = np.flatnonzero(of_view == number)
            result[chosen] = features.rows(inputs[number][samples[chosen]], kernels[chosen] % self._each)
        return result
