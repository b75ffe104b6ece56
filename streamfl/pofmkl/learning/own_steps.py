"""A client's own steps on its copy of the shared model while no server answers.

    delta_i <- delta_i + rate (y_n - (theta_i + delta_i) . z_i) z_i        for every kernel i

This is normalised least mean squares (Widrow and Hoff 1960), for |z_i| = 1: equation (10) of Ghari and Shen
(NeurIPS 2022) for a federation of one client. The copy theta_i + delta_i is used until the server publishes a
new version. Then delta is dropped whole. The server has or will read the same samples in the client's
updates, so no step counts twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_within
from streamfl.encoding.wire import decode_array, encode_array
from streamfl.pofmkl.learning.changelog_checks import LARGEST_OWN_STEP
from streamfl.pofmkl.learning.client_journal import ChangedClientParts
from streamfl.pofmkl.learning.views import ViewedFeatures

__all__ = ["OWN_STEPS", "OwnSteps"]

OWN_STEPS = b"o"
# Between the best rate of sets that change and of sets that do not; see docs/pofmkl.md.
RATE = 0.6
# In memory: enough for 13,000 clients with 24 kernels of 100 frequencies. Further clients use the model as it
# is.
MOST_BYTES = 256_000_000


class OwnSteps:
    """delta of each client that has begun, by the learner's rows: (kernels, 2 D) each.

    features: the kernels.
    changed: collects the state to store.
    """

    def __init__(self, features: ViewedFeatures, changed: ChangedClientParts) -> None:
        self._features = features
        self._changed = changed
        self._shape = (features.kernels, 2 * features.count)
        self._most = max(1, MOST_BYTES // self.state_bytes)
        self._steps: dict[int, NDArray[Any]] = {}

    def __len__(self) -> int:
        """How many clients have begun."""
        return len(self._steps)

    @property
    def state_bytes(self) -> int:
        """Bytes of a client's steps, in memory and each time that they are stored."""
        return int(np.prod(self._shape)) * self._features.dtype.itemsize

    def begin(self, row: int) -> None:
        """Let the client take steps of its own from its next label on, if there is room."""
        if row not in self._steps and len(self._steps) < self._most:
            self._steps[row] = np.zeros(self._shape, self._features.dtype)

    def end(self, row: int) -> bool:
        """Drop a client's steps. Returns whether there were any."""
        steps = self._steps.pop(row, None)
        if steps is None or not steps.any():
            return False
        self._changed.put(row, OWN_STEPS, b"")
        return True

    def forget(self, row: int) -> None:
        """Forget a client."""
        self._steps.pop(row, None)

    def correct(
        self, raw: NDArray[Any], rows: NDArray[np.intp], views: Sequence[NDArray[Any]]
    ) -> NDArray[Any]:
        """Add delta_ik . z_i for one sample of each client to theta_i . z_i, raw (clients, kernels), in
        place; returns raw.

        rows: (clients,).
        views: of the samples.
        """
        own = self._begun(rows)
        if len(own):
            steps = np.stack([self._steps[row] for row in rows[own].tolist()])
            raw[own] += np.einsum("sid,sid->si", self._rows(views, own), steps)
        return raw

    def learn(
        self,
        rows: NDArray[np.intp],
        views: Sequence[NDArray[Any]],
        parameters: NDArray[Any],
        targets: NDArray[np.float64],
    ) -> None:
        """Take a step for one sample of each client that has begun. targets: y_n, (clients,); NaN where there
        is none."""
        own = self._begun(rows)
        own = own[~np.isnan(targets[own])]
        if not len(own):
            return
        features = self._rows(views, own)
        for place, row in zip(range(len(own)), rows[own].tolist(), strict=True):
            z, steps = features[place], self._steps[row]
            residuals = targets[own[place]] - np.einsum("id,id->i", z, parameters + steps)
            steps += (RATE * residuals[:, np.newaxis] * z).astype(steps.dtype)
            lengths = np.linalg.norm(steps.astype(np.float64), axis=1)
            if not lengths.max() < LARGEST_OWN_STEP:
                # Steps that could not be restored are not stored.
                steps[~(lengths < LARGEST_OWN_STEP)] = 0.0
            # Steps of 0 are not stored: :meth:`end` does not delete them, and a restored client would go on
            # with them although a new version has come.
            self._changed.put(row, OWN_STEPS, encode_array(steps) if steps.any() else b"")

    def _begun(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        steps = self._steps
        return np.flatnonzero([row in steps for row in rows.tolist()] if steps else [])

    def _rows(self, views: Sequence[NDArray[Any]], samples: NDArray[np.intp]) -> NDArray[Any]:
        """z of every kernel for each of these samples: (samples, kernels, 2 D)."""
        kernels = self._shape[0]
        rows = self._features.rows(
            views, np.repeat(samples, kernels), np.tile(np.arange(kernels), len(samples))
        )
        return rows.reshape(len(samples), *self._shape)

    def restore(self, row: int, content: bytes) -> None:
        """Restore a client's steps. BadRecord if they are malformed, too long, or there is no room."""
        if not content:
            self._steps.pop(row, None)
            return
        steps = decode_array(content, self._features.dtype.type, self._shape, "a client's own steps")
        check_within(
            np.linalg.norm(steps.astype(np.float64), axis=1),
            0.0,
            LARGEST_OWN_STEP,
            "the length of a client's own steps",
        )
        if len(self._steps) >= self._most and row not in self._steps:
            raise BadRecord("too_large", f"{len(self._steps)} clients take steps of their own already")
        self._steps[row] = np.array(steps)
