"""Adds seals to a role's channels: made when messages are sent, checked before messages are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from streamfl.contract.channels import Channels, DecodesRuns, Input, Sender
from streamfl.contract.role import BadRecord, ConfigurationError, Record
from streamfl.identity.authentication import Identity
from streamfl.identity.members import Member
from streamfl.identity.signed_records import signatures, signer_of_record
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
        if channel not in channels.signed
    } | {channel: signatures(identity, channels.outputs[channel]) for channel in channels.signed}
    return replace(
        channels,
        inputs={channel: _checked(source, identity) for channel, source in channels.inputs.items()},
        tables={channel: _checked(source, identity) for channel, source in channels.tables.items()},
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
    if source.client is None:
        return source
    checked = _OwnRuns if isinstance(source.decode, DecodesRuns) else _OwnMessages
    return replace(source, decode=checked(source.decode, source.client, identity))


class _OwnMessages:
    """Decodes messages of users. BadRecord for one that is about a client of another member: the receiver
    would refuse what comes of it, and nobody would notice it here."""

    def __init__(
        self, decode: Callable[[Record], Any], client_of: Callable[[Any], str], identity: Identity
    ) -> None:
        self._decode = decode
        self._client_of = client_of
        self._identity = identity

    def __call__(self, record: Record) -> Any:
        message = self._decode(record)
        _check_name(self._identity.member, self._name(message))
        return message

    def _name(self, message: Any) -> str:
        return message.sender if isinstance(message, Fragment) else self._client_of(message)


class _OwnRuns(_OwnMessages):
    """The same for records in a row. Each name is looked up once."""

    _decode: DecodesRuns

    def run(self, records: Sequence[Record]) -> Sequence[Any] | None:
        messages = self._decode.run(records)
        member = self._identity.member
        if messages is None or not all(map(member.speaks_in_the_name_of, set(map(self._name, messages)))):
            return None
        return messages


def _opened(source: Input, sender: Sender, identity: Identity) -> Input:
    decode = source.decode
    check = (
        signer_of_record(identity, sender.kind)
        if source.signed_for_all
        else identity.open(source.topic, sender.kind)
    )

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
        raise BadRecord(
            "not_its_client", f"{member.name!r} may not speak for {name!r}, says the members' file"
        )
