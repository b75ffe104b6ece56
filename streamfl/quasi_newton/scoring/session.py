"""A guest's present session with one host: how far it has come, and when the next question is due."""

from __future__ import annotations

from typing import Annotated

import msgspec

from streamfl.encoding.changelog_checks import Time
from streamfl.encoding.wire import Count

__all__ = ["ASKED", "CHOSEN", "IDLE", "SHUT", "Session"]

# Phases of a session. ASKED waits for the host's answer, CHOSEN for its points. SHUT: the host answered no
# more for this version; it is asked again after alignment.patience_seconds, because it may allow more since.
IDLE, ASKED, CHOSEN, SHUT = range(4)
# A session takes a third of a millisecond of the guest's processor for each entity that it asks about. With
# this pause it takes a sixth of a processor at most, however many entities are never common.
SECONDS_AN_ENTITY = 0.002
# Most doublings of the wait before a question: it doubles while sessions find nothing and no entity comes.
MOST_DOUBLINGS = 6
# A question without an answer is asked anew: its topic may have lost it. The wait for the answer doubles each
# time, because a host that is away has to answer all of them when it is back.
ANSWER_SECONDS = 60.0
MOST_LONGER_WAITS = 4


class Session(msgspec.Struct, array_like=True):
    """The present session with one host.

    version: of the model.
    number: of the session, counted from 1 under the version.
    since: when the guest asked.
    fruitless: sessions in a row that found nothing, or were given up.
    """

    version: Count = 0
    number: Count = 0
    phase: Annotated[int, msgspec.Meta(ge=IDLE, le=SHUT)] = IDLE
    since: Time = 0.0
    fruitless: Count = 0

    def due(
        self, entities: int, latest: float, awake_since: float, patience: float, interval: float
    ) -> float | None:
        """When the next question is due; None if there is nothing to ask.

        entities: those without points.
        latest: when the last entity came.
        awake_since: when time first passed in this process.
        patience, interval: the settings alignment.patience_seconds and scoring.interval_seconds.
        """
        if self.phase == ASKED:
            wait = max(ANSWER_SECONDS, SECONDS_AN_ENTITY * entities)
            return self.since + min(patience, wait * 2.0 ** min(self.fruitless, MOST_LONGER_WAITS))
        if self.phase == CHOSEN:
            # A host sends points once: late ones have to be read first, also after this guest was away.
            return max(self.since, awake_since) + patience
        if not entities:
            return None
        if self.phase == SHUT:
            return self.since + patience
        wait = max(interval, SECONDS_AN_ENTITY * entities)
        if latest < self.since:
            wait *= 2 ** min(self.fruitless, MOST_DOUBLINGS)
        return self.since + wait
