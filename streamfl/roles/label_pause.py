"""Labels that used to come and have stopped."""

from __future__ import annotations

from streamfl.roles.rhythm import Rhythm, for_longer_than_usual

__all__ = ["LabelPause"]


class LabelPause:
    """Tells when no label has come for notably longer than usual.

    This state is not remembered: after a restart the waiting begins anew with the first label.

    >>> pause = LabelPause()
    >>> for second in range(0, 600, 10):
    ...     pause.came(float(second), now=float(second))
    >>> pause.wake_at
    650.0
    >>> pause.look(650.0)
    >>> pause.told
    'no label has come since 1970-01-01T00:09:50Z, longer than usual'
    >>> pause.came(651.0, now=651.0)
    >>> pause.told
    """

    def __init__(self) -> None:
        self._rhythm = Rhythm()
        self._is_unusual = False

    @property
    def wake_at(self) -> float | None:
        """When to call :meth:`look`; None if no label is overdue before another one comes."""
        return None if self._is_unusual else self._rhythm.overdue_at

    def came(self, written_at: float, now: float) -> None:
        """A label came. written_at: when it was written."""
        self._rhythm.set_back(now)
        self._rhythm.came(min(written_at, now), now)
        self._is_unusual = False

    def look(self, now: float) -> None:
        """See how long no label has come at the time ``now``."""
        self._rhythm.set_back(now)
        overdue_at = self._rhythm.overdue_at
        self._is_unusual = overdue_at is not None and now >= overdue_at

    @property
    def told(self) -> str | None:
        """A sentence on since when no label came; None: nothing is unusual."""
        if not self._is_unusual or self._rhythm.heard is None:
            return None
        return f"no label has come {for_longer_than_usual(self._rhythm.heard)}"
