"""Checks that hold for any system at the end, from the topics alone. The system checks the rest itself."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

from soak.configuration import all_topics, load_members
from soak.federation import Federation, Load
from soak.subject import Left, SoakedSystem, Verdict

from streamfl.runtime.bus import connect
from streamfl.runtime.kinds import build_channels
from streamfl.runtime.remembered_positions import POSITION_KEY

__all__ = ["check_inputs", "judge", "judge_topics", "left_by"]


def judge(federation: Federation) -> Verdict:
    """Read all of a federation's topics and check them, after its processes have ended."""
    left = left_by(federation)
    verdict = judge_topics(federation.system, left)
    check_inputs(verdict, federation.system, left, federation.load.written)
    check_acknowledged(verdict, federation.load, left)
    return verdict


def left_by(federation: Federation) -> Left:
    """The records of its topics now."""
    settings = load_members(federation.files)
    with closing(connect(federation.url, {})) as bus:
        topics = {name: list(bus.read(name)) for name in all_topics(settings)}
    return Left(federation.plan, settings, topics)


def judge_topics(system: SoakedSystem, left: Left) -> Verdict:
    """Check a federation by its topics."""
    verdict = Verdict()
    system.check(verdict, left)
    check_positions(verdict, left)
    for topic in sorted({settings.dead_letters for settings in left.settings.values()}):
        verdict.require(not left.topics[topic], f"{topic}: {len(left.topics[topic])} dead letters")
    return verdict


def check_inputs(verdict: Verdict, system: SoakedSystem, left: Left, written: int) -> None:
    """Check that every record of the first samples up to this number, and of the records before, is in its
    topic exactly once."""
    users = {name for name, spec in all_topics(left.settings).items() if spec.users}
    found = Counter((name, record.key, record.value) for name in users for record in left.topics[name])
    records = [*system.first(left.plan)]
    records += [record for number in range(written) for record in system.records(left.plan, number)]
    expected = Counter((record.topic, record.key, record.value) for record in records)
    missing, too_many = expected - found, found - expected
    verdict.require(
        not missing, f"{missing.total()} records of the load are not in their topics: {_some(missing)}"
    )
    verdict.require(
        not too_many, f"{too_many.total()} records too many are in the users' topics: {_some(too_many)}"
    )


def check_acknowledged(verdict: Verdict, load: Load, left: Left) -> None:
    """The writer's account: acknowledged records are where the cluster said."""
    verdict.require(not load.failures, f"{len(load.failures)} records failed: {load.failures[:1]}")
    places = {
        (record.topic, record.partition, record.offset)
        for records in left.topics.values()
        for record in records
    }
    missing = set(load.acknowledged) - places
    verdict.require(
        not missing, f"{len(missing)} acknowledged records are not in the topic: {sorted(missing)[:3]}"
    )


def check_positions(verdict: Verdict, left: Left) -> None:
    """The changelogs' account: each state includes all records of all inputs."""
    users = {name for name, spec in all_topics(left.settings).items() if spec.users}
    for settings in left.settings.values():
        channels = build_channels(settings)
        if not channels.changelogs:
            continue
        remembered = left.latest(next(iter(channels.changelogs.values())), positions=True)
        for topic in (source.topic for source in channels.inputs.values()):
            ends = {record.partition: record.offset + 1 for record in left.topics[topic]}
            for partition, end in sorted(ends.items()):
                value = remembered.get((partition, POSITION_KEY + topic.encode()), bytes(8))
                (position,) = struct.unpack("<q", value)
                # A transaction's end marker has an offset too, but is not a record.
                reached = position == end if topic in users else position >= end
                verdict.require(
                    reached, f"{topic}, partition {partition}: the state reflects {position} of {end} records"
                )


def _some(records: Counter[tuple[str, bytes | None, bytes | None]]) -> Sequence[tuple[str, bytes | None]]:
    return [(topic, key) for topic, key, _ in sorted(records, key=repr)[:3]]
