"""A change of a role's state or positions, made by a command while no worker of the role runs.

The command restores all partitions of the group and changes one thing. The change is a step like any other:
positions, dead letters and changelog become visible together or not at all. So a command may be killed or
repeated. A worker that starts later finds all of the change or none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from streamfl.contract.role import BadRecord, ConfigurationError, Record
from streamfl.runtime.bus import (
    Bus,
    BusUnavailable,
    CommitRefused,
    Session,
    Step,
    TopicPartition,
    Unreadable,
)
from streamfl.runtime.pending_step import PendingStep
from streamfl.runtime.worker import Worker
from streamfl.terminal.words import counted

__all__ = ["SKIPPED", "UNREADABLE", "Repair", "Skipped", "require_stopped"]

# Reasons of dead letters. Unreadable: bytes of a batch that cannot be read. Skipped: a record that a command
# passed over.
UNREADABLE = "unreadable"
SKIPPED = "skipped"

TURN_SECONDS = 0.2

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Skipped:
    """The record or batch that was passed over.

    offset: its first offset.
    following: the offset at which the role reads on.
    cause: why it could not be read; empty if it could.
    kept: how many bytes of it are in the dead letter.
    """

    topic: str
    partition: int
    offset: int
    following: int
    cause: str
    kept: int


def require_stopped(bus: Bus, group: str) -> None:
    """ConfigurationError while workers of the group run. A command that joined it beside them would take
    partitions from them."""
    if members := bus.members(group):
        raise ConfigurationError(
            f"{counted(members, 'worker')} of the group {group!r} run: stop them first. A killed one counts "
            "until its session times out"
        )


class Repair(Worker):
    """A worker that takes no messages, made like any worker. Each change joins the group and leaves it
    again."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._held: set[int] = set()
        # Table records that were polled, for changes that need them.
        self._table_records: list[Record] = []

    def forget(self, name: str) -> list[int]:
        """Make the role forget a client, and commit that. Returns the partitions that remembered it.

        ConfigurationError while other workers of the group run; BusUnavailable if nothing was committed.
        """

        def change(session: Session) -> list[int]:
            was_known, step, partitions = self._forgotten(name)
            if was_known:
                session.commit(step)
            return partitions

        # It holds nothing yet. If it forgets nobody it says so now, and no worker is stopped for that.
        self.role.forget(name)
        return self._do(change)

    def skip(self, topic: str, partition: int, offset: int, to: int | None = None) -> Skipped:
        """Write the next record that the role would read of an input to the dead letters, and pass it over.

        If a batch cannot be read, that is all of the batch from ``offset`` on.

        topic, partition: the input.
        offset: where the role reads next.
        to: where to read on after an unreadable batch, whose end may be unknown; None: as far as is certain.

        ConfigurationError if the role reads on elsewhere, or while other workers of the group run.
        BusUnavailable if nothing was committed.
        """
        if topic not in self._inputs:
            raise ConfigurationError(
                f"topic {topic!r} is none of this role's inputs ({', '.join(sorted(self._inputs))})"
            )
        place = (topic, partition)

        def change(session: Session) -> Skipped:
            if partition not in self._tasks:
                raise ConfigurationError(
                    f"topic {topic!r} has {len(self._tasks)} partitions, there is no partition {partition}"
                )
            position = self._position(session, place)
            skipped, record = self._look(place, position, offset)
            if to is not None:
                end = position + session.lag().get(place, 0)
                if not skipped.cause or not skipped.offset < to <= end:
                    raise ConfigurationError(
                        f"{topic}-{partition} cannot be read on at {to}: it ends at {end}, and only "
                        "unreadable batches may be skipped as a whole"
                    )
                skipped = replace(skipped, following=to)
            pending = PendingStep(Step({place: skipped.following}))
            self._inputs.reject(
                record,
                BadRecord(UNREADABLE if skipped.cause else SKIPPED, skipped.cause or "by command"),
                pending,
            )
            pending.step.changelog += self._tasks.changelog(pending.step.positions)
            session.commit(pending.step)
            return skipped

        return self._do(change)

    def _forgotten(self, name: str) -> tuple[bool, Step, list[int]]:
        """Make the role forget a client. Returns whether it knew the client, the step to commit, and the
        partitions that remembered the client."""
        # Changes that come from restoring alone do not belong to the client.
        restored = self._tasks.changelog({})
        was_known = self.role.forget(name)
        forgotten = self._tasks.changelog({})
        partitions = {record.partition for record in forgotten if record.partition is not None}
        return was_known, Step({}, [], [*restored, *forgotten]), sorted(partitions)

    def _do(
        self,
        change: Callable[[Session], Outcome],
        take: Callable[[Session], None] | None = None,
        tables: tuple[str, ...] = (),
    ) -> Outcome:
        """Make the change as the group's only member, with every partition restored. Try again while the
        group still rebalances.

        take: takes the partitions before the change; None: opens and restores all.
        tables: the tables to read. The others are not read, so that unreadable batches in them do not matter.
        """
        require_stopped(self._bus, self._subscription.group)
        take = take or self._take_all
        self._subscription = replace(self._subscription, tables=tables)
        deadline = self._monotonic() + self._restore_seconds
        try:
            session = self._join()
            while True:
                try:
                    take(session)
                    return change(session)
                except CommitRefused as refusal:
                    if self._monotonic() > deadline:
                        raise BusUnavailable(
                            f"nothing was changed, run the command again: {refusal}"
                        ) from refusal
        finally:
            self._held.clear()
            self.close()

    def _take_all(self, session: Session) -> None:
        self._hold_all(session)
        self._wait_until_decided()
        for partition in sorted(self._held):
            self._open_task(session, partition)

    def _hold_all(self, session: Session) -> None:
        """Wait until this member has every partition."""
        self._tasks.dealing.join()
        wanted = set(range(self._tasks.dealing.partitions))
        session.pause([(name, partition) for name in self._inputs for partition in wanted])
        deadline = self._monotonic() + self._restore_seconds
        while True:
            polled = session.poll(TURN_SECONDS, 1)
            self._table_records += polled.tables
            self._held = self._held - set(polled.revoked) | set(polled.assigned)
            if self._held == wanted:
                break
            if self._monotonic() > deadline:
                raise ConfigurationError(
                    f"partitions {sorted(wanted - self._held)} belong to other workers of the group "
                    f"{self._subscription.group!r}: stop all of them first, and wait until their sessions "
                    "have timed out"
                )

    def _wait_until_decided(self) -> None:
        """Wait for open transactions in the changelogs, such as that of a killed process: what others have
        committed since its beginning cannot be read before the cluster ends it.

        BusUnavailable if that takes too long."""
        deadline = self._monotonic() + self._restore_seconds
        for topic in self._channels.changelogs.values():
            while open_since := self._bus.undecided(topic):
                if self._monotonic() > deadline:
                    raise BusUnavailable(
                        f"a transaction in the partitions {sorted(open_since)} of {topic!r} hides the newest "
                        "state: run the command again once the cluster has ended it"
                    )
                self._sleep(0.05)

    def _position(self, session: Session, place: TopicPartition) -> int:
        remembered = self._tasks.positions.get(place)
        return remembered if remembered is not None else session.committed(*place) or 0

    def _look(self, place: TopicPartition, position: int, offset: int) -> tuple[Skipped, Record]:
        """The record or batch at ``offset``; ConfigurationError unless it is the first from ``position``
        on."""
        topic, partition = place
        if position > offset:
            raise ConfigurationError(
                f"{topic}-{partition}-{offset} has already been read by this role: it continues at offset "
                f"{position}"
            )
        first: int | None = None
        try:
            for record in self._bus.read_from(topic, partition, position):
                if record.offset == offset:
                    kept = len(record.value or b"")
                    return Skipped(topic, partition, offset, offset + 1, "", kept), record
                first = record.offset
                break
        except Unreadable as failure:
            following = failure.following or failure.offset + 1
            if failure.offset <= offset < following:
                found = Record(topic, partition, failure.offset, None, failure.content)
                return Skipped(
                    topic, partition, failure.offset, following, failure.cause, len(failure.content)
                ), found
            first = failure.offset
        here = (
            "there is nothing to be read there"
            if first is None
            else f"this role reads next at offset {first}"
        )
        raise ConfigurationError(f"{topic}-{partition}-{offset} cannot be skipped: {here}")
