"""Whose turn it is to learn, with several active parties: a queue that all of them read from one log, in the
same order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import Count
from streamfl.fdskl.state import TURNS
from streamfl.state.changelog import ChangedParts

__all__ = ["IterationQueue"]


class _Place(msgspec.Struct, array_like=True):
    """A waiting turn of an active party. party: its place among the active ones. number: counts its turns."""

    party: Count
    number: Count


class _Record(msgspec.Struct, array_like=True):
    """What is remembered.

    queue: turns that were asked for and have not ended, in the log's order.
    heard: by active party, the last turn that it asked for in the log.
    asked, ended: how many turns this party has asked for, and how many of them have ended.
    """

    queue: list[_Place] = []
    heard: list[Count] = []
    asked: Count = 0
    ended: Count = 0


class IterationQueue:
    """The queue of one partition, as far as the log was read. Its first party has the turn. No other changes
    the model meanwhile.

    parts: where it is remembered.
    actives: the active parties' numbers.
    own: this party's.
    """

    def __init__(self, parts: ChangedParts, actives: Sequence[int], own: int) -> None:
        self._remember = parts.single(TURNS, _Record, self.restore)
        self._actives = tuple(actives)
        self._own = self._actives.index(own)
        self._record = _Record(heard=[0] * len(actives))

    @property
    def is_asked_for(self) -> bool:
        """Whether this party has asked for a turn that has not ended."""
        return self._record.ended < self._record.asked

    @property
    def has_come(self) -> bool:
        """Whether it is this party's turn."""
        record = self._record
        return self.is_asked_for and record.queue[:1] == [_Place(self._own, record.asked)]

    def ask(self) -> int:
        """Count a request of this party for a turn. Returns the turn's number."""
        assert not self.is_asked_for
        self._record.asked += 1
        self._changed()
        return self._record.asked

    def end(self) -> int:
        """End this party's turn, in which it has learnt. Returns the turn's number."""
        assert self.has_come
        self._record.ended += 1
        self._changed()
        return self._record.ended

    def take_request(self, party: int, number: int) -> bool:
        """Take a party's request for a turn from the log. Returns False if it came before. BadRecord for an
        impossible one."""
        record, place = self._record, self._actives.index(party)
        if number <= record.heard[place]:
            return False
        if place == self._own and number > record.asked:
            raise BadRecord("implausible", f"turn {number} of this party, which has asked for {record.asked}")
        if number != record.heard[place] + 1 or any(one.party == place for one in record.queue):
            raise BadRecord(
                "implausible",
                f"turn {number} of an active party whose turn {record.heard[place]} was the last",
            )
        record.heard[place] = number
        record.queue.append(_Place(place, number))
        self._changed()
        return True

    def is_first(self, party: int, number: int) -> bool:
        """Whether this turn is the one that comes to its end next."""
        return self._record.queue[:1] == [_Place(self._actives.index(party), number)]

    def check_end(self, party: int, number: int) -> None:
        """BadRecord if the log says that a turn of this party is over and it is not."""
        if self._actives.index(party) == self._own and number > self._record.ended:
            raise BadRecord(
                "implausible", f"turn {number} of this party is said to be over, and {self._record.ended} are"
            )

    def take_end(self) -> None:
        """Remove the first turn, which has ended according to the log."""
        self._record.queue.pop(0)
        self._changed()

    def restore(self, record: _Record) -> None:
        count = len(self._actives)
        places = [one.party for one in record.queue]
        if len(record.heard) != count or len(set(places)) < len(places) or max(places, default=0) >= count:
            raise BadRecord("malformed", f"turns of other than {count} active parties are remembered")
        if record.ended > record.asked or record.asked > record.ended + 1:
            raise BadRecord("malformed", f"{record.ended} of {record.asked} own turns are remembered as over")
        self._record = record

    def _changed(self) -> None:
        self._remember(self._record)
