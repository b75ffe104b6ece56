"""A role's notices for the operator's log: at most one of each reason at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamfl.contract.refusals import NOTICES, Reason
from streamfl.contract.role import OperatorNotice

__all__ = ["Notices"]


class Notices:
    """Keeps the first notice of each reason until the worker asks for it, because every message might cause
    one.

    declared: the reasons with their meanings.

    >>> notices = Notices()
    >>> notices.say("late_update", "update 1 came late")
    >>> notices.say("late_update", "update 2 came late")
    >>> [notice.text for notice in notices.collect()]
    ['update 1 came late']
    >>> [*notices.collect()]
    []
    """

    def __init__(self, declared: Mapping[str, Reason] = NOTICES) -> None:
        self._declared = declared
        self._first: dict[str, OperatorNotice] = {}

    def __contains__(self, reason: str) -> bool:
        """Whether a notice of this reason is kept. Then the caller need not make its text again."""
        return reason in self._first

    def say(self, reason: str, text: str | None = None) -> None:
        """Keep a notice, unless there is one of the same reason. text: what happened; None: what the reason
        means."""
        self.add(OperatorNotice(reason, text or str(self._declared[reason])))

    def add(self, notice: OperatorNotice) -> None:
        """The same with a finished notice."""
        self._first.setdefault(notice.reason, notice)

    def collect(self) -> Iterable[OperatorNotice]:
        """Return the kept notices and forget them."""
        notices, self._first = self._first, {}
        return notices.values()
