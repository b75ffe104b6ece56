"""A party: sends embeddings of its entities, and learns from the gradients that come back.

VAFL, Algorithm 1, party m. The role orders the owners of its state, which :class:`PartyPartition` lists; the
equation is in :mod:`streamfl.vafl.party.model`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, Headers, Measurement, Received, Rejection, Send, StateChange
from streamfl.encoding.wire import VERSION
from streamfl.privacy.ledger import promise_ended
from streamfl.records.samples import Sample
from streamfl.roles.first_learnt import first_awaited
from streamfl.roles.task_role import AwaitingRole
from streamfl.state.clock_guard import earliest
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.given import PartyGiven
from streamfl.vafl.messages import (
    ANOTHER,
    EMBEDDING,
    Embedding,
    Reply,
    bounded_array,
    bounded_rows,
    encode_rows,
    within_bounds,
)
from streamfl.vafl.metrics import PartyMetrics
from streamfl.vafl.party.in_flight_embeddings import InFlightEmbedding
from streamfl.vafl.party.partition import PartyPartition
from streamfl.vafl.party.privacy_figures import measure_privacy
from streamfl.vafl.privacy import Mechanism
from streamfl.vafl.state import SPENT

__all__ = ["VaflParty"]

NO_GRADIENT = (
    "no gradient has come for {:g} s, although embeddings are sent: the coordinator gets no labels of these "
    "entities, or no coordinator answers. Check that labels come, that the vafl-coordinator runs, and what "
    "its log says about this party's embeddings; if labels come later than that, raise "
    "alignment.patience_seconds"
)


class VaflParty(AwaitingRole[PartyPartition]):
    """One party of a vertical federation. Its features never leave it.

    settings, given: the party's.
    """

    prompt = urgent = True
    waiting_limit = 10_000
    """Samples of a partition that may wait because of ``learning.in_flight`` or a backlog, and one poll
    more."""

    def __init__(self, settings: VaflSettings, given: PartyGiven) -> None:
        super().__init__(self._new_task, "a party's state", settings.alignment.patience_seconds)
        self.settings = settings
        self.given = given
        self.name = settings.required_party()
        self.function = given.function
        self.embedding_size = settings.federation.embedding_size
        self.fingerprint = settings.fingerprint
        self.mechanism = given.mechanism
        self._requests = settings.alignment.requests
        self._carry = given.carry
        self._metrics = PartyMetrics()

    @property
    def wake_at(self) -> float | None:
        return earliest(self._reply_deadline.wake_at, *(task.wake_at for task in self._tasks.values()))

    @property
    def full(self) -> Collection[int]:
        return [partition for partition, task in self._tasks.items() if len(task.waiting) >= self._room(task)]

    @property
    def most_records(self) -> int | None:
        # Twice the room, so that a batch has room for gradients beside the samples.
        return 2 * sum(task.catch_up.room or 0 for task in self._tasks.values()) or None

    @property
    def backlog(self) -> str | None:
        told = [self._reply_deadline.waits_for(lambda: ["gradients of the coordinator"])]
        told += [task.catch_up.told(len(task.waiting)) for task in self._tasks.values()]
        told.append(first_awaited(self._tasks))
        return next((one for one in told if one is not None), None)

    def unread(self, records: Mapping[int, Mapping[str, int]]) -> None:
        for partition, counts in records.items():
            if partition in self._tasks:
                self._tasks[partition].catch_up.unread(sum(counts.values()))

    def _room(self, task: PartyPartition) -> int:
        return (
            self.waiting_limit if task.catch_up.room is None else min(task.catch_up.room, self.waiting_limit)
        )

    @property
    def waiting(self) -> Mapping[str, int]:
        waiting = sum(len(task.waiting) for task in self._tasks.values())
        return {"samples": waiting} if waiting else {}

    @property
    def trouble(self) -> str | None:
        return NO_GRADIENT.format(self._reply_deadline.patience) if self._reply_deadline.overdue else None

    def _new_task(self, partition: int) -> PartyPartition:
        return PartyPartition(self.settings, self.given, partition, self._metrics.forgotten_entities)

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies: list[Send | Rejection] = []
        if self._clock_guard.pass_to(now, tick=not batch):
            for task in self._tasks.values():
                task.in_flight.set_back(now)
                task.catch_up.set_back(now)
                task.renew_epoch(now)
        for task in self._tasks.values():
            task.settle()
        for received in batch:
            self._tasks[received.record.partition].catch_up.rest += isinstance(received.message, Sample)
        for task in self._tasks.values():
            # Expired entities are not waited for either, whether a tick or a message comes first.
            if not batch or task.catch_up.is_over(len(task.waiting), now):
                task.in_flight.expire(now)
            task.catch_up.pass_time(len(task.waiting), now)
            self._queue_waiting(task, now)
        gradients = [one.message.gradient for one in batch if isinstance(one.message, Reply)]
        checked = iter(bounded_rows(gradients, self.function.dtype, self.embedding_size)[1].tolist())
        for received in batch:
            task, message = self._tasks[received.record.partition], received.message
            if isinstance(message, Sample):
                self._take_sample(task, message, self._carry(received.record), now)
                continue
            try:
                self._check(received, message, next(checked))
            except BadRecord as error:
                replies.append(Rejection(received, error))
            else:
                replies += self._take_reply(task, message, now)
        for task in self._tasks.values():
            replies += self._send_queued(task, now)
        if any(len(task.in_flight) for task in self._tasks.values()):
            self._reply_deadline.asked(now)
        elif not self._reply_deadline.overdue:
            self._reply_deadline.answered()
        if not batch:
            self._reply_deadline.look(now)
        return replies

    # ---- inspection

    def parameters(self, partition: int) -> NDArray[Any]:
        """theta_m of a partition, (size,): a copy."""
        return self._tasks[partition].model.parameters

    def embed(self, partition: int, inputs: NDArray[Any]) -> NDArray[Any]:
        """h_m of ``inputs``, (n, inputs), at the partition's present parameters and without noise: (n,
        embedding size)."""
        task = self._tasks[partition]
        task.settle()
        return task.model.embed(task.scaled(inputs))

    def spent(self, partition: int, entity: str) -> float:
        """mu^2 of all releases of an entity."""
        return self._tasks[partition].ledger.spent(entity)

    # ---- state

    def restore(self, change: StateChange) -> None:
        super().restore(change)
        if change.value is not None and self.mechanism is None and change.key.startswith(SPENT.prefix):
            self._notices.add(promise_ended(self.name, "[privacy]", self.settings.privacy.without_noise))

    def measure(self) -> Iterable[Measurement]:
        tasks = self._tasks.values()
        yield from self._metrics.measure_counts()
        yield PartyMetrics.entities(sum(len(task.in_flight) for task in tasks))
        yield PartyMetrics.waiting_samples(sum(len(task.waiting) for task in tasks))
        yield PartyMetrics.missing_entities(sum(task.missing for task in tasks))
        if self.mechanism is not None:
            largest = max((task.ledger.largest for task in tasks), default=0.0)
            yield from measure_privacy(self.mechanism, math.sqrt(largest))

    # ---- input

    def _take_sample(self, task: PartyPartition, sample: Sample, headers: Headers, now: float) -> None:
        self._metrics.samples += 1
        task.life.begin(now)
        entity, features = sample.client, task.take_in(sample.features)
        task.catch_up.rest -= 1
        if task.waiting.samples or task.busy:
            task.waiting.append(entity, features, headers)
        else:
            self._queue(task, entity, features, headers, now)

    def _check(self, received: Received, reply: Reply, bounded: bool) -> None:
        """BadRecord for a wrong reply. bounded: whether its gradient is known to have the right shape and
        bounds."""
        if received.record.key != reply.entity.encode():
            raise BadRecord(
                "forged", f"reply for entity {reply.entity!r} under the key {received.record.key!r}"
            )
        if reply.fingerprint != self.fingerprint:
            raise BadRecord("configuration", ANOTHER)
        if reply.gradient and not bounded:
            bounded_array(reply.gradient, self.function.dtype, self.embedding_size, "gradient")

    def _take_reply(self, task: PartyPartition, reply: Reply, now: float) -> list[Send]:
        shown = task.in_flight.get(reply.entity)
        epoch = task.life.epoch
        if shown is None or epoch is None or reply.epoch != (shown.epoch or epoch):
            self._metrics.ignored_replies["unknown"] += 1
            return []
        if reply.sequence != shown.sequence:
            self._metrics.ignored_replies["superseded"] += 1
            return []
        self._reply_deadline.answered(now)
        task.catch_up.heard(shown, now)
        sends: list[Send] = []
        if not reply.gradient:
            if self._queue_again(task, reply.entity, shown, now):
                return []
            # No gradient will come, and the coordinator waits for this party no longer.
            task.in_flight.forget(reply.entity)
        else:
            task.in_flight.forget(reply.entity)
            if self.mechanism is None or self._may_learn(task, reply.entity, self.mechanism):
                self._metrics.gradients += 1
                if task.model.gather(reply.entity, shown, reply.gradient, task.in_flight.count_after):
                    # Entities queued before this step are embedded by the parameters before it.
                    sends = self._send_queued(task, now)
                    taken = task.model.step()
                    self._metrics.steps += taken
                    self._metrics.refused_steps += not taken
        if task.waiting.samples:
            self._queue_waiting(task, now)
        return sends

    def _queue_again(self, task: PartyPartition, entity: str, shown: InFlightEmbedding, now: float) -> bool:
        """Queue the entity because the coordinator asks for a newer embedding. Returns whether it is
        queued."""
        if shown.requests >= self._requests:
            self._metrics.withheld_embeddings["requests"] += 1
            return False
        queued = self._queue(task, entity, shown.features, (), now, shown.requests + 1)
        self._metrics.embeddings_again += queued
        return queued

    def _may_learn(self, task: PartyPartition, entity: str, mechanism: Mechanism) -> bool:
        """Whether the entity's budget allows one more gradient in the next step. If so, spends it."""
        # m gradients of one entity in one step cost m^2 steps: one more costs (m + 1)^2 - m^2.
        return self._spend(task, entity, mechanism.cost(0, 2 * task.model.gathered_of(entity) + 1))

    # ---- output

    def _queue_waiting(self, task: PartyPartition, now: float) -> None:
        """Queue waiting samples until the limit of entities on their way is reached."""
        while task.waiting.samples and not task.busy:
            task.life.begin(now)
            self._queue(task, *task.waiting.take(), now)

    def _queue(
        self,
        task: PartyPartition,
        entity: str,
        features: bytes,
        headers: Headers,
        now: float,
        requests: int = 0,
    ) -> bool:
        """Queue an entity to be sent with this batch. Returns False if its budget does not allow it."""
        mechanism = self.mechanism
        if mechanism is not None and not self._spend(task, entity, mechanism.cost(1, 0)):
            return False
        sequence = task.life.next_sequence(bare=mechanism is None)
        shown = InFlightEmbedding(now, sequence, features, requests, steps=task.life.steps)
        task.in_flight.queue(entity, shown, headers)
        task.catch_up.showed(len(task.waiting), now)
        self._metrics.embeddings += 1
        return True

    def _send_queued(self, task: PartyPartition, now: float) -> list[Send]:
        """Embeddings of all queued entities, by the present parameters."""
        if not task.in_flight.queued:
            return []
        # Not only at a tick: while there is a backlog no tick comes.
        task.renew_epoch(now)
        queue, life = task.in_flight.take_queue(), task.life
        epoch, steps = life.epoch, life.steps
        assert epoch is not None
        embeddings = task.model.embeddings([(entity, shown) for entity, shown, _ in queue])
        rows = encode_rows(within_bounds(embeddings, self.function.dtype))
        sends = []
        for (entity, shown, headers), content in zip(queue, rows, strict=True):
            message = Embedding(VERSION, self.fingerprint, entity, epoch, shown.sequence, steps, content)
            sends.append(
                Send("embeddings", entity.encode(), EMBEDDING.encode(message), task.partition, headers)
            )
        return sends

    def _spend(self, task: PartyPartition, entity: str, cost: float) -> bool:
        """Whether the entity's budget allows a release of mu^2 = ``cost``. If so, spends it."""
        if (refusal := task.ledger.refusal(entity, cost)) is not None:
            self._metrics.withheld_embeddings[refusal] += 1
            return False
        task.ledger.spend(entity, cost)
        return True
