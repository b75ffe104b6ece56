"""What the log says of what may come by the thousand: the first of each kind at once, then a line a minute with how many more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamfl.role import Notice, PeerError, Record

__all__ = ["Journal"]

EVERY_SECONDS = 60.0
# Reasons and topics are few; whoever gave a reason a name of the sender's must not fill the memory with it.
MOST_KINDS = 200
LONGEST_TEXT = 1_000

READ_LETTERS = "streamfl dead-letters CONFIG shows it"
REMEDIES = {
    "configuration": "the writer has other settings: run streamfl check CONFIG at both members",
    "dimension": "the writer has other features: run streamfl check CONFIG at both members",
    "kernel": "the writer has other settings: run streamfl check CONFIG at both members",
    "shard": "the writer has other settings: run streamfl check CONFIG at both members",
    "version": "the writer runs another version of streamfl: bring both to the same",
    "forged": "somebody writes in another's name: look at who has the right to write this topic",
    "too_many_clients": "raise federation.clients at all members, or forget clients that are gone",
}
CORRECT = "correct the writer or the settings, then send the records back: streamfl dead-letters CONFIG --replay"


@dataclass(slots=True)
class _Kind:
    """One (place, reason): until when it is told no more, and what has come meanwhile."""

    until: float
    event: str
    more: int = 0
    last: dict[str, Any] = field(default_factory=dict)


class Journal:
    """Logs refused records and a role's notices.

    warn: logs an event and facts. clock: seconds that never run backwards. The first of each place (a topic, or the role) and
    reason is told at once with all that is known of it. What follows is counted, and told by :meth:`catch_up` once in ``every``
    seconds with the last of it. A kind of which nothing came for so long is forgotten, and its next is a first one again. Memory:
    at most ``MOST_KINDS`` kinds, whatever is sent.

    >>> lines = []
    >>> journal = Journal(lambda event, **facts: lines.append((event, facts.get("more"))), clock=lambda: 0.0)
    >>> for _ in range(60):
    ...     journal.notice(Notice("late", "the round closed without 'pump'"))
    >>> journal.close()
    >>> lines
    [("the round closed without 'pump'", None), ("the round closed without 'pump'", 59)]
    """

    def __init__(self, warn: Callable[..., Any], clock: Callable[[], float], every: float = EVERY_SECONDS) -> None:
        self._warn = warn
        self._clock = clock
        self._every = every
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def refused(self, record: Record, error: PeerError, dead_letter: bool) -> None:
        """A record that could not be used; ``dead_letter``: it is kept as one."""
        remedy = REMEDIES.get(error.reason, CORRECT if dead_letter else "look at who writes this topic")
        facts = {
            "record": f"{record.topic}-{record.partition}-{record.offset}",
            "reason": error.reason,
            "text": _printable(error.text),
            "remedy": f"{remedy}; {READ_LETTERS}" if dead_letter and remedy is not CORRECT else remedy,
        }
        self._tell(record.topic, "a record was refused", facts)

    def notice(self, notice: Notice) -> None:
        """What a role wants said."""
        self._tell("", _printable(notice.text), {"reason": notice.reason})

    def catch_up(self) -> None:
        """Log what has become due. Costs next to nothing when nothing has."""
        now = self._clock()
        for key in [key for key, kind in self._kinds.items() if now >= kind.until]:
            kind = self._kinds.pop(key)
            if kind.more:
                self._warn(kind.event, **kind.last, more=kind.more, within_seconds=round(now - kind.until + self._every))
                self._kinds[key] = _Kind(now + self._every, kind.event)

    def close(self) -> None:
        """Log what was counted and not told yet."""
        for kind in self._kinds.values():
            if kind.more:
                self._warn(kind.event, **kind.last, more=kind.more)
        self._kinds.clear()

    def _tell(self, place: str, event: str, facts: dict[str, Any]) -> None:
        key = (place, facts["reason"])
        if key not in self._kinds and len(self._kinds) >= MOST_KINDS:
            key = ("", "")
        kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = _Kind(self._clock() + self._every, event)
            self._warn(event, **facts)
            return
        kind.more += 1
        kind.event, kind.last = event, facts


def _printable(text: str) -> str:
    """A stranger's text on one line, without what moves a terminal's cursor."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text[:LONGEST_TEXT])
