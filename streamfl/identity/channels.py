"""A role's channels with seals: made when its messages leave, looked at before they are decoded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamfl.identity.authentication import Identity
from streamfl.role import Channels, Input, PeerError, Record, Sender

__all__ = ["sealed_channels"]


def sealed_channels(channels: Channels, identity: Identity) -> Channels:
    """The same channels between members with keys; ConfigurationError if a receiver is not among the members."""
    seals = {
        channel: identity.seal(channels.outputs[channel], receiver.kind, receiver.name)
        for channel, receiver in channels.receivers.items()
    }
    own = {channel: identity.seal_own(channels.changelogs[channel]) for channel in channels.published}
    return replace(
        channels,
        inputs={
            channel: source if source.sender is None else _opened(source, source.sender, identity)
            for channel, source in channels.inputs.items()
        },
        seals={**seals, **{channel: seal for channel, (seal, _) in own.items()}},
        admits={channel: begin for channel, (_, begin) in own.items()},
    )


def _opened(source: Input, sender: Sender, identity: Identity) -> Input:
    check, decode = identity.open(source.topic, sender.kind), source.decode

    def open_and_decode(record: Record) -> Any:
        # First: what a stranger wrote is not even looked at.
        member = check(record)
        message = decode(record)
        name = sender.speaker(message)
        if name is not None and not member.speaks_in_the_name_of(name):
            raise PeerError("not_its_client", f"{member.name!r} may not speak for {name!r}")
        return message

    return replace(source, decode=open_and_decode)
