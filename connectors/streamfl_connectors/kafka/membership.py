"""One worker's membership in a consumer group, with kafka-python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kafka import errors as kafka_errors
from kafka.structs import MemberState

from streamfl.runtime.bus import BusUnavailable, Polled, Subscription, TopicPartition
from streamfl_connectors.group_member import GroupMember
from streamfl_connectors.kafka.assignor import CoPartitionAssignor
from streamfl_connectors.kafka.clients import PendingFetches, close_consumer, mend_joins
from streamfl_connectors.kafka.cluster import KafkaCluster
from streamfl_connectors.kafka.library_positions import LibraryPositions, library_offsets
from streamfl_connectors.kafka.logs import record_of
from streamfl_connectors.kafka.options import CONSUMER_DEFAULTS
from streamfl_connectors.positions import no_offset
from streamfl_connectors.reading import Logs

__all__ = ["KafkaMembership"]

# How long a commit that came too late for its generation waits for the next generation, which the cluster has
# begun by then.
JOIN_SECONDS = 5.0


class KafkaMembership(GroupMember):
    """The group's consumer, its assigned partitions, and its positions in them.

    logs: asked whether a partition has records although none come.
    partitions: how many of each input are read at most. A leader of an older release may assign further ones.
    """

    def __init__(
        self, cluster: KafkaCluster, logs: Logs, subscription: Subscription, partitions: int
    ) -> None:
        super().__init__(logs, cluster.transaction_timeout)
        self._partitions = partitions
        self._subscription = subscription
        # Reading goes on during a join only if the cluster fences the commit.
        self._reads_on = subscription.guarantee == "exactly_once"
        self._patience = cluster.connect_timeout
        self._expelled = False
        # Numbers that the next poll begins; and the partitions of them that the caller has sought, or that
        # have begun. Over a slow line each partition of a number begins in a poll of its own.
        self._opening: set[int] = set()
        self._sought: set[TopicPartition] = set()
        # Partitions where the next record was gone, and its offset.
        self._gone: dict[TopicPartition, int] = {}
        self._alone_since: float | None = None
        self._fetches = PendingFetches(cluster.connect_timeout)
        self._assignor = CoPartitionAssignor(partitions)
        self.consumer = cluster.make(
            KafkaConsumer,
            CONSUMER_DEFAULTS,
            group_id=subscription.group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            # For records that are gone. Where a group begins without an offset is decided when its partitions
            # begin.
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
            partition_assignment_strategy=[self._assignor],
        )
        self._library = LibraryPositions(self.consumer._subscription, logs, self.positions)
        try:
            self._join()
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Read the partitions of the last report, from where the caller sought, else the committed offset,
        else the reset.

        BusUnavailable if that offset is not available for longer than a transaction can be undecided.
        """
        deadline = time.monotonic() + 1
        owned = self.consumer.assignment()
        for number in sorted(self._opening):
            parts = [
                one
                for one in owned
                if one.partition == number and (one.topic, one.partition) not in self._sought
            ]
            if all(self._begin_partition(partition) for partition in parts):
                self._opening.discard(number)
            if time.monotonic() > deadline:
                break
        self._sought = {place for place in self._sought if place[1] in self._opening}
        waiting = {(one.topic, one.partition) for one in owned if one.partition in self._opening}
        self.beginnings.check(waiting - self._sought)

    def poll(self, polled: Polled, timeout: float, most: int) -> None:
        """Add to ``polled`` the records that came and the partitions that were assigned or revoked."""
        self._apply_pauses()
        coordinator = self.consumer._coordinator
        if coordinator.rejoining:
            # The library forgets a rejoin under way once the metadata that caused it has changed back, and
            # then neither reads nor sends heartbeats for ever. Requesting a rejoin that is under way costs
            # nothing.
            coordinator.request_rejoin()
        batches = self._fetch(coordinator, max(0, round(timeout * 1000)), most)
        for batch in batches.values():
            polled.records += [record_of(found) for found in batch]
        gone, self._gone = self._gone, {}
        self._library.follow(batches, gone, self._lost, polled)
        if coordinator.rejoining:
            # Nothing is read during a join, and that is no fault.
            self._silence.begin()
        elif not batches:
            client = self.consumer._client
            for broker in client.cluster.brokers():
                if delay := client.throttle_delay(broker.node_id):
                    self._silence.begin(delay / 1000)
            now, paused = self.positions.now, self.consumer.paused()
            self._silence.check({one: now[one] for one in now if KafkaPartition(*one) not in paused})
        # A generation is taken only when the member is stable: every change that came with it is noted below,
        # in this very poll. Read later, it could vouch for partitions that another member has by now.
        group = self.consumer.group_metadata()
        if group.generation_id < 0:
            self.group = None
        elif group.state is MemberState.STABLE:
            self.group = group
        self._report_changes(polled)
        self._watch_coordinator(bool(polled))

    def check(self) -> None:
        """Raise BusUnavailable if a fetch is never answered."""
        self._fetches.check(self.consumer)

    def attend(self) -> None:
        """Nothing: between polls the library's heartbeats count."""

    def give_back(self, polled: Polled) -> None:
        """Report every partition as revoked. The next :meth:`poll` reports anew those that this member still
        has."""
        polled.revoked = sorted(self.reported)
        self.reported.clear()
        self._opening = self._numbers()
        self._apply_pauses()

    def commit(self, positions: Mapping[TopicPartition, int], timeout: float) -> None:
        """Commit offsets without a transaction."""
        self.consumer.commit(library_offsets(positions), timeout_ms=int(timeout * 1000))

    @property
    def rejoining(self) -> bool:
        """Whether a join of the group is under way."""
        return bool(self.consumer._coordinator.rejoining)

    def still_a_member(self) -> bool:
        """Wait for the join under way, if any. Returns whether this member is in the generation after the one
        it was in.

        If so, no other member has had its partitions in between. Nor does another member have those yet that
        the next generation takes away from it: they are assigned anew only when it has joined once more. So
        the step still counts.
        """
        coordinator = self.consumer._coordinator
        if not coordinator.rejoining:
            return False
        coordinator.ensure_active_group(timeout_ms=int(JOIN_SECONDS * 1000))
        group = self.consumer.group_metadata()
        if self._expelled or group.state is not MemberState.STABLE or group.generation_id < 0:
            return False
        self.group = group
        return True

    def committed(self, place: TopicPartition, timeout: float) -> int | None:
        """The group's committed offset, once every transaction that touches it is decided."""
        partition = KafkaPartition(*place)
        # After its own timeout the library leaves a request behind, and gives its answer to the next caller.
        # The answer may be from a time when another member had the partition, or never come.
        self.consumer._coordinator._offset_fetch_futures.pop(frozenset([partition]), None)
        found = self.consumer.committed(partition, timeout_ms=int(timeout * 1000))
        return None if found is None else int(found)

    def seek(self, place: TopicPartition, offset: int, epoch: int) -> None:
        """Go on reading an assigned partition at ``offset``. epoch: of the record before; -1: not known."""
        self.positions.move(place, offset, epoch)
        self._library.seek(place, offset)
        self._sought.add(place)

    def unread(self) -> dict[TopicPartition, int]:
        """Records after the position of each partition whose end the last fetch reported."""
        found: dict[TopicPartition, int] = {}
        for place, position in self.positions.now.items():
            # A member that stood still may have lost partitions without knowing it yet.
            with suppress(kafka_errors.IllegalStateError):
                end = self.consumer.highwater(KafkaPartition(*place))
                if end is not None:
                    found[place] = max(0, end - position)
        return found

    def close(self) -> None:
        """Leave the group, in bounded time."""
        # This runs the rebalance listener.
        close_consumer(self.consumer)

    def _join(self) -> None:
        mend_joins(self.consumer._coordinator)
        self._assignor.ask_again = self.consumer._coordinator.request_rejoin
        for topic in self._subscription.inputs:
            self.consumer.partitions_for_topic(topic)
        self._note_resets(self.consumer._subscription)
        listener = _Listener(self._on_revoked, self._on_lost, self._on_assigned)
        self.consumer.subscribe(list(self._subscription.inputs), listener=listener)

    def _note_resets(self, subscription: Any) -> None:
        """Note the positions at which the library applies the policy for offsets that are gone: it does not
        report them."""
        request = subscription.request_offset_reset

        def noted(partition: Any, strategy: Any = None) -> Any:
            # With a strategy, a caller asked for the reset.
            if strategy is None and (position := subscription.assignment[partition].position) is not None:
                self._gone[partition.topic, partition.partition] = position.offset
            return request(partition) if strategy is None else request(partition, strategy)

        subscription.request_offset_reset = noted

    # The listener runs on the client's I/O thread while poll() or commit() waits for it: it only takes notes.

    def _on_revoked(self, partitions: Iterable[Any]) -> None:
        self._lost |= {partition.partition for partition in partitions}

    def _on_lost(self, partitions: Iterable[Any]) -> None:
        self._on_revoked(partitions)
        self._expelled = True
        self._assignor.forget()

    def _on_assigned(self, partitions: Iterable[Any]) -> None:
        # If only one input's partition of a number is new, the whole number is begun anew.
        self._on_revoked(partitions)
        # Before the first fetch, so that no record arrives before the caller has restored and sought.
        self.consumer.pause(*partitions)

    def _fetch(self, coordinator: Any, milliseconds: int, most: int) -> Mapping[Any, Any]:
        """The library's batches of records, by partition."""
        reads_on = self._reads_on and coordinator.rejoining
        batches: Mapping[Any, Any] = self.consumer.poll(
            timeout_ms=0 if reads_on else milliseconds, max_records=most
        )
        if not batches and self._reads_on and coordinator.rejoining:
            # The library reads nothing while a join is under way; this reads the partitions that the member
            # keeps.
            batches, idle = self.consumer._fetcher.fetch_records(most, timeout_ms=milliseconds)
            if idle:
                coordinator.poll(timeout_ms=milliseconds)
        return batches

    def _report_changes(self, polled: Polled) -> None:
        """Report assigned and revoked partitions to the caller, and forget what is known of them."""
        owned = self._numbers()
        gone, added = self._report(owned, polled)
        self._expelled = False
        if gone or added:
            self._opening = (self._opening & owned) | added
            self._sought = {place for place in self._sought if place[1] not in added | gone}
            self._apply_pauses()

    def _numbers(self) -> set[int]:
        """The numbers of the partitions that the member has and reads."""
        return {one.partition for one in self.consumer.assignment() if one.partition < self._partitions}

    def _watch_coordinator(self, alive: bool) -> None:
        """BusUnavailable if the group's coordinator has been away for too long: without it polls return
        nothing for ever."""
        if alive or not self.consumer._coordinator.coordinator_unknown():
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > self._patience:
            self._alone_since = None
            raise BusUnavailable(f"the group's coordinator has not answered for {self._patience:g} s")

    def _begin_partition(self, partition: Any) -> bool:
        """Whether the partition's position is known now."""
        place = (partition.topic, partition.partition)
        try:
            committed = self.consumer.committed(partition, timeout_ms=300)
        except kafka_errors.KafkaTimeoutError:
            # An earlier owner's transaction is undecided; the other partitions need not wait for it.
            return False
        # Nobody has committed: records read before the partition was given back are read again. Asking for
        # 'latest' a second time would skip them.
        target = committed if committed is not None else self.positions.origins.get(place)
        if target is not None:
            self.consumer.seek(partition, target)
        elif self._subscription.auto_offset_reset == "earliest":
            self.consumer.seek_to_beginning(partition)
        elif self._subscription.auto_offset_reset == "latest":
            self.consumer.seek_to_end(partition)
        else:
            raise no_offset(self._subscription.group, place)
        position = self.consumer.position(partition, timeout_ms=1000)
        if position is None:
            return False
        self.positions.begin(place, position)
        self._sought.add(place)
        return True

    def _apply_pauses(self) -> None:
        owned = self.consumer.assignment()
        wanted = {
            partition
            for partition in owned
            if partition.partition in self._opening
            or partition.partition >= self._partitions
            or (partition.topic, partition.partition) in self._paused
        }
        paused = self.consumer.paused()
        if wanted - paused:
            self.consumer.pause(*(wanted - paused))
        if paused - wanted:
            self.consumer.resume(*((paused - wanted) & owned))


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, *heard: Callable[[Iterable[Any]], None]) -> None:
        self._revoked, self._lost, self._assigned = heard

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._revoked(revoked)

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self._lost(lost)

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._assigned(assigned)
