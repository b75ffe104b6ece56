"""How long an answer has been owed, by the role's own clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from streamfl.roles.rhythm import FORGETTING, LEAST, TIMES, for_longer_than_usual

__all__ = ["ReplyDeadline"]


class ReplyDeadline:
    """Tells when a peer that is asked again and again has not answered for ``patience`` seconds, and before
    that when it takes notably longer than usual.

    The requests have to go on for half of that time. Otherwise the answer no longer counts as owed: after
    the end of a stream it would be owed for ever. Every time is the role's ``now``, which may go back: a
    request at a later time than now counts as made now. This state is not remembered: after a restart the
    waiting begins anew.

    patience: seconds.

    >>> deadline = ReplyDeadline(patience=100.0)
    >>> deadline.asked(100.0)
    >>> deadline.wake_at
    160.0
    >>> deadline.asked(155.0)
    >>> deadline.look(160.0)
    >>> deadline.waits_for(lambda: ["bank"]), deadline.wake_at
    ('waits for bank since 1970-01-01T00:01:40Z, longer than usual', 200.0)
    >>> deadline.look(200.0)
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
        # The longest usual wait, and whether the present one was looked at once it was unusual, and is.
        self._usual = 0.0
        self._looked = self._is_late = False

    @property
    def _allowed(self) -> float:
        """Seconds from which a wait is unusual."""
        return TIMES * max(self._usual, LEAST)

    @property
    def wake_at(self) -> float | None:
        """When to call :meth:`look`; None if no answer is owed, or it is overdue already."""
        if self._since is None or self.overdue or self.patience == math.inf:
            return None
        return self._since + (self.patience if self._looked else min(self.patience, self._allowed))

    def waits_for(self, owing: Callable[[], Sequence[str]]) -> str | None:
        """A sentence on who is waited for, once that takes notably longer than usual; None: it does not.

        owing: says who has to answer.
        """
        if self._since is None or not self._is_late or not (names := owing()):
            return None
        return f"waits for {', '.join(names)} {for_longer_than_usual(self._since)}"

    def asked(self, now: float) -> None:
        """A request went out. If an earlier request is unanswered, the waiting has begun with that."""
        if self._since is None:
            self._since = now
        self._last_asked = now

    def answered(self, now: float | None = None) -> None:
        """An answer came, or none is owed any more. now: when it came, which tells how long is usual."""
        if now is not None and self._since is not None:
            wait = min(max(0.0, now - self._since), self._allowed)
            self._usual = max(wait, self._usual - wait / FORGETTING)
        self._since, self.overdue = None, False
        self._looked = self._is_late = False

    def look(self, now: float) -> None:
        """Check the deadline at the time ``now``."""
        if self._since is None:
            return
        self._since, self._last_asked = min(self._since, now), min(self._last_asked, now)
        asked_for = self._last_asked - self._since
        if now >= self._since + self._allowed:
            self._looked = True
            self._is_late = asked_for >= self._allowed / 2
        if self.overdue or now < self._since + self.patience:
            return
        if asked_for >= self.patience / 2:
            self.overdue = True
        else:
            self.answered()
