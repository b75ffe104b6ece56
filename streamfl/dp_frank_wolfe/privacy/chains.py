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
from streamfl.dp_frank_wolfe.server.received_messages import Gap, check_gaps, fill
from streamfl.dp_frank_wolfe.state import CHAIN_GAPS, PARTY_CHAIN
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
    """The furthest release of each party.

    proven: whether members have keys. Without them a stranger may write a release in a party's name, with any
    number. If all up to it were refused from then on, the party could never release anything again. So
    numbers that have come are refused then, and of those between others only the first.
    """

    def __init__(self, parts: ChangedParts, parties: Sequence[str], notices: Notices, proven: bool) -> None:
        self._kept = parts.named(PARTY_CHAIN, check_name, _Heard, self._restore)
        self._kept_gaps = parts.named(CHAIN_GAPS, check_name, list[Gap], self._restore_gaps)
        self._heard = {party: _Heard(0, b"") for party in parties}
        self._gaps: dict[str, list[Gap]] = {party: [] for party in parties}
        self._notices = notices
        self._proven = proven

    def check(self, party: str, message: Message) -> None:
        """Raises BadRecord, and logs a notice, if a new release for a fit does not come after the party's
        earlier ones."""
        known, link = self._heard[party], message.link
        if not 0 < link <= known.link:
            return
        gap = next((one for one in self._gaps[party] if one[0] <= link <= one[1]), None)
        if gap is not None and gap[0] == link:
            # It follows an earlier one. What came after that may have been another's.
            return
        text = (
            f"{party!r} releases as number {link} of its ledger, but was at number {known.link} before: an "
            "old copy of its ledger was restored together with its file, or both were made again. The budget "
            "spent since is forgotten, and the promise of epsilon does not hold: tell its operator"
        )
        self._notices.say("ledger_went_back", text)
        if gap is not None:
            # Those that follow it are taken: the latest number may have been somebody else's.
            self.hear(party, message)
        raise BadRecord("ledger_went_back", text)

    def hear(self, party: str, message: Message) -> None:
        """Records a release that was checked."""
        known, gaps = self._heard[party], self._gaps[party]
        if not message.link:
            return
        if message.link > known.link:
            self._heard[party] = _Heard(message.link, message.head)
            self._kept.remember(party, self._heard[party])
        if not self._proven and (gaps or message.link > known.link + 1):
            fill(gaps, known.link, message.link)
            self._kept_gaps.remember(party, gaps)

    def _restore(self, party: str, heard: _Heard) -> None:
        self._check_party(party)
        self._heard[party] = heard

    def _restore_gaps(self, party: str, gaps: list[Gap]) -> None:
        self._check_party(party)
        latest = gaps[-1][1] + 1 if gaps else 0
        check_gaps(gaps, latest, f"a chain of {party!r}")
        self._gaps[party] = [] if self._proven else gaps

    def _check_party(self, party: str) -> None:
        if party not in self._heard:
            raise BadRecord("malformed", f"a chain of {party[:60]!r}, which is not a party")
