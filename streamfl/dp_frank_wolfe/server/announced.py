"""Which entities each party has announced. Windows are made of entities that all parties have announced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, NamedTuple

import msgspec

from streamfl.contract.role import BadRecord, Measurement
from streamfl.dp_frank_wolfe.messages import LONGEST_ENTITY, Entities
from streamfl.dp_frank_wolfe.metrics import MemberCounts, ServerMetrics
from streamfl.dp_frank_wolfe.server.received_messages import ReceivedMessages
from streamfl.dp_frank_wolfe.state import ANNOUNCEMENTS, NAME
from streamfl.encoding.changelog_checks import check_name
from streamfl.encoding.wire import Count
from streamfl.state.changelog import ChangedParts

__all__ = ["Announced", "Taken"]

# Bound on the numbers that a party announces entities under, so that they can be remembered.
MOST_NUMBERED = 2**53
_Known = Annotated[int, msgspec.Meta(ge=0)] | list[Count | None]


class Taken(NamedTuple):
    """What came of an announcement.

    is_new: it had not come before.
    left_out: names in it stay unknown. There was no room, or its number was that of an earlier announcement.
    """

    is_new: bool
    left_out: bool


class Announced:
    """The names that wait, with the numbers that the parties announced them under, in the public order.

    None: the party has not announced it. 0: the party announced it without a number.

    Announcements depend on ids and times alone, never on values. A name is forgotten when a window takes it.
    If a party announces it again after that, it is for another window.

    parties: in the public order.
    limit: most names of one party that wait, so all together are bounded. A
        party with a larger limit of its own may announce more: those are left out.
    counts: of the member, for the operator.
    """

    def __init__(self, parts: ChangedParts, parties: Sequence[str], limit: int, counts: MemberCounts) -> None:
        self._kept_names = parts.named(NAME, check_name, object, self._restore_name)
        self._received = ReceivedMessages(parts, ANNOUNCEMENTS, parties, "announcements")
        self._place = {party: place for place, party in enumerate(parties)}
        self._limit = limit
        self._counts = counts
        self._names: dict[str, list[int | None]] = {}
        # In the order in which the last party announced them, which is the order of their last writing.
        self._complete: dict[str, None] = {}
        self._waiting = dict.fromkeys(parties, 0)
        self.completed = 0
        """How many names became complete in this process."""

    @property
    def missing(self) -> dict[str, int]:
        """How many of the waiting names each party has not announced."""
        return {party: len(self._names) - waiting for party, waiting in self._waiting.items()}

    @property
    def lost(self) -> dict[str, list[tuple[int, int]]]:
        """By party, the announcements that have not come although later ones have: from one number to
        another."""
        return self._received.gaps

    @property
    def is_begun(self) -> bool:
        """Whether any announcement has come."""
        return self._received.is_begun

    @property
    def complete(self) -> int:
        """How many names all parties have announced."""
        return len(self._complete)

    def take(self, party: str, number: int, told: Entities) -> Taken:
        """Takes a party's announcement. Raises BadRecord for an announcement that no party makes.

        A party that lost its state announces anew, under other numbers. For names that wait, the latest
        number counts.

        number: counts the party's announcements from 1.
        """
        names, is_new = told.names, self._received.is_new(party, number)
        if any(len(name.encode()) > LONGEST_ENTITY for name in names):
            raise BadRecord("malformed", f"{party!r} announces a name of more than {LONGEST_ENTITY} bytes")
        if len(set(names)) < len(names):
            raise BadRecord("malformed", f"{party!r} announces a name twice at once")
        if told.first + len(names) > MOST_NUMBERED:
            raise BadRecord(
                "implausible", f"{party!r} announces entities under numbers above {MOST_NUMBERED}"
            )
        place, unknown = self._place[party], list[int | None]([None] * len(self._place))
        before = {name: self._names.get(name, unknown)[place] for name in names}
        numbers = {name: told.first and told.first + later for later, name in enumerate(names)}
        again = [name for name, known in before.items() if known not in (None, numbers[name])]
        fresh = [name for name, known in before.items() if known is None and is_new]
        # The announcement counts even if names are left out.
        room = self._limit - self._waiting[party]
        self._counts.left_out_entities += max(0, len(fresh) - room)
        fresh = fresh[: max(0, room)]
        for name in [*again, *fresh]:
            known = self._names.setdefault(name, unknown.copy())
            known[place] = numbers[name]
            if None not in known:
                self.completed += name not in self._complete
                self._complete.pop(name, None)
                self._complete[name] = None
            self._kept_names.remember(name, known)
        self._waiting[party] += len(fresh)
        if is_new:
            self._received.take(party, number)
        return Taken(is_new, list(before.values()).count(None) > len(fresh))

    def begin_anew(self, party: str, number: int) -> None:
        """Forget what the party has announced. number: of the announcement before the next one."""
        place = self._place[party]
        for name, known in [*self._names.items()]:
            if known[place] is None:
                continue
            self._complete.pop(name, None)
            known[place] = None
            if known.count(None) == len(known):
                del self._names[name]
                self._kept_names.forget(name)
            else:
                self._kept_names.remember(name, known)
        self._waiting[party] = 0
        self._received.begin_anew(party, number)

    def draw(self, count: int) -> dict[str, dict[str, int]]:
        """Takes the first ``count`` names that all parties announced. Returns, by party, the names,
        ascending, with its numbers."""
        drawn = sorted(islice(self._complete, count))
        found: dict[str, dict[str, int]] = {party: {} for party in self._place}
        for name in drawn:
            del self._complete[name]
            for party, number in zip(found, self._names.pop(name), strict=True):
                assert number is not None
                found[party][name] = number
            self._kept_names.forget(name)
        for party in self._waiting:
            self._waiting[party] -= len(drawn)
        return found

    def _restore_name(self, name: str, value: object) -> None:
        known = msgspec.convert(value, _Known)
        if isinstance(known, int):
            # Until layout 2 state had a bit for each party, and no numbers.
            known = [
                0 if known >> place & 1 else None
                for place in range(max(len(self._place), known.bit_length()))
            ]
        if len(known) != len(self._place) or known.count(None) == len(known):
            raise BadRecord("malformed", f"{name[:60]!r} was announced by unknown parties")
        self._names[name] = known
        for party, number in zip(self._waiting, known, strict=True):
            self._waiting[party] += number is not None
        if None not in known:
            self._complete[name] = None

    def measure(self) -> Iterator[Measurement]:
        yield ServerMetrics.waiting_entities(len(self._names))
        yield ServerMetrics.complete_entities(self.complete)
        yield ServerMetrics.missing_entities(len(self._names) - self.complete)
