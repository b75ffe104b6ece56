"""Tells an operator what to do about what cannot be read: a batch, or a part of a role's state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from streamfl.cli.preflight import Configured
from streamfl.contract.role import BadRecord, ConfigurationError
from streamfl.runtime.bus import Bus, Unreadable
from streamfl.runtime.remembered_settings import ways_to_begin_anew

__all__ = ["opened", "remedy", "telling_remedy"]

WHOLE_REPLICA = "If a broker's disk is at fault, make an intact replica the leader of the partition"


def remedy(configured: Configured, failure: Unreadable) -> str:
    """What to do about ``failure``: a batch of an input can be passed over, one of the role's state
    cannot."""
    settings = configured.settings
    channels = configured.kind.channels(settings)
    if failure.topic in {source.topic for source in channels.inputs.values()}:
        return (
            f"{WHOLE_REPLICA}. Or stop the workers of the group {settings.group!r} and move it to the dead "
            f"letters: streamfl skip {configured.path} --topic {failure.topic} --partition "
            f"{failure.partition} --offset {failure.offset}"
        )
    if failure.topic in channels.own_changelogs.values():
        return (
            f"{WHOLE_REPLICA}. The role's state is there, so it cannot be skipped. To start over: "
            f"{ways_to_begin_anew(channels, settings.group)}"
        )
    if failure.topic in channels.changelogs.values():
        return (
            f"{WHOLE_REPLICA}, or restore a copy of the topic. It outlives federations, so do not delete it"
        )
    return (
        f"{WHOLE_REPLICA}. Its readers need the whole topic, so it cannot be skipped; its writer has to "
        "start over"
    )


@contextmanager
def telling_remedy(configured: Configured) -> Iterator[None]:
    """Adds the remedy to an :class:`Unreadable` that is raised within. A part of the role's state that is
    found useless becomes a ConfigurationError with its remedy."""
    try:
        yield
    except Unreadable as failure:
        failure.add_note(remedy(configured, failure))
        raise
    except BadRecord as error:
        # Records are refused where they are read. So this is a part of the role's own state, which is decoded
        # only when it is needed.
        raise ConfigurationError(_useless_state(configured, error)) from None


def _useless_state(configured: Configured, error: BadRecord) -> str:
    channels = configured.kind.channels(configured.settings)
    topics = ", ".join(channels.own_changelogs.values())
    return (
        f"the role's state in {topics} cannot be used: {error}. A record there is damaged, or somebody else "
        f"wrote it. Restore a copy of the topic, or start over: "
        f"{ways_to_begin_anew(channels, configured.settings.group)}"
    )


@contextmanager
def opened(configured: Configured) -> Iterator[Bus]:
    """The bus of the settings, closed at the end. An :class:`Unreadable` gets its remedy."""
    with closing(configured.connect()) as bus, telling_remedy(configured):
        yield bus
