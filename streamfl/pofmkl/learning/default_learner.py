"""The default learner of a client: kernels that all clients train, experts of its own, and mixtures weighted
by recent errors.

Each part with state of its own is a module beside this one: the scale of inputs and labels
(``client_scales``), the experts' weights (``client_mixtures``), the client's own experts and their samples
(``local_experts``), and the journal of all this (``client_journal``, replayed by ``journal_steps``). This
module calls them in order. The equations without state are in ``views``, ``neighbours``, ``mixture`` and
:mod:`streamfl.learning.online_scaling`; the server's side is ``server_steps``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from streamfl.contract.role import BadRecord
from streamfl.kernels import LOGISTIC, Loss
from streamfl.learning.own_models import OwnModel
from streamfl.pofmkl.learning.changelog_checks import check_entry, check_size
from streamfl.pofmkl.learning.client_journal import SNAPSHOT, ChangedClientParts, ClientJournal, Forecast
from streamfl.pofmkl.learning.client_mixtures import MIXTURES, ClientMixtures
from streamfl.pofmkl.learning.client_scales import ClientScales, Scale
from streamfl.pofmkl.learning.journal_steps import JournalSteps
from streamfl.pofmkl.learning.learner import Batch, Learnt, waves
from streamfl.pofmkl.learning.local_experts import LOCAL_EXPERTS, LocalExperts
from streamfl.pofmkl.learning.neighbours import Projection
from streamfl.pofmkl.learning.own_steps import OWN_STEPS, OwnSteps
from streamfl.pofmkl.learning.target_rows import TargetRows
from streamfl.pofmkl.learning.views import ViewedFeatures

__all__ = ["DefaultLearner", "LearnerSnapshot"]

Floats = NDArray[np.float64]


class DefaultLearner:
    """Predicts with kernels on scaled views of the sample, the client's own simple experts, and three
    mixtures of all of these.

    Inputs and labels far from their mean are clipped (``reach`` in :mod:`streamfl.learning.online_scaling`).
    Errors and regret use the label as it came.

    The label is predicted in units of its running mean m and deviation s, so no range is assumed:
        f_i = m + s theta_i . z_i,  target row to the server  h_i = y_n z_i  with  y_n = clip((y - m) / s,
        +-3).
    The mixtures are Bayes' rule on the kernels, Bayes' rule on kernels and local experts (prior half and
    half), and the latter corrected by a ridge regression on the experts' deviations. The prediction is the
    mean of the three. With the logistic loss every expert predicts a probability, kept away from 0 and 1 by 1
    / (2 n + 2) after n labels.

    River's ADWIN watches each client's errors. When it finds a rise, the client drops its samples from
    before: neighbours and River's models use those since. m, s and the range of labels are computed anew from
    these too if their labels' median is more than 2 s from m. The error of a prediction p is min(1, ((y - p)
    / s)^2), with the logistic loss min(1, log loss / log 2): about 1 for a constant prediction of the mean,
    or of 1/2.

    A client's moments, the E^2 numbers of the ridge and its latest samples may take 64 KB: it keeps 16 to 256
    samples, as many as fit. One object serves one thread. ``drifts`` counts the changes found since the
    object was made.

    features: the kernels.
    loss: of predictions and labels.
    seed: of the federation.
    experts: names of ``LOCAL_EXPERTS``.
    river: more experts, made by :func:`streamfl.learning.challengers.challenger`. They learn the same columns
        as the neighbours.
    mixtures: names of ``MIXTURES``; "ridge" corrects "all".
    detector: "none" never forgets.
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
        river: Sequence[str | OwnModel] = (),
        mixtures: Sequence[str] = MIXTURES,
        detector: Literal["adwin", "none"] = "adwin",
    ) -> None:
        self.features = features
        self.loss = loss
        self.kernels = features.kernels
        self.row_length = 2 * features.count
        self.dimension = features.dimension
        self.dtype: type[np.float32] | type[np.float64] = (
            np.float64 if features.dtype == np.float64 else np.float32
        )
        self.drifts = 0
        # Stays 0: experts are clipped to their client's labels and a margin, and what is clipped loses its
        # weight to others.
        self.bounded = 0
        logistic = loss is LOGISTIC
        project = Projection(self.dimension, seed)
        self._changed = ChangedClientParts()
        self._scales = ClientScales(features, project, logistic)
        personal = len({*experts} & {*LOCAL_EXPERTS}) + len(river)
        self._mixtures = ClientMixtures(self.kernels, personal, mixtures, loss)
        self._journal = ClientJournal(
            self.dimension, self._mixtures.experts, self.dtype, logistic, self._changed
        )
        kind: Literal["square", "logistic"] = "logistic" if logistic else "square"
        self._journal_steps = JournalSteps(self._scales, self._mixtures, self._journal, logistic)
        self._local = LocalExperts(
            experts,
            project.width,
            self._journal_steps.snapshot_bytes,
            river,
            kind,
            detector != "none",
            self._changed,
        )
        self.measure = self._local.measure
        self.own_steps = OwnSteps(features, self._changed)
        self._free: list[int] = []

    def borrow(self) -> int:
        if not self._free:
            held = len(self._scales)
            more = max(16, held // 2)
            for owner in (self._scales, self._mixtures, self._local):
                owner.grow(more)
            self._free = list(range(held + more - 1, held - 1, -1))
        return self._free.pop()

    def give_back(self, row: int) -> None:
        for owner in (self._scales, self._mixtures, self._local, self._journal):
            owner.forget(row)
        self.own_steps.forget(row)
        self._free.append(row)

    def predict_and_learn(
        self, batch: Batch, parameters: NDArray[Any], squared_norms: NDArray[np.float64]
    ) -> Learnt:
        self._journal_steps.put_together(batch.rows.tolist())
        inputs, labels, labelled = np.array(batch.inputs, np.float64), batch.labels, batch.labelled
        parted = list(waves(batch))
        scales: list[Scale] = []
        experts = np.empty((len(labels), self._mixtures.experts))
        predictions, counts, counts_after = np.empty((3, len(labels)))
        losses, losses_after = np.empty((2, len(labels), self.kernels))
        bounded = np.empty(len(labels))
        one_by_one = self._local.finds_changes or len(self.own_steps) > 0
        for group in [[wave] for wave in parted] if one_by_one else [parted]:
            # A sample's scale depends on the samples before it and not on the model. So all waves are scaled
            # first, and the kernels of the whole group are one product. A change that is found, or a client's
            # own steps, affect the next wave: then each wave is a group.
            moments: dict[tuple[int, int], bytes] = {}
            own_scales: list[Scale] = []
            for rows, index in group:
                inputs[index] = self._scales.see(rows, inputs[index])
                own_scales.append(self._scales.scale(rows, inputs[index]))
                known = labelled[index]
                bounded[index] = own_scales[-1].bounded(labels[index])
                self._scales.learn(rows[known], bounded[index[known]])
                for row, number in self._journal.due(rows, self._scales.entries(rows)):
                    moments[row, number] = self._scales.content(row)
            scales += own_scales
            raw = np.empty((len(labels), self.kernels))
            of_group = np.concatenate([batch.rows[:0], *(rows for rows, _ in group)])
            raw[np.concatenate([index for _, index in group])] = self._raw(
                of_group, Scale.joined(own_scales).views, parameters
            )
            for (rows, index), own in zip(group, own_scales, strict=True):
                forecast = self._forecast(rows, inputs[index], own, raw[index])
                predictions[index], experts[index] = forecast.predictions, forecast.experts
                losses[index], counts[index] = self._mixtures.kernel_weights(rows)
                self._journal_steps.count(rows, labels[index], labelled[index], forecast)
                self._journal.samples(
                    rows, self._mixtures.entries(rows), labels[index], labelled[index], forecast
                )
                learning = np.flatnonzero(labelled[index])
                if len(learning):
                    learnt, some, then = bounded[index[learning]], forecast.where(learning), own.at(learning)
                    self._mixtures.learn(rows[learning], some, then.deviation, learnt)
                    self._take_own_steps(rows[learning], then, learnt, parameters)
                    errors = self._mixtures.errors(some.predictions, learnt, then.deviation)
                    self._local.keep(rows[learning], then, learnt, errors)
                for row, number in self._journal.due(rows, self._mixtures.entries(rows)):
                    self._journal_steps.snapshot(row, moments[row, number])
                self._react(rows[learning])
                losses_after[index], counts_after[index] = self._mixtures.kernel_weights(rows)
        scale = Scale.joined(scales).at(np.argsort(np.concatenate([index for _, index in parted])))
        targets = np.where(labelled & (scale.known >= 2), scale.target(bounded), 0.0)
        before, after = (losses, counts), (losses_after, counts_after)
        return self._target_rows(scale, targets, predictions, experts, before, after)

    def predict(self, rows: NDArray[np.intp], inputs: NDArray[Any], parameters: NDArray[Any]) -> Forecast:
        self._journal_steps.put_together(rows.tolist())
        inputs = self._scales.see(rows, np.asarray(inputs, np.float64))
        scale = self._scales.scale(rows, inputs)
        forecast = self._forecast(rows, inputs, scale, self._raw(rows, scale.views, parameters))
        no_labels, unlabelled = np.zeros(len(rows)), np.zeros(len(rows), np.bool_)
        self._journal_steps.count(rows, no_labels, unlabelled, forecast)
        self._journal.samples(rows, self._mixtures.entries(rows), no_labels, unlabelled, forecast)
        self._journal_steps.snapshot_due(rows)
        return forecast

    def learn(
        self,
        rows: NDArray[np.intp],
        forecasts: Sequence[bytes],
        labels: Floats,
        parameters: NDArray[Any],
        squared_norms: NDArray[np.float64],
    ) -> Learnt:
        """Judges experts by what they predicted when the sample came.

        If no label was known then, their predictions say nothing. If one is known by now, the experts predict
        again, with the labels before the sample as they were then.
        """
        self._journal_steps.put_together(rows.tolist())
        layout = self._journal.forecast_layout
        given = Forecast.decoded(np.frombuffer(b"".join(forecasts), layout), layout)
        scale = self._scales.scale(rows, given.inputs, given.lags)
        bounded = scale.bounded(labels)
        errors = self._mixtures.errors(given.predictions, bounded, scale.deviation)
        forecast, again = given, np.flatnonzero((given.known == 0) & (scale.known > 0))
        if len(again):
            some = scale.at(again)
            asked = self._forecast(
                rows[again], given.inputs[again], some, self._raw(rows[again], some.views, parameters)
            )
            forecast = given.where(np.arange(len(rows)))
            for name in ("experts", "pivot", "known"):
                getattr(forecast, name)[again] = getattr(asked, name)
        self._take_own_steps(rows, scale, bounded, parameters)
        before = self._mixtures.kernel_weights(rows)
        self._journal_steps.learn_late(rows, forecast, scale, labels, bounded)
        self._journal.late_labels(rows, self._mixtures.entries(rows), labels, forecast)
        self._local.keep(rows, scale, bounded, errors)
        self._journal_steps.snapshot_due(rows)
        self._react(rows)
        targets = np.where(scale.known >= 2, scale.target(bounded), 0.0)
        after = self._mixtures.kernel_weights(rows)
        return self._target_rows(scale, targets, given.predictions, forecast.experts, before, after)

    def _target_rows(
        self,
        scale: Scale,
        targets: Floats,
        predictions: Floats,
        experts: Floats,
        before: tuple[Floats, Floats],
        after: tuple[Floats, Floats],
    ) -> TargetRows:
        """Learnt samples. before, after: the kernels' losses and counts before and after each sample."""
        return TargetRows(
            features=self.features,
            views=scale.views,
            targets=targets,
            predictions=predictions,
            scores=logit(predictions) if self.loss is LOGISTIC else predictions,
            kernel_predictions=experts[:, : self.kernels],
            log_weights=self._mixtures.log_weights(*before),
            log_weights_after=self._mixtures.log_weights(*after),
        )

    @property
    def forecast_bytes(self) -> int:
        return self._journal.forecast_layout.itemsize

    def check_forecast(self, content: bytes) -> None:
        check_size(content, self.forecast_bytes)
        entry = np.frombuffer(content, self._journal.forecast_layout)[0]
        check_entry(entry, self.dimension, self.loss is LOGISTIC)

    @property
    def part_bytes(self) -> int:
        parts = (
            self._journal_steps.snapshot_bytes,
            self._local.sample_bytes,
            self._local.state_bytes,
            self._journal.entry_bytes,
        )
        return max(*parts, self.own_steps.state_bytes)

    def remember(self, rows: Sequence[int]) -> list[bytes]:
        return [b""] * len(rows)

    def parts(self, row: int) -> Iterable[tuple[bytes, bytes]]:
        return self._changed.collect(row)

    def part_keys(self, row: int) -> Iterable[bytes]:
        yield from self._journal.part_keys()
        yield from self._local.part_keys()
        yield OWN_STEPS

    def restore(self, row: int, remembered: bytes) -> None:
        if remembered:
            raise BadRecord("malformed", "a client's state is of another preset")

    def restore_part(self, row: int, key: bytes, value: bytes) -> None:
        if key == SNAPSHOT:
            self._journal_steps.restore_snapshot(row, value)
        elif key == OWN_STEPS:
            self.own_steps.restore(row, value)
        elif not self._journal.restore_entry(row, key, value) and not self._local.restore(row, key, value):
            raise BadRecord(
                "malformed", f"a client's state has a part {key!r} that this preset does not know"
            )

    def sums(self, rows: Sequence[int]) -> NDArray[np.float64]:
        self._journal_steps.put_together(rows)
        return self._mixtures.sums(rows)

    def kernel_losses(self, rows: Sequence[int]) -> NDArray[np.float64]:
        self._journal_steps.put_together(rows)
        return self._mixtures.kernel_losses(rows)

    def weights(self, row: int) -> NDArray[np.float64]:
        """Normalised weights of a client's kernels and own experts, (experts,)."""
        self._journal_steps.put_together([row])
        return self._mixtures.weights(row)

    def snapshot(self, row: int) -> LearnerSnapshot:
        """A copy of a client's state, for checks."""
        return LearnerSnapshot(
            moments=self._scales.snapshot(row),
            mixture=self._mixtures.snapshot(row),
            kept=self._local.snapshot(row),
            kept_labels=self._local.snapshot(row)[:, self._local.label_column],
        )

    def _raw(
        self, rows: NDArray[np.intp], views: Sequence[NDArray[Any]], parameters: NDArray[Any]
    ) -> NDArray[Any]:
        """theta_i . z_i, corrected by the own steps of clients that have taken some: (samples, kernels)."""
        return self.own_steps.correct(self.features.predict(views, parameters), rows, views)

    def _take_own_steps(
        self, rows: NDArray[np.intp], scale: Scale, labels: Floats, parameters: NDArray[Any]
    ) -> None:
        self.own_steps.learn(
            rows, scale.views, parameters, np.where(scale.known >= 2, scale.target(labels), np.nan)
        )

    def _forecast(self, rows: NDArray[np.intp], inputs: Floats, scale: Scale, raw: NDArray[Any]) -> Forecast:
        """The predictions of all experts and of their mixtures. raw (rows, kernels): theta_i . z_i."""
        kernels = scale.mean[:, None] + scale.deviation[:, None] * raw
        experts = np.hstack([kernels, self._local.predict(rows, scale)])
        experts[np.isnan(experts)] = 0.0
        experts = np.clip(experts, scale.low[:, None], scale.high[:, None])
        # Rounded as in the journal, so that a replay of the journal gives the same result.
        return self._journal_steps.mixed(rows, inputs, scale, experts.astype(self.dtype).astype(np.float64))

    def _react(self, rows: NDArray[np.intp]) -> None:
        """Let clients whose errors have risen forget their earlier samples."""
        if not self._local.finds_changes:
            return
        changed = []
        for row in rows.tolist():
            kept = self._scales.kept(row)
            since = self._local.samples_since_change(row, kept)
            if since:
                self._scales.begin_anew(row, self._local.begin_anew(row, kept, since))
                changed.append(row)
        self.drifts += len(changed)
        for row in changed:
            self._journal_steps.snapshot(row, self._scales.content(row))


@dataclass(frozen=True)
class LearnerSnapshot:
    """A client's state in the default learner.

    moments: the numbers of :class:`ClientScales`, by name.
    mixture: the numbers of :class:`ClientMixtures`, by name.
    kept (size, columns): the ring of its latest samples.
    kept_labels (size,): their labels.
    """

    moments: dict[str, Any]
    mixture: dict[str, Any]
    kept: NDArray[np.float32]
    kept_labels: NDArray[np.float32]
