"""Moves a role's state when its inputs got more partitions: each client's state goes to where its records
come now.

The partition of a client's records follows from its name, the number of partitions, and the producers'
partitioner. The partitioner is found from the partitions in which clients' state is. First the role reads the
old partitions to their end. Then the state of each client moves whole, in one transaction. Last, the records
of settings of all partitions say that the state was dealt anew. Until then no worker opens a partition. So a
command that was killed is run again, and goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import (
    BusUnavailable,
    CommitRefused,
    Outgoing,
    Polled,
    Session,
    Step,
    TopicPartition,
)
from streamfl.runtime.checksum import with_checksum
from streamfl.runtime.dealing import dealt_over, next_multiple, partitioner_in, partitioners
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.runtime.remembered_settings import is_settings
from streamfl.runtime.repair import TURN_SECONDS, Repair

__all__ = ["Repartition", "RepartitionResult"]

# Bytes after which a transaction is committed, with the whole client that reached them.
STEP_BYTES = 2_000_000
# The number of a partition's newest records that show the producers' partitioner, if clients' state does not.
EXAMPLES = 20

State = dict[tuple[str, bytes], Record]
"""A partition's remembered records, by topic and key, in the order of the last writing."""

Told = Callable[[str, float, float], object]
"""A function that is called with progress: the name of the work, how much is done, and the total."""


@dataclass(frozen=True)
class RepartitionResult:
    """The result. before, now: numbers of partitions. clients, moved: known and moved clients. drained:
    records read before; of these:

    dead_letters, passed_over: how many were refused, and how many were nobody's mistake, by reason.
    deleted_unread: how many were gone before they could be read, by topic.
    """

    before: int
    now: int
    clients: int
    moved: int
    drained: int
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    passed_over: Mapping[str, int] = field(default_factory=dict)
    deleted_unread: Mapping[str, int] = field(default_factory=dict)


class Repartition(Repair):
    """A worker that reads the old partitions to their end, and deals the state anew.

    Its steps have to be atomic, whatever the guarantee of the role's workers is.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._before = self._now = 0
        self._partitioner = ""
        super().__init__(*arguments, **named)

    def deal_anew(self, told: Told) -> RepartitionResult:
        """Move the state. told: is called with progress.

        ConfigurationError while other workers of the group run, or if it cannot be told where a client's
        records come now; BusUnavailable if not all was done: it can be run again.
        """

        def change(session: Session) -> RepartitionResult:
            states = self._states(session)
            clients = self._clients(states)
            if self._before == self._now:
                return RepartitionResult(self._now, self._now, len(clients), 0, 0)
            drained = self._drain(session, told)
            states = self._states(session)
            metrics = self.metrics
            return RepartitionResult(
                self._before,
                self._now,
                len(self._clients(states)),
                self._move(session, states, told),
                drained,
                _some(metrics.dead_letters),
                _some(metrics.records_passed_over),
                _some(metrics.deleted_unread_records),
            )

        return self._do(change, self._take_old, self._subscription.tables)

    # ---- the old partitions, as they were

    def _take_old(self, session: Session) -> None:
        self._hold_all(session)
        self._now = len(self._held)
        states = self._states(session)
        self._before = self._dealt_before(states)
        if self._before == self._now:
            return
        self._partitioner = self._chosen(states)
        # The partitions that are opened now were made for the old number.
        self._tasks.dealing.partitions = self._before
        for partition in sorted(self._held):
            self._open_task(session, partition)
        # What is still unread is predicted with the present model, like all else.
        self._meanwhile = Polled(tables=self._table_records)

    def _states(self, session: Session) -> list[State]:
        """The remembered records by partition, with the workers' own."""
        self._wait_until_decided()
        states: list[State] = []
        for partition in range(self._now):
            latest: State = {}
            for topic in self._channels.own_changelogs.values():
                for record in session.restore(topic, partition):
                    place = topic, record.key or b""
                    latest.pop(place, None)
                    latest[place] = record
            states.append({place: record for place, record in latest.items() if record.value is not None})
        return states

    def _clients(self, states: list[State]) -> dict[str, set[int]]:
        """By client, the partitions that have state of it."""
        found: dict[str, set[int]] = {}
        for partition, state in enumerate(states):
            for _, key in state:
                client = self._client_of(key)
                if client is not None:
                    found.setdefault(client, set()).add(partition)
        return found

    def _client_of(self, key: bytes) -> str | None:
        assert self._channels.dealt is not None, "only the command that spreads it again can"
        return None if key.startswith(POSITION_KEY) else self._channels.dealt.client_of(key)

    def _dealt_before(self, states: list[State]) -> int:
        """Over how many partitions the state is dealt. ConfigurationError if it cannot be dealt over the
        present number."""
        records = [record for state in states for record in state.values() if is_settings(record)]
        said = {dealt_over(record) for record in records} - {0}
        if not any(states):
            return self._now
        if said:
            before = min(said)
            self._tasks.dealing.partitioner = next(filter(None, map(partitioner_in, records)), "")
        else:
            # The release did not record the number: the smallest that fits all clients, because added
            # partitions have no state.
            begun = 1 + max(partition for partition, state in enumerate(states) if state)
            fewest = [
                number
                for number in range(begun, self._now)
                if self._now % number == 0 and self._fitting(states, number)
            ]
            before = min(fewest, default=self._now)
        if self._now % before:
            topics = ", ".join([*self._inputs, *self._channels.own_changelogs.values()])
            raise ConfigurationError(
                f"the state is spread over {before} partitions, and there are {self._now}: give {topics} a "
                f"multiple of {before}, such as {next_multiple(before, self._now)}. Otherwise records "
                "written since then would be in old partitions of other clients, and would be read before "
                "their state is there"
            )
        return before

    def _fitting(self, states: list[State], before: int) -> list[str]:
        """The partitioners by which every client's state is in the old or the new partition of its
        records."""
        clients = self._clients(states)

        def fits(name: str) -> bool:
            return all(
                places <= {self._home(name, client, before), self._home(name, client, self._now)}
                for client, places in clients.items()
            )

        return [*filter(fits, partitioners(self._bus))]

    def _home(self, partitioner: str, client: str, partitions: int) -> int:
        assert self._channels.dealt is not None
        try:
            return partitioners(self._bus)[partitioner](self._channels.dealt.key_of(client), partitions)
        except ValueError:
            return -1

    def _chosen(self, states: list[State]) -> str:
        """The producers' partitioner. ConfigurationError if it cannot be found."""
        fitting = self._fitting(states, self._before)
        if not fitting:
            clients = self._clients(states)
            stray = min(
                clients, key=lambda client: clients[client] <= {self._home("own", client, self._before)}
            )
            raise ConfigurationError(
                f"the state of client {stray!r} is in partition "
                f"{', '.join(map(str, sorted(clients[stray])))} of {self._before}, and neither Kafka's "
                "partitioner nor that of librdkafka puts its name there: it is unknown in which partition "
                "its records come now. Nothing was changed. Have `streamfl rekey` write the topic keyed by "
                "client ([samples.rekey]), with as many partitions as before"
            )
        keyed = [source.topic for source in self._channels.inputs.values() if source.client is not None]
        # All records of the added partitions were placed by the new number.
        newest = (
            self._bus.peek(keyed[0], range(self._before, self._now), EXAMPLES)
            if keyed and len(fitting) > 1
            else []
        )

        def agreeing(name: str) -> int:
            return sum(
                partitioners(self._bus)[name](one.key, self._now) == one.partition
                for one in newest
                if one.key is not None
            )

        return max(fitting, key=agreeing)

    def _open_task(self, session: Session, partition: int) -> None:
        if partition < self._before:
            super()._open_task(session, partition)
            return
        for topic in self._inputs:
            session.seek(topic, partition, self._begins(topic)[partition])

    def _begins(self, topic: str) -> Mapping[int, int]:
        return self._bus.offsets(topic, -math.inf)

    def _move_tasks(self, session: Session, polled: Polled) -> None:
        self._held = self._held - set(polled.revoked) | set(polled.assigned)
        super()._move_tasks(session, polled)

    def _paused(self) -> set[TopicPartition]:
        return super()._paused() | self._inputs.places(range(self._before, self._now))

    def _drain(self, session: Session, told: Told) -> int:
        """Read the old partitions up to their present end, as any worker does; returns the number of
        records."""
        ends = {
            (topic, partition): end
            for topic in self._inputs
            for partition, end in self._bus.offsets(topic, math.inf).items()
            if partition < self._before
        }
        whole = self._unread(session, ends)
        while left := self._unread(session, ends):
            told("reading the old partitions", whole - left, whole)
            self.step(TURN_SECONDS)
            if self._session is not session:
                raise BusUnavailable("the cluster did not answer: run the command again to continue")
        return whole

    def _unread(self, session: Session, ends: Mapping[TopicPartition, int]) -> int:
        if set(self._tasks) != set(range(self._before)):
            # A step was refused; the next poll reports the partitions that are still assigned.
            return 1
        positions, lag = self._tasks.positions, session.lag()
        # If a transaction's marker is last, no record comes to move the position to the end; then the lag is
        # 0.
        return sum(
            max(0, min(end - positions.get(place, 0), lag.get(place, end))) for place, end in ends.items()
        )

    # ---- moving state

    def _move(self, session: Session, states: list[State], told: Told) -> int:
        """Move every client's state to where its records come now; returns how many clients moved."""
        session.pause(self._inputs.places(range(self._now)))
        own = [self._by_client(state) for state in states]
        clients = self._clients(states)
        moving = [
            client
            for client, places in clients.items()
            if places != {self._home(self._partitioner, client, self._now)}
        ]
        step, size = Step(), 0
        for done, client in enumerate(moving, 1):
            records = [
                *self._moved(
                    [state.get(client, {}) for state in own], self._home(self._partitioner, client, self._now)
                )
            ]
            step.changelog += records
            size += sum(len(record.value or b"") for record in records)
            if size >= STEP_BYTES:
                told("moving clients", done, len(moving))
                self._commit(session, step)
                step, size = Step(), 0
        self._commit(session, step)
        places = {
            place: position for place, position in self._tasks.positions.items() if place[1] < self._before
        }
        for topic in self._inputs:
            begins = self._begins(topic)
            places |= {(topic, partition): begins[partition] for partition in range(self._before, self._now)}
        dealing = self._tasks.dealing
        dealing.partitions, dealing.partitioner = self._now, self._partitioner
        session.commit(Step(places, [], self._tasks.dealt_anew(range(self._now), places)))
        return len(moving)

    def _by_client(self, state: State) -> dict[str, State]:
        found: dict[str, State] = {}
        for place, record in state.items():
            client = self._client_of(place[1])
            if client is not None:
                found.setdefault(client, {})[place] = record
        return found

    @staticmethod
    def _moved(own: list[State], home: int) -> Iterator[Outgoing]:
        """The changelog records that put a client's state into partition ``home`` alone. own: its state, by
        partition."""
        for partition, state in enumerate(own):
            if partition == home or not state:
                continue
            # A killed command may have moved the client before, and the client gone on in its old partition.
            for topic, key in own[home].keys() - state.keys():
                yield with_checksum(topic, home, key, None)
            for (topic, key), record in state.items():
                yield with_checksum(topic, home, key, record.value)
                yield with_checksum(topic, partition, key, None)

    def _commit(self, session: Session, step: Step) -> None:
        if step:
            session.commit(step)
        # A poll keeps this member in its group while it moves much.
        if session.poll(0.0, 1).revoked:
            raise CommitRefused("another worker of the group came")


def _some(counts: Mapping[str, int]) -> dict[str, int]:
    """Those of these counts that are not 0."""
    return {label: count for label, count in counts.items() if count}
