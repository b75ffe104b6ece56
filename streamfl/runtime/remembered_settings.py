"""The record of settings in each partition's changelogs: compared at restoring, written anew when the
settings have changed."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from streamfl.contract.channels import Channels
from streamfl.contract.role import BadRecord, ConfigurationError, Headers, Record
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.log import logger
from streamfl.state.state_settings import (
    STATE_SETTINGS_HEADER,
    STATE_SETTINGS_KEY,
    Difference,
    StateSettings,
    decode_settings,
)
from streamfl.terminal.printable import LONGEST_TEXT

__all__ = [
    "RememberedSettings",
    "behind_the_offsets",
    "deleted_beginning",
    "differences",
    "ignored_offset",
    "is_settings",
    "refusal",
    "stream_option",
    "ways_to_begin_anew",
]

log = logger(__name__)


def is_settings(record: Record) -> bool:
    """Whether it is a record of settings, and not of a role's state."""
    return record.key == STATE_SETTINGS_KEY


def differences(state_settings: StateSettings, record: Record) -> tuple[list[Difference], list[Difference]]:
    """The settings that changed since ``record``: those that must not, and those that may.

    ConfigurationError if the record cannot be read, or this release cannot read the state of the release that
    wrote it."""
    place = f"topic {record.topic}, partition {record.partition}"
    try:
        unreadable = state_settings.unreadable(record.headers)
        if not unreadable:
            return state_settings.compare(decode_settings(dict(record.headers).get(STATE_SETTINGS_HEADER)))
    except BadRecord as error:
        raise ConfigurationError(
            f"{place}, key {STATE_SETTINGS_KEY!r}: the settings of the state cannot be read "
            f"({str(error)[:LONGEST_TEXT]}). Nothing was changed. The record is damaged, or somebody else "
            "wrote it: restore a copy of the topic, or use another federation.name at every member"
        ) from None
    raise ConfigurationError(
        f"{place}: this release cannot restore the state there: {unreadable}. Nothing was changed. Run that "
        "release again, or a later one; or use another federation.name at every member"
    )


def refusal(
    topic: str,
    partition: int,
    wrong: Iterable[Difference],
    others: Iterable[Difference],
    channels: Channels,
    group: str,
) -> str:
    """Why the state cannot be used, and the ways out."""
    text = (
        f"topic {topic}, partition {partition}: the state there was made with other settings: "
        f"{_listed(wrong)}. "
    )
    if also := _listed(others):
        text += f"Also changed, but compatible: {also}. "
    return text + (
        "With the new settings the state would mean something else, and predictions would be silently wrong. "
        f"Revert the change; or start over: {ways_to_begin_anew(channels, group)}."
    )


def deleted_beginning(topic: str, partition: int, begin: int, channels: Channels, group: str) -> str:
    """Why a changelog without a record of settings that begins at ``begin`` cannot be used, and the ways out.

    A state begins with that record, and compaction leaves it and the log's beginning."""
    return (
        f"topic {topic}, partition {partition}: the records before offset {begin} were deleted, by a "
        "cleanup.policy with delete, or by hand, and the state in them is lost. Nothing was changed. "
        f"Set cleanup.policy=compact on {topic}; then put a copy of the topic back; or start over: "
        f"{ways_to_begin_anew(channels, group)}."
    )


def ignored_offset(guarantee: str) -> str:
    """What the log says of a committed offset that is behind the state. Under at_least_once the state is
    written first, so nobody need have set the offset back."""
    usual = ", as after a crash under at_least_once" if guarantee == "at_least_once" else ""
    return (
        f"ignoring the committed offset: the changelog is ahead of it{usual}. To read again from there, "
        "start over"
    )


def behind_the_offsets(channels: Channels, group: str) -> str:
    """What an operator does where the group's offsets stay ahead of the state."""
    text = (
        "stop the workers; to continue from the state, and process the later records again, delete the "
        f"offsets of the group {group!r}"
    )
    if not channels.begins_anew:
        return text
    command = f"streamfl reset CONFIG --all{stream_option(group)} --to latest"
    return f"{text}; to skip them, and forget the state as well, run {command}"


def ways_to_begin_anew(channels: Channels, group: str) -> str:
    """What an operator does so that a role forgets its state, and reads all inputs again."""
    if not channels.begins_anew:
        return (
            "use another federation.name at every member (do not delete this role's state: what it sent to "
            "others, or a privacy promise, rests on it, see docs/changing.md)"
        )
    return (
        f"stop the workers and run streamfl reset CONFIG --all{stream_option(group)}; or by hand: delete the "
        f"topics {', '.join(channels.own_changelogs.values())} and the offsets of the consumer group "
        f"{group!r}, and create the topics again; or use another federation.name at every member"
    )


def stream_option(group: str) -> str:
    """The option, beside CONFIG, with which a command means this group's state."""
    # The group of `streamfl rekey` ends so. Its state is not the role's own, which has to stay.
    _, rekeying, name = group.rpartition(".rekey-")
    return f" --stream {name}" if rekeying else ""


def _listed(found: Iterable[Difference]) -> str:
    return "; ".join(map(str, found))


@dataclass
class _Partition:
    """``up_to_date``: the number of changelogs with a current record. ``begun``: whether anything of it was
    committed."""

    up_to_date: int = 0
    begun: bool = False


class RememberedSettings:
    """The settings with which the state of a worker's open partitions was made.

    The record is written with a partition's first commit, and at once if it is out of date: others may read
    it, because a changelog may also be a table. Every changelog has its own record. While the role has no
    state the record binds nothing, so that a mistaken setting with which everything was refused can be
    corrected. more: further headers of the record. offsets: as of a bus.
    """

    def __init__(
        self,
        state_settings: StateSettings,
        channels: Channels,
        group: str,
        more: Callable[[], Headers],
        offsets: Callable[[str, float], Mapping[int, int]],
    ) -> None:
        self._state_settings = state_settings
        self._more = more
        self._offsets = offsets
        self._channels = channels
        self._changelogs = tuple(channels.own_changelogs.values()) if state_settings else ()
        self._group = group
        self._partitions: dict[int, _Partition] = {}
        self._said: set[str] = set()

    def open(self, partition: int) -> None:
        """Open a partition, with nothing known of it yet."""
        self._partitions[partition] = _Partition()

    def close(self, partition: int) -> None:
        """Close a partition."""
        del self._partitions[partition]

    def compare(
        self, topic: str, partition: int, record: Record | None, begun: bool, state: bool, binds: bool = True
    ) -> None:
        """Compare what a changelog has with the settings.

        record: its record of settings.
        begun: whether it has any record.
        state: whether it has any of the role's state.
        binds: whether this role alone may write there. In other changelogs a wrong record is only replaced.

        ConfigurationError if the role's state does not fit these settings, or its beginning was deleted.
        """
        held = self._partitions[partition]
        held.begun |= begun
        if record is None:
            if binds and self._state_settings and (begin := self._offsets(topic, -math.inf)[partition]) > 0:
                raise ConfigurationError(
                    deleted_beginning(topic, partition, begin, self._channels, self._group)
                )
            if binds and state and self._state_settings:
                text = (
                    "the release that wrote this state did not store its settings: the state is used with "
                    "the current ones"
                )
                self._say_once(topic, text, topic=topic, settings=self._state_settings.shown())
            return
        if binds and state:
            wrong, others = differences(self._state_settings, record)
            if wrong:
                raise ConfigurationError(
                    refusal(topic, partition, wrong, others, self._channels, self._group)
                )
            for one in others:
                self._say_once(
                    str(one),
                    "a setting has changed: the state stays in use",
                    key=one.key,
                    old=one.old,
                    new=one.new,
                )
        held.up_to_date += record.headers == self._headers()

    def to_write(self, moved: Iterable[int]) -> Iterator[Outgoing]:
        """The records of settings that a step has to write. moved: the partitions that the step changes."""
        moved = set(moved)
        for partition, held in self._partitions.items():
            if held.up_to_date < len(self._changelogs) and (held.begun or partition in moved):
                held.up_to_date, held.begun = len(self._changelogs), True
                for topic in self._changelogs:
                    yield Outgoing(
                        topic, STATE_SETTINGS_KEY, struct.pack("<q", 0), partition, self._headers()
                    )

    def _headers(self) -> Headers:
        return (*self._state_settings.headers(), *self._more())

    def _say_once(self, what: str, text: str, **facts: object) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(text, **facts)
