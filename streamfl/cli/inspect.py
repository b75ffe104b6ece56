"""``streamfl inspect``: shows a role's state, restored from its changelog as by a worker, without joining its
group."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Annotated, Any

import typer

from streamfl.cli.preflight import Configured, read_configuration
from streamfl.cli.record_counts import records_between
from streamfl.cli.remembered_rows import CountedState
from streamfl.cli.unreadable import opened
from streamfl.contract.role import ConfigurationError, Record, Role
from streamfl.contract.system import find_system, load
from streamfl.runtime.bus import Bus, Polled, Step, Subscription, TopicPartition
from streamfl.runtime.input_topics import Unread
from streamfl.runtime.kinds import build_channels
from streamfl.runtime.tasks import Tasks
from streamfl.simulation.system_tools import Report, Standing, what_learning_waits_for
from streamfl.terminal.console import (
    ConfigArgument,
    FormatOption,
    OutputFormat,
    print_json,
    print_list,
    print_table,
)

__all__ = ["how_it_stands", "inspect", "remembered", "taken_back"]


def inspect(
    config: ConfigArgument,
    client: Annotated[str | None, typer.Option(help="Only this client, with all its weights.")] = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show what a role remembers: clients with weights, error, regret and when they were seen; and where it
    reads.

    The state is read from the changelog. Workers may run meanwhile and are not disturbed.
    """
    configured = read_configuration(config)
    settings = configured.settings
    with opened(configured) as bus:
        counted = CountedState(configured.kind.state, client)
        role, tasks = taken_back(configured, bus, counted)
        report = _reported(configured, role, client)
        if client is not None and not counted.found and configured.kind.state.of_clients:
            raise ConfigurationError(f"--client {client!r}: no partition remembers it")
        places = _places(bus, configured, tasks.positions, tasks.topics.unread)
        standings = how_it_stands(configured, bus, tasks.positions, role)
        members = bus.members(settings.group)
    if format is OutputFormat.JSON:
        told = [asdict(one) for one in standings]
        print_json(
            {
                "group": settings.group,
                "workers": members,
                "inputs": places,
                "standing": told,
                "remembered": counted.figures,
                **report.figures,
            }
        )
        return
    print_table(report.title, report.columns, report.rows)
    if counted.rows:
        print_table("What it remembers", counted.columns, counted.rows)
    columns = ("topic", "partition", "read up to", "end", "behind", "deleted unread")
    rows = [tuple("" if place[name] is None else str(place[name]) for name in columns) for place in places]
    print_table(
        f"Where {settings.group} reads; {members or 'no'} worker{'' if members == 1 else 's'} in the group",
        columns,
        rows,
    )
    if standings:
        lines = [
            (one.respect, f"{one.text}\nTo do: {one.remedy}" if one.remedy else one.text) for one in standings
        ]
        print_list("Status", lines)


def remembered(
    configured: Configured, bus: Bus, client: str | None = None
) -> tuple[Report, Mapping[TopicPartition, int]]:
    """A report of the role's state, and the positions in its inputs that the state reflects. client: only
    this one."""
    role, tasks = taken_back(configured, bus)
    return _reported(configured, role, client), tasks.positions


def taken_back(configured: Configured, bus: Bus, counted: CountedState | None = None) -> tuple[Role, Tasks]:
    """The role with the restored state of every partition, and its tasks with the positions in its inputs.

    counted: counts what is restored.
    """
    role = configured.kind.build(configured.settings)
    return role, _restore(configured, bus, role if counted is None else counted.of(role))


def how_it_stands(
    configured: Configured, bus: Bus, positions: Mapping[TopicPartition, int], role: Role | None
) -> Sequence[Standing]:
    """How the role stands with its peers. positions: the positions in its inputs."""
    kind = configured.settings.role.kind
    place = find_system(kind).standings.get(kind)
    if place is None:
        return what_learning_waits_for(configured.settings, bus, {}, role)
    unread: Counter[str] = Counter()
    for one in _places(bus, configured, positions):
        unread[one["topic"]] += one["behind"]
    found: Sequence[Standing] = load(place)(configured.settings, bus, unread, role)
    return found


def _reported(configured: Configured, role: Role, client: str | None) -> Report:
    kind = configured.settings.role.kind
    place = find_system(kind).inspect.get(kind)
    if place is None and client is not None and not configured.kind.state.of_clients:
        raise ConfigurationError(f"--client: a {kind} has no clients")
    report: Report = _figures(role) if place is None else load(place)(role, configured.settings, client)
    return report


class _Onlooker:
    """The part of a session that restoring needs, for a reader that is no member of the group."""

    def __init__(self, bus: Bus, group: str) -> None:
        self._bus = bus
        # Asked before the changelog is read, so that the changelog is at least as far.
        self._committed = dict(bus.committed(group))

    def restore(self, topic: str, partition: int) -> Iterator[Record]:
        return self._bus.read_from(topic, partition, 0)

    def attend(self) -> None:
        """Does nothing: it is no member."""

    def committed(self, topic: str, partition: int) -> int | None:
        return self._committed.get((topic, partition))

    def seek(self, topic: str, partition: int, offset: int, epoch: int = -1) -> None:
        """Does nothing: it reads no input."""

    def lag(self) -> Mapping[TopicPartition, int]:
        return {}

    unread = lag

    def poll(self, timeout: float, max_records: int) -> Polled:
        raise NotImplementedError

    def commit(self, step: Step) -> None:
        raise NotImplementedError

    def pause(self, places: Iterable[TopicPartition]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Does nothing: it is in no group."""


def _restore(configured: Configured, bus: Bus, role: Role) -> Tasks:
    """Give the role the state of every partition."""
    settings = configured.settings
    channels = build_channels(settings)
    inputs = tuple(source.topic for source in channels.inputs.values())
    topics = [*inputs, *channels.changelogs.values()]
    if missing := sorted(set(topics) - bus.describe(topics).keys()):
        raise ConfigurationError(f"topic {missing[0]} does not exist: streamfl check {configured.path}")
    subscription = Subscription(settings.group, inputs, guarantee=settings.bus.processing_guarantee)
    state_settings = configured.kind.state_settings(settings)
    patience = settings.bus.connect_timeout_seconds
    tasks = Tasks(role, channels, bus, subscription, state_settings, patience, time.monotonic, time.sleep)
    tasks.dealing.join()
    onlooker = _Onlooker(bus, settings.group)
    for partition in range(tasks.dealing.partitions):
        tasks.open(onlooker, partition)
    return tasks


def _places(
    bus: Bus,
    configured: Configured,
    positions: Mapping[TopicPartition, int],
    unread: Mapping[TopicPartition, Unread] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    found = []
    # A worker that runs has read on since its changelog was read, and ends are asked for now.
    committed = bus.committed(configured.settings.group)
    for source in configured.kind.channels(configured.settings).inputs.values():
        begins = bus.offsets(source.topic, float("-inf"))
        for partition, end in sorted(bus.offsets(source.topic, float("inf")).items()):
            place = source.topic, partition
            position = positions.get(place)
            gone = 0 if position is None else max(0, begins[partition] - position)
            known = unread[place].offsets if place in unread else 0
            reached = max((at for at in (position, committed.get(place)) if at is not None), default=None)
            found.append(
                {
                    "topic": source.topic,
                    "partition": partition,
                    "read up to": reached,
                    "end": end,
                    # If nothing was read yet, or the next record is gone, the first record that is left is
                    # the next.
                    "behind": records_between(bus, place, max(reached or 0, begins[partition]), end),
                    "deleted unread": known + gone,
                }
            )
    return found


def _figures(role: Role) -> Report:
    """A report for a role whose system has none: its metrics that are not 0."""
    figures = [one for one in role.measure() if one.value]
    labels = [", ".join(f"{name}={value}" for name, value in one.labels) for one in figures]
    rows = [(one.name, label, f"{one.value:g}") for one, label in zip(figures, labels, strict=True)]
    content = [{"name": one.name, "labels": dict(one.labels), "value": one.value} for one in figures]
    return Report("Figures that are not 0", rows, {"figures": content}, ("figure", "labels", "value"))
