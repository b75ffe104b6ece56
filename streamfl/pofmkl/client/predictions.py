"""The records that a user's consumers read: a prediction for every sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Send
from streamfl.pofmkl.client.model import ModelTable
from streamfl.pofmkl.client.pending_samples import PendingSample
from streamfl.pofmkl.messages import Prediction

__all__ = ["PredictionWriter"]


class PredictionWriter:
    """Encodes predictions as records.

    encode: encodes a prediction.
    original: converts a prediction or label to the label's own unit.
    model: gives the version that each prediction names.
    """

    def __init__(
        self, encode: Callable[[Prediction], bytes], original: Callable[[float], float], model: ModelTable
    ) -> None:
        self._encode = encode
        self._original = original
        self._model = model

    def records(self, samples: Iterable[PendingSample], predictions: NDArray[np.float64]) -> list[Send]:
        """A record for each sample, with the key of the sample's record and the headers to carry on.
        predictions: (samples,)."""
        original, encode, version = self._original, self._encode, self._model.name
        return [
            Send(
                "predictions",
                key,
                encode(
                    Prediction(
                        sample.client,
                        sample.id,
                        original(prediction),
                        version,
                        None if sample.label is None else original(sample.label),
                    )
                ),
                None,
                headers,
            )
            for (sample, key, headers), prediction in zip(samples, predictions.tolist(), strict=True)
        ]
