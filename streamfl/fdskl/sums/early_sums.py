"""Sums that came before the announcement of their round, which is in another topic."""

from __future__ import annotations

from streamfl.fdskl.messages import PartialSum
from streamfl.fdskl.sums.pending_sums import Key

__all__ = ["EarlySums"]

# Sums of one party in one stage that are kept: anybody may write in its name.
MOST_ALIKE = 4


class EarlySums:
    """The early sums of one partition. They are not remembered.

    A round may never be announced here: it named a life of this party that is over, or somebody wrote an old
    sum again. So a round of which only sums came is no round that this party takes part in, and takes the
    place of none.

    limit: most rounds. Beyond it the sums of the oldest are forgotten.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rounds: dict[Key, tuple[float, list[PartialSum]]] = {}

    def __len__(self) -> int:
        return len(self._rounds)

    @property
    def oldest(self) -> float | None:
        """When the first sum of the oldest round came."""
        return next(iter(self._rounds.values()))[0] if self._rounds else None

    def put(self, key: Key, message: PartialSum, now: float) -> int | None:
        """Keep a sum. Returns how many others had to be forgotten for it; None if it is here already."""
        kept = self._rounds.setdefault(key, (now, []))[1]
        alike = [one for one in kept if (one.sender, one.stage) == (message.sender, message.stage)]
        if message in alike:
            return None
        kept.append(message)
        # Only the round's announcement tells which of them is of the round: the others are refused then.
        forgotten = 0
        if len(alike) >= MOST_ALIKE:
            kept.remove(alike[0])
            forgotten = 1
        if len(self._rounds) > self._limit:
            forgotten += len(self.take(next(iter(self._rounds))))
        return forgotten

    def take(self, key: Key) -> list[PartialSum]:
        """Take out the sums of a round."""
        return self._rounds.pop(key, (0.0, []))[1]

    def expire(self, seconds: float, now: float) -> int:
        """Forget the rounds whose first sum came ``seconds`` ago or earlier. Returns how many sums they
        had."""
        gone = [key for key, (since, _) in self._rounds.items() if since + seconds <= now]
        return sum(len(self.take(key)) for key in gone)

    def set_back(self, now: float) -> None:
        """The clock was ahead: set later times back to ``now``."""
        self._rounds = {key: (min(since, now), kept) for key, (since, kept) in self._rounds.items()}
