"""When the server asks a party to announce anew all entities that wait there, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.state import ANEW
from streamfl.encoding.changelog_checks import Time, check_name
from streamfl.encoding.wire import Count
from streamfl.state.changelog import ChangedParts
from streamfl.state.clock_guard import earliest

__all__ = ["AnnouncedAnew"]

# Phases: what a party has announced is doubtful; it was asked; it has answered.
DOUBTED, ASKED, ANSWERED = range(3)
# A party whose state is that of another run may be ahead by this many windows. A stranger may say more.
MOST_AHEAD = 1_000_000


class _Party(msgspec.Struct, array_like=True, frozen=True):
    """phase: of DOUBTED, ASKED, ANSWERED. since: when it began.

    asked_in: the server's window when the party was asked last. window: the party's own when it answered, its
    latest.
    """

    phase: Annotated[int, msgspec.Meta(ge=DOUBTED, le=ANSWERED)]
    since: Time
    asked_in: Count = 0
    window: Count = 0


class AnnouncedAnew:
    """The owner of doubts about what parties have announced.

    A topic may hold announcements of another run of the federation, and anybody may write there where members
    have no keys. Then numbers of announcements are taken, and windows are made of entities that nobody has. A
    party that is asked sends the beginning of a new announcement, and then all that waits there. Both topics
    keep their order. So when the beginning comes, the party has taken all that the server said before it
    asked, and nothing that the party announced before counts any longer.

    lost_seconds: for which a doubt is kept before the party is asked. An announcement may be refused, and
    replayed.
    patience: seconds for which windows wait for a party that was asked. A party of an earlier release does
    not answer. So long after an answer a party is not asked again.
    """

    def __init__(
        self, parts: ChangedParts, parties: Sequence[str], lost_seconds: float, patience: float
    ) -> None:
        self._kept = parts.named(ANEW, check_name, _Party, self._restore)
        self._names = parties
        self._lost_seconds = lost_seconds
        self._patience = patience
        self._parties: dict[str, _Party] = {}
        # Parties that were asked, and for which windows wait no longer.
        self._overdue: set[str] = set()

    @property
    def holds(self) -> bool:
        """Whether a window has to wait, because a party was asked and has not answered."""
        return any(True for _ in self._awaited)

    @property
    def furthest(self) -> int:
        """The latest window of any party, according to its answer."""
        return max((one.window for one in self._parties.values()), default=0)

    @property
    def wake_at(self) -> float | None:
        asked = (one.since + self._patience for one in self._awaited)
        doubted = (one.since + self._lost_seconds for one in self._parties.values() if one.phase == DOUBTED)
        return earliest(*asked, *doubted)

    @property
    def _awaited(self) -> Iterator[_Party]:
        for party, one in self._parties.items():
            if one.phase == ASKED and party not in self._overdue:
                yield one

    def is_known(self, party: str) -> bool:
        """Whether there was a doubt."""
        return party in self._parties

    def is_asked(self, party: str) -> bool:
        return party in self._parties and self._parties[party].phase == ASKED

    def was_asked_in(self, party: str, window: int) -> bool:
        """Whether the party was asked in this window of the server."""
        return party in self._parties and self._parties[party].asked_in == window

    def doubt(self, party: str, now: float) -> None:
        """Something that the party has announced is not known, or will not be."""
        one = self._parties.get(party, _Party(ANSWERED, 0.0))
        if one.phase != DOUBTED and now >= one.since + self._patience:
            self._set(party, _Party(DOUBTED, now, one.asked_in, one.window))

    def ask(self, party: str, window: int, now: float) -> None:
        """The party is asked now, in this window of the server."""
        one = self._parties.get(party, _Party(ANSWERED, 0.0))
        self._set(party, _Party(ASKED, now, window, one.window))

    def answered(self, party: str, window: int, now: float) -> None:
        """The party that was asked begins to announce anew. window: the latest that it has frozen."""
        asked_in = self._parties[party].asked_in
        self._set(party, _Party(ANSWERED, now, asked_in, window if window <= asked_in + MOST_AHEAD else 0))

    def pass_time(self, now: float) -> list[str]:
        """The parties to ask now."""
        self._overdue = {party for party, one in self._parties.items() if now >= one.since + self._patience}
        return [
            party
            for party, one in self._parties.items()
            if one.phase == DOUBTED and now >= one.since + self._lost_seconds
        ]

    def set_back(self, now: float) -> None:
        """Moves times after ``now`` back to now: the clock was ahead."""
        for party, one in list(self._parties.items()):
            if one.since > now:
                self._set(party, msgspec.structs.replace(one, since=now))

    def _set(self, party: str, one: _Party) -> None:
        self._parties[party] = one
        self._overdue.discard(party)
        self._kept.remember(party, one)

    def _restore(self, party: str, one: _Party) -> None:
        if party not in self._names:
            raise BadRecord("malformed", f"doubts of {party[:60]!r}, which is not a party")
        self._parties[party] = one
