"""The records that a user's consumers read: a prediction for every sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Send
from streamfl.pofmkl.client.model import ModelTable
from streamfl.pofmkl.client.pending_samples import PendingSample
from streamfl.pofmkl.messages import Prediction

__all__ = ["PredictionWriter"]

# Of a sample.
CLIENT, ID, LABEL = attrgetter("client"), attrgetter("id"), attrgetter("label")


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

    def records(self, samples: Sequence[PendingSample], predictions: NDArray[np.float64]) -> list[Send]:
        """A record for each sample, with the key of the sample's record and the headers to carry on.
        predictions: (samples,)."""
        if not samples:
            return []
        original, version = self._original, self._model.name
        messages, keys, headers = zip(*samples, strict=True)
        labels = [None if label is None else original(label) for label in map(LABEL, messages)]
        originals = map(original, predictions.tolist())
        made = map(Prediction, map(CLIENT, messages), map(ID, messages), originals, repeat(version), labels)
        return list(map(Send, repeat("predictions"), keys, map(self._encode, made), repeat(None), headers))
