"""The client of POF-MKL: Algorithm 1 as a role, which calls the parts in order.

Ghari and Shen, "Personalized Online Federated Learning with Multiple Kernels", NeurIPS 2022. For a sample x
with label y, and the parameters theta_i of every kernel i that the server published:

    f_i = theta_i . z_i(x)                                  (4), (6)   paper_learner.py, streamfl.kernels
    f = sum_i w_bar_i f_i,  w_bar_i = w_i / sum_j w_j       (6)        paper_learner.py
    publish f
    l_i = L(f_i, y) + lambda ||theta_i||^2                             paper_learner.py
    draw bin j, with q_j = (1 - xi) u_j / sum(u) + xi / m   (8)        bins.py
    w_i <- w_i exp(-eta l_i)                                (7)        paper_learner.py
    send (eta / p_i) grad l_i for each kernel i of the bin  (9)        paper_learner.py, uploads.py
    theta_i <- theta_i - (1/K) sum_k delta_ik               (10)       server/role.py, server_steps.py

This is ``preset = "paper"``. With the default preset clients send target rows instead, and default_learner.py
is the learner.

Each part bounds, remembers and restores its own state: the registered clients (client_registry.py) and their
admission (admission.py), samples and labels that wait for the model (labels_with_samples.py and
late_labels.py, on pending_samples.py), clients with a backlog (catch_up.py, reading_order.py), open uploads
(uploads.py), whether the server answers (model_watch.py), errors and regret (11) (prequential.py), and the
means that replace missing inputs (records/imputation.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from streamfl.contract.batch import Run, runs_of
from streamfl.contract.role import (
    BadRecord,
    Measurement,
    OperatorNotice,
    Received,
    Rejection,
    Send,
    StateChange,
)
from streamfl.kernels import LOGISTIC
from streamfl.pofmkl.client.admission import Admission
from streamfl.pofmkl.client.bandwidth import Budgets
from streamfl.pofmkl.client.catch_up import CatchUp
from streamfl.pofmkl.client.client_record import ClientSnapshot
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.given import ClientGiven
from streamfl.pofmkl.client.label_source import LabelSource
from streamfl.pofmkl.client.labels_with_samples import LabelsWithSamples, StepTrace
from streamfl.pofmkl.client.late_labels import LateLabels
from streamfl.pofmkl.client.model import ModelTable
from streamfl.pofmkl.client.model_watch import ModelWatch
from streamfl.pofmkl.client.predictions import PredictionWriter
from streamfl.pofmkl.client.prequential import PrequentialScores
from streamfl.pofmkl.client.registered_client import ClientKey
from streamfl.pofmkl.client.restoring import ClientRestoring
from streamfl.pofmkl.client.sample_runs import SampleRuns
from streamfl.pofmkl.client.server_silence import ServerSilence
from streamfl.pofmkl.client.settings_match import ServerSettingsCheck
from streamfl.pofmkl.client.staleness import StalenessPolicy
from streamfl.pofmkl.client.uploads import Uploads
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.metrics import ClientMetrics
from streamfl.pofmkl.state import INPUT_MEANS, WAITING_LIMIT
from streamfl.pofmkl.state_settings import federation_settings, pace_settings
from streamfl.records.fields import LABEL_RANGE
from streamfl.records.input_watch import InputWatch
from streamfl.state.clock_guard import ClockGuard, earliest, time_written_by

__all__ = ["PofmklClient", "StepTrace"]


class PofmklClient:
    """Predicts every sample, learns from its label, and sends updates within the uplink's limits.

    One object serves all clients of its partitions: the samples of a poll go to the learner together. The
    role reports trouble if it sends updates, or samples wait for the model, and no new version comes.

    waiting_limit: the most samples or labels of a partition that may wait, plus one poll.
    """

    def __init__(self, settings: PofmklSettings, given: ClientGiven) -> None:
        learner, learning = given.learner, settings.learning
        samples, labels = settings.samples, settings.labels
        assert samples is not None
        clients, shards = settings.federation.clients, settings.federation.shards
        self._carry = given.carry
        self.learner = learner
        self.staleness_policy = StalenessPolicy(learning)
        self.fingerprint = given.fingerprint
        self.waiting_limit = WAITING_LIMIT
        self.challengers = given.challengers
        self.model = ModelTable(
            learner.kernels,
            learner.row_length,
            learner.dimension,
            shards,
            given.fingerprint,
            learner.dtype,
            given.signing,
        )
        self.settings_check = ServerSettingsCheck(federation_settings(settings), pace_settings(settings))
        # In an unkeyed topic each client appears in every partition. Names for twice the possible clients are
        # enough to see that.
        self.watch = InputWatch(
            samples.label, LABEL_RANGE, samples.label_range, labels is not None, 2 * clients
        )
        self._model_watch = ModelWatch(self.model, self.settings_check, learning)
        self._budgets = Budgets(
            settings, learner.row_length * np.dtype(learner.dtype).itemsize, given.seal_bytes
        )
        self._registry = ClientRegistry(learner, self._budgets, settings.federation)
        self.silence = ServerSilence(learning)
        self.catch_up = CatchUp(settings, self.silence, self._registry)
        self._uploads = Uploads(
            settings, given, self.model, self.staleness_policy, self.catch_up, self._budgets, self._registry
        )
        self._scores = PrequentialScores(learner, self._registry, given.low + given.span - given.low)
        self._clock_guard = ClockGuard()
        self._means = given.means
        self._unread: Mapping[int, Mapping[str, int]] = {}
        predictions = PredictionWriter(given.encode, given.low, given.span, self.model)
        parts = (learner, self.model, self._registry, self._uploads, self._scores, predictions, self.catch_up)
        budgeted = settings.uplink.budget_bytes_per_second is not None
        self._labels: LabelSource
        self._samples: SampleRuns | None = None
        if labels is None:
            self._labels = with_samples = LabelsWithSamples(
                *parts, budgeted=budgeted, challengers=given.challengers
            )
            if not self._means:
                self._samples = SampleRuns(
                    self._registry, self.watch, with_samples, self._carry, learner.loss
                )
        else:
            self._labels = LateLabels(*parts, settings, budgeted=budgeted, watch=self.watch)
        self._admission = Admission(self._registry, self._uploads, self._labels, self._means, self.watch)
        self._restoring = ClientRestoring(
            self.model, self._registry, self._uploads, self._labels, self.silence, self._means
        )

    @property
    def wake_at(self) -> float | None:
        catch_up = self.catch_up.wake_at if self._labels.pending.total else None
        return earliest(
            self._labels.wake_at,
            self._uploads.next_due,
            self._model_watch.wake_at,
            self.silence.wake_at,
            catch_up,
        )

    @property
    def full(self) -> Collection[int]:
        pending = self._labels.pending
        return sorted({*pending.full(self.waiting_limit), *self.catch_up.full(pending.counts)})

    @property
    def most_records(self) -> int | None:
        return self._labels.most_records

    @property
    def paused(self) -> Collection[tuple[str, int]]:
        return self._labels.paused

    def unread(self, records: Mapping[int, Mapping[str, int]]) -> None:
        self._unread = records

    @property
    def waiting(self) -> Mapping[str, int]:
        return {"samples": self._labels.pending.total} if self._labels.pending.total else {}

    @property
    def prompt(self) -> bool:
        return self.staleness_policy.lockstep

    @property
    def urgent(self) -> bool:
        return self.catch_up.is_urgent(self.model.versions, self._labels.pending.total)

    @property
    def backlog(self) -> str | None:
        pending = self._labels.pending
        kind = "samples" if isinstance(self._labels, LabelsWithSamples) else "labels"
        return self.catch_up.backlog(kind, pending.total, sum(1 for _ in pending.waiting_clients()))

    @property
    def trouble(self) -> str | None:
        return (
            self.settings_check.trouble
            or self._model_watch.trouble
            or self._scores.trouble
            or self.watch.trouble(self._scores.ever_learnt)
        )

    def notices(self) -> Iterable[OperatorNotice]:
        yield from self.settings_check.notices()
        yield from self.watch.notices(self._scores.ever_learnt)
        yield from self._labels.notices()
        yield from self._scores.notices()
        yield from self.catch_up.notices()
        yield from self.silence.notices()

    def open(self, partition: int) -> None:
        self._clock_guard.opened()
        self.catch_up.open(partition)
        self.silence.open(partition)
        self._registry.open(partition)
        self._labels.open(partition)

    def close(self, partition: int) -> None:
        for client in self._registry.close(partition):
            self._uploads.forget(client)
        self._labels.close(partition)
        self._means.close(partition)
        self.catch_up.close(partition)
        self.silence.close(partition)
        if not self._registry.partitions:
            self._model_watch.nobody_asks()

    def forget(self, name: str) -> bool:
        known = self._registry.named(name)
        for client in known:
            self._admission.forget(client)
        return bool(known)

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        if self._clock_guard.pass_to(now, tick=not batch):
            self._set_back(now)
        self._budgets.pass_to(now, len(self._registry))
        before = self.model.versions
        replies: list[Send | Rejection] = []
        runs = runs_of(batch)
        self.catch_up.note_unread(self._unread, _counts(runs))
        self._unread = {}
        self._hear(runs, now, replies)
        pending = self._labels.pending
        waited_enough = self.catch_up.begin_step(self.model.versions, pending.counts, now)
        self._registry.end_own_steps(self.silence.hear(self.model.versions))
        if self.model.versions != before:
            if any(current < earlier for current, earlier in zip(self.model.versions, before, strict=True)):
                self._registry.release(self.model.versions)
            pending.look_again()
        if self.silence.look(now) or waited_enough:
            pending.look_again()
        self._registry.begin_own_steps(self.silence.is_unanswered)
        learnt = self._scores.labels
        replies += self._uploads.send_outdated(now)
        if not batch:
            replies += self._uploads.send_due(now)
        replies += self._labels.advance(now, tick=not batch)
        self.catch_up.end_step(self._scores.labels - learnt)
        for partition in self._uploads.take_sent_from() | {
            number for number, count in pending.counts.items() if count
        }:
            self.silence.ask(partition, now)
        self._model_watch.look(
            self._uploads.sent, pending.total > 0, self._anybody_waits_for_model, now, tick=not batch
        )
        self._scores.judge()
        return replies

    def _anybody_waits_for_model(self) -> bool:
        return not all(map(self._uploads.may_learn, self._labels.pending.waiting_clients()))

    def _hear(self, runs: Iterable[Run], now: float, replies: list[Send | Rejection]) -> None:
        """Process the messages; add a rejection to ``replies`` for each refused one."""
        for run in runs:
            if run.channel != "samples" or self._samples is None or not self._samples.take(run, now):
                self._hear_each(run, now, replies)
        self._registry.batch_is_over()

    def _hear_each(self, batch: Sequence[Received], now: float, replies: list[Send | Rejection]) -> None:
        logistic = self.learner.loss is LOGISTIC
        watch = self.watch
        labels = self._labels
        known = self._registry
        carry = self._carry
        for received in batch:
            channel, message = received.channel, received.message
            try:
                if channel == "model":
                    self._model_watch.hear(message, received.partition)
                    continue
                key = received.partition, message.client
                # Before a possible refusal: if there is no room, the reason is often how the topic is keyed.
                if channel == "samples":
                    watch.sample(*key, message.label)
                else:
                    watch.label(*key, message.label)
                if logistic:
                    _check_class(message.label)
                client, written_at = known.find(key), time_written_by(now, received.record.timestamp)
                if channel == "samples":
                    client = known.observe(key, written_at) or self._admission.admit(key, written_at, now)
                    if self._means:
                        # Now, in the order of the records: a sample that waits for the model gets the mean
                        # from when it came.
                        message = msgspec.structs.replace(
                            message, features=self._means.fill(key, message.features)
                        )
                labels.arrive(key, client, message, received.record, carry(received.record))
                if client is not None and channel == "samples":
                    known.hear_sample(client, written_at, now)
                    if message.label is not None:
                        known.hear_label(client, written_at, now)
            except BadRecord as error:
                replies.append(Rejection(received, error))

    def _set_back(self, now: float) -> None:
        """Replace every remembered time after ``now`` with ``now``: the clock was ahead."""
        self.silence.set_back(now)
        self.catch_up.set_back(now)
        self._uploads.set_back(now)
        self._registry.set_back(now)
        self._labels.set_back(now)

    def changed_state(self) -> Iterable[StateChange]:
        yield from self._registry.forgotten()
        yield from self._registry.changed_state(self._uploads.remembered)
        yield from self._labels.changed_state()
        yield from self.silence.changed_state()
        for partition, name, value in self._means.changed_state():
            yield StateChange("state", partition, INPUT_MEANS.prefix + name, value)

    def restore(self, change: StateChange) -> None:
        self._restoring.restore(change)

    @property
    def trace(self) -> Callable[[StepTrace], None] | None:
        """Called for every labelled sample that comes with its label."""
        return self._labels.trace if isinstance(self._labels, LabelsWithSamples) else None

    @trace.setter
    def trace(self, trace: Callable[[StepTrace], None]) -> None:
        assert isinstance(self._labels, LabelsWithSamples), "labels on a topic of their own are not traced"
        self._labels.trace = trace

    @property
    def predicted(self) -> int:
        """Samples predicted by this object since it was made."""
        return self._scores.predicted

    def regret(self) -> dict[ClientKey, float]:
        """Each client's regret, by partition and name   (POF-MKL, eq. 11), without the regularisation
        term."""
        return self._scores.regret()

    def snapshot(self) -> dict[ClientKey, ClientSnapshot]:
        """The state of each client, by partition and name, for inspection."""
        waiting = self._labels.pending.waiting
        return {client.key: self._registry.snapshot(client, waiting(client)) for client in self._registry}

    def measure(self) -> Iterable[Measurement]:
        yield from self._scores.measure_counts()
        yield from self._registry.measure()
        waiting = sum(1 for _ in self._labels.pending.waiting_clients())
        yield ClientMetrics.waiting_clients(waiting)
        yield ClientMetrics.waiting_samples(self._labels.pending.total)
        yield from self._scores.measure_errors()
        yield from self.watch.measure()
        yield from self._labels.measure()
        yield from self._means.measure()
        yield from self._model_watch.measure()
        yield from self._uploads.measure()
        yield from self.catch_up.measure()
        yield from self.silence.measure()


def _counts(runs: Iterable[Run]) -> Counter[int]:
    """The records of inputs by partition."""
    counts: Counter[int] = Counter()
    for run in runs:
        if run.channel != "model":
            counts[run.partition] += len(run)
    return counts


def _check_class(label: float | None) -> None:
    if label not in (None, 0.0, 1.0):
        raise BadRecord(
            "label", f"label {label}, 0 or 1 is expected with the logistic loss (after samples.label_range)"
        )
