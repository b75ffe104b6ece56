"""Whether things that wait without a time limit make progress, by the role's own clock."""

from __future__ import annotations

__all__ = ["ProgressTimer"]


class ProgressTimer:
    """Reports once that things have waited for ``patience`` seconds without progress. Reports again after
    progress.

    It has no remembered state: after a restart the waiting begins anew.

    is_told: whether they wait, and that was reported.

    >>> timer = ProgressTimer(patience=10.0)
    >>> timer.see(True, 0, now=100.0)
    >>> timer.wake_at, timer.is_due(109.0), timer.is_due(110.0), timer.is_due(200.0), timer.wake_at
    (110.0, False, True, False, None)
    >>> timer.is_told
    True
    >>> timer.see(True, 1, now=200.0)
    >>> timer.wake_at, timer.is_told
    (210.0, False)
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: float | None = None
        self.is_told = False
        self._progress = 0

    @property
    def wake_at(self) -> float | None:
        """When to look again. None if nothing waits, or if it was reported already."""
        return None if self._since is None or self.is_told else self._since + self._patience

    def see(self, waits: bool, progress: int, now: float) -> None:
        """waits: whether anything waits. progress: a number that changes with all progress."""
        if not waits:
            self._since, self.is_told = None, False
        elif self._since is None or progress != self._progress:
            self._since, self.is_told = now, False
        self._progress = progress

    def is_due(self, now: float) -> bool:
        """Whether to report now. Answers True once."""
        if self.wake_at is None or now < self.wake_at:
            return False
        self.is_told = True
        return True

    def set_back(self, now: float) -> None:
        """Moves a start of waiting after ``now`` back to now: the clock was ahead."""
        if self._since is not None:
            self._since = min(self._since, now)
