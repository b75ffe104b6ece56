"""Checks that a role accepts its own changelog: a second role that does no work restores each commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import BadRecord, Record, StateChange
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.state.state_settings import STATE_SETTINGS_KEY

__all__ = ["ReadBack", "Refused"]

# Reads a partition of a changelog from its beginning.
Reader = Callable[[str, int], Iterable[Record]]


class Refused(Exception):
    """A role would refuse a record of its own changelog."""


class ReadBack:
    """A role with a member's settings that does no work. It restores what each commit of the member wrote."""

    def __init__(self, kind: RoleKind[Any], settings: RoleSettings) -> None:
        self._role = kind.build(settings)
        channels = kind.channels(settings)
        self._channels = {topic: channel for channel, topic in channels.changelogs.items()}
        self._published = {channels.changelogs[channel] for channel in channels.published}

    def check(self, written: Sequence[Outgoing], read: Reader) -> None:
        """Raises Refused if the role does not restore what a commit wrote.

        Some records need earlier ones. If the commit's records are refused alone, the whole changelog is
        restored instead."""
        places = [
            (record.topic, record.partition or 0, record.key or b"", record.value) for record in written
        ]
        if not self._refusal(places):
            return
        everything = [
            place
            for partition in sorted({place[1] for place in places})
            for place in self._remembered(read, partition)
        ]
        if refusal := self._refusal(everything):
            raise Refused(refusal)

    def _remembered(self, read: Reader, partition: int) -> Iterable[tuple[str, int, bytes, bytes | None]]:
        for topic in self._channels:
            latest: dict[Any, tuple[bytes, bytes | None]] = {}
            for number, record in enumerate(read(topic, partition)):
                # From a changelog that others write too, the role gets every record. From the others it gets
                # the last record of each key, at its place.
                name = number if topic in self._published else record.key
                latest.pop(name, None)
                latest[name] = record.key or b"", record.value
            for key, value in latest.values():
                yield topic, partition, key, value

    def _refusal(self, places: Iterable[tuple[str, int, bytes, bytes | None]]) -> str:
        """Describes why the role refuses one of these records; empty: it accepts all of them."""
        opened: set[int] = set()
        try:
            for topic, partition, key, value in places:
                if value is None or key == STATE_SETTINGS_KEY or key.startswith(POSITION_KEY):
                    continue
                if partition not in opened:
                    opened.add(partition)
                    self._role.open(partition)
                try:
                    self._role.restore(StateChange(self._channels[topic], partition, key, value))
                except BadRecord as error:
                    return (
                        f"{topic}, partition {partition}, key {key!r}: what was written would be refused "
                        f"when read: {error}"
                    )
            return ""
        finally:
            for partition in opened:
                self._role.close(partition)
