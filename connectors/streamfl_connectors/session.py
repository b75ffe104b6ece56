"""A worker's session on Kafka, with any client library: it orders the membership, the tables and the
commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import (
    BusUnavailable,
    CommitRefused,
    Moved,
    Polled,
    Step,
    Subscription,
    TopicPartition,
    new_transactional_id,
)
from streamfl_connectors.positions import Positions
from streamfl_connectors.reading import Logs, Readers
from streamfl_connectors.tables import Tables

__all__ = ["Commits", "KafkaSession", "Membership", "transactional_id"]

# The tables and the inputs take turns. A turn bounds how long a record of one waits behind an empty poll of
# the other.
TURN_SECONDS = 0.01

# A change of assignment without any record is reported after at most this long.
LONGEST_TURN_SECONDS = 0.1

# How long to wait for offsets that were just released.
RELEASED_SECONDS = 5.0

# How often a worker that restores its state shows its group that it is there.
ATTENDING_SECONDS = 1.0


class Membership(Protocol):
    """A worker's membership in the consumer group: its partitions, and its positions in them.

    reported: the numbers of the partitions that were reported to the caller.
    """

    positions: Positions
    reported: set[int]

    def begin(self) -> None:
        """Read the partitions of the last report, from where the caller sought, else the committed offset,
        else the reset."""

    def poll(self, polled: Polled, timeout: float, most: int) -> None:
        """Add to ``polled`` the records that came and the partitions that were assigned or revoked."""

    def check(self) -> None:
        """Raise BusUnavailable if :meth:`poll` will never bring anything again."""

    def attend(self) -> None:
        """Take part in the group between two polls, and read nothing. A group drops a member that does not
        take part."""

    def give_back(self, polled: Polled) -> None:
        """Report every partition as revoked. The next :meth:`poll` reports anew those that this member still
        has."""

    def went_on(self) -> None:
        """Note that the worker goes on, and whether it stood still before."""

    def may_commit(self, places: Iterable[TopicPartition]) -> bool:
        """Whether the member may commit offsets of these partitions, as far as it knows."""

    def committed(self, place: TopicPartition, timeout: float) -> int | None:
        """The group's committed offset, once every transaction that touches it is decided."""

    def seek(self, place: TopicPartition, offset: int, epoch: int) -> None:
        """Go on reading an assigned partition at ``offset``. epoch: of the record before; -1: not known."""

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Bring no records of exactly these partitions until the next call."""

    def unread(self) -> dict[TopicPartition, int]:
        """Records after the position of each partition whose end the last fetch reported."""

    def close(self) -> None:
        """Leave the group."""


Member = TypeVar("Member", bound=Membership)
Fencing = TypeVar("Fencing", bound=Membership, contravariant=True)


class Commits(Protocol[Fencing]):
    """The producer of a session, and how a step becomes visible with it."""

    def settle(self) -> None:
        """Have the cluster decide a transaction if the last commit does not know whether it was committed."""

    def commit(self, step: Step, member: Fencing | None) -> None:
        """Make the step visible. member: fences the step; None if the session has no inputs."""

    def close(self) -> None:
        """Close the producer."""


class KafkaSession(Generic[Member]):
    """One worker's session: see :class:`streamfl.runtime.bus.Session`.

    logs: the cluster's logs.
    tables: the topics that every member reads whole; None without tables.
    table_share: the part of a turn that is spent waiting for the tables if there are inputs, too.
    member: the membership in the group; None without inputs.
    commits: the producer.
    decision_seconds: how long a transaction of a producer that is gone may stay undecided.
    told: a context in which the library's errors become the bus's errors; its argument is what is being done.
    release: has the cluster release group offsets that finished transactions hold. Returns what is still
    held, in words, or ""."""

    def __init__(
        self,
        logs: Logs,
        tables: Tables | None,
        table_share: float,
        member: Member | None,
        commits: Commits[Member],
        decision_seconds: float,
        told: Callable[[str], AbstractContextManager[None]],
        release: Callable[[], str],
    ) -> None:
        self.member = member
        self.commits = commits
        self.tables = tables
        self._logs = logs
        self._table_share = table_share
        self._decision_seconds = decision_seconds
        self._told = told
        self._release = release
        self._readers = Readers(logs.reader)
        self._refused = False
        self._held_tables: list[Record] = []
        # When the member last took part in its group, by the monotonic clock.
        self._attended = time.monotonic()
        # Reported before anything is read there.
        self._moved: dict[TopicPartition, Moved] = {}

    def poll(self, timeout: float, max_records: int) -> Polled:
        """Wait at most ``timeout`` seconds for anything. The first poll takes as long as it takes to read the
        tables whole."""
        polled = Polled(tables=self._held_tables)
        self._held_tables = []
        member = self.member
        told_before = set(member.reported) if member is not None else set()
        try:
            with self._told("polling"):
                self._poll(polled, time.monotonic() + timeout, max_records)
        except BaseException:
            # What was already taken from the cluster must not get lost with the error. Tables are kept for
            # the next poll. Inputs are read again from the last commit.
            self._held_tables = polled.tables
            if member is not None:
                member.reported = told_before
            self._refused = True
            raise
        if member is not None:
            member.went_on()
        self._attended = time.monotonic()
        return polled

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        """All committed records of a partition from its beginning to its present end."""
        count = self._logs.count(topic)
        if partition >= count:
            raise ConfigurationError(
                f"topic {topic!r} has {count} partitions and needs at least {partition + 1}, as many as the "
                "inputs have"
            )
        with self._readers.one() as reader, self._told(f"restoring from topic {topic!r}"):
            self.attend()
            for record in reader.read_whole([(topic, partition)]):
                yield record
                self.attend()

    def attend(self) -> None:
        """Take part in the group, if the last time is a while ago: many short restores are a long one."""
        if self.member is not None and time.monotonic() - self._attended > ATTENDING_SECONDS:
            self.member.attend()
            self.member.went_on()
            self._attended = time.monotonic()

    def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset; waits until the cluster has decided every transaction that touches
        it.

        By then each has been decided, except for a transaction that is over and still holds the offset.
        Nobody else would end it."""
        try:
            return self._committed((topic, partition), self._decision_seconds)
        except BusUnavailable as failure:
            if held := self._release():
                raise BusUnavailable(f"{failure}. {held}") from failure
            return self._committed((topic, partition), RELEASED_SECONDS)

    def seek(self, topic: str, partition: int, offset: int, epoch: int = -1) -> None:
        """Go on reading an assigned input partition at ``offset``, or where the log was truncated since
        ``epoch``."""
        if self.member is None:
            raise ValueError("a session without inputs has no positions")
        place = topic, partition
        self._moved.pop(place, None)
        # What the member has read itself it looks for when records of another leader come.
        if epoch >= 0 and epoch != self.member.positions.epoch(place):
            cut = self._logs.ends_of({place: epoch}).get(place)
            if cut is None:
                epoch = -1
            elif cut < offset:
                self._moved[place] = Moved(*place, offset, cut)
                offset = cut
        self.member.seek(place, offset, epoch)

    def commit(self, step: Step) -> None:
        """Make the step visible, as one transaction under exactly_once.

        A lost answer may leave open whether the transaction was committed. That is reported as
        BusUnavailable. The next commit or poll first has the cluster decide it, so that the state restored
        then is right either way.
        """
        if not step:
            return
        try:
            if step.positions and (self.member is None or not self.member.may_commit(step.positions)):
                raise CommitRefused("the group has moved partitions since they were polled")
            with self._told("committing"):
                self.commits.commit(step, self.member)
        except BaseException:
            self._refused = True
            raise
        if self.member is not None:
            self.member.positions.commit(step.positions)

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Bring no records of exactly these input partitions until the next call."""
        if self.member is not None:
            self.member.pause(places)

    def lag(self) -> Mapping[TopicPartition, int]:
        """Records between the position and the end of each assigned input partition; control records count.

        Asks the cluster. While the cluster does not answer, the last known figures are returned.
        """
        return {} if self.member is None else self.member.positions.lag(self._logs.ends_soon)

    def unread(self) -> Mapping[TopicPartition, int]:
        """The same, as far as the last fetches reported it. Never asks the cluster."""
        return {} if self.member is None else self.member.unread()

    def close(self) -> None:
        """Leave the group. Safe to call twice."""
        # The member leaves the group before the producer is closed.
        for part in (self.member, self.tables, self._readers, self.commits):
            if part is not None:
                part.close()

    def _committed(self, place: TopicPartition, timeout: float) -> int | None:
        if self.member is None:
            raise ValueError("a session without inputs has no offsets")
        with self._told("reading the committed offset"):
            return self.member.committed(place, timeout)

    def _poll(self, polled: Polled, deadline: float, max_records: int) -> None:
        member, tables = self.member, self.tables
        if tables is not None:
            polled.tables += tables.read_whole()
        if self._refused:
            # First the cluster decides an open transaction. Then every partition is given back and begun
            # anew, because nothing that was read is certain.
            self.commits.settle()
            if member is not None:
                member.give_back(polled)
            self._refused = False
        elif member is not None:
            member.begin()
        polled.moved += [
            moved
            for place, moved in self._moved.items()
            if member is not None and place[1] in member.reported
        ]
        self._moved.clear()
        while not polled.moved:
            remaining = 0.0 if polled else max(0.0, deadline - time.monotonic())
            turn = min(remaining, LONGEST_TURN_SECONDS if tables is None else TURN_SECONDS)
            if tables is not None:
                polled.tables += tables.take(
                    turn if member is None else turn * self._table_share, max_records
                )
                turn = 0.0 if polled.tables else turn
            if member is not None:
                member.poll(polled, turn, max_records)
                self._look_for_truncation(member, polled)
                if polled.assigned and tables is not None:
                    # The worker that had these partitions before may have read, and used, more of the tables
                    # than this one.
                    polled.tables += tables.read_to_end()
                member.check()
            elif tables is None:
                time.sleep(turn)
            if tables is not None:
                tables.check()
            if polled or time.monotonic() >= deadline:
                return

    def _look_for_truncation(self, member: Member, polled: Polled) -> None:
        """Where records of another leader came, go back to where the log was truncated before them (KIP-320).

        The libraries look for this too, but not everywhere: librdkafka does not where it has just begun.
        """
        followed = member.positions.take_followed()
        if not followed:
            return
        ends = self._logs.ends_of({place: read.epoch for place, read in followed.items()})
        for place, read in followed.items():
            cut = ends.get(place, read.offset)
            if cut < read.offset:
                polled.records = [one for one in polled.records if (one.topic, one.partition) != place]
                polled.epochs.pop(place, None)
                polled.moved.append(Moved(*place, read.offset, cut))
                member.seek(place, cut, read.epoch)


def transactional_id(subscription: Subscription) -> str | None:
    """The name by which the cluster fences earlier producers of this worker; None if commits are no
    transactions."""
    if subscription.guarantee != "exactly_once":
        return None
    return subscription.transactional_id or new_transactional_id(subscription.group)
