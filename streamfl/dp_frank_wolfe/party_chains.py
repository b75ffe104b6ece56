"""How far the parties' chains of releases have come, as their messages say.

A party sees that its state was rolled back by the file beside it. If an old copy of both was put back at once, it cannot see that,
and neither would a new release look wrong. But its earlier releases were read: its chain would be behind what the server has heard.
Such a release is refused: what was sent cannot be taken back, but the party is asked for no more, and the fit goes on without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from streamfl.changelog import ChangedParts
from streamfl.changelog_checks import check_name
from streamfl.dp_frank_wolfe.messages import Message
from streamfl.notices import Notices
from streamfl.role import PeerError
from streamfl.wire import Count

__all__ = ["PartyChains"]

KEY = b"chain/"


class _Heard(msgspec.Struct, array_like=True, frozen=True):
    """link, head: of the message that was furthest."""

    link: Count
    head: Annotated[bytes, msgspec.Meta(max_length=32)]


class PartyChains:
    """Remembered as ``chain/PARTY``."""

    def __init__(self, parts: ChangedParts, parties: Sequence[str], notices: Notices) -> None:
        self._parts = parts
        self._heard = {party: _Heard(0, b"") for party in parties}
        self._notices = notices

    def check(self, party: str, message: Message) -> None:
        """PeerError, and a notice for whoever runs the server, if a new release for a fit does not follow what was heard."""
        known = self._heard[party]
        if 0 < message.link <= known.link:
            text = (
                f"{party!r} releases as number {message.link} of its ledger, and was at number {known.link} before: an old copy of "
                "its ledger was put back, with the file beside it, or both were made anew. What it spent since is forgotten, and "
                "what epsilon promises does not hold: tell its operator"
            )
            self._notices.say("ledger_went_back", text)
            raise PeerError("ledger_went_back", text)

    def hear(self, party: str, message: Message) -> None:
        """A release that was checked is taken."""
        if message.link > self._heard[party].link:
            self._heard[party] = _Heard(message.link, message.head)
            self._parts.remember(KEY + party.encode(), self._heard[party])

    def restore(self, key: bytes, value: bytes) -> bool:
        """Restores a part. False if the key belongs to another owner."""
        if not key.startswith(KEY):
            return False
        party = check_name(key.removeprefix(KEY))
        if party not in self._heard:
            raise PeerError("malformed", f"a chain of {party[:60]!r}, who is no party")
        self._heard[party] = msgspec.msgpack.decode(value, type=_Heard)
        return True
