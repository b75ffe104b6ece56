"""Tracks which parties still have to answer, which are absent, and each party's last answer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from streamfl.contract.role import BadRecord, Measurement
from streamfl.dp_frank_wolfe.messages import KINDS
from streamfl.dp_frank_wolfe.metrics import ServerMetrics
from streamfl.dp_frank_wolfe.state import PRESENCE, SINCE
from streamfl.encoding.changelog_checks import Time, check_name
from streamfl.encoding.wire import Count
from streamfl.state.changelog import ChangedParts

__all__ = ["PartyLiveness"]


class _Presence(msgspec.Struct, array_like=True):
    """A party's state.

    owes: the kind of message that the server expects, empty for none.
    iteration: of that message.
    away: the party did not answer in time. The server asks it for nothing more until it has sent what it
    owes.
    heard: place of its latest answer in the window.
    digest: of that answer.
    """

    owes: Annotated[str, msgspec.Meta(max_length=16)] = ""
    iteration: Count = 0
    away: bool = False
    heard: Count = 0
    digest: Annotated[bytes, msgspec.Meta(max_length=32)] = b""


class PartyLiveness:
    """Owns which party owes what.

    A party that does not answer in time is away. If no party answers, none is left behind: all are asked
    again, because they may not have been able to release anything when they were asked.

    parties: in the public order.
    patience: seconds.
    """

    def __init__(self, parts: ChangedParts, parties: Sequence[str], patience: float) -> None:
        self._kept = parts.named(PRESENCE, check_name, _Presence, self._restore)
        self._remember_since = parts.single(SINCE, float, self._restore_since)
        self._patience = patience
        self._presences = {party: _Presence() for party in parties}
        self._since = 0.0

    @property
    def awaited(self) -> bool:
        """Whether a present party owes an answer."""
        return any(one.owes and not one.away for one in self._presences.values())

    @property
    def owing(self) -> list[str]:
        """The parties that owe an answer, absent ones too."""
        return [party for party, one in self._presences.items() if one.owes]

    @property
    def wake_at(self) -> float | None:
        """When the patience with the parties that owe is over."""
        return self._since + self._patience if self.awaited else None

    @property
    def present(self) -> list[str]:
        """Parties that are not away."""
        return [party for party, one in self._presences.items() if not one.away]

    def begin(self, kind: str, now: float) -> None:
        """Begins a window: every party owes this kind of message, absent parties too."""
        for party, one in self._presences.items():
            self._presences[party] = _Presence(kind, 0, one.away)
            self._remember(party)
        self._set_since(now)

    def ask(self, party: str, kind: str, iteration: int, now: float) -> None:
        """Records that a party owes this message."""
        one = self._presences[party]
        one.owes, one.iteration = kind, iteration
        self._remember(party)
        self._set_since(now)

    def end(self) -> None:
        """Ends the window: no party owes anything."""
        for party, one in self._presences.items():
            self._presences[party] = _Presence(away=one.away)
            self._remember(party)

    def judge(self, party: str, kind: str, iteration: int, content: bytes) -> Literal["owed", "repeated"]:
        """Whether an answer of the present window is owed or repeated. Raises BadRecord if it was not asked
        for, or differs."""
        one = self._presences[party]
        if (kind, iteration) == (one.owes, one.iteration):
            return "owed"
        place = _place(kind, iteration)
        if place > one.heard:
            raise BadRecord("implausible", f"{kind} of iteration {iteration}: nothing led to it")
        if place == one.heard and _digest(content) != one.digest:
            raise BadRecord(
                "another_answer", f"{party!r} has said something else as {kind} of iteration {iteration}"
            )
        return "repeated"

    def answered(self, party: str, kind: str, iteration: int, content: bytes) -> None:
        """Records that a party has sent what it owed. It is present."""
        self._presences[party] = _Presence(heard=_place(kind, iteration), digest=_digest(content))
        self._remember(party)

    @property
    def has_answers(self) -> bool:
        """Whether any party has answered in this window."""
        return any(one.heard for one in self._presences.values())

    def owes(self, party: str) -> str:
        """The kind of message that is expected of the party; empty for none."""
        return self._presences[party].owes

    def leave(self, party: str) -> None:
        """A party is not waited for any longer, as if it had not answered in time."""
        self._presences[party].away = True
        self._remember(party)

    def spoke(self, party: str) -> None:
        """A party announced names. It is present if it owes nothing. If it owes an answer, the names may be
        from before it left."""
        one = self._presences[party]
        if one.away and not one.owes:
            one.away = False
            self._remember(party)

    def pass_time(self, now: float) -> tuple[list[str], list[str]]:
        """The parties that became absent by now, and the parties to ask again."""
        overdue = self._overdue
        if self.wake_at is None or now < self.wake_at:
            return [], []
        if len(overdue) == len(self.present):
            self._set_since(now)
            return [], overdue
        for party in overdue:
            self._presences[party].away = True
            self._remember(party)
        return overdue, []

    def set_back(self, now: float) -> None:
        """Moves a time of asking after ``now`` back to now: the clock was ahead."""
        if self._since > now:
            self._set_since(now)

    def _restore_since(self, since: float) -> None:
        self._since = msgspec.convert(since, Time)

    def _restore(self, party: str, presence: _Presence) -> None:
        if party not in self._presences:
            raise BadRecord("malformed", f"{party[:60]!r} is no party")
        self._presences[party] = presence

    def measure(self) -> Iterator[Measurement]:
        away = len(self._presences) - len(self.present)
        yield ServerMetrics.parties_away(away)

    @property
    def _overdue(self) -> list[str]:
        return [party for party in self.present if self._presences[party].owes]

    def _set_since(self, now: float) -> None:
        self._since = now
        self._remember_since(now)

    def _remember(self, party: str) -> None:
        self._kept.remember(party, self._presences[party])


def _place(kind: str, iteration: int) -> int:
    """Place of an answer in its window, above 0."""
    return iteration * len(KINDS) + KINDS[kind]


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
