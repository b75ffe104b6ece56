"""Labels that come later, on a topic of their own: a sample is predicted at once, and its label waits for the
model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from streamfl.contract.role import Headers, Measurement, OperatorNotice, Record, Send, StateChange
from streamfl.kernels import LOGISTIC
from streamfl.pofmkl.client.catch_up import CatchUp
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.label_source import Restore
from streamfl.pofmkl.client.model import ModelTable
from streamfl.pofmkl.client.pending_samples import PendingQueues, PendingSample
from streamfl.pofmkl.client.predictions import PredictionWriter
from streamfl.pofmkl.client.prequential import PrequentialScores
from streamfl.pofmkl.client.reading_order import ReadingOrder
from streamfl.pofmkl.client.registered_client import Client, ClientKey
from streamfl.pofmkl.client.uploads import Uploads
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.changelog_checks import check_label
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.state import JOIN
from streamfl.records.input_watch import InputWatch
from streamfl.records.join import JoinKey, LabelJoin, Pair
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.state.clock_guard import earliest, time_written_by

__all__ = ["LateLabels"]


class LateLabels:
    """Joins each sample with its label, and learns the pairs in order. Labels set the pace of a client.

    watch: counts every pair.
    """

    def __init__(
        self,
        learner: Learner,
        model: ModelTable,
        registry: ClientRegistry,
        uploads: Uploads,
        scores: PrequentialScores,
        predictions: PredictionWriter,
        catch_up: CatchUp,
        settings: PofmklSettings,
        *,
        budgeted: bool,
        watch: InputWatch,
    ) -> None:
        self._learner = learner
        self._model = model
        self._registry = registry
        self._uploads = uploads
        self._scores = scores
        self._predictions = predictions
        self._catch_up = catch_up
        self._budgeted = budgeted
        section = settings.labels
        assert section is not None
        self._join = LabelJoin(section.expiry_seconds, section.limit, settings.federation.clients)
        learning = settings.learning
        self._order = ReadingOrder(
            catch_up,
            self._join,
            registry,
            learning.catch_up_patience_seconds,
            uploads.may_learn if learning.lockstep else None,
        )
        self.watch = watch
        self.pending: PendingQueues[Pair] = PendingQueues()
        self._arrived: dict[ClientKey, list[tuple[Sample | Label, Record, Headers]]] = {}
        # The most records that a poll brings, and how many were asked for after the last step.
        self._max_records = settings.bus.max_poll_records
        self._asked_for: int | None = None

    def open(self, partition: int) -> None:
        self.pending.open(partition)
        self._join.open(partition)
        self._order.open(partition)

    def close(self, partition: int) -> None:
        self.pending.close(partition)
        self._join.close(partition)
        self._order.close(partition)

    def arrive(
        self, key: ClientKey, client: Client | None, message: Sample | Label, record: Record, headers: Headers
    ) -> None:
        if client is None:
            self._join.check_room(*key)
        self._arrived.setdefault(key, []).append((message, record, headers))

    def advance(self, now: float, *, tick: bool) -> list[Send]:
        if tick:
            self._join.expire(now)
        arrived, self._arrived = list(self._arrived.items()), {}
        self._limit(arrived)
        sends = self._learn_pairs(now)
        # One message of each client at a time, so that each client's messages stay in order.
        for place in range(max((len(own) for _, own in arrived), default=0)):
            wave = [(key, *own[place]) for key, own in arrived if len(own) > place]
            pairs = [
                self._join.label(JoinKey(key[0], message.client, message.sample), message.label, now)
                for key, message, _, _ in wave
                if isinstance(message, Label)
            ]
            samples = [
                (key, PendingSample.of(message, record.key, headers))
                for key, message, record, headers in wave
                if isinstance(message, Sample)
            ]
            if samples:
                pairs += self._predict(samples, sends, now)
            records = {key: record for key, _, record, _ in wave}
            for pair in pairs:
                if pair is not None:
                    client = self._registry[pair.key[:2]]
                    self._registry.hear_label(
                        client, time_written_by(now, records[client.key].timestamp), now
                    )
                    self._put(client, pair)
            sends += self._learn_pairs(now)
        came = sum(len(own) for _, own in arrived)
        full = self._asked_for is not None and came >= min(self._asked_for, self._max_records)
        self._order.look(self.pending.counts, now, full=full if came or tick else None)
        self._asked_for = self.most_records
        return sends

    def _limit(
        self, arrived: Iterable[tuple[ClientKey, Sequence[tuple[Sample | Label, Record, Headers]]]]
    ) -> None:
        """Note which clients are behind with their labels: those that came, and those whose samples came only
        now."""
        labels = {
            key: sum(self._order.received(message, record) for message, record, _ in own)
            for key, own in arrived
        }
        for key in {*labels, *self.pending.ready}:
            client = self._registry.find(key)
            if client is not None:
                queue = self.pending.queue(client)
                in_hand = len(queue.items) + labels.get(key, 0)
                self._catch_up.limit(client, in_hand, self.pending.counts, waited=key in self.pending.held)

    def _predict(
        self, samples: list[tuple[ClientKey, PendingSample]], sends: list[Send], now: float
    ) -> list[Pair | None]:
        """Predict one sample of each of these clients. Returns a pair where the label came before its sample,
        else None."""
        clients = [self._registry[key] for key, _ in samples]
        inputs = np.array([sample.features for _, sample in samples], dtype=self._learner.input_dtype)
        forecast = self._learner.predict(
            np.array([client.row for client in clients]), inputs, self._model.parameters
        )
        sends += self._predictions.records([sample for _, sample in samples], forecast.predictions)
        self._scores.count(len(samples))
        if not self._model.published:
            for client in clients:
                self._scores.count_on_version_zero(client, 1)
        pairs = []
        for client, (_, sample), content in zip(clients, samples, forecast.encoded(), strict=True):
            self._registry.touch(client)
            pairs.append(self._join.sample(JoinKey(client.key[0], sample.client, sample.id), content, now))
        return pairs

    def _put(self, client: Client, pair: Pair) -> None:
        self.pending.put(client, pair)
        self.watch.pair()

    def _learn_pairs(self, now: float) -> list[Send]:
        """Learn every label whose client may learn now, one of each client at a time."""
        sends: list[Send] = []
        while True:
            admitted = [
                (queue, self._uploads.for_label(queue.client, now))
                for queue in self.pending.ready.values()
                if queue.items
            ]
            learning = [
                (queue, queue.items.popleft(), upload) for queue, upload in admitted if upload is not None
            ]
            if not learning:
                self.pending.rest(self._uploads, self._budgeted)
                return sends
            labels = np.array([pair.label for _, pair, _ in learning])
            learnt = self._learner.learn(
                np.array([queue.client.row for queue, _, _ in learning]),
                [pair.content for _, pair, _ in learning],
                labels,
                self._model.parameters,
                self._model.squared_norms,
            )
            for queue, pair, _ in learning:
                self._join.learnt(pair.key, now)
                self._order.learnt(pair.key.partition)
                self.pending.left(queue, 1)
                self._registry.touch(queue.client)
            uploads = {place: upload for place, (_, _, upload) in enumerate(learning)}
            self._uploads.gather(uploads, learnt)
            self._scores.learnt(learnt.predictions, labels, now)
            sends += self._uploads.send_complete(uploads.values(), now)

    @property
    def most_records(self) -> int | None:
        counts = self.pending.counts
        limits = self._catch_up.most_records(counts), self._order.most_records(counts)
        return min([limit for limit in limits if limit is not None], default=None)

    @property
    def paused(self) -> list[tuple[str, int]]:
        return self._order.paused

    @property
    def wake_at(self) -> float | None:
        return earliest(self.pending.wake_at(self._uploads), self._join.wake_at, self._order.wake_at)

    def set_back(self, now: float) -> None:
        self._join.set_back(now)
        self._order.set_back(now)

    def forget(self, client: Client) -> Iterable[bytes]:
        self.pending.forget(client)
        self._join.forget(*client.key)
        return ()

    def changed_state(self) -> Iterable[StateChange]:
        for partition, name, value in self._join.changed_state():
            yield StateChange("state", partition, JOIN.prefix + name, value)

    @property
    def restores(self) -> Mapping[bytes, Restore]:
        return {JOIN.prefix: self._restore_joined}

    def _restore_joined(self, partition: int, rest: bytes, value: bytes) -> None:
        pair = self._join.restore(partition, rest, value, self._learner.check_forecast)
        if pair is not None:
            check_label(pair.label, self._learner.loss is LOGISTIC)
            client = self._registry.known(pair.key[:2])
            self._put(client, pair)
            self.pending.held[client.key] = self.pending.queue(client)

    def notices(self) -> Iterable[OperatorNotice]:
        return self._join.notices()

    def measure(self) -> Iterable[Measurement]:
        return self._join.measure()
