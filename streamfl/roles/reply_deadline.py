"""How long an answer has been owed, by the role's own clock."""

from __future__ import annotations

import math

__all__ = ["ReplyDeadline"]


class ReplyDeadline:
    """Tells when a peer that is asked again and again has not answered for ``patience`` seconds.

    The requests have to go on for half of the patience. Otherwise the answer no longer counts as owed: after
    the end of a stream it would be owed for ever. Every time is the role's ``now``, which may go back: a
    request at a later time than now counts as made now. This state is not remembered: after a restart the
    waiting begins anew.

    >>> deadline = ReplyDeadline(patience=10.0)
    >>> deadline.asked(100.0)
    >>> deadline.wake_at
    110.0
    >>> deadline.asked(108.0)
    >>> deadline.look(110.0)
    >>> deadline.overdue, deadline.wake_at
    (True, None)
    >>> deadline.answered()
    >>> deadline.overdue
    False
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.overdue = False
        self._since: float | None = None
        self._last_asked = 0.0

    @property
    def wake_at(self) -> float | None:
        """When to call :meth:`look`; None if no answer is owed, or it is overdue already."""
        return (
            None
            if self._since is None or self.overdue or self.patience == math.inf
            else self._since + self.patience
        )

    def asked(self, now: float) -> None:
        """A request went out. If an earlier request is unanswered, the waiting has begun with that."""
        if self._since is None:
            self._since = now
        self._last_asked = now

    def answered(self) -> None:
        """An answer came, or none is owed any more."""
        self._since, self.overdue = None, False

    def look(self, now: float) -> None:
        """Check the deadline at the time ``now``."""
        if self._since is None:
            return
        self._since, self._last_asked = min(self._since, now), min(self._last_asked, now)
        if self.overdue or now < self._since + self.patience:
            return
        if self._last_asked - self._since >= self.patience / 2:
            self.overdue = True
        else:
            self._since = None
