"""How far the parties' chains of releases have come, according to their messages.

The file beside a party's state shows it that the state was rolled back. If an old copy of both was put back
at once, the party cannot see that, and a new release does not look wrong. But the server has read its later
releases, and the chain is behind them. The server refuses such a release. It cannot be unsent, but the server
asks the party for no more, and the fit goes on without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.messages import Message
from streamfl.dp_frank_wolfe.state import PARTY_CHAIN
from streamfl.encoding.changelog_checks import check_name
from streamfl.encoding.wire import Count
from streamfl.roles.notices import Notices
from streamfl.state.changelog import ChangedParts

__all__ = ["PartyChains"]


class _Heard(msgspec.Struct, array_like=True, frozen=True):
    """link, head: of the message with the largest link."""

    link: Count
    head: Annotated[bytes, msgspec.Meta(max_length=32)]


class PartyChains:
    """The furthest release of each party."""

    def __init__(self, parts: ChangedParts, parties: Sequence[str], notices: Notices) -> None:
        self._kept = parts.named(PARTY_CHAIN, check_name, _Heard, self._restore)
        self._heard = {party: _Heard(0, b"") for party in parties}
        self._notices = notices

    def check(self, party: str, message: Message) -> None:
        """Raises BadRecord, and logs a notice, if a new release for a fit does not come after the party's
        earlier ones."""
        known = self._heard[party]
        if 0 < message.link <= known.link:
            text = (
                f"{party!r} releases as number {message.link} of its ledger, but was at number {known.link} "
                "before: an old copy of its ledger was restored together with its file, or both were made "
                "again. The budget spent since is forgotten, and the promise of epsilon does not hold: tell "
                "its operator"
            )
            self._notices.say("ledger_went_back", text)
            raise BadRecord("ledger_went_back", text)

    def hear(self, party: str, message: Message) -> None:
        """Records a release that was checked."""
        if message.link > self._heard[party].link:
            self._heard[party] = _Heard(message.link, message.head)
            self._kept.remember(party, self._heard[party])

    def _restore(self, party: str, heard: _Heard) -> None:
        if party not in self._heard:
            raise BadRecord("malformed", f"a chain of {party[:60]!r}, which is not a party")
        self._heard[party] = heard
