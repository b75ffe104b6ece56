"""One worker's membership in a consumer group, with librdkafka.

The group assigns only the first input, with the cooperative assignor, so that kept partitions never stop. The
other inputs' partitions of the same numbers follow. Reading of an assigned partition begins with the poll
after the one that reported it; until then the library does not read it at all. The library gives a partition
up only after a callback within a poll. So no other member has a partition before the poll that reports it as
revoked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, Moved, Polled, Subscription, Unreadable
from streamfl.runtime.bus import TopicPartition as Place
from streamfl_connectors.group_member import GroupMember
from streamfl_connectors.librdkafka.cluster import LibrdkafkaCluster
from streamfl_connectors.librdkafka.failures import UNREADABLE, told
from streamfl_connectors.librdkafka.logs import LibrdkafkaLogs, record_of, unreadable
from streamfl_connectors.positions import no_offset

__all__ = ["LibrdkafkaMembership"]

# The offset is not in the log, or the log was truncated (KIP-320).
GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION)

# How often a member looks whether certificate or key were renewed.
TLS_SECONDS = 5.0

# How long an answer about committed offsets is waited for: the longer, the longer none has come.
SHORTEST_SECONDS, LONGEST_SECONDS = 0.3, 2.4

# Offsets of topics that the group does not subscribe to expire (offsets.retention.minutes, a week), unless
# committed anew.
REFRESH_SECONDS = 3600.0


class LibrdkafkaMembership(GroupMember):
    """The group's consumer, its assigned partitions, and its positions in them.

    logs: asked where partitions begin and end, and whether a partition has records although none come.
    partitions: how many of each input are read at most. The group may assign further ones.
    """

    def __init__(
        self,
        cluster: LibrdkafkaCluster,
        logs: LibrdkafkaLogs,
        subscription: Subscription,
        partitions: int,
    ) -> None:
        super().__init__(logs, cluster.transaction_timeout)
        self._partitions = partitions
        self._subscription = subscription
        self._cluster = cluster
        self._logs = logs
        # Before the client reads them.
        self._tls_files = cluster.tls_files()
        self._looked = time.monotonic()
        # The numbers of the partitions that are assigned.
        self._owned: set[int] = set()
        # Partitions that the next poll begins, where the caller sought, or where the group left off (None).
        self._opening: dict[Place, int | None] = {}
        # Partitions that the library reads, and those of them that are paused.
        self._active: set[Place] = set()
        self._halted: set[Place] = set()
        self._refreshed = float("-inf")
        self._answer_seconds = SHORTEST_SECONDS
        self._unreadable: Unreadable | None = None
        self.consumer: Consumer = cluster.make(
            Consumer,
            **{
                "group.id": subscription.group,
                "throttle_cb": lambda event: self._silence.begin(event.throttle_time),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "isolation.level": "read_committed",
                # Missing records are reported. Where a group begins without an offset is decided when its
                # partitions begin.
                "auto.offset.reset": "error",
                "max.poll.interval.ms": cluster.longest_rebalance,
                **cluster.member_settings,
                # The only sign of a position after transaction markers.
                "enable.partition.eof": True,
            },
        )
        try:
            self.consumer.subscribe(
                [subscription.inputs[0]], on_assign=self._on_assigned, on_revoke=self._on_lost
            )
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Decide where the partitions of the last report begin: where the caller sought, else the committed
        offset, else the reset.

        Unreadable if the last poll met a record that cannot be read; BusUnavailable if that offset is not
        available for longer than a transaction can be undecided.
        """
        if self._unreadable is not None:
            raise self._unreadable
        unsought = [place for place, offset in self._opening.items() if offset is None]
        found = self._committed_by_now(unsought)
        origins = self.positions.origins
        fresh = [
            place for place in unsought if place in found and found[place] is None and place not in origins
        ]
        if fresh and self._subscription.auto_offset_reset == "error":
            raise no_offset(self._subscription.group, fresh[0])
        # Nobody has committed: records read before the partition was given back are read again. Asking for
        # 'latest' a second time would skip them.
        latest = self._subscription.auto_offset_reset == "latest"
        origins |= self._logs.ends(fresh) if latest else self._logs.beginnings(fresh)
        for place, sought in list(self._opening.items()):
            if sought is None and place not in found:
                continue
            target = sought if sought is not None else found[place]
            epoch = self.positions.epoch(place) if sought is not None else -1
            self.positions.begin(place, origins[place] if target is None else target, epoch)
            del self._opening[place]
        self.beginnings.check(self._opening)

    def poll(self, polled: Polled, timeout: float, most: int) -> None:
        """Add to ``polled`` the records that came and the partitions that were assigned or revoked."""
        self._flow()
        first = self.consumer.poll(timeout)
        if first is None:
            flowing = self._active - self._halted
            self._silence.check(
                {place: position for place, position in self.positions.now.items() if place in flowing}
            )
        else:
            messages = (first, *self.consumer.consume(most - 1, 0)) if most > 1 else (first,)
            self._take(messages, polled)
        # Every change of this member's partitions is noted by now, so the generation vouches only for those
        # reported to the caller.
        self.group = self._present_group()
        _, added = self._report(set(self._owned), polled)
        self._opening |= {(topic, p): None for topic in self._subscription.inputs for p in added}

    def check(self) -> None:
        """BusUnavailable if a certificate or key was renewed: the library reads them only when a client is
        made, and would connect with the old one for ever. :class:`Silence` notices everything else."""
        if time.monotonic() - self._looked < TLS_SECONDS:
            return
        self._looked = time.monotonic()
        if self._cluster.renewed(self._tls_files):
            raise BusUnavailable(
                "files of bus.options with certificates or keys were renewed: connecting anew"
            )

    def attend(self) -> None:
        """Take part in the group between two polls, and read nothing: records that the library has fetched
        are fetched again."""
        self._halt(self._active)
        if (message := self.consumer.poll(0)) is not None:
            self._take((message,), Polled())
        if not self._lost:
            # The caller still has all reported partitions, so its work counts in a generation that has come
            # meanwhile.
            self.group = self._present_group()

    def give_back(self, polled: Polled) -> None:
        """Report every partition as revoked. The next :meth:`poll` reports anew those that this member still
        has."""
        # The records before the unreadable one have to be read again first.
        self._unreadable = None
        polled.revoked = sorted(self.reported)
        self.reported.clear()
        self._halt(self._active)

    def with_followers(self, positions: Mapping[Place, int]) -> dict[Place, int]:
        """The positions of a commit, and now and then all offsets that the group has committed, so that they
        do not expire."""
        if (
            not positions
            or len(self._subscription.inputs) == 1
            or time.monotonic() - self._refreshed < REFRESH_SECONDS
        ):
            return dict(positions)
        self._refreshed = time.monotonic()
        return {
            **{place: offset for place, offset in self.positions.base.items() if place[1] in self.reported},
            **positions,
        }

    def commit(self, positions: Mapping[Place, int]) -> None:
        """Commit offsets without a transaction."""
        offsets = [TopicPartition(*place, offset) for place, offset in positions.items()]
        for part in self.consumer.commit(offsets=offsets, asynchronous=False):
            if part.error is not None:
                raise KafkaException(part.error)

    def committed(self, place: Place, timeout: float) -> int | None:
        """The group's committed offset, once every transaction that touches it is decided."""
        return self._committed([place], timeout)[place]

    def seek(self, place: Place, offset: int, epoch: int) -> None:
        """Go on reading an assigned partition at ``offset``. epoch: of the record before; -1: not known."""
        self._halt([place])
        self._opening[place] = offset
        self.positions.move(place, offset, epoch)

    def unread(self) -> dict[Place, int]:
        """Records after the position of each partition whose end the last fetch reported."""
        found: dict[Place, int] = {}
        for place in self._active:
            with suppress(KafkaException):
                end = self.consumer.get_watermark_offsets(TopicPartition(*place), cached=True)[1]
                if end >= 0 and place in self.positions.now:
                    found[place] = max(0, end - self.positions.now[place])
        return found

    def close(self) -> None:
        """Leave the group."""
        with suppress(KafkaException, RuntimeError):
            self.consumer.close()

    def _present_group(self) -> Any:
        group = self.consumer.consumer_group_metadata()
        return group if _vouches(group, self.consumer.memberid()) else None

    def _on_assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._owned |= {one.partition for one in partitions if one.partition < self._partitions}
        # Accepted, but not read yet: the caller restores and seeks first.
        consumer.incremental_assign([])

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        numbers = {partition.partition for partition in partitions}
        self._owned -= numbers
        self._lost |= numbers
        for one in [one for one in self._opening if one[1] in numbers]:
            del self._opening[one]
        going = {place for place in self._active if place[1] in numbers}
        self._active -= going
        self._halted -= going
        consumer.incremental_unassign([TopicPartition(*place) for place in going])

    def _take(self, messages: Iterable[Message], polled: Polled) -> None:
        flowing = self._active - self._halted
        positions = self.positions.now
        last: dict[Place, Message] = {}
        for message in messages:
            error, place = message.error(), (message.topic(), message.partition())
            if error is None:
                if place in flowing:
                    record = record_of(message)
                    polled.records.append(record)
                    positions[place] = record.offset + 1
                    last[place] = message
            elif error.code() == KafkaError._PARTITION_EOF:
                if place in flowing:
                    positions[place] = message.offset()
            elif error.code() in GONE:
                if place in flowing:
                    self._note_epoch(last.pop(place, None), polled)
                    self._go_on(place, polled)
                    flowing.discard(place)
            elif error.code() in UNREADABLE:
                if place in flowing:
                    # Records before it are returned first, and records after it are not wanted any more.
                    self._unreadable = unreadable(message, positions[place])
                    break
            else:
                failure = told("polling", error, self._subscription.group, place[0] or "")
                # After a fatal error the library returns nothing any more.
                if isinstance(failure, ConfigurationError) or error.code() == KafkaError._FATAL:
                    raise failure
        for message in last.values():
            self._note_epoch(message, polled)

    def _note_epoch(self, last: Message | None, polled: Polled) -> None:
        if last is not None:
            place = last.topic(), last.partition()
            self.positions.came(place, last.offset() + 1, last.leader_epoch(), polled)

    def _go_on(self, place: Place, polled: Polled) -> None:
        """The next record is gone: have the library begin anew after the gap, or where the log was
        truncated."""
        position = self.positions.now[place]
        # The library knows where the log was truncated, but reports it only in a text.
        following = self._logs.going_on({place: position}, self.positions.epoch)[place]
        self.consumer.incremental_unassign([TopicPartition(*place)])
        self._active.discard(place)
        self._halted.discard(place)
        moved = Moved(*place, position, following)
        self.positions.skip(moved)
        if following != position:
            polled.moved.append(moved)

    def _committed_by_now(self, places: list[Place]) -> dict[Place, int | None]:
        """Committed offsets, without those that an earlier owner's transaction leaves undecided: the others
        need not wait."""
        if not places:
            return {}
        found: dict[Place, int | None] = {}
        with suppress(KafkaException):
            found = self._committed(places, self._answer_seconds)
            self._answer_seconds = SHORTEST_SECONDS
            return found
        deadline = time.monotonic() + 1
        for place in places:
            try:
                found |= self._committed([place], self._answer_seconds)
            except KafkaException as error:
                if not error.args[0].retriable() and error.args[0].code() != KafkaError._TIMED_OUT:
                    raise
            if time.monotonic() > deadline:
                break
        if not found:
            # The library forgets an answer that comes later, as over a slow line.
            self._answer_seconds = min(2 * self._answer_seconds, LONGEST_SECONDS)
        return found

    def _committed(self, places: list[Place], timeout: float) -> dict[Place, int | None]:
        found: dict[Place, int | None] = {}
        for part in self.consumer.committed([TopicPartition(*place) for place in places], timeout=timeout):
            if part.error is not None:
                raise KafkaException(part.error)
            found[part.topic, part.partition] = part.offset if part.offset >= 0 else None
        return found

    def _flow(self) -> None:
        """Have the library read exactly the partitions that are to be read."""
        positions = self.positions.now
        wanted = {
            (topic, p)
            for topic in self._subscription.inputs
            for p in self.reported
            if (topic, p) in positions and (topic, p) not in self._opening and (topic, p) not in self._paused
        }
        self._halt(self._active - wanted)
        if fresh := wanted - self._active:
            self.consumer.incremental_assign([self._where_to_read(place) for place in sorted(fresh)])
            self.consumer.resume([TopicPartition(*place) for place in fresh])
            self._active |= fresh
        for place in self._halted & wanted:
            try:
                # The caller's position: it does not matter what the library had fetched, and when it paused.
                self.consumer.seek(self._where_to_read(place))
            except KafkaException as error:
                if error.args[0].code() in (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS):
                    continue
                raise
            self.consumer.resume([TopicPartition(*place)])
            self._halted.discard(place)

    def _where_to_read(self, place: Place) -> TopicPartition:
        # With the epoch the library notices a log that is cut back before the next record comes (KIP-320).
        position, read = self.positions.now[place], self.positions.read.get(place)
        # Behind the end of a transaction the epoch of the last record is no longer the one to ask for.
        epoch = read.epoch if read is not None and read.offset == position else -1
        return TopicPartition(*place, position, leader_epoch=epoch)

    def _halt(self, places: Iterable[Place]) -> None:
        stopping = self._active.intersection(places) - self._halted
        if stopping:
            self.consumer.pause([TopicPartition(*place) for place in stopping])
            self._halted |= stopping


def _vouches(group: bytes, member: str | None) -> bool:
    """Whether this metadata is a member's, so that the cluster checks offsets that come with it.

    A member that was put out has no member id. With the protocol of KIP-848 it keeps its id, and its epoch is
    below 0. The cluster would accept its offsets once the group has no other member.
    """
    if not member:
        return False
    # The library's format: a mark, the generation or epoch, the names. Other releases may use another format.
    mark = b"CGMDv2:"
    return (
        not group.startswith(mark)
        or int.from_bytes(group[len(mark) : len(mark) + 4], sys.byteorder, signed=True) >= 0
    )
