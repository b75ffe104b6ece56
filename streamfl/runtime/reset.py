"""Resets a role, or one of its clients, by a command while no worker of the role runs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any

from streamfl.contract.role import BadRecord, ConfigurationError, IgnoredRecord, NotYetReadable, Received
from streamfl.runtime.bus import BusUnavailable, CommitRefused, Session, Step
from streamfl.runtime.pending_step import PendingStep
from streamfl.runtime.repair import Repair

__all__ = ["Offsets", "Reset"]

Offsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""


class Reset(Repair):
    """A worker that deletes state and sets the offsets from which to read again, in the same steps."""

    def begin_anew(self, offsets: Offsets) -> int:
        """Delete all state of the role, and let it read its inputs from these offsets on. Returns the number
        of deleted records.

        Nothing is restored, so that it does not matter whether the state fits the settings. Each partition is
        one step. After an interruption run it again.

        ConfigurationError while other workers of the group run; BusUnavailable if not all was committed.
        """

        def change(session: Session) -> int:
            forgotten = 0
            for partition in sorted(self._held):
                positions = {topic: offsets[topic][partition] for topic in self._inputs}
                changelog = self._tasks.begun_anew(session, partition, positions)
                session.commit(
                    Step({(topic, partition): offset for topic, offset in positions.items()}, [], changelog)
                )
                forgotten += sum(record.value is None for record in changelog)
            if self._channels.published:
                self._publish(session)
            return forgotten

        return self._do(change, take=self._hold_all)

    def _publish(self, session: Session) -> None:
        """Let the role publish its new state: peers that start before its workers must not read what it
        published before."""
        for partition in sorted(self._held):
            self._open_task(session, partition)
        pending = PendingStep()
        self._answer(self.role.receive([], self._clock()), pending)
        pending.step.changelog += self._tasks.changelog({})
        session.commit(pending.step)

    def learn_again(self, name: str, offsets: Offsets) -> tuple[list[int], int]:
        """Forget a client, and give the role its records from these offsets up to the role's positions. Other
        clients stay.

        Returns the partitions that remembered it, and how many records the role took. The role's tables are
        read for this.

        Errors as in :meth:`begin_anew`, and ConfigurationError if the client's records would have to wait for
        its peers."""
        if self.role.prompt:
            raise ConfigurationError(
                "its samples would wait for the model one by one: leave out --to, or reset all clients"
            )

        def change(session: Session) -> tuple[list[int], int]:
            step = Step()
            step.changelog += self._tasks.changelog({})
            others = len(step.changelog)
            self.role.forget(name)
            step.changelog += self._tasks.changelog({})
            known = sorted(
                {record.partition for record in step.changelog[others:] if record.partition is not None}
            )
            session.commit(step)
            taken = 0
            self._hear_tables()
            for batch in self._history(session, name, offsets):
                taken += len(batch)
                self._give(session, batch)
            return known, taken

        return self._do(change, tables=self._subscription.tables)

    def _hear_tables(self) -> None:
        records, self._table_records = self._table_records, []
        if batch := self._inputs.decode_tables(records, PendingStep()):
            self.role.receive(batch, self._clock())

    def _give(self, session: Session, batch: list[Received]) -> None:
        # A poll keeps this member in its group, and brings new records of the tables.
        polled = session.poll(0.0, 1)
        if polled.revoked:
            raise CommitRefused("another worker of the group came")
        self._table_records += polled.tables
        self._hear_tables()
        pending = PendingStep()
        now = self._clock()
        # One by one, like live records: several at once would wait for the model.
        replies = [reply for received in batch for reply in self.role.receive([received], now)]
        replies += self.role.receive([], now)
        if self._answer(replies, pending):
            raise ConfigurationError("this role learns in steps that take long: reset all of it")
        if self.role.full:
            raise ConfigurationError(
                "its samples wait for the model: run the role, and reset the client once they are learnt"
            )
        pending.step.changelog += self._tasks.changelog({})
        session.commit(pending.step)

    def _history(self, session: Session, name: str, offsets: Offsets) -> Iterator[list[Received]]:
        """The client's messages in the order in which they were written, in batches as large as a step."""
        batch: list[Received] = []
        for partition in sorted(self._held):
            inputs = [
                self._messages(session, channel, source, partition, offsets[source.topic][partition])
                for channel, source in self._channels.inputs.items()
                if source.topic in offsets
            ]
            for received in heapq.merge(*inputs, key=lambda one: one.record.timestamp):
                if getattr(received.message, "client", None) != name:
                    continue
                batch.append(received)
                if len(batch) == self._backlog.most_records:
                    yield batch
                    batch = []
        if batch:
            yield batch

    def _messages(
        self, session: Session, channel: str, source: Any, partition: int, offset: int
    ) -> Iterator[Received]:
        end = self._position(session, (source.topic, partition))
        for record in self._bus.read_from(source.topic, partition, offset):
            if record.offset >= end:
                return
            try:
                yield Received(channel, source.decode(record), record)
            except (BadRecord, IgnoredRecord):
                # It became a dead letter, or was counted, at the first reading.
                continue
            except NotYetReadable as error:
                raise BusUnavailable(str(error)) from None
