"""The record of settings in each partition's changelogs: compared when the state is taken back, written when it is not the same."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from streamfl.role import ConfigurationError, Headers, PeerError, Record
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.log import logger
from streamfl.state_settings import STATE_SETTINGS_HEADER, STATE_SETTINGS_KEY, Difference, StateSettings, decode_settings

__all__ = ["RememberedSettings", "differences", "is_settings", "refusal", "stream_option", "ways_to_begin_anew"]

log = logger(__name__)


def is_settings(record: Record) -> bool:
    """Whether it is a record of settings, and not of a role's state."""
    return record.key == STATE_SETTINGS_KEY


def differences(state_settings: StateSettings, record: Record) -> tuple[list[Difference], list[Difference]]:
    """What must have stayed since ``record`` and did not, and what has changed and may.

    ConfigurationError if it cannot be read, or the state was written by a release whose state this one does not read.
    """
    place = f"topic {record.topic}, partition {record.partition}"
    try:
        unreadable = state_settings.unreadable(record.headers)
        if not unreadable:
            return state_settings.compare(decode_settings(dict(record.headers).get(STATE_SETTINGS_HEADER)))
    except PeerError as error:
        raise ConfigurationError(f"{place}, key {record.key!r}: what the state was made with cannot be read ({error})") from None
    raise ConfigurationError(
        f"{place}: this release cannot take back what is remembered there: {unreadable}. Nothing was changed. Run that release "
        "again, or a later one; or begin anew with streamfl reset, where the role can be reset, or with another federation.name "
        "at every member"
    )


def refusal(
    topic: str, partition: int, wrong: Iterable[Difference], others: Iterable[Difference], changelogs: Iterable[str], group: str
) -> str:
    """Why a state cannot be taken over, and the ways out."""
    text = f"topic {topic}, partition {partition}: what is remembered there was made with other settings: {_listed(wrong)}. "
    if also := _listed(others):
        text += f"Also changed, and no hindrance: {also}. "
    return text + (
        "Under these it would mean something else, and predictions would be wrong in silence. Set back what was changed; or begin "
        f"anew: {ways_to_begin_anew(changelogs, group)}; or use another federation.name at every member."
    )


def ways_to_begin_anew(changelogs: Iterable[str], group: str) -> str:
    """What to delete so that all inputs are read again from their beginning."""
    return (
        f"stop the workers and run streamfl reset CONFIG --all{stream_option(group)}, where the role can be reset; "
        "or by hand: "
        f"delete the topics {', '.join(changelogs)} (what was learnt is in them, nothing of yours) and the "
        f"offsets of the consumer group {group!r}, and make the topics again"
    )


def stream_option(group: str) -> str:
    """What a command needs besides CONFIG to mean this group's state."""
    # The group of `streamfl rekey` ends so: the role's own state is another one, and is to stay.
    _, rekeying, name = group.rpartition(".rekey-")
    return f" --stream {name}" if rekeying else ""


def _listed(found: Iterable[Difference]) -> str:
    return "; ".join(map(str, found))


@dataclass
class _Partition:
    """``up_to_date``: in so many changelogs the record is as it should be. ``begun``: something was committed of it."""

    up_to_date: int = 0
    begun: bool = False


class RememberedSettings:
    """What the state of a worker's open partitions was made with.

    The record is written with a partition's first commit, and at once where it is not what it should be: others may read it, for
    one of the changelogs may be a table. Every changelog has one of its own. As long as the role remembers nothing it binds nobody:
    a mistake that had everything refused can be corrected. more: headers of the record besides those of the settings.
    """

    def __init__(
        self, state_settings: StateSettings, changelogs: Mapping[str, str], group: str, more: Callable[[], Headers]
    ) -> None:
        self._state_settings = state_settings
        self._more = more
        self._changelogs = tuple(changelogs.values()) if state_settings else ()
        self._group = group
        self._partitions: dict[int, _Partition] = {}
        self._said: set[str] = set()

    def open(self, partition: int) -> None:
        """Begin a partition of which nothing is known yet."""
        self._partitions[partition] = _Partition()

    def close(self, partition: int) -> None:
        """Forget a partition."""
        del self._partitions[partition]

    def found(self, topic: str, partition: int, record: Record | None, begun: bool, state: bool, binds: bool = True) -> None:
        """What a changelog has: its record of settings, anything at all, and anything of the role's.

        binds: nobody else may write there. Of another one the record is only put right.

        ConfigurationError if what the role remembers does not fit these settings.
        """
        held = self._partitions[partition]
        held.begun |= begun
        if record is None:
            if binds and state and self._state_settings:
                text = "the release that wrote this state did not remember its settings: it is taken as it is, with these"
                self._say_once(topic, text, topic=topic, settings=self._state_settings.shown())
            return
        if binds and state:
            wrong, others = differences(self._state_settings, record)
            if wrong:
                raise ConfigurationError(refusal(topic, partition, wrong, others, self._changelogs, self._group))
            for one in others:
                self._say_once(str(one), "a setting has changed: the state is taken over", key=one.key, old=one.old, new=one.new)
        held.up_to_date += record.headers == self._headers()

    def to_write(self, moved: Iterable[int]) -> Iterator[Outgoing]:
        """The records that a step has to write which moves the partitions ``moved``."""
        moved = set(moved)
        for partition, held in self._partitions.items():
            if held.up_to_date < len(self._changelogs) and (held.begun or partition in moved):
                held.up_to_date, held.begun = len(self._changelogs), True
                for topic in self._changelogs:
                    yield Outgoing(topic, STATE_SETTINGS_KEY, struct.pack("<q", 0), partition, self._headers())

    def _headers(self) -> Headers:
        return (*self._state_settings.headers(), *self._more())

    def _say_once(self, what: str, text: str, **facts: object) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(text, **facts)
