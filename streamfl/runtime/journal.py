"""Logs events that may come by the thousand: the first of each kind at once, then a count once a minute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamfl.contract.refusals import CORRECT, REFUSALS, WRITERS, Reason
from streamfl.contract.role import BadRecord, OperatorNotice, Record
from streamfl.runtime.bus import Moved
from streamfl.runtime.trace_context import trace_of
from streamfl.terminal.printable import LONGEST_TEXT, printable

__all__ = ["Journal"]

EVERY_SECONDS = 60.0
# Reasons and topics are few. If a reason ever held a sender's text, it must not fill the memory.
MOST_KINDS = 200

READ_LETTERS = "streamfl dead-letters CONFIG shows it"
# Event, reason and remedy of the log lines on moved positions.
UNREAD = (
    "records were deleted before they were read: reading continues after them",
    "deleted_unread",
    "let the topic keep its records for longer than workers may be away (retention.ms, retention.bytes)",
)
LOST = (
    "the cluster has lost records that had been read: records in their place are read, and what was learnt "
    "stays",
    "lost",
    "look at the brokers: set min.insync.replicas to 2 and leave unclean.leader.election.enable off",
)


@dataclass(slots=True)
class _Kind:
    """The events of one place and reason.

    until: when the next line is due.
    event: the text of the last event.
    more: the number of events that are not logged yet.
    last: the facts of the last event.
    """

    until: float
    event: str
    more: int = 0
    last: dict[str, Any] = field(default_factory=dict)


class Journal:
    """Logs refused records and a role's notices.

    A kind is a place, which is a topic or the role, and a reason. The first event of a kind is logged at
    once, with all its facts. Later events are counted; :meth:`catch_up` logs the count and the last event
    once in ``every`` seconds. A kind without events for this time is forgotten, and its next event counts as
    a first one. At most ``MOST_KINDS`` kinds are kept.

    warn: logs an event and facts.
    clock: seconds that never run backwards.
    refusals: the reasons for refusing records, with their remedies.

    >>> lines = []
    >>> journal = Journal(lambda event, **facts: lines.append((event, facts.get("more"))), clock=lambda: 0.0)
    >>> for _ in range(60):
    ...     journal.notice(OperatorNotice("late", "the round closed without 'pump'"))
    >>> journal.close()
    >>> lines
    [("the round closed without 'pump'", None), ("the round closed without 'pump'", 59)]
    """

    def __init__(
        self,
        warn: Callable[..., Any],
        clock: Callable[[], float],
        refusals: Mapping[str, Reason] = REFUSALS,
    ) -> None:
        self._warn = warn
        self._clock = clock
        self._refusals = refusals
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def refused(self, record: Record, error: BadRecord, dead_letter: bool) -> None:
        """Log a refused record. dead_letter: whether it became a dead letter."""
        declared = self._refusals.get(error.reason)
        remedy = declared.remedy if declared else ""
        if dead_letter:
            remedy = f"{remedy}; {READ_LETTERS}" if remedy else CORRECT
        facts = {
            "record": f"{record.topic}-{record.partition}-{record.offset}",
            "reason": error.reason,
            "text": printable(error.text[:LONGEST_TEXT]),
            **trace_of(record.headers),
            "remedy": remedy or WRITERS,
        }
        self._tell(record.topic, "a record was refused", facts)

    def moved(self, moved: Moved) -> None:
        """Log that records were deleted before they were read, or lost after they had been."""
        first, after = sorted((moved.position, moved.following))
        event, reason, remedy = UNREAD if first == moved.position else LOST
        facts = {
            "reason": reason,
            "topic": moved.topic,
            "partition": moved.partition,
            "first": first,
            "last": after - 1,
        }
        self._tell(f"{moved.topic}-{moved.partition}", event, {**facts, "remedy": remedy})

    def unavailable(self, failure: Exception) -> None:
        """Log that the bus did not answer. If the cluster refuses connections, this comes twice a second."""
        self._tell(
            "", "the bus is unavailable", {"reason": "bus", "cause": printable(str(failure)[:LONGEST_TEXT])}
        )

    def waits(self, text: str) -> None:
        """Log that what a role sends cannot be written yet. text: what the worker waits for."""
        self.notice(OperatorNotice("not_yet_readable", text))

    def notice(self, notice: OperatorNotice) -> None:
        """Log a role's notice."""
        self._tell("", printable(notice.text[:LONGEST_TEXT]), {"reason": notice.reason})

    def catch_up(self) -> None:
        """Log the counts that are due. It costs next to nothing if there are none."""
        now = self._clock()
        for key in [key for key, kind in self._kinds.items() if now >= kind.until]:
            kind = self._kinds.pop(key)
            if kind.more:
                self._warn(
                    kind.event,
                    **kind.last,
                    more=kind.more,
                    within_seconds=round(now - kind.until + EVERY_SECONDS),
                )
                self._kinds[key] = _Kind(now + EVERY_SECONDS, kind.event)

    def close(self) -> None:
        """Log the counts that are not logged yet."""
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
            self._kinds[key] = _Kind(self._clock() + EVERY_SECONDS, event)
            self._warn(event, **facts)
            return
        kind.more += 1
        kind.event, kind.last = event, facts
