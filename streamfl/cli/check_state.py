"""Part of ``streamfl check``: compares the role's state, and what other members publish, with the
settings."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from streamfl.cli.findings import Finding
from streamfl.cli.inspect import how_it_stands, taken_back
from streamfl.cli.preflight import Configured
from streamfl.contract.channels import Channels
from streamfl.contract.role import BadRecord, ConfigurationError, Received, Record, Rejection, Role
from streamfl.runtime.bus import Bus, BusUnavailable, Unreadable
from streamfl.runtime.dealing import Dealing, added, dealt_over
from streamfl.runtime.input_topics import InputTopics, is_fact, unread_of
from streamfl.runtime.remembered_positions import POSITION_KEY, position_of
from streamfl.runtime.remembered_settings import (
    behind_the_offsets,
    deleted_beginning,
    differences,
    is_settings,
    refusal,
    ways_to_begin_anew,
)
from streamfl.state.table import StateTable
from streamfl.terminal.words import counted

__all__ = [
    "ChangelogContents",
    "look_at_deleted",
    "look_at_offsets",
    "look_at_standing",
    "look_at_state",
    "look_at_tables",
]

# The longest time to read a topic. A worker reads all of it at its start, but the user of a check should not
# wait that long.
READING_SECONDS = 30.0
EXAMPLES = 3
REMEDY = "run the release that wrote it, restore the topic from a copy, or start over"


@dataclass
class ChangelogContents:
    """What the changelogs hold, without restoring it into a role.

    nothing: the role would certainly begin without state.
    positions: the position in each partition of an input.
    facts: what is remembered beside the positions.
    whole: all changelogs were read to the end.
    refused: a finding says that no worker could restore them.
    dealing: where clients' records belong; None: where they come.
    """

    nothing: bool = True
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    facts: dict[tuple[str, int], int] = field(default_factory=dict)
    whole: bool = True
    refused: bool = False
    dealing: Dealing | None = None

    def note_position(self, record: Record) -> None:
        """Note a worker's record of a position, or that an operator deleted it. A damaged one is skipped
        here; the worker will refuse it."""
        name = (record.key or b"").removeprefix(POSITION_KEY).decode(errors="replace")
        held = self.facts if is_fact(name) else self.positions
        if record.value is None:
            held.pop((name, record.partition), None)
            return
        with suppress(ValueError):
            name, number = position_of(record.key or b"", record.value)
            held[name, record.partition] = number


def look_at_state(
    configured: Configured, bus: Bus, channels: Channels, remembered: ChangelogContents
) -> Iterator[Finding]:
    """Whether a worker with these settings could restore the state of every partition; fills
    ``remembered``."""
    for finding in _look_at_changelogs(configured, bus, channels, remembered):
        remembered.refused |= not finding.passed
        yield finding


def _look_at_changelogs(
    configured: Configured, bus: Bus, channels: Channels, remembered: ChangelogContents
) -> Iterator[Finding]:
    own = {topic for channel, topic in channels.changelogs.items() if channel not in channels.published}
    remembered.dealing = Dealing(channels, bus, configured.settings.group)
    remembered.dealing.join()
    # A topic that may not be described may hold state.
    remembered.nothing = all(state.error is None for state in bus.describe(sorted(own)).values())
    for topic in _existing(bus, channels.changelogs.values()):
        records: dict[int, Record] = {}
        begun: set[int] = set()
        unknown: set[bytes] = set()
        state = configured.kind.state if topic in own & {*channels.own_changelogs.values()} else StateTable()
        whole = _read(
            bus, topic, records, begun, state, unknown, remembered if topic in own else ChangelogContents()
        )
        if topic in own and (begun or not whole):
            remembered.nothing = False
        remembered.whole &= whole
        limit = "" if whole else f", as far as {READING_SECONDS:g} s allow"
        if unknown:
            text = (
                f"{counted(len(unknown), 'key')} that a {configured.kind.name} does not know, such as "
                f"{min(unknown)!r}"
            )
            yield Finding(f"state in {topic}", False, text, REMEDY)
        elif topic in channels.own_changelogs.values():
            for record in records.values():
                # Another number of partitions is a finding.
                with suppress(ConfigurationError):
                    remembered.dealing.found(record)
            yield _judged(configured, bus, channels, topic, records, begun, limit)
        else:
            detail = "used, whichever federation wrote it" if begun else "none yet"
            yield Finding(f"state in {topic}", True, detail + limit)


def look_at_offsets(
    configured: Configured, bus: Bus, channels: Channels, remembered: ChangelogContents
) -> Iterator[Finding]:
    """Whether an operator reset the group's offsets: back, and expects records to be read again, or ahead of
    the state, where no worker begins."""
    group = configured.settings.group
    # A running worker has logged this itself, and commits its state a moment before its offsets can be seen.
    if bus.members(group):
        return
    if ahead := _ahead_of_the_state(configured, bus, channels, remembered):
        yield ahead
        return
    if not remembered.positions:
        return
    if remade := _remade(bus, remembered):
        yield Finding(
            f"offsets of {group}",
            False,
            f"{', '.join(remade)} was deleted and created again since it was last read: the positions in the "
            "state belong to the old topic",
            f"start over: {ways_to_begin_anew(channels, group)}",
        )
        return
    offsets = bus.committed(group)
    others = [
        f"{topic}-{partition}: offset {offsets.get((topic, partition), 'none')}, taken up to {position}"
        for (topic, partition), position in sorted(remembered.positions.items())
        if offsets.get((topic, partition), -1) < position
    ]
    if not others:
        yield Finding(
            f"offsets of {group}",
            True,
            f"as the state has them, of {counted(len(remembered.positions), 'partition')}",
        )
        return
    if not offsets.keys() & remembered.positions.keys():
        # Kafka keeps them for a week.
        yield Finding(
            f"offsets of {group}",
            True,
            "none: the cluster forgets them after offsets.retention.minutes without a worker, or they were "
            "deleted. Workers continue from the state",
            f"nothing; to read again from the beginning, start over: {ways_to_begin_anew(channels, group)}",
            warns=True,
        )
        return
    # Then the state is written before the offsets, and a crash between leaves them so.
    usual = configured.settings.bus.processing_guarantee == "at_least_once"
    told = f"ignored, because the changelog is ahead of them: {_some(others)}"
    yield Finding(
        f"offsets of {group}",
        usual,
        told + (", as after a crash under at_least_once" if usual else ""),
        "nothing, to continue from the state; to read again from these offsets, start over: "
        f"{ways_to_begin_anew(channels, group)}",
        warns=usual,
    )


def _ahead_of_the_state(
    configured: Configured, bus: Bus, channels: Channels, remembered: ChangelogContents
) -> Finding | None:
    """The finding about offsets of the group that the state has not reached; None if there are none."""
    exactly_once = configured.settings.bus.processing_guarantee == "exactly_once"
    if not (exactly_once and channels.changelogs and remembered.whole):
        return None
    group, inputs = configured.settings.group, {source.topic for source in channels.inputs.values()}
    ahead = [
        f"{topic}-{partition}: offset {offset}, taken up to {remembered.positions.get((topic, partition), 0)}"
        for (topic, partition), offset in sorted(bus.committed(group).items())
        if topic in inputs and offset > remembered.positions.get((topic, partition), 0)
    ]
    if not ahead:
        return None
    return Finding(
        f"offsets of {group}",
        False,
        f"ahead of the state, so that no worker begins: {_some(ahead)}. They were set by hand, or "
        f"{', '.join(channels.changelogs.values())} has lost records",
        behind_the_offsets(channels, group),
    )


def _some(found: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f"; and {counted(len(found) - EXAMPLES, 'partition')} more" if len(found) > EXAMPLES else ""
    return "; ".join(found[:EXAMPLES]) + more


def _remade(bus: Bus, remembered: ChangelogContents) -> list[str]:
    """The inputs that are other topics than those that were read."""
    topics, read = InputTopics(), {topic for topic, _ in remembered.positions}
    topics.are({name: state.identity for name, state in bus.describe(read).items()})
    for (name, partition), value in remembered.facts.items():
        topics.restored(partition, name, value)
    partitions = {partition for _, partition in remembered.positions}
    return sorted({topic for partition in partitions for topic, _ in topics.remade(partition, read)})


def look_at_deleted(bus: Bus, channels: Channels, remembered: ChangelogContents) -> Iterator[Finding]:
    """Whether records were deleted before they were read: those that workers have noticed, and those that
    they will notice."""
    found: dict[str, list[str]] = {
        topic: [] for topic in _existing(bus, (one.topic for one in channels.inputs.values()))
    }
    for (topic, partition), unread in sorted(unread_of(remembered.facts).items()):
        found.get(topic, []).append(f"of partition {partition} {unread}")
    for topic, told in found.items():
        begins = bus.offsets(topic, -math.inf)
        told += [
            f"of partition {partition} {begins[partition] - position} unread records are gone: offsets "
            f"{position} to {begins[partition] - 1}"
            for (name, partition), position in sorted(remembered.positions.items())
            if name == topic and position < begins.get(partition, 0)
        ]
        if told:
            more = f"; and {len(told) - EXAMPLES} more" if len(told) > EXAMPLES else ""
            remedy = (
                "let the topic keep its records for longer than workers may be away (retention.ms, "
                "retention.bytes)"
            )
            yield Finding(
                f"retention of {topic}", True, "; ".join(told[:EXAMPLES]) + more, remedy, warns=True
            )


def _judged(
    configured: Configured,
    bus: Bus,
    channels: Channels,
    topic: str,
    records: dict[int, Record],
    begun: set[int],
    limit: str,
) -> Finding:
    check = f"state in {topic}"
    settings = configured.settings
    state_settings = configured.kind.state_settings(settings)
    if state_settings and not limit and topic in _bound(channels):
        for partition, begin in sorted(bus.offsets(topic, -math.inf).items()):
            if begin > 0 and partition not in records:
                text = deleted_beginning(topic, partition, begin, channels, settings.group)
                return Finding(check, False, text, "put a copy of the topic back, or start over")
    if not begun:
        return Finding(check, True, f"none yet{limit}")
    dealing = Dealing(channels, bus, settings.group)
    dealing.join()
    partitions = dealing.partitions
    # By text, because a value may be a table, which has no hash.
    taken_over: dict[str, None] = {}
    for partition in sorted(begun & records.keys()):
        try:
            wrong, others = differences(state_settings, records[partition])
        except ConfigurationError as error:
            return Finding(check, False, str(error), REMEDY)
        before = dealt_over(records[partition])
        # 0: no input can be seen, which another finding says. That does not mean that its partitions changed.
        if before and partitions and before != partitions:
            topic_read = next(iter(channels.inputs.values())).topic
            text = added(topic_read, before, partitions, channels, settings.group)
            return Finding(check, False, text, "stop the workers and move the state, or start over")
        if wrong:
            text = refusal(topic, partition, wrong, others, channels, settings.group)
            return Finding(check, False, text, "revert the change, or start over")
        taken_over.update(dict.fromkeys(map(str, others)))
    detail = f"of {counted(len(begun), 'partition')}, made with these settings{limit}"
    if unknown := begun - records.keys():
        detail += f"; {counted(len(unknown), 'partition')} of a release that did not store them"
    if taken_over:
        detail += f"; would stay in use although {'; '.join(taken_over)}"
    return Finding(check, True, detail)


def _bound(channels: Channels) -> set[str]:
    """The changelogs that this role alone writes, and that begin with a record of settings."""
    without = {*channels.published, *channels.lasting}
    return {topic for channel, topic in channels.own_changelogs.items() if channel not in without}


def _read(
    bus: Bus,
    topic: str,
    records: dict[int, Record],
    begun: set[int],
    state: StateTable,
    unknown: set[bytes],
    remembered: ChangelogContents,
) -> bool:
    """Fill in the last record of settings of each partition, the partitions with state, and the keys that
    ``state`` does not have.

    False: the time was too short.
    """
    deadline = time.monotonic() + READING_SECONDS
    for record in bus.read(topic):
        if is_settings(record):
            records[record.partition] = record
        elif (record.key or b"").startswith(POSITION_KEY):
            remembered.note_position(record)
        elif record.value is not None:
            begun.add(record.partition)
            if not state.has(record.key or b""):
                unknown.add(record.key or b"")
        else:
            unknown.discard(record.key or b"")
        if time.monotonic() > deadline:
            return False
    return True


def look_at_tables(bus: Bus, role: Role, channels: Channels) -> Iterator[Finding]:
    """Give the role its tables, as when it runs, and report what it refuses."""
    by_topic = {table.topic: (channel, table) for channel, table in channels.tables.items()}
    for topic in _existing(bus, by_topic):
        channel, table = by_topic[topic]
        latest: dict[tuple[int, bytes], Record] = {}
        deadline = time.monotonic() + READING_SECONDS
        for record in bus.read(topic):
            place = record.partition, record.key or b""
            # Keys stay in the order of their last writing, as compaction would leave them.
            latest.pop(place, None)
            latest[place] = record
            if time.monotonic() > deadline:
                break
        batch: list[Received] = []
        refused: list[str] = []
        for record in latest.values():
            try:
                batch.append(Received(channel, table.decode(record), record))
            except BadRecord as error:
                refused.append(str(error))
        replies = role.receive(batch, max(one.record.timestamp for one in batch)) if batch else ()
        refused += [str(reply.error) for reply in replies if isinstance(reply, Rejection)]
        detail = counted(len(latest), "record") if latest else "no records yet"
        if refused:
            detail += f", {len(refused)} refused, the first: {refused[0]}"
        found = [role.trouble, *(notice.text for notice in role.notices() if notice.of_records)]
        trouble = "; ".join(dict.fromkeys(text for text in found if text is not None))
        yield Finding(
            f"what {topic} says",
            not trouble,
            trouble or detail,
            "give all members the same" if trouble else "",
        )


def look_at_standing(
    configured: Configured, bus: Bus, channels: Channels, remembered: ChangelogContents
) -> Iterator[Finding]:
    """How the role stands with its peers: what it has not read yet, and what it waits for."""
    inputs = {source.topic for source in channels.inputs.values()}
    if len(_existing(bus, inputs)) < len(inputs):
        return
    role: Role | None = None
    positions: Mapping[tuple[str, int], int] = remembered.positions
    if not remembered.nothing and remembered.whole:
        # The topics can be examined all the same.
        with suppress(BusUnavailable, Unreadable):
            try:
                role, tasks = taken_back(configured, bus)
                positions = tasks.positions
            except ConfigurationError as error:
                if not remembered.refused:
                    yield Finding("restoring the state", False, str(error), REMEDY)
    for one in how_it_stands(configured, bus, positions, role):
        yield Finding(one.respect, True, one.text, one.remedy, warns=bool(one.remedy))


def _existing(bus: Bus, topics: Iterable[str]) -> list[str]:
    names = list(topics)
    found = bus.describe(names)
    return [name for name in names if name in found and found[name].error is None]
