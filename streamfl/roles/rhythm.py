"""How often something recurs, and when a pause becomes unusual.

An hour's pause is normal for a sensor that sends once a day, and silence for one that sends each second. So a
pause is compared with the longest usual one. The longest usual pause is forgotten in proportion to its
length: a day's over weeks, a minute's within half an hour. A pause that followed a mere burst is forgotten
sooner, once records have come for a few times as long as the burst.
"""

from __future__ import annotations

import math

import msgspec

from streamfl.encoding.changelog_checks import Amount, Time
from streamfl.terminal.printable import utc_time

__all__ = ["LEAST", "STEP", "TIMES", "UNKNOWN", "Rhythm", "for_longer_than_usual"]

# Seconds. Arrivals closer together count as one, because each change may be a record of a changelog.
STEP = 5.0
# Seconds. No shorter pause is unusual.
LEAST = 20.0
# A pause is unusual once it is this many times as long as the longest usual one.
TIMES = 3.0
# Seconds. The longest usual pause that is assumed while too little has come to tell.
UNKNOWN = 86_400.0
# A pause is forgotten within this many times its length, if no other is as long.
FORGETTING = 20.0


class Rhythm(msgspec.Struct, array_like=True):
    """When records came, and how long the usual pauses between them are.

    Pauses are measured between the times at which records were written, so that a worker's own absence does
    not count as a pause of the writer. The present pause is measured by the worker's clock, since the last
    record came.

    begun, written: when the first and the last record were written. ``begun`` is later by each
        pause that was far longer than all before it.
    longest: the longest usual pause, in seconds.
    heard: when the last record came, by the worker's clock; None: none came yet.

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
        """A record came that was written at ``written_at``, which is not after ``now``. Returns whether this
        object changed."""
        heard = self.heard
        if heard is None:
            self.begun = self.written = written_at
        elif written_at < self.written + STEP and now < heard + STEP:
            return False
        else:
            self._paused(max(0.0, written_at - self.written), now - written_at, heard)
            self.written = max(self.written, written_at)
        self.heard = now
        return True

    def _paused(self, pause: float, age: float, heard: float) -> None:
        """Learn from a pause. age: seconds since the record that ended it was written. heard: when the record
        before it came."""
        known = self.written - self.begun
        if pause > TIMES * max(self.longest, LEAST) and heard - self.written >= pause / 2 > age:
            # From a history to the live records: only what the worker itself has waited for is a pause.
            pause = max(0.0, pause + age - (heard - self.written))
        if pause > TIMES * max(self.longest, known, LEAST):
            # It is far longer than all that came before, as after a history that was loaded at once. It is
            # left out of the time that is known, so that it counts only until more than that has come.
            self.begun += pause
            self.longest = pause
        elif known < self.longest:
            kept = max(known, STEP) / (max(known, STEP) + pause)
            self.longest = max(pause, self.longest * kept**3)
        else:
            self.longest = max(pause, self.longest - pause / FORGETTING)

    @property
    def same_until(self) -> tuple[float, float]:
        """A record changes nothing if it was written before the first time and comes before the second
        one."""
        return (-math.inf, -math.inf) if self.heard is None else (self.written + STEP, self.heard + STEP)

    @property
    def overdue_at(self) -> float | None:
        """The time from which the present pause is unusual; None: nothing ever came."""
        if self.heard is None:
            return None
        allowed = TIMES * max(self.longest, LEAST)
        # A burst does not tell how long the pause after it usually is.
        return self.heard + (allowed if self.written - self.begun >= allowed else TIMES * UNKNOWN)

    def last(self, otherwise: float) -> float:
        """When the last record was written, to within ``STEP``; ``otherwise``, if none came yet."""
        return otherwise if self.heard is None else self.written

    def set_back(self, now: float) -> bool:
        """Set times after ``now`` to ``now``: the clock was ahead. Returns whether there were any."""
        if self.heard is None or max(self.written, self.heard) <= now:
            return False
        self.begun, self.written, self.heard = (
            min(self.begun, now),
            min(self.written, now),
            min(self.heard, now),
        )
        # A pause that was measured by the clock that was ahead is no real pause.
        self.longest = min(self.longest, self.written - self.begun)
        return True


def for_longer_than_usual(since: float) -> str:
    """The end of a sentence about a pause that is unusual.

    >>> for_longer_than_usual(100.0)
    'since 1970-01-01T00:01:40Z, longer than usual'
    """
    return f"since {utc_time(since)}, longer than usual"
