"""How often something comes that goes on coming, and until when a pause of it is nothing unusual.

A sensor that speaks once a day is not silent after an hour, and one that speaks each second is. So a pause is measured by the
longest one that is usual. This is forgotten slowly, in step with its own length: a pause of a day over weeks, one of a minute
within half an hour.
"""

from __future__ import annotations

import msgspec

from streamfl.changelog_checks import Amount, Time

__all__ = ["LEAST", "STEP", "TIMES", "UNKNOWN", "Rhythm"]

# Seconds. What comes within so short a time is not told apart: each step of it may be a record of a changelog.
STEP = 5.0
# No pause that is shorter than this is unusual.
LEAST = 20.0
# A pause is unusual once it is so many times as long as the longest usual one.
TIMES = 3.0
# The longest pause that counts as usual while too little has come to say.
UNKNOWN = 86_400.0
# A pause is forgotten within so many times its length, if no other is as long.
FORGETTING = 20.0


class Rhythm(msgspec.Struct, array_like=True):
    """When something came, and how long it usually does not.

    Pauses are measured between the times at which records were written, so that a worker that was away takes none for their
    writer's. A pause that goes on is measured by the worker's clock, since something came last.

    begun, written: when the first and the last that came were written.
    longest: the longest pause that is usual, in seconds.
    heard: when the last came, by the clock; None: nothing came yet.

    >>> rhythm = Rhythm()
    >>> for second in range(0, 600, 10):
    ...     _ = rhythm.came(float(second), now=float(second))
    >>> rhythm.overdue_at
    650.0
    """

    begun: Time = 0.0
    written: Time = 0.0
    longest: Amount = 0.0
    heard: Time | None = None

    def came(self, written_at: float, now: float) -> bool:
        """Something came that was written then, not after ``now``. Returns whether anything has changed."""
        heard = self.heard
        if heard is None:
            self.begun = self.written = written_at
        elif written_at < self.written + STEP and now < heard + STEP:
            return False
        else:
            pause = max(0.0, written_at - self.written)
            self.longest = max(pause, self.longest - pause / FORGETTING)
            self.written = max(self.written, written_at)
        self.heard = now
        return True

    @property
    def overdue_at(self) -> float | None:
        """From when on a pause is unusual, if nothing more comes; None: nothing ever came."""
        if self.heard is None:
            return None
        allowed = TIMES * max(self.longest, LEAST)
        # A burst says nothing of the pause that follows it.
        return self.heard + (allowed if self.written - self.begun >= allowed else TIMES * UNKNOWN)

    def set_back(self, now: float) -> bool:
        """Let what was noted after ``now`` have been now: the clock was ahead. Returns whether anything was."""
        if self.heard is None or max(self.written, self.heard) <= now:
            return False
        self.begun, self.written, self.heard = min(self.begun, now), min(self.written, now), min(self.heard, now)
        # What was measured by that clock is no pause of anybody's.
        self.longest = min(self.longest, self.written - self.begun)
        return True
