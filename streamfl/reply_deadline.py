"""How long an answer has been owed, by the role's own clock."""

from __future__ import annotations

import math

__all__ = ["ReplyDeadline"]


class ReplyDeadline:
    """Tells when somebody who goes on being asked has not answered for ``patience`` seconds.

    Whoever is not asked any more owes nothing: the asking has to go on for half of the patience, or a stream that ends would leave
    a debt for ever. Every time is the role's ``now``, which may be set back: what was asked by a clock that was ahead counts as
    asked now. Nothing of it is remembered: after a restart the waiting begins anew.

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
        """When it is worth looking: None where nothing is owed, or it is overdue already."""
        return None if self._since is None or self.overdue or self.patience == math.inf else self._since + self.patience

    def asked(self, now: float) -> None:
        """Something went out that is to be answered; what went out before it is owed for longer."""
        if self._since is None:
            self._since = now
        self._last_asked = now

    def answered(self) -> None:
        """An answer came, or none is owed any more."""
        self._since, self.overdue = None, False

    def look(self, now: float) -> None:
        """Time has passed."""
        if self._since is None:
            return
        self._since, self._last_asked = min(self._since, now), min(self._last_asked, now)
        if self.overdue or now < self._since + self.patience:
            return
        if self._last_asked - self._since >= self.patience / 2:
            self.overdue = True
        else:
            self._since = None
