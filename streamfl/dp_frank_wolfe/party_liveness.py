"""Who owes the server an answer, who is away, and what was heard of whom last."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from streamfl.changelog import ChangedParts
from streamfl.changelog_checks import Time, check_name
from streamfl.dp_frank_wolfe.messages import KINDS
from streamfl.role import Measurement, PeerError
from streamfl.wire import Count

__all__ = ["PartyLiveness"]

PARTY, SINCE = b"presence/", b"since"


class _Presence(msgspec.Struct, array_like=True):
    """Of a party; remembered as ``presence/PARTY``.

    owes: the kind of message that is expected of it, empty for none. iteration: of that.
    away: it let the patience pass, and is asked for nothing more until it has given what it owes.
    heard: place of its latest answer in the window. digest: of that answer.
    """

    owes: Annotated[str, msgspec.Meta(max_length=16)] = ""
    iteration: Count = 0
    away: bool = False
    heard: Count = 0
    digest: Annotated[bytes, msgspec.Meta(max_length=32)] = b""


class PartyLiveness:
    """The owner of who owes what.

    Whoever lets the patience pass is away. But nobody is left behind if there is nobody to go on with: those are asked again, for
    what was asked may have met a party that could not release anything then.

    parties: in the public order. patience: seconds.
    """

    def __init__(self, parts: ChangedParts, parties: Sequence[str], patience: float) -> None:
        self._parts = parts
        self._patience = patience
        self._presences = {party: _Presence() for party in parties}
        self._since = 0.0

    @property
    def awaited(self) -> bool:
        """Whether somebody who is there owes an answer."""
        return any(one.owes and not one.away for one in self._presences.values())

    @property
    def wake_at(self) -> float | None:
        """When patience is over with those that owe."""
        return self._since + self._patience if self.awaited else None

    @property
    def present(self) -> list[str]:
        """Parties that are not away."""
        return [party for party, one in self._presences.items() if not one.away]

    def begin(self, kind: str, now: float) -> None:
        """A window begins, and every party owes this, those that are away too."""
        for party, one in self._presences.items():
            self._presences[party] = _Presence(kind, 0, one.away)
            self._remember(party)
        self._set_since(now)

    def ask(self, party: str, kind: str, iteration: int, now: float) -> None:
        """A party owes this."""
        one = self._presences[party]
        one.owes, one.iteration = kind, iteration
        self._remember(party)
        self._set_since(now)

    def end(self) -> None:
        """The window is over: nobody owes anything."""
        for party, one in self._presences.items():
            self._presences[party] = _Presence(away=one.away)
            self._remember(party)

    def judge(self, party: str, kind: str, iteration: int, content: bytes) -> Literal["owed", "repeated"]:
        """What an answer of the present window is; PeerError for one that nothing led to, or another one in the same place."""
        one = self._presences[party]
        if (kind, iteration) == (one.owes, one.iteration):
            return "owed"
        place = _place(kind, iteration)
        if place > one.heard:
            raise PeerError("implausible", f"{kind} of iteration {iteration}: nothing led to it")
        if place == one.heard and _digest(content) != one.digest:
            raise PeerError("another_answer", f"{party!r} has said something else as {kind} of iteration {iteration}")
        return "repeated"

    def answered(self, party: str, kind: str, iteration: int, content: bytes) -> None:
        """A party has given what it owed, and is there."""
        self._presences[party] = _Presence(heard=_place(kind, iteration), digest=_digest(content))
        self._remember(party)

    def spoke(self, party: str) -> None:
        """A party announced names. Who owes nothing and speaks is there; who owes an answer may have said this before it left."""
        one = self._presences[party]
        if one.away and not one.owes:
            one.away = False
            self._remember(party)

    def pass_time(self, now: float) -> tuple[list[str], list[str]]:
        """The parties that have become away by now, and those that are to be asked again."""
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
        """What was asked after ``now`` was asked now: the clock was ahead."""
        if self._since > now:
            self._set_since(now)

    def restore(self, key: bytes, value: bytes) -> bool:
        """Restores a part. False if the key belongs to another owner."""
        if key == SINCE:
            self._since = msgspec.msgpack.decode(value, type=Time)
            return True
        if not key.startswith(PARTY):
            return False
        party = check_name(key.removeprefix(PARTY))
        if party not in self._presences:
            raise PeerError("malformed", f"{party[:60]!r} is no party")
        self._presences[party] = msgspec.msgpack.decode(value, type=_Presence)
        return True

    def measure(self) -> Iterator[Measurement]:
        away = len(self._presences) - len(self.present)
        yield Measurement("parties_away", "gauge", "Parties without which the server goes on", away, (), True)

    @property
    def _overdue(self) -> list[str]:
        return [party for party in self.present if self._presences[party].owes]

    def _set_since(self, now: float) -> None:
        self._since = now
        self._parts.remember(SINCE, now)

    def _remember(self, party: str) -> None:
        self._parts.remember(PARTY + party.encode(), self._presences[party])


def _place(kind: str, iteration: int) -> int:
    """Above 0."""
    return iteration * len(KINDS) + KINDS[kind]


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
