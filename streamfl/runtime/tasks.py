"""The partitions that a worker has: how their state is restored, and up to which offsets of the inputs each
state has read.

Positions are stored twice: as the group's committed offsets, and in the changelog beside the state that they
belong to. So the state and the position that it reflects cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from operator import attrgetter

from streamfl.contract.channels import Channels
from streamfl.contract.further_interfaces import NotesLosses
from streamfl.contract.role import BadRecord, ConfigurationError, Record, Role, StateChange
from streamfl.runtime.bus import Bus, BusUnavailable, Moved, Outgoing, Session, Subscription, TopicPartition
from streamfl.runtime.checksum import is_damaged, tell_of_unprotected, with_checksum
from streamfl.runtime.dealing import Dealing
from streamfl.runtime.input_topics import InputTopics, is_fact
from streamfl.runtime.log import logger
from streamfl.runtime.remembered_positions import POSITION_KEY, is_position, position_of, position_record
from streamfl.runtime.remembered_settings import (
    RememberedSettings,
    behind_the_offsets,
    ignored_offset,
    is_settings,
    ways_to_begin_anew,
)
from streamfl.state.state_settings import STATE_SETTINGS_KEY, StateSettings
from streamfl.terminal.printable import LONGEST_TEXT

__all__ = ["Tasks"]

CHANNEL = attrgetter("channel")

log = logger(__name__)


class Tasks:
    """The role on each partition that a worker has.

    positions: the offsets after the last records that the state reflects.
    topics: what else is remembered about the inputs.

    restore_seconds: how long a changelog may lag behind the group's offsets before the cluster counts as
    unavailable.
    monotonic, sleep: the clock and the sleep for waiting.
    restored: called after each record that is restored.
    state_settings: the settings that are remembered beside the state.
    """

    def __init__(
        self,
        role: Role,
        channels: Channels,
        bus: Bus,
        subscription: Subscription,
        state_settings: StateSettings,
        restore_seconds: float,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        restored: Callable[[], None] = lambda: None,
    ) -> None:
        self._role = role
        self._channels = channels
        self._inputs = [source.topic for source in channels.inputs.values()]
        self._subscription = subscription
        self._bus = bus
        self.dealing = Dealing(channels, bus, subscription.group)
        self._settings = RememberedSettings(
            state_settings, channels, subscription.group, self.dealing.headers, bus.offsets
        )
        self._restore_seconds = restore_seconds
        self._monotonic = monotonic
        self._sleep = sleep
        self._restored = restored
        self._partitions: set[int] = set()
        self.positions: dict[TopicPartition, int] = {}
        # Where inputs of which nobody has committed an offset begin, under "latest"; and those of them that
        # are to be committed.
        self._begun: dict[TopicPartition, int] = {}
        self._uncommitted: dict[TopicPartition, int] = {}
        self.topics = InputTopics()

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._partitions))

    def __contains__(self, partition: int) -> bool:
        return partition in self._partitions

    # ---- partitions come and go

    def open(self, session: Session, partition: int) -> dict[TopicPartition, float]:
        """Restore the partition's state as it was at its last commit, and go on reading where that state left
        off.

        Returns the end offsets of its inputs; infinity if an end is not known.
        """
        self.dealing.check(partition)
        committed = {topic: session.committed(topic, partition) for topic in self._inputs}
        deadline = self._monotonic() + self._restore_seconds
        while True:
            self.drop(partition)
            self._role.open(partition)
            self._settings.open(partition)
            self._partitions.add(partition)
            remembered = self._restore(session, partition)
            behind = self._behind(committed, remembered)
            if not behind:
                break
            # The last transaction has reached the group's offsets, but its end marker has not reached the
            # changelog yet.
            if self._monotonic() >= deadline:
                held = self._held_back(partition)
                raise BusUnavailable(
                    f"the changelog of partition {partition} ends before the group's offsets: {behind}. "
                    f"{held}If this stays so, the offsets were set by hand, or the changelog has lost "
                    "records, for instance with its topic. What to do: "
                    f"{behind_the_offsets(self._channels, self._subscription.group)}."
                )
            self._sleep(0.05)
        self._check_remade(partition, remembered)
        self._tell_of_other_offsets(partition, committed, remembered)
        for topic, offset in committed.items():
            if offset is None and topic not in remembered:
                self._begin(session, topic, partition)
        for topic, position in remembered.items():
            self.positions[topic, partition] = position
            session.seek(topic, partition, position, self.topics.epoch(topic, partition))
        lag = session.lag() if remembered else {}
        for topic, position in remembered.items():
            self.check_end(topic, partition, position, position + lag.get((topic, partition), 0))
        # If nothing of a topic was read yet, only the lag can tell when it has been read.
        begins: dict[str, float] = (
            {**dict.fromkeys(self._inputs, math.inf), **remembered} if remembered else {}
        )
        return {
            (topic, partition): begin + lag.get((topic, partition), math.inf)
            for topic, begin in begins.items()
        }

    def _begin(self, session: Session, topic: str, partition: int) -> None:
        """Begin to read an input of which nobody has committed an offset.

        Under "latest" its present end is committed, too: what comes until the worker stops is never lost. So
        is a beginning behind a loss, which is noted once."""
        place, latest = (topic, partition), self._subscription.auto_offset_reset == "latest"
        if place not in self._begun and (latest or isinstance(self._role, NotesLosses)):
            self._begun[place] = self._bus.offsets(topic, math.inf if latest else -math.inf)[partition]
        if isinstance(self._role, NotesLosses) and self._begun[place]:
            self._role.lost(partition)
        if latest or self._begun.get(place):
            session.seek(topic, partition, self._begun[place])
            self._uncommitted[place] = self._begun[place]

    def take_begun(self) -> dict[TopicPartition, int]:
        """The positions where inputs have begun, which nobody has committed yet."""
        begun, self._uncommitted = self._uncommitted, {}
        return begun

    def drop(self, partition: int) -> None:
        """Close a partition, if it is open."""
        if partition in self._partitions:
            self._partitions.remove(partition)
            self._settings.close(partition)
            self._role.close(partition)
        self.topics.close(partition)
        self._uncommitted = {place: one for place, one in self._uncommitted.items() if place[1] != partition}
        self.positions = {
            place: position for place, position in self.positions.items() if place[1] != partition
        }

    def go_on(self, moved: Moved) -> None:
        """The records that were to be read next are gone: go on behind them, if the group may."""
        self._subscription.check(moved)
        place, following = (moved.topic, moved.partition), moved.following
        if following > moved.position:
            self.topics.lose(moved)
            if isinstance(self._role, NotesLosses):
                self._role.lost(moved.partition)
            # Records that came after the gap may have moved it further.
            following = max(self.positions.get(place, 0), following)
        self.positions[place] = following

    # ---- what is remembered

    def changelog(self, positions: Mapping[TopicPartition, int]) -> list[Outgoing]:
        """The changelog records of a step: the role's changed state, and these positions."""
        changelogs = self._channels.changelogs
        changes = list(self._role.changed_state())
        touched = {change.partition for change in changes} | {partition for _, partition in positions}
        # The settings come first, so that a reader of the changelog as a table knows what the following state
        # was made with.
        records = [*self._settings.to_write(touched)]
        for channel, group in groupby(changes, CHANNEL):
            topic = changelogs[channel]
            records += [with_checksum(topic, one.partition, one.key, one.value) for one in group]
        return records + self._remembered_positions(positions, touched)

    def _remembered_positions(
        self, positions: Mapping[TopicPartition, int], touched: Collection[int]
    ) -> list[Outgoing]:
        first = next(iter(self._channels.own_changelogs.values()), None)
        if first is None:
            return []
        return [
            position_record(first, partition, name, number)
            for (name, partition), number in (*positions.items(), *self.topics.to_write(touched))
        ]

    def begun_anew(self, session: Session, partition: int, positions: Mapping[str, int]) -> list[Outgoing]:
        """The changelog records of a step that forgets all of a partition but these positions, by topic."""
        self._settings.open(partition)
        records = []
        for channel, topic in self._channels.own_changelogs.items():
            if channel in self._channels.published:
                # Peers read this changelog. The role finds that none of its records are its own any more, and
                # overwrites them.
                continue
            live = {
                record.key or b"": record.value is not None for record in session.restore(topic, partition)
            }
            records += [
                Outgoing(topic, key, None, partition)
                for key, is_there in live.items()
                if is_there and key != STATE_SETTINGS_KEY and not is_position(key)
            ]
        # The settings come last, because they apply to what is written after.
        records += [*self._settings.to_write([partition])]
        self._settings.close(partition)
        self.topics.begin_anew(partition)
        places = {(topic, partition): position for topic, position in positions.items()}
        records += self._remembered_positions(places, [partition])
        self.topics.close(partition)
        return records

    def check_topic(self, topic: str, partition: int, position: int, end: int) -> None:
        """ConfigurationError if an input is another topic than the one that was read, or ends before the
        position in it."""
        self._check_remade(partition, [topic])
        self.check_end(topic, partition, position, end)

    def _check_remade(self, partition: int, topics: Collection[str]) -> None:
        for topic, fact in self.topics.remade(partition, topics):
            where = next(iter(self._channels.own_changelogs.values()), "")
            raise ConfigurationError(
                f"topic {topic!r} was deleted and created again since its partition {partition} was last "
                f"read: the stored position belongs to the old topic (topic {where}, partition {partition}, "
                f"key {POSITION_KEY + fact.encode()!r}). {self._remedy} If it is a copy with the same "
                "offsets, for example after a move to another cluster, write a record without a value under "
                "that key instead."
            )

    def dealt_anew(
        self, partitions: Iterable[int], positions: Mapping[TopicPartition, int]
    ) -> list[Outgoing]:
        """The changelog records of a step that records that the state is now dealt over these partitions,
        with these positions."""
        numbers = list(partitions)
        for partition in numbers:
            self._settings.open(partition)
        return [*self._settings.to_write(numbers), *self._remembered_positions(positions, numbers)]

    def check_end(self, topic: str, partition: int, position: int, end: int) -> None:
        """ConfigurationError if an input ends before the position in it and may be another topic than the one
        that was read.

        If it is certainly the same topic, the cluster has lost records, and the next poll says so.
        """
        if end < position and not self.topics.is_same(topic, partition):
            raise ConfigurationError(
                f"topic {topic!r}, partition {partition}, ends at {end}, but was read up to {position}: the "
                f"topic was probably deleted and created again. {self._remedy}"
            )

    @property
    def _remedy(self) -> str:
        ways = ways_to_begin_anew(self._channels, self._subscription.group)
        return f"If it was deleted and created again, and its records should be read, start over: {ways}."

    def _restore(self, session: Session, partition: int) -> dict[str, int]:
        positions: dict[str, int] = {}
        for channel, topic in self._channels.changelogs.items():
            published = channel in self._channels.published
            latest: dict[bytes, Record] = {}
            settings: Record | None = None
            for record in session.restore(topic, partition):
                self._restored()
                if is_settings(record):
                    settings = record
                    continue
                key = record.key or b""
                if published and record.value is not None:
                    # Every record, whatever it holds: others may write here too, and must not stop this
                    # worker.
                    self._restore_one(StateChange(channel, partition, key, record.value), topic)
                # Keys stay in the order of their last writing, as compaction would leave them.
                latest.pop(key, None)
                latest[key] = record
            of_the_role = any(
                record.value is not None and not key.startswith(POSITION_KEY)
                for key, record in latest.items()
            )
            if channel in self._channels.own_changelogs and not published:
                if settings is not None:
                    self.dealing.found(settings)
                elif not latest:
                    self.dealing.look_elsewhere(session, partition)
            if channel not in self._channels.lasting:
                self._settings.compare(
                    topic, partition, settings, bool(latest or settings), of_the_role, binds=not published
                )
            if not published:
                tell_of_unprotected(latest.values())
            for key, record in latest.items():
                # To take much back may take longer than to read it.
                session.attend()
                self._restored()
                if record.value is None or published:
                    continue
                if is_damaged(record):
                    raise self._not_taken_back(
                        topic, partition, key, "its checksum shows that it was damaged or moved"
                    )
                if key.startswith(POSITION_KEY):
                    try:
                        name, number = position_of(key, record.value)
                    except ValueError as error:
                        raise self._not_taken_back(topic, partition, key, str(error)) from None
                    if is_fact(name):
                        self.topics.restored(partition, name, number)
                    else:
                        positions[name] = number
                else:
                    self._restore_one(StateChange(channel, partition, key, record.value), topic)
        return {topic: position for topic, position in positions.items() if topic in self._inputs}

    def _restore_one(self, change: StateChange, topic: str) -> None:
        try:
            self._role.restore(change)
        except BadRecord as error:
            raise self._not_taken_back(topic, change.partition, change.key, str(error)) from None

    def _not_taken_back(self, topic: str, partition: int, key: bytes, why: str) -> ConfigurationError:
        text = (
            f"topic {topic}, partition {partition}, key {key[:LONGEST_TEXT]!r}: the state there does not fit "
            f"these settings, or is damaged ({why[:LONGEST_TEXT]}). Run with the settings that wrote it, or "
            "restore a copy of the topic"
        )
        if topic not in self._channels.own_changelogs.values():
            return ConfigurationError(f"{text}: it outlives federations, so do not delete it to start over.")
        return ConfigurationError(
            f"{text}, or start over: {ways_to_begin_anew(self._channels, self._subscription.group)}."
        )

    def _behind(self, committed: Mapping[str, int | None], remembered: Mapping[str, int]) -> str:
        if self._subscription.guarantee != "exactly_once" or not self._channels.changelogs:
            return ""
        return ", ".join(
            f"{topic} is committed up to {offset}, not {remembered.get(topic)}"
            for topic, offset in committed.items()
            if (offset or 0) > remembered.get(topic, 0)
        )

    def _held_back(self, partition: int) -> str:
        """The open transactions that hold back records in the changelogs of this partition, in words."""
        found = {
            topic: self._bus.undecided(topic).get(partition)
            for topic in self._channels.own_changelogs.values()
        }
        return "".join(
            f"A transaction that began at offset {where[0]} of {topic!r} is open, and {where[1] - where[0]} "
            "offsets follow it. "
            for topic, where in found.items()
            if where is not None
        )

    def _tell_of_other_offsets(
        self, partition: int, committed: Mapping[str, int | None], remembered: Mapping[str, int]
    ) -> None:
        """Warn of offsets of the group behind the state: an operator may expect records to be read again."""
        behind = {topic: at for topic, at in remembered.items() if (committed[topic] or 0) < at}
        # An onlooker asked for the offsets before it read the changelog of a worker that reads on.
        offsets = self._bus.committed(self._subscription.group) if behind else {}
        for topic, position in behind.items():
            offset = offsets.get((topic, partition))
            if offset is None or offset < position:
                log.warning(
                    ignored_offset(self._subscription.guarantee),
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    position=position,
                    how=ways_to_begin_anew(self._channels, self._subscription.group),
                )
