"""The default learner of a client: kernels that everybody trains, experts of its own, and a mixture that learns whom to trust.

What it is made of stands in modules of its own: running moments (:mod:`streamfl.kernels.online_scaling`), views of a sample and
their kernels (:mod:`streamfl.pofmkl.views`), nearest neighbours (:mod:`streamfl.pofmkl.neighbours`), the mixture
(:mod:`streamfl.pofmkl.mixture`); the server's side is :mod:`streamfl.pofmkl.server_steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from streamfl.kernels import LOGISTIC, Loss
from streamfl.kernels.online_scaling import moments_with, predictive_deviation
from streamfl.pofmkl.learner import Batch, Taken
from streamfl.pofmkl.mixture import corrected, log_posterior, mixed, ridge_step
from streamfl.pofmkl.neighbours import Projection, neighbour_predictions
from streamfl.pofmkl.restored import check_entry, check_kept, check_snapshot
from streamfl.pofmkl.views import LAGS, ViewedFeatures
from streamfl.pofmkl.windowed import ChangeDetector, RiverExperts, Windowed
from streamfl.role import PeerError

__all__ = ["LOCAL_EXPERTS", "MIXTURES", "Forecast", "PracticalLearner"]

LOCAL_EXPERTS = ("running-mean", "last-label", "neighbours", "scaled-neighbours")
MIXTURES = ("kernels", "all", "ridge")
# Standardised labels and deviations are cut here: one outlier must not undo what was learnt.
LARGEST_TARGET = 3.0
LEAST_DEVIATION = 1e-3
# So many deviations from the mean, labels before and after a change hardly overlap; from 1 to 2 it hardly matters.
ANOTHER_LEVEL = 2.0
# A client's latest samples are kept, as many as fit in what the rest of its state leaves of these bytes, and at least some.
STATE_BYTES, MOST_KEPT, LEAST_KEPT = 65_536, 256, 16
SNAPSHOT_EVERY = 64
# So many clients' latest samples stay in the processor's caches.
BLOCK_ROWS = 32
RIDGE, RIDGE_LEAK = 10.0, 0.005
# What an expert lost a sample ago counts so much: some thirty samples decide, whatever happened before.
MEMORY = 0.97

Floats = NDArray[np.float64]


@dataclass
class _Scale:
    """What was known of some samples' clients just before their labels: a row a sample."""

    known: NDArray[np.int64]
    kept: NDArray[np.int64]
    mean: Floats
    deviation: Floats
    low: Floats
    high: Floats
    lags: Floats
    scaled_lags: Floats
    views: list[NDArray[Any]]
    queries: Floats
    variances: Floats

    def at(self, index: NDArray[np.intp]) -> _Scale:
        """Some of the samples."""
        parts = {name: value[index] for name, value in vars(self).items() if name != "views"}
        return _Scale(views=[view[index] for view in self.views], **parts)


@dataclass(frozen=True)
class Forecast:
    """Predictions of some samples, none of which has used its label.

    predictions (samples,); experts (samples, experts), kernels first; pivot (samples,): all experts mixed. known: how many labels
    of its client each was made with. layout: of what is kept of a sample until its label comes.
    """

    predictions: Floats
    experts: Floats
    pivot: Floats
    known: NDArray[np.int64]
    inputs: Floats
    lags: Floats
    layout: np.dtype[Any]

    def encoded(self) -> list[bytes]:
        """What :meth:`PracticalLearner.learn` needs of each sample once its label is there."""
        content = np.empty(len(self.predictions), self.layout)
        for name in content.dtype.names or ():
            content[name] = getattr(self, name)
        return _cut(content, content.itemsize)

    def where(self, index: NDArray[np.intp]) -> Forecast:
        """Some of the samples."""
        parts = {name: value[index] for name, value in vars(self).items() if name != "layout"}
        return Forecast(**parts, layout=self.layout)


@dataclass
class _Unread:
    """What was restored of a client and is not yet put together."""

    snapshot: bytes | None = None
    entries: dict[bytes, bytes] = field(default_factory=dict)


class PracticalLearner:
    """Kernels on scaled views of the sample, the client's own simple experts beside them, and three mixtures of all of these.

    The label is predicted in units of its own running mean m and deviation s, so no range is assumed:
        f_i = m + s theta_i . z_i,  target row to the server  h_i = y_n z_i  with  y_n = clip((y - m) / s, +-3).
    Mixtures: Bayes' rule on the kernels, on kernels and local experts (prior half and half), and the latter corrected by a ridge
    regression on the experts' deviations; the prediction is the mean of the three. With the logistic loss every
    expert's prediction is a probability, kept away from 0 and 1 by 1 / (2 n + 2).

    Where River's ADWIN finds that a client's errors have risen, its samples before that are not kept any longer: neighbours are
    sought, and River's models made, among those since; m, s and the range of labels are taken from these too if most of them are
    more than 2 s from m. The error of a prediction p is min(1, ((y - p) / s)^2), with the logistic loss min(1, log loss / log 2):
    what a mean or a coin would do is 1.

    features: the kernels. experts: names of ``LOCAL_EXPERTS``. river: names of :func:`streamfl.challengers.challenger`, experts
    that learn the same columns as the neighbours. mixtures: names of ``MIXTURES``; "ridge" corrects "all". detector: "none" never
    forgets. A client's state is bounded by 64 KB: running moments, E^2 numbers of the ridge, and as many of its latest samples, at
    most 256, as fit; River's models are made from these. ``drifts`` counts the changes found since the object was made.
    One object serves one thread.
    """

    summed = False
    record_bytes = 0
    input_dtype: type[np.float32] | type[np.float64] = np.float64

    def __init__(
        self,
        *,
        features: ViewedFeatures,
        loss: Loss,
        seed: int,
        experts: Sequence[str] = LOCAL_EXPERTS,
        river: Sequence[str] = (),
        mixtures: Sequence[str] = MIXTURES,
        detector: Literal["adwin", "none"] = "adwin",
    ) -> None:
        self.features = features
        self.loss = loss
        self.kernels = features.kernels
        self.row_length = 2 * features.count
        self.dimension = features.dimension
        self.dtype: type[np.float32] | type[np.float64] = np.float64 if features.dtype == np.float64 else np.float32
        self._local = [name for name in LOCAL_EXPERTS if name in experts]
        self._mixtures = [name for name in MIXTURES if name in mixtures]
        self._project = Projection(self.dimension, seed)
        self._river = [*river]
        personal = len(self._local) + len(self._river)
        experts_in_all = self.kernels + personal
        self._log_prior = np.full(experts_in_all, -np.log(2 * self.kernels))
        self._log_prior[self.kernels :] = -np.log(2 * max(1, personal))
        number = np.dtype("<f8")
        self._moments_type = np.dtype(
            [
                ("entries", "<i8"),
                ("samples", "<i8"),
                ("labels", "<i8"),
                ("kept", "<i8"),
                ("origin", number, (self._project.width,)),
                ("input_mean", number, (self.dimension,)),
                ("input_squares", number, (self.dimension,)),
                ("label_mean", number),
                ("label_squares", number),
                ("low", number),
                ("high", number),
                ("lags", number, (LAGS,)),
            ]
        )
        self._mixture_type = np.dtype(
            [
                ("entries", "<i8"),
                ("losses", number, (experts_in_all,)),
                ("count", number),
                ("ridge_weights", number, (experts_in_all,)),
                ("ridge_covariance", number, (experts_in_all, experts_in_all)),
                ("kernel_losses", number, (self.kernels,)),
                ("sums", number, (4,)),
            ]
        )
        # A sample that is kept: what distances are taken of, the labels before it, its own, and the error of its prediction.
        self._kept_label = self._project.width + LAGS
        self._kept_width = self._kept_label + 1 + (detector != "none")
        left = STATE_BYTES - self._moments_type.itemsize - self._mixture_type.itemsize
        self._ring = min(MOST_KEPT, max(LEAST_KEPT, left // (4 * self._kept_width)))
        self._river_experts = self._detectors = None
        if self._river:
            kind: Literal["square", "logistic"] = "logistic" if loss is LOGISTIC else "square"
            self._river_experts = Windowed(
                lambda: RiverExperts(self._river, kind, self._project.width, self._kept_label), self._ring
            )
        if detector != "none":
            self._detectors = Windowed(lambda: ChangeDetector(self._kept_label + 1), self._ring)
        self.drifts = 0
        # Every prediction is kept within the labels that its client has seen, and a margin.
        self.bounded = 0
        seen: list[Any] = [("inputs", number, (self.dimension,))]
        asked: list[Any] = [*seen, ("experts", np.dtype(self.dtype).newbyteorder("<"), (experts_in_all,))]
        said: list[Any] = [*asked, ("predictions", number), ("pivot", number), ("known", "<i8"), ("lags", number, (LAGS,))]
        self._forecast_type = np.dtype(said)
        # The journal: samples without a label, samples with theirs, and labels of earlier samples.
        self._entry_types = {
            b"i": np.dtype([("number", "<i8"), *seen]),
            b"j": np.dtype([("number", "<i8"), ("label", number), *asked]),
            b"l": np.dtype([("number", "<i8"), ("label", number), *said]),
        }
        self._empty_moments = np.zeros((), self._moments_type)
        self._empty_moments["lags"] = np.nan
        self._empty_mixture = np.zeros((), self._mixture_type)
        self._empty_mixture["ridge_covariance"] = np.eye(experts_in_all) / RIDGE
        self._moments = np.empty(0, self._moments_type)
        self._mixing = np.empty(0, self._mixture_type)
        self._kept = np.empty((0, self._ring, self._kept_width), np.float32)
        self._free: list[int] = []
        self._changed: dict[int, dict[bytes, bytes]] = {}
        self._unread: dict[int, _Unread] = {}

    def borrow(self) -> int:
        if not self._free:
            held = len(self._moments)
            more = max(16, held // 2)
            self._moments = np.concatenate([self._moments, np.full(more, self._empty_moments)])
            self._mixing = np.concatenate([self._mixing, np.full(more, self._empty_mixture)])
            self._kept = np.concatenate([self._kept, np.zeros((more, self._ring, self._kept_width), np.float32)])
            self._free = list(range(held + more - 1, held - 1, -1))
        return self._free.pop()

    def give_back(self, row: int) -> None:
        self._moments[row], self._mixing[row], self._kept[row] = self._empty_moments, self._empty_mixture, 0
        self._changed.pop(row, None)
        self._unread.pop(row, None)
        self._forget_windows(row)
        self._free.append(row)

    def take(self, batch: Batch, parameters: NDArray[Any], squared_norms: NDArray[np.float64]) -> Taken:
        self._put_together(batch.rows.tolist())
        inputs, labels, labelled = np.asarray(batch.inputs, np.float64), batch.labels, batch.labelled
        waves = list(_waves(batch))
        scales: list[_Scale] = []
        experts = np.empty((len(labels), len(self._log_prior)))
        predictions, counts, counts_after = np.empty((3, len(labels)))
        losses, losses_after = np.empty((2, len(labels), self.kernels))
        for group in _groups(waves, every=self._detectors is not None):
            # What scales a sample depends on the samples before it and not on the model, but for a change that is found: all waves
            # first, so that the kernels of the whole group are one product.
            snapshots: dict[tuple[int, int], bytes] = {}
            own_scales: list[_Scale] = []
            for rows, index in group:
                self._see(rows, inputs[index])
                own_scales.append(self._scale(rows, inputs[index], self._moments["lags"][rows]))
                known = labelled[index]
                self._take_labels(rows[known], labels[index[known]])
                for row in rows[self._moments["entries"][rows] % SNAPSHOT_EVERY == 0].tolist():
                    snapshots[row, int(self._moments["entries"][row])] = self._moments[row].tobytes()
            scales += own_scales
            raw = np.empty((len(labels), self.kernels))
            raw[np.concatenate([index for _, index in group])] = self.features.predict(_joined(own_scales).views, parameters)
            for (rows, index), own in zip(group, own_scales, strict=True):
                forecast = self._forecast(rows, inputs[index], own, raw[index])
                predictions[index], experts[index] = forecast.predictions, forecast.experts
                losses[index], counts[index] = self._mixing["losses"][rows, : self.kernels], self._mixing["count"][rows]
                self._count(rows, labels[index], labelled[index], forecast)
                self._journal_samples(rows, labels[index], labelled[index], forecast)
                learning = np.flatnonzero(labelled[index])
                if len(learning):
                    learnt, some, then = labels[index[learning]], forecast.where(learning), own.at(learning)
                    self._learn(rows[learning], some, then.deviation, learnt)
                    self._keep(rows[learning], then, learnt, self._errors(some.predictions, learnt, then.deviation))
                for row in rows[self._mixing["entries"][rows] % SNAPSHOT_EVERY == 0].tolist():
                    self._snapshot(row, snapshots[row, int(self._mixing["entries"][row])])
                for row in self._react(rows[learning]):
                    self._snapshot(row, self._moments[row].tobytes())
                losses_after[index] = self._mixing["losses"][rows, : self.kernels]
                counts_after[index] = self._mixing["count"][rows]
        scale = _joined(scales).at(np.argsort(np.concatenate([index for _, index in waves])))
        targets = np.where(labelled & (scale.known >= 2), self._target(labels, scale), 0.0)
        return _Taken(
            features=self.features,
            views=scale.views,
            targets=targets,
            predictions=predictions,
            scores=logit(predictions) if self.loss is LOGISTIC else predictions,
            kernel_predictions=experts[:, : self.kernels],
            log_weights=self._log_weights(losses, counts),
            log_weights_after=self._log_weights(losses_after, counts_after),
        )

    def predict(self, rows: NDArray[np.intp], inputs: NDArray[Any], parameters: NDArray[Any]) -> Forecast:
        self._put_together(rows.tolist())
        inputs = np.asarray(inputs, np.float64)
        self._see(rows, inputs)
        scale = self._scale(rows, inputs, self._moments["lags"][rows])
        forecast = self._forecast(rows, inputs, scale, self.features.predict(scale.views, parameters))
        unlabelled = np.zeros(len(rows), np.bool_)
        self._count(rows, np.zeros(len(rows)), unlabelled, forecast)
        self._journal_samples(rows, np.zeros(len(rows)), unlabelled, forecast)
        self._snapshot_due(rows)
        return forecast

    def learn(
        self,
        rows: NDArray[np.intp],
        forecasts: Sequence[bytes],
        labels: Floats,
        parameters: NDArray[Any],
        squared_norms: NDArray[np.float64],
    ) -> Taken:
        """Experts are judged by what they predicted then.

        Only where no label at all was known then, and one is known now, that would judge nobody, and they are asked again, with
        the lags of then.
        """
        self._put_together(rows.tolist())
        given = self._decoded(np.frombuffer(b"".join(forecasts), self._forecast_type))
        scale = self._scale(rows, given.inputs, given.lags)
        errors = self._errors(given.predictions, labels, scale.deviation)
        forecast, again = given, np.flatnonzero((given.known == 0) & (scale.known > 0))
        if len(again):
            some = scale.at(again)
            asked = self._forecast(rows[again], given.inputs[again], some, self.features.predict(some.views, parameters))
            forecast = given.where(np.arange(len(rows)))
            for name in ("experts", "pivot", "known"):
                getattr(forecast, name)[again] = getattr(asked, name)
        losses, counts = self._mixing["losses"][rows, : self.kernels], self._mixing["count"][rows]
        self._learn_late(rows, forecast, scale, labels)
        self._journal(b"l", rows, label=labels, **{name: getattr(forecast, name) for name in self._forecast_type.names or ()})
        self._keep(rows, scale, labels, errors)
        self._snapshot_due(rows)
        for row in self._react(rows):
            self._snapshot(row, self._moments[row].tobytes())
        return _Taken(
            features=self.features,
            views=scale.views,
            targets=np.where(scale.known >= 2, self._target(labels, scale), 0.0),
            predictions=given.predictions,
            scores=logit(given.predictions) if self.loss is LOGISTIC else given.predictions,
            kernel_predictions=forecast.experts[:, : self.kernels],
            log_weights=self._log_weights(losses, counts),
            log_weights_after=self._log_weights(self._mixing["losses"][rows, : self.kernels], self._mixing["count"][rows]),
        )

    @property
    def forecast_bytes(self) -> int:
        return self._forecast_type.itemsize

    def check_forecast(self, content: bytes) -> None:
        _check_size(content, self._forecast_type.itemsize)
        check_entry(np.frombuffer(content, self._forecast_type)[0], self.dimension, self.loss is LOGISTIC)

    @property
    def part_bytes(self) -> int:
        snapshot = self._moments_type.itemsize + self._mixture_type.itemsize
        return max(snapshot, 4 * self._kept_width, *(kind.itemsize for kind in self._entry_types.values()))

    def remember(self, rows: Sequence[int]) -> list[bytes]:
        return [b""] * len(rows)

    def parts(self, row: int) -> Iterable[tuple[bytes, bytes]]:
        return self._changed.pop(row, {}).items()

    def part_keys(self, row: int) -> Iterable[bytes]:
        yield b"s"
        yield from (_key(kind, slot) for kind in self._entry_types for slot in range(SNAPSHOT_EVERY))
        yield from (_key(b"k", slot) for slot in range(self._ring))

    def restore(self, row: int, remembered: bytes) -> None:
        if remembered:
            raise PeerError("malformed", "a client's state is of another preset")

    def restore_part(self, row: int, key: bytes, value: bytes) -> None:
        unread = self._unread.setdefault(row, _Unread())
        kind, slot = key[:1], int.from_bytes(key[1:], "big")
        if key == b"s":
            _check_size(value, self._moments_type.itemsize + self._mixture_type.itemsize)
            check_snapshot(*self._of_snapshot(value), RIDGE, self.loss is LOGISTIC)
            unread.snapshot = value
        elif kind in self._entry_types and slot < SNAPSHOT_EVERY:
            _check_size(value, self._entry_types[kind].itemsize)
            entry = np.frombuffer(value, self._entry_types[kind])[0]
            check_entry(entry, self.dimension, self.loss is LOGISTIC)
            if key != _key(kind, int(entry["number"]) % SNAPSHOT_EVERY):
                raise PeerError("malformed", f"entry {entry['number']} of a client's journal lies under {key!r}")
            unread.entries[key] = value
        elif kind == b"k" and slot < self._ring and key == _key(kind, slot):
            _check_size(value, 4 * self._kept_width)
            kept = np.frombuffer(value, "<f4")
            check_kept(kept, self._project.width, self._kept_label)
            self._kept[row, slot] = kept
        else:
            raise PeerError("malformed", f"a client's state has a part {key!r} that this preset does not know")

    def _of_snapshot(self, content: bytes) -> tuple[Any, Any]:
        size = self._moments_type.itemsize
        return np.frombuffer(content[:size], self._moments_type)[0], np.frombuffer(content[size:], self._mixture_type)[0]

    def sums(self, rows: Sequence[int]) -> NDArray[np.float64]:
        self._put_together(rows)
        return np.asarray(self._mixing["sums"][rows])

    def kernel_losses(self, rows: Sequence[int]) -> NDArray[np.float64]:
        self._put_together(rows)
        return np.asarray(self._mixing["kernel_losses"][rows])

    def _see(self, rows: NDArray[np.intp], inputs: Floats) -> None:
        moments = self._moments
        counts = moments["samples"][rows] + 1
        first = counts == 1
        moments["origin"][rows[first]] = self._project(inputs[first])
        means, squares = moments_with(counts, moments["input_mean"][rows], moments["input_squares"][rows], inputs)
        moments["samples"][rows], moments["input_mean"][rows], moments["input_squares"][rows] = counts, means, squares
        moments["entries"][rows] += 1

    def _take_labels(self, rows: NDArray[np.intp], labels: Floats) -> None:
        moments = self._moments
        counts = moments["labels"][rows] + 1
        means, squares = moments_with(counts, moments["label_mean"][rows], moments["label_squares"][rows], labels)
        moments["labels"][rows], moments["label_mean"][rows], moments["label_squares"][rows] = counts, means, squares
        moments["kept"][rows] += 1
        first = counts == 1
        moments["low"][rows] = np.where(first, labels, np.minimum(moments["low"][rows], labels))
        moments["high"][rows] = np.where(first, labels, np.maximum(moments["high"][rows], labels))
        moments["lags"][rows] = np.stack([labels, moments["lags"][rows, 0]], axis=1)

    def _scale(self, rows: NDArray[np.intp], inputs: Floats, lags: Floats) -> _Scale:
        moments = self._moments[rows]
        known, mean = moments["labels"], moments["label_mean"]
        deviation = predictive_deviation(known, moments["label_squares"], LEAST_DEVIATION)
        if self.loss is LOGISTIC:
            low = 0.5 / (known + 1.0)
            high = 1.0 - low
        else:
            # Of n values the largest is expected to be exceeded by the range / (n - 1).
            margin = (moments["high"] - moments["low"]) / np.maximum(known - 1, 1)
            low, high = moments["low"] - margin, moments["high"] + margin
        scaled_lags = np.nan_to_num(np.clip((lags - mean[:, None]) / deviation[:, None], -LARGEST_TARGET, LARGEST_TARGET))
        variances = moments["input_squares"] / np.maximum(moments["samples"], 1)[:, None]
        return _Scale(
            known=known,
            kept=moments["kept"],
            mean=mean,
            deviation=deviation,
            low=low,
            high=high,
            lags=lags,
            scaled_lags=scaled_lags,
            views=self.features.inputs(inputs, moments["input_mean"], variances, scaled_lags),
            # Kept in single precision, so told from the first sample, not from zero.
            queries=self._project(inputs) - moments["origin"],
            variances=self._project.variances(variances),
        )

    def _forecast(self, rows: NDArray[np.intp], inputs: Floats, scale: _Scale, raw: NDArray[Any]) -> Forecast:
        """What every expert says, and what the mixtures make of it; raw (rows, kernels) are theta_i . z_i."""
        kernels = scale.mean[:, None] + scale.deviation[:, None] * raw
        experts = np.hstack([kernels, self._local_predictions(rows, scale)])
        experts = np.clip(np.nan_to_num(experts), scale.low[:, None], scale.high[:, None])
        # As they are journalled: learning from them again has to give the same.
        return self._mix(rows, inputs, scale, experts.astype(self.dtype).astype(np.float64))

    def _mix(self, rows: NDArray[np.intp], inputs: Floats, scale: _Scale, experts: Floats) -> Forecast:
        mixing = self._mixing
        losses, counts = mixing["losses"][rows], mixing["count"][rows]
        by_kernels = mixed(experts[:, : self.kernels], self._log_weights(losses[:, : self.kernels], counts))
        pivot = mixed(experts, log_posterior(losses, counts, self._log_prior, self._noisy))
        made = {"kernels": by_kernels, "all": pivot}
        if "ridge" in self._mixtures:
            change, _, _ = corrected(
                self._deviations(experts, pivot, scale.deviation), mixing["ridge_weights"][rows], mixing["ridge_covariance"][rows]
            )
            made["ridge"] = np.clip(pivot + scale.deviation * change, scale.low, scale.high)
        predictions = np.mean([made[name] for name in self._mixtures], axis=0)
        return Forecast(predictions, experts, pivot, scale.known, inputs, scale.lags, self._forecast_type)

    def _local_predictions(self, rows: NDArray[np.intp], scale: _Scale) -> Floats:
        """The local experts, (rows, local); the running mean until they know better."""
        by_name = {"running-mean": scale.mean, "last-label": np.where(np.isnan(scale.lags[:, 0]), scale.mean, scale.lags[:, 0])}
        if {"neighbours", "scaled-neighbours"} & set(self._local):
            plain, scaled = scale.mean.copy(), scale.mean.copy()
            having = np.flatnonzero(scale.known)
            if len(having):
                plain[having], scaled[having] = self._neighbours(rows[having], scale.at(having)).T
            by_name |= {"neighbours": plain, "scaled-neighbours": scaled}
        chosen = [by_name[name] for name in self._local] + [*self._river_predictions(rows, scale).T]
        return np.stack(chosen, axis=1) if chosen else np.empty((len(rows), 0))

    def _river_predictions(self, rows: NDArray[np.intp], scale: _Scale) -> Floats:
        """(rows, river); the running mean of those that have no opinion."""
        result = np.repeat(scale.mean[:, None], len(self._river), axis=1)
        if self._river_experts is not None:
            queries = scale.queries.astype(np.float32)
            for place in np.flatnonzero(scale.known).tolist():
                row = int(rows[place])
                experts = self._river_experts.at(row, self._kept[row], int(scale.kept[place]))
                result[place] = experts.predict(queries[place])
        return np.where(np.isnan(result), scale.mean[:, None], result)

    def _neighbours(self, rows: NDArray[np.intp], scale: _Scale) -> Floats:
        filled = np.minimum(scale.kept, self._ring)
        result = np.empty((len(rows), 2))
        for start in range(0, len(rows), BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            used = slice(0, int(filled[block].max()))
            kept = self._kept[rows[block], used]
            lags = kept[..., self._project.width : self._kept_label] - scale.mean[block, None, None]
            lags /= scale.deviation[block, None, None]
            np.clip(lags, -LARGEST_TARGET, LARGEST_TARGET, out=lags)
            lags[np.isnan(lags)] = 0.0
            result[block] = neighbour_predictions(
                scale.queries[block].astype(np.float32),
                scale.scaled_lags[block].astype(np.float32),
                kept[..., : self._project.width],
                lags.astype(np.float32),
                kept[..., self._kept_label],
                filled[block],
                scale.variances[block].astype(np.float32),
            )
        return result

    def _learn(self, rows: NDArray[np.intp], forecast: Forecast, deviation: Floats, labels: Floats) -> None:
        """Judge experts by a forecast that knew one label at least, and fit the ridge."""
        able = np.flatnonzero(forecast.known)
        if not len(able):
            return
        rows, forecast, deviation, labels = rows[able], forecast.where(able), deviation[able], labels[able]
        mixing = self._mixing
        mixing["losses"][rows] = MEMORY * mixing["losses"][rows] + self._losses(forecast.experts, labels[:, None])
        mixing["count"][rows] = MEMORY * mixing["count"][rows] + 1.0
        if "ridge" in self._mixtures:
            mixing["ridge_weights"][rows], mixing["ridge_covariance"][rows] = ridge_step(
                self._deviations(forecast.experts, forecast.pivot, deviation),
                np.clip((labels - forecast.pivot) / deviation, -LARGEST_TARGET, LARGEST_TARGET),
                mixing["ridge_weights"][rows],
                mixing["ridge_covariance"][rows],
                RIDGE,
                RIDGE_LEAK,
            )

    def _count(self, rows: NDArray[np.intp], labels: Floats, labelled: NDArray[np.bool_], forecast: Forecast) -> None:
        """Samples, some with their labels: what regret and error are computed from."""
        self._mixing["entries"][rows] += 1
        self._mixing["sums"][rows, 0] += 1
        self._judge(rows, labels, labelled, forecast)

    def _judge(self, rows: NDArray[np.intp], labels: Floats, labelled: NDArray[np.bool_], forecast: Forecast) -> None:
        errors = np.where(labelled, np.square(forecast.predictions - labels), 0.0)
        own = np.where(labelled, self._losses(forecast.predictions, labels), 0.0)
        self._mixing["sums"][rows, 1:] += np.stack([labelled, errors, own], axis=1)
        losses = self._losses(forecast.experts[:, : self.kernels], labels[:, None])
        self._mixing["kernel_losses"][rows] += np.where(labelled[:, None], losses, 0.0)

    def _keep(self, rows: NDArray[np.intp], scale: _Scale, labels: Floats, errors: Floats) -> None:
        """Put samples among the latest of their clients."""
        columns = [scale.queries, scale.lags, labels[:, None]]
        if self._detectors is not None:
            columns.append(errors[:, None])
        kept = np.hstack(columns).astype("<f4")
        slots = scale.kept % self._ring
        self._kept[rows, slots] = kept
        for row, slot, content in zip(rows.tolist(), slots.tolist(), _cut(kept, 4 * self._kept_width), strict=True):
            self._changed.setdefault(row, {})[_key(b"k", slot)] = content

    def _react(self, rows: NDArray[np.intp]) -> list[int]:
        """Let clients whose errors have risen forget what was before; returns their rows."""
        if self._detectors is None:
            return []
        changed = []
        for row in rows.tolist():
            since = self._detectors.at(row, self._kept[row], int(self._moments["kept"][row])).samples_since
            if since:
                self._begin_anew(row, since)
                changed.append(row)
        self.drifts += len(changed)
        return changed

    def _begin_anew(self, row: int, since: int) -> None:
        """Keep a client's latest ``since`` samples only, and if the scale of its labels does not fit them, take it from them."""
        moments = self._moments[row : row + 1]
        latest = self._kept[row, np.arange(moments["kept"][0] - since, moments["kept"][0]) % self._ring]
        labels = latest[:, self._kept_label].astype(np.float64)
        deviation = predictive_deviation(moments["labels"], moments["label_squares"], LEAST_DEVIATION)
        # The kernels were trained on the scale as it is: it changes only where it has little to do with the labels.
        if (np.abs(np.median(labels) - moments["label_mean"]) > ANOTHER_LEVEL * deviation)[0]:
            moments["labels"], moments["label_mean"] = since, labels.mean()
            moments["label_squares"] = np.square(labels - labels.mean()).sum()
            moments["low"], moments["high"] = labels.min(), labels.max()
        moments["kept"] = since
        self._kept[row, :since] = latest
        parts = self._changed.setdefault(row, {})
        for slot, content in enumerate(_cut(latest.astype("<f4"), 4 * self._kept_width)):
            parts[_key(b"k", slot)] = content
        self._forget_windows(row)

    def _forget_windows(self, row: int) -> None:
        for windows in (self._river_experts, self._detectors):
            if windows is not None:
                windows.forget(row)

    def _snapshot(self, row: int, moments: bytes) -> None:
        self._changed.setdefault(row, {})[b"s"] = moments + self._mixing[row].tobytes()

    def _snapshot_due(self, rows: NDArray[np.intp]) -> None:
        for row in rows[self._mixing["entries"][rows] % SNAPSHOT_EVERY == 0].tolist():
            self._snapshot(row, self._moments[row].tobytes())

    def _journal_samples(self, rows: NDArray[np.intp], labels: Floats, labelled: NDArray[np.bool_], forecast: Forecast) -> None:
        with_label, without = np.flatnonzero(labelled), np.flatnonzero(~labelled)
        inputs, experts = forecast.inputs, forecast.experts
        self._journal(b"j", rows[with_label], label=labels[with_label], inputs=inputs[with_label], experts=experts[with_label])
        self._journal(b"i", rows[without], inputs=inputs[without])

    def _journal(self, kind: bytes, rows: NDArray[np.intp], **columns: NDArray[Any]) -> None:
        """Write down what happened to these clients, for the time until the next snapshot."""
        entries = np.empty(len(rows), self._entry_types[kind])
        entries["number"] = self._mixing["entries"][rows]
        for name, column in columns.items():
            entries[name] = column
        slots = entries["number"] % SNAPSHOT_EVERY
        for row, slot, content in zip(rows.tolist(), slots.tolist(), _cut(entries, entries.itemsize), strict=True):
            self._changed.setdefault(row, {})[_key(kind, slot)] = content

    def _put_together(self, rows: Iterable[int]) -> None:
        """Finish restoring: the snapshot, and what was learnt since."""
        for row in [row for row in rows if row in self._unread]:
            unread = self._unread.pop(row)
            if unread.snapshot is not None:
                self._moments[row], self._mixing[row] = self._of_snapshot(unread.snapshot)
            done = int(self._mixing["entries"][row])
            entries = [(key[:1], np.frombuffer(value, self._entry_types[key[:1]])) for key, value in unread.entries.items()]
            for kind, entry in sorted(entries, key=lambda one: int(one[1]["number"][0])):
                # A slot of another kind may still hold what a snapshot has made superfluous.
                if entry["number"][0] > done:
                    self._replay(kind, np.array([row]), entry)

    def _replay(self, kind: bytes, rows: NDArray[np.intp], entry: NDArray[Any]) -> None:
        inputs = entry["inputs"]
        if kind == b"l":
            forecast = self._decoded(entry)
            self._learn_late(rows, forecast, self._scale(rows, inputs, forecast.lags), entry["label"])
            return
        self._see(rows, inputs)
        if kind == b"i":
            self._mixing["entries"][rows] += 1
            self._mixing["sums"][rows, 0] += 1
            return
        labels, labelled = entry["label"], np.ones(1, np.bool_)
        scale = self._scale(rows, inputs, self._moments["lags"][rows])
        forecast = self._mix(rows, inputs, scale, entry["experts"].astype(np.float64))
        self._count(rows, labels, labelled, forecast)
        self._learn(rows, forecast, scale.deviation, labels)
        self._take_labels(rows, labels)

    def _learn_late(self, rows: NDArray[np.intp], forecast: Forecast, scale: _Scale, labels: Floats) -> None:
        """The labels of samples that were counted when they came."""
        self._moments["entries"][rows] += 1
        self._mixing["entries"][rows] += 1
        self._judge(rows, labels, np.ones(len(rows), np.bool_), forecast)
        self._learn(rows, forecast, scale.deviation, labels)
        self._take_labels(rows, labels)

    def _decoded(self, content: NDArray[Any]) -> Forecast:
        parts = {name: content[name].copy() for name in self._forecast_type.names or ()}
        return Forecast(**{**parts, "experts": parts["experts"].astype(np.float64)}, layout=self._forecast_type)

    def _deviations(self, experts: Floats, pivot: Floats, deviation: Floats) -> Floats:
        return np.clip((experts - pivot[:, None]) / deviation[:, None], -LARGEST_TARGET, LARGEST_TARGET)

    def _losses(self, predictions: Floats, labels: Floats) -> Floats:
        if self.loss is LOGISTIC:
            return -np.log(np.where(labels > 0.5, predictions, 1.0 - predictions))
        return np.square(predictions - labels)

    def _errors(self, predictions: Floats, labels: Floats, deviation: Floats) -> Floats:
        """As the detector takes them, between 0 and 1."""
        unit = np.log(2.0) if self.loss is LOGISTIC else np.square(deviation)
        return np.minimum(self._losses(predictions, labels) / unit, 1.0)

    @property
    def _noisy(self) -> bool:
        return self.loss is not LOGISTIC

    def _log_weights(self, losses: Floats, counts: Floats) -> Floats:
        """Of the kernels among themselves."""
        return log_posterior(losses, counts, np.zeros(self.kernels), self._noisy)

    def _target(self, labels: Floats, scale: _Scale) -> Floats:
        return np.clip((labels - scale.mean) / scale.deviation, -LARGEST_TARGET, LARGEST_TARGET)


@dataclass(frozen=True)
class _Taken:
    """Samples as they were learnt; ``targets`` (samples,) are y_n, 0 where a client knew fewer than two labels."""

    features: ViewedFeatures
    views: list[NDArray[Any]]
    targets: Floats
    predictions: Floats
    scores: Floats
    kernel_predictions: Floats
    log_weights: Floats
    log_weights_after: Floats

    def steps(self, samples: NDArray[np.intp], kernels: NDArray[np.intp], probabilities: Floats) -> NDArray[Any]:
        """Target rows y_n z_i. The server's step settles how much each counts, so nothing is divided by its probability."""
        rows = self.features.rows(self.views, samples, kernels)
        return np.asarray(rows * self.targets[samples, None].astype(rows.dtype))


_Wave = tuple[NDArray[np.intp], NDArray[np.intp]]


def _waves(batch: Batch) -> Iterator[_Wave]:
    """The batch cut so that no client comes twice: rows of the clients, and the numbers of their samples."""
    for number in range(int(batch.counts.max())):
        clients = np.flatnonzero(batch.counts > number)
        yield batch.rows[clients], batch.starts[clients] + number


def _groups(waves: list[_Wave], every: bool) -> list[list[_Wave]]:
    return [[wave] for wave in waves] if every else [waves]


def _joined(scales: Sequence[_Scale]) -> _Scale:
    names = [name for name in vars(scales[0]) if name != "views"]
    parts = {name: np.concatenate([getattr(scale, name) for scale in scales]) for name in names}
    return _Scale(views=[np.concatenate(views) for views in zip(*(scale.views for scale in scales), strict=True)], **parts)


def _cut(array: NDArray[Any], size: int) -> list[bytes]:
    content = array.tobytes()
    return [content[start : start + size] for start in range(0, len(content), size)]


def _key(kind: bytes, slot: int) -> bytes:
    return kind + slot.to_bytes(2, "big")


def _check_size(content: bytes, expected: int) -> None:
    if len(content) != expected:
        raise PeerError("shape", f"a part of a client's state has {len(content)} bytes, not {expected}: it is of other settings")
