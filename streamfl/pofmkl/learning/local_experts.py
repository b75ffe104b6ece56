"""The local experts of a client of the default learner, and its latest samples, which they are computed
from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Measurement
from streamfl.learning.challengers import model_name, own_model
from streamfl.learning.own_models import (
    REMEMBERED_BYTES,
    ModelFailures,
    OwnModel,
    decode_remembered,
    is_own_model,
)
from streamfl.pofmkl.learning.changelog_checks import check_kept, check_size
from streamfl.pofmkl.learning.client_journal import ChangedClientParts, cut, part_key
from streamfl.pofmkl.learning.client_scales import LARGEST_TARGET, Scale
from streamfl.pofmkl.learning.neighbours import neighbour_predictions
from streamfl.pofmkl.learning.stateful_experts import KIND as MODEL
from streamfl.pofmkl.learning.stateful_experts import StatefulExperts, is_stateful
from streamfl.pofmkl.learning.views import LAGS
from streamfl.pofmkl.learning.windowed import ChangeDetector, RiverExperts, Windowed
from streamfl.pofmkl.metrics import OwnModelMetrics

__all__ = ["LOCAL_EXPERTS", "LocalExperts"]

LOCAL_EXPERTS = ("running-mean", "last-label", "neighbours", "scaled-neighbours")

KIND = b"k"
# Bytes of a client's state, and limits of kept samples. Within the limits, the samples fill what the rest of
# the state leaves.
STATE_BYTES, MOST_KEPT, LEAST_KEPT = 65_536, 256, 16
# The latest samples of this many clients stay in the processor's caches.
BLOCK_ROWS = 32

Floats = NDArray[np.float64]


class LocalExperts:
    """The local experts, and a ring of each client's latest samples, one slot of the changelog a sample.

    River's models and the change detector are computed from the ring too. A kept sample is ``width``
    projected inputs, the labels before it, its own label, and, with a detector, the error of its prediction.

    names: of ``LOCAL_EXPERTS``.
    width: columns of the projected inputs.
    other_bytes: size of the rest of a client's state.
    river, loss: River's or the user's own models that learn these samples, and their loss.
    detector: whether to detect changes in the clients' errors.
    changed: collects changed slots.
    """

    def __init__(
        self,
        names: Sequence[str],
        width: int,
        other_bytes: int,
        river: Sequence[str | OwnModel],
        loss: Literal["square", "logistic"],
        detector: bool,
        changed: ChangedClientParts,
    ) -> None:
        self._names = [name for name in LOCAL_EXPERTS if name in names]
        self._has_neighbours = bool({"neighbours", "scaled-neighbours"} & {*names})
        self._width = width
        self._label = width + LAGS
        self._columns = self._label + 1 + detector
        self._river = [*river]
        self._changed = changed
        self.size = min(MOST_KEPT, max(LEAST_KEPT, (STATE_BYTES - other_bytes) // (4 * self._columns)))
        self._failures = ModelFailures("expert", map(model_name, self._river))
        own = {place: own_model(model) for place, model in enumerate(self._river) if is_own_model(model)}
        lasts = {place: model for place, model in own.items() if is_stateful(model, loss)}
        brief = {place: model for place, model in enumerate(self._river) if place not in lasts}
        # Every own model has a key, even without state: a state that an earlier release of the model stored
        # is deleted too.
        self._own_keys = [part_key(MODEL, place) for place in own]
        self.state_bytes = max((own[place].state_bytes + REMEMBERED_BYTES for place in lasts), default=0)
        self._stateful = self._river_models = self._detectors = None
        if lasts:
            self._stateful = StatefulExperts(
                lasts, loss, width, self._label, self.size, changed, self._failures
            )
        if brief:
            make = partial(RiverExperts, brief, loss, width, self._label, self._failures)
            self._river_models = Windowed(make, self.size)
        if detector:
            self._detectors = Windowed(partial(ChangeDetector, self._label + 1), self.size)
            # River takes long to load. It is loaded here, not in the first step, while samples come and the
            # model is missing.
            ChangeDetector(self._label + 1)
        self._kept = np.empty((0, self.size, self._columns), np.float32)

    @property
    def count(self) -> int:
        """How many experts there are."""
        return len(self._names) + len(self._river)

    @property
    def sample_bytes(self) -> int:
        return 4 * self._columns

    @property
    def finds_changes(self) -> bool:
        return self._detectors is not None

    def grow(self, count: int) -> None:
        """Add empty rows."""
        self._kept = np.concatenate([self._kept, np.zeros((count, self.size, self._columns), np.float32)])

    def forget(self, row: int) -> None:
        self._kept[row] = 0
        self._forget_windows(row)
        if self._stateful is not None:
            self._stateful.forget(row)

    def keep(self, rows: NDArray[np.intp], scale: Scale, labels: Floats, errors: Floats) -> None:
        """Put one sample of each of these clients into its ring. errors (rows,): of their predictions,
        between 0 and 1."""
        columns = [scale.queries, scale.lags, labels[:, None]]
        if self._detectors is not None:
            columns.append(errors[:, None])
        kept = np.concatenate(columns, axis=1).astype("<f4")
        slots = scale.kept % self.size
        self._kept[rows, slots] = kept
        for row, slot, content in zip(
            rows.tolist(), slots.tolist(), cut(kept, self.sample_bytes), strict=True
        ):
            self._changed.put(row, part_key(KIND, slot), content)
        if self._stateful is not None:
            self._stateful.keep(rows.tolist(), self._kept, (scale.kept + 1).tolist())

    def predict(self, rows: NDArray[np.intp], scale: Scale) -> Floats:
        """Each local expert's prediction, (rows, count); the running mean until it can predict."""
        by_name = {
            "running-mean": scale.mean,
            "last-label": np.where(np.isnan(scale.lags[:, 0]), scale.mean, scale.lags[:, 0]),
        }
        if self._has_neighbours:
            if scale.known.all():
                plain, scaled = self._neighbours(rows, scale).T
            else:
                having = np.flatnonzero(scale.known)
                plain, scaled = scale.mean.copy(), scale.mean.copy()
                if len(having):
                    plain[having], scaled[having] = self._neighbours(rows[having], scale.at(having)).T
            by_name |= {"neighbours": plain, "scaled-neighbours": scaled}
        chosen = np.empty((len(rows), self.count))
        for place, name in enumerate(self._names):
            chosen[:, place] = by_name[name]
        if self._river:
            chosen[:, len(self._names) :] = self._river_predictions(rows, scale)
        return chosen

    def _neighbours(self, rows: NDArray[np.intp], scale: Scale) -> Floats:
        """(rows, 2): predictions from the nearest samples by plain and by scaled distance. Each client has
        one sample at least."""
        filled = np.minimum(scale.kept, self.size)
        result = np.empty((len(rows), 2))
        for start in range(0, len(rows), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            used = slice(0, int(np.maximum.reduce(filled[block])))
            kept = self._kept[rows[block], used]
            # One lag after the other: loops of length two take ten times as long.
            lags = np.empty((len(kept), LAGS, used.stop))
            for lag in range(LAGS):
                np.subtract(kept[..., self._width + lag], scale.mean[block, None], out=lags[:, lag])
            lags /= scale.deviation[block, None, None]
            np.maximum(lags, -LARGEST_TARGET, out=lags)
            np.minimum(lags, LARGEST_TARGET, out=lags)
            np.copyto(lags, 0.0, where=np.isnan(lags))
            result[block] = neighbour_predictions(
                scale.queries[block].astype(np.float32),
                scale.scaled_lags[block].astype(np.float32),
                kept[..., : self._width],
                lags.astype(np.float32),
                kept[..., self._label],
                filled[block],
                scale.variances[block].astype(np.float32),
            )
        return result

    def _river_predictions(self, rows: NDArray[np.intp], scale: Scale) -> Floats:
        """(rows, river): predictions of River's models; the running mean where a model gives none."""
        result = np.repeat(scale.mean[:, None], len(self._river), axis=1)
        queries = scale.queries.astype(np.float32)
        for at in np.flatnonzero(scale.known).tolist():
            row, count = int(rows[at]), int(scale.kept[at])
            found: dict[int, float] = {}
            if self._river_models is not None:
                found |= self._river_models.at(row, self._kept[row], count).predict(queries[at])
            if self._stateful is not None:
                found |= self._stateful.predict(row, self._kept[row], count, queries[at])
            result[at, list(found)] = list(found.values())
        return np.where(np.isnan(result), scale.mean[:, None], result)

    def samples_since_change(self, row: int, kept: int) -> int:
        """How many samples there are since the client's errors rose, if its latest sample showed it;
        otherwise 0."""
        return 0 if self._detectors is None else self._detectors.at(row, self._kept[row], kept).samples_since

    def begin_anew(self, row: int, kept: int, since: int) -> Floats:
        """Forget all but the latest ``since`` of ``kept`` samples; returns the labels of these, oldest
        first."""
        latest = self._kept[row, np.arange(kept - since, kept) % self.size]
        self._kept[row, :since] = latest
        for slot, content in enumerate(cut(latest.astype("<f4"), self.sample_bytes)):
            self._changed.put(row, part_key(KIND, slot), content)
        self._forget_windows(row)
        if self._stateful is not None:
            self._stateful.begin_anew(row)
        return np.asarray(latest[:, self._label], np.float64)

    def _forget_windows(self, row: int) -> None:
        for windows in (self._river_models, self._detectors):
            if windows is not None:
                windows.forget(row)

    def part_keys(self) -> Iterable[bytes]:
        """Every key that a slot or a model may be stored under."""
        yield from (part_key(KIND, slot) for slot in range(self.size))
        yield from self._own_keys

    def restore(self, row: int, key: bytes, value: bytes) -> bool:
        """Restore a slot or a model; False if the key belongs to neither. BadRecord if the value is
        malformed."""
        if key in self._own_keys:
            remembered = decode_remembered(value)
            if self._stateful is not None:
                self._stateful.restore(row, int.from_bytes(key[1:], "big"), remembered)
            return True
        slot = int.from_bytes(key[1:], "big")
        if not (key[:1] == KIND and slot < self.size and key == part_key(KIND, slot)):
            return False
        check_size(value, self.sample_bytes)
        kept = np.frombuffer(value, "<f4")
        check_kept(kept, self._width, self._label)
        self._kept[row, slot] = kept
        return True

    def snapshot(self, row: int) -> NDArray[np.float32]:
        """A copy of the client's ring, (size, columns); the label is column ``label_column``."""
        return np.array(self._kept[row])

    def measure(self) -> Iterable[Measurement]:
        """Failures of River's and the user's own models."""
        return self._failures.measure(OwnModelMetrics.expert_failures)

    @property
    def label_column(self) -> int:
        return self._label
