"""Adds seals to a role's channels: made when messages are sent, checked before messages are decoded."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from streamfl.contract.role import Channels, ConfigurationError, Input, PeerError, Record, Sender
from streamfl.identity.authentication import Identity
from streamfl.identity.members import Member
from streamfl.identity.signed_records import signatures
from streamfl.roles.fragment_encoding import Fragment

__all__ = ["sealed_channels"]


def sealed_channels(channels: Channels, identity: Identity) -> Channels:
    """The same channels between members with keys.

    ConfigurationError if a receiver is not among the members, or the member may not speak for its party.
    """
    if channels.party is not None:
        identity.need(partial(_check_party, channels.party))
    seals = {
        channel: identity.seal(channels.outputs[channel], receiver.kind, receiver.name)
        for channel, receiver in channels.receivers.items()
    } | {channel: signatures(identity, channels.outputs[channel]) for channel in channels.signed}
    return replace(
        channels,
        inputs={channel: _checked(source, identity) for channel, source in channels.inputs.items()},
        seals=seals,
    )


def _check_party(party: str, member: Member) -> None:
    if not member.speaks_in_the_name_of(party):
        raise ConfigurationError(
            f"party.name = {party!r}: {member.name!r} may not speak for it, according to the members' file: "
            "name a party that it may speak for, or change the file"
        )


def _checked(source: Input, identity: Identity) -> Input:
    if source.sender is not None:
        return _opened(source, source.sender, identity)
    decode, client_of = source.decode, source.client
    if client_of is None:
        return source

    def decode_own(record: Record) -> Any:
        message = decode(record)
        # The receiver would refuse what comes of this message, and nobody would notice it here.
        _check_name(identity.member, message.sender if isinstance(message, Fragment) else client_of(message))
        return message

    return replace(source, decode=decode_own)


def _opened(source: Input, sender: Sender, identity: Identity) -> Input:
    check, decode = identity.open(source.topic, sender.kind), source.decode

    def open_and_decode(record: Record) -> Any:
        # First, so that a stranger's record is not even decoded.
        member = check(record)
        message = decode(record)
        if isinstance(message, Fragment):
            # The reader that puts the fragments together checks that the whole message speaks for nobody
            # else.
            if message.sender != member.name:
                _check_name(member, message.sender)
        elif (name := sender.claimed_sender(message)) is not None:
            _check_name(member, name)
        return message

    return replace(source, decode=open_and_decode)


def _check_name(member: Member, name: str) -> None:
    if not member.speaks_in_the_name_of(name):
        raise PeerError(
            "not_its_client", f"{member.name!r} may not speak for {name!r}, says the members' file"
        )
