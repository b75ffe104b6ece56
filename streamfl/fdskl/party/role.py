"""FDSKL's one role: a party that adds its part to masked sums, and if it is an active one, predicts and
learns from them.

Gu et al. 2020. The role orders the owners of its state:
:class:`~streamfl.fdskl.party.partition.PartyPartition` has what every party does,
:class:`~streamfl.fdskl.party.active.ActivePartition` what only an active one does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from streamfl.contract.role import BadRecord, Measurement, Received, Rejection, Send, StateChange
from streamfl.fdskl import SYSTEM
from streamfl.fdskl.config import WORKER, FdsklSettings
from streamfl.fdskl.messages import ANOTHER, Incarnation, PartialSum, Revision, Round, Turn
from streamfl.fdskl.metrics import PartyMetrics
from streamfl.fdskl.party.active import ActivePartition
from streamfl.fdskl.party.figures import ActiveFigures
from streamfl.fdskl.party.given import PartyGiven
from streamfl.fdskl.party.partition import PartyPartition
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.roles.first_learnt import first_awaited
from streamfl.roles.label_pause import LabelPause
from streamfl.roles.reply_deadline import ReplyDeadline
from streamfl.roles.task_role import AwaitingRole
from streamfl.state.clock_guard import earliest, time_written

__all__ = ["FdsklParty"]

NOBODY_ANSWERS = (
    "no round of sums has been completed for {:g} s{}. Check that every party's {} runs, and what this log "
    "says about abandoned rounds"
)
NEVER_HEARD_THERE = (
    "nothing has come of {}, although samples come there, and it has come in another partition: the samples "
    "and labels of all members need the same number of partitions; streamfl check of each member says how "
    "many its topics have"
)


class FdsklParty(AwaitingRole[PartyPartition]):
    """A party of the federation.

    given: read when a partition is opened.
    """

    prompt = urgent = True

    def __init__(self, settings: FdsklSettings, given: PartyGiven) -> None:
        patience = settings.alignment.patience_seconds
        super().__init__(self._new_task, "the party's state", patience, SYSTEM.notices)
        self.settings = settings
        self.given = given
        self._fingerprint = settings.fingerprint
        self._tells_revisions = not settings.predicts
        if settings.is_open:
            self._notices.say("no_keys")
        self._metrics = PartyMetrics()
        self._active_figures = ActiveFigures(None)
        if settings.is_active:
            self._active_figures = ActiveFigures(
                settings.loss, settings.prediction_of(1.0) - settings.prediction_of(0.0)
            )
        self._label_pause = LabelPause()
        self._heard_elsewhere = ReplyDeadline(patience)
        self._actives: dict[int, ActivePartition] = {}

    @property
    def fingerprint(self) -> int:
        """Fingerprint of the settings that have to be the same at all members."""
        return self._fingerprint

    @property
    def wake_at(self) -> float | None:
        return earliest(
            self._reply_deadline.wake_at,
            self._label_pause.wake_at,
            self._heard_elsewhere.wake_at,
            *(task.wake_at for task in self._tasks.values()),
            *(active.wake_at for active in self._actives.values()),
        )

    @property
    def full(self) -> Collection[int]:
        return [partition for partition, active in self._actives.items() if active.catch_up.is_full]

    @property
    def most_records(self) -> int | None:
        return None

    def unread(self, records: Mapping[int, Mapping[str, int]]) -> None:
        for partition, active in self._actives.items():
            counts = records.get(partition)
            active.catch_up.unread(None if counts is None else sum(counts.values()))

    @property
    def waiting(self) -> Mapping[str, int]:
        actives = self._actives.values()
        waiting = {
            "predictions": sum(active.forecasts.awaited for active in actives),
            "iterations": sum(active.is_due for active in actives),
        }
        return {kind: count for kind, count in waiting.items() if count}

    @property
    def backlog(self) -> str | None:
        told = [active.catch_up.told for active in self._actives.values()]
        dues = {partition: active.due for partition, active in self._actives.items()}
        told.append(first_awaited(dues if self.settings.is_active else self._tasks))
        late = self._reply_deadline.waits_for(self._owing)
        there = self._heard_elsewhere.waits_for(self._unheard)
        return next((one for one in [late, there, *told, self._label_pause.told] if one is not None), None)

    def _owing(self) -> list[str]:
        """The parties that still have to answer this one."""
        parties, tasks = self.settings.federation.parties, self._tasks.values()
        found = {name for task in tasks for name in task.peers.missing}
        for task in tasks:
            for child, below in task.sums.pending.owing().items():
                passed_on = ", ".join(parties[party] for party in below)
                found.add(parties[child] + (f" (or {passed_on} behind it)" if below else ""))
        return sorted(found)

    def _unheard(self) -> list[str]:
        """Parties that were never heard in a partition with samples, and were in another."""
        missing = {
            partition: set() if task.peers.complete else set(task.peers.missing)
            for partition, task in self._tasks.items()
        }
        nowhere = set.intersection(*missing.values()) if missing else set()
        return [
            f"{name} in partition {partition}"
            for partition, names in missing.items()
            for name in sorted(names - nowhere)
            if len(self._tasks[partition].columns)
        ]

    @property
    def trouble(self) -> str | None:
        if self._heard_elsewhere.overdue and (unheard := self._unheard()):
            return NEVER_HEARD_THERE.format(", ".join(unheard))
        if not self._reply_deadline.overdue:
            return None
        missing = sorted({name for task in self._tasks.values() for name in task.peers.missing})
        which = f"; nothing came from {', '.join(missing)}" if missing else ""
        return NOBODY_ANSWERS.format(self._reply_deadline.patience, which, WORKER)

    def _new_task(self, partition: int) -> PartyPartition:
        return PartyPartition(self.settings, self.given, partition, self._metrics, self._notices)

    def open(self, partition: int) -> None:
        super().open(partition)
        if self.settings.is_active:
            task = self._tasks[partition]
            self._actives[partition] = ActivePartition(self.settings, self.given, task, self._active_figures)

    def close(self, partition: int) -> None:
        super().close(partition)
        self._actives.pop(partition, None)

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies: list[Send | Rejection] = []
        if self._clock_guard.pass_to(now, tick=not batch):
            for task in self._tasks.values():
                task.set_back(now)
            for active in self._actives.values():
                active.set_back(now)
        for task in self._tasks.values():
            task.begin(now)
        for active in self._actives.values():
            active.begin(now)
        ended = self._ended
        for received in batch:
            if isinstance(received.message, Label):
                self._actives[received.partition].catch_up.rest += 1
                self._label_pause.came(time_written(received.record.timestamp, now), now)
        for received in batch:
            try:
                self._take(received, now)
            except BadRecord as error:
                replies.append(Rejection(received, error))
            self._go_on(received.partition)
        if not batch:
            for partition, task in self._tasks.items():
                task.pass_time(now)
                if partition in self._actives:
                    self._actives[partition].pass_time(now)
                self._go_on(partition)
        for active in self._actives.values():
            active.catch_up.end()
        for partition, task in self._tasks.items():
            # Another life may have begun during these messages.
            task.tell_of_this_life()
            replies += task.take_sends()
            if partition in self._actives:
                replies += self._actives[partition].take_sends()
        self._active_figures.note(now)
        self._look(ended, not batch, now)
        return replies

    # ---- what others may look at

    def partition(self, number: int) -> PartyPartition:
        """What every party has of a partition."""
        return self._tasks[number]

    def active_partition(self, number: int) -> ActivePartition:
        """What only an active party has of a partition."""
        return self._actives[number]

    # ---- state

    def changed_state(self) -> Iterable[StateChange]:
        for active in self._actives.values():
            active.labelled.flush()
        return super().changed_state()

    def measure(self) -> Iterable[Measurement]:
        tasks, actives = self._tasks.values(), self._actives.values()
        yield from self._metrics.measure_counts()
        yield PartyMetrics.entities(sum(len(task.columns) for task in tasks))
        yield PartyMetrics.pending_rounds(sum(len(task.sums.pending) for task in tasks))
        if self.settings.is_active:
            yield PartyMetrics.missing_entities(sum(active.due.missing_at_first for active in actives))
            yield from self._active_figures.measure(
                [active.labelled.totals for active in actives],
                sum(active.forecasts.awaited for active in actives),
                sum(len(active.labelled) for active in actives),
                sum(active.model.kept for active in actives),
                max((active.model.version for active in actives), default=0),
                sum(active.model.dropped for active in actives),
            )

    # ---- what comes in

    def _take(self, received: Received, now: float) -> None:
        message, partition = received.message, received.partition
        task = self._tasks[partition]
        active = self._actives.get(partition)
        if isinstance(message, Sample):
            late = task.take_sample(message, received.record, now)
            if active is not None:
                active.take_sample(message.client, late, received.record.offset, now)
            if late and self._tells_revisions:
                task.tell_revision(message.client, now)
            return
        if isinstance(message, Label):
            assert active is not None
            active.take_label(message.client, message.label, now)
            return
        if isinstance(message, Turn):
            assert active is not None
            if not active.take_turn(message):
                self._metrics.ignored_messages["turn_again"] += 1
            return
        if message.fingerprint != self._fingerprint:
            raise BadRecord("configuration", ANOTHER)
        task.sums.party_of(message.sender)
        if isinstance(message, Incarnation):
            task.take_incarnation(message, now)
        elif isinstance(message, Round):
            assert received.record.value is not None
            task.sums.take_round(message, received.record.value, now)
        elif isinstance(message, PartialSum):
            task.sums.take_sum(message, now)
        elif isinstance(message, Revision):
            assert active is not None
            at = time_written(received.record.timestamp, now)
            if not active.take_revision(message, at, now):
                self._metrics.ignored_messages["revision_again"] += 1

    def _go_on(self, partition: int) -> None:
        if (active := self._actives.get(partition)) is not None:
            active.go_on()

    @property
    def _ended(self) -> int:
        """Sums sent or opened so far."""
        return self._metrics.sums_sent + self._metrics.sums_opened

    def _look(self, ended: int, tick: bool, now: float) -> None:
        """Watch how long answers have been missing."""
        owed = any(len(task.sums.pending) for task in self._tasks.values()) or any(
            active.is_waiting for active in self._actives.values()
        )
        if self._ended > ended:
            self._reply_deadline.answered(now)
        elif not (owed or self._reply_deadline.overdue):
            self._reply_deadline.answered()
        if owed:
            self._reply_deadline.asked(now)
        if self._unheard():
            self._heard_elsewhere.asked(now)
        else:
            self._heard_elsewhere.answered()
        if tick:
            self._heard_elsewhere.look(now)
            self._reply_deadline.look(now)
            self._label_pause.look(now)
