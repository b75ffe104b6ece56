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
    low, span: a prediction or label y is ``low + y * span`` in the label's own unit.
    model: gives the version that each prediction names.
    """

    def __init__(
        self, encode: Callable[[Prediction], bytes], low: float, span: float, model: ModelTable
    ) -> None:
        self._encode = encode
        self._low, self._span = low, span
        self._model = model

    def records(self, samples: Iterable[PendingSample], predictions: NDArray[np.float64]) -> list[Send]:
        """A record for each sample, with the key of the sample's record and the headers to carry on.
        predictions: (samples,)."""
        low, span, encode, version = self._low, self._span, self._encode, self._model.name
        return [
            Send(
                "predictions",
                sample.key,
                encode(
                    Prediction(
                        sample.client,
                        sample.id,
                        low + prediction * span,
                        version,
                        None if sample.label is None else low + sample.label * span,
                    )
                ),
                None,
                sample.headers,
            )
            for sample, prediction in zip(samples, predictions.tolist(), strict=True)
        ]
