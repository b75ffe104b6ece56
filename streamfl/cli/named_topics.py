"""Topics by short names, such as "predictions", and how their records become plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from streamfl.cli.preflight import Configured
from streamfl.contract.role import BadRecord, ConfigurationError, IgnoredRecord, NotYetReadable, Record
from streamfl.contract.system import find_system, load
from streamfl.encoding.changelog_checks import UNDECODABLE
from streamfl.records.formats import Format, format_of
from streamfl.runtime.bus import Bus, BusUnavailable

__all__ = ["NamedTopic", "find_topic", "format_of_channel", "records_between", "users_channels"]


@dataclass(frozen=True)
class NamedTopic:
    """name: as the user gave it. topic: its name on the bus. says: decodes a record to plain values; bytes if
    it cannot."""

    name: str
    topic: str
    says: Callable[[Record], Any]


def users_channels(configured: Configured) -> dict[str, str]:
    """The topics that the user writes, by channel, such as "samples"."""
    users = {spec.name for spec in configured.kind.topics(configured.settings) if spec.users}
    inputs = configured.kind.channels(configured.settings).inputs
    return {channel: source.topic for channel, source in inputs.items() if source.topic in users}


def format_of_channel(configured: Configured, channel: str) -> Format | None:
    """The format of a channel's records, from the section of the same name; None if there is no such
    section."""
    section: Any = getattr(configured.settings, channel, None)
    # Settings may have text under a channel's name, such as its topic, and text has a method of this name.
    return format_of(section, channel) if isinstance(getattr(section, "format", None), str) else None


def find_topic(configured: Configured, bus: Bus, name: str) -> NamedTopic:
    """The topic with this short name or full name. ConfigurationError if there is none; it lists those that
    exist."""
    settings = configured.settings
    channels = configured.kind.channels(settings)
    topics = {channel: source.topic for channel, source in channels.sources.items()}
    topics |= channels.outputs
    name = next((channel for channel, one in topics.items() if one == name), name)
    # Topics of other roles begin with the federation's name.
    topic = topics.get(name, f"{settings.federation.name}.{name}")
    if not bus.describe([topic]):
        exist = bus.describe([*topics.values(), settings.dead_letters])
        known = sorted(channel for channel, one in topics.items() if one in exist)
        known += ["dead-letters"] if settings.dead_letters in exist else []
        there = (
            f"there are {', '.join(known)}"
            if known
            else "the federation has no topics yet (streamfl topics CONFIG --create)"
        )
        raise ConfigurationError(f"{name!r}: there is no topic {topic}; {there}")
    if (written := format_of_channel(configured, name)) is not None:
        return NamedTopic(name, topic, _decoding(written))
    place = find_system(settings.role.kind).readers.get(topic.rpartition(".")[2])
    return NamedTopic(name, topic, _plain if place is None else _told_by(load(place)(settings)))


def records_between(
    bus: Bus, topic: str, firsts: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[Record]:
    """The records of these partitions, one partition after the other. firsts, ends: offsets by partition."""
    for partition, first in firsts.items():
        for record in bus.read_from(topic, partition, first):
            if record.offset >= ends[partition]:
                break
            yield record


def _decoding(format: Format) -> Callable[[Record], Any]:
    decode = format.decoder(Any)

    def says(record: Record) -> Any:
        try:
            return None if record.value is None else _with_names(decode(record.value))
        except (*UNDECODABLE, BadRecord, IgnoredRecord):
            return record.value
        except NotYetReadable as error:
            raise BusUnavailable(str(error)) from None

    return says


def _with_names(said: Any) -> Any:
    """The same with text as the names of fields. MessagePack may have other keys."""
    return {str(name): value for name, value in said.items()} if isinstance(said, dict) else said


def _told_by(reader: Callable[[Record], Any]) -> Callable[[Record], Any]:
    def says(record: Record) -> Any:
        try:
            return reader(record)
        except BadRecord:
            return record.value

    return says


def _plain(record: Record) -> Any:
    """Decode JSON, which is written for users, or MessagePack, which members send to each other."""
    for decode in (msgspec.json.decode, msgspec.msgpack.decode):
        try:
            return None if record.value is None else _with_names(decode(record.value))
        except UNDECODABLE:
            continue
    return record.value
