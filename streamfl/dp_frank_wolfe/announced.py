"""Which entities each party has announced, so that windows can be made of those that all have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from streamfl.changelog import ChangedParts
from streamfl.dp_frank_wolfe.messages import LONGEST_ENTITY
from streamfl.restored import check_name
from streamfl.role import Measurement, PeerError
from streamfl.wire import Count

__all__ = ["Announced"]

NAME, HEARD = b"name/", b"announcements/"


class Announced:
    """The owner of names that wait: under ``name/ENTITY`` a bit for each party that has announced it.

    What a party announces is of ids and times alone, whatever is in its records. A name leaves with the window that it comes into;
    announced again after that, it is for another window.

    parties: in the public order. limit: names of one party that wait, so together they are bounded. A party whose own limit is
        larger may announce more: those are left out.
    counts: of the member, for the operator.
    """

    def __init__(self, parts: ChangedParts, parties: Sequence[str], limit: int, counts: Counter[str]) -> None:
        self._parts = parts
        self._bit = {party: 1 << number for number, party in enumerate(parties)}
        self._all = (1 << len(parties)) - 1
        self._limit = limit
        self._counts = counts
        self._names: dict[str, int] = {}
        # In the order in which the last party announced them, which is the order of their last writing.
        self._complete: dict[str, None] = {}
        self._waiting = dict.fromkeys(parties, 0)
        self._heard = dict.fromkeys(parties, 0)
        self.completed = 0
        """How many names became complete in this process."""

    @property
    def missing(self) -> dict[str, int]:
        """By party, how many of the names that wait it has not announced."""
        return {party: len(self._names) - waiting for party, waiting in self._waiting.items()}

    @property
    def complete(self) -> int:
        """How many names all parties have announced."""
        return len(self._complete)

    def take(self, party: str, number: int, names: Sequence[str]) -> bool:
        """A party announces names; False if it has said so before. PeerError for what no party says.

        number: counts the party's announcements from 1.
        """
        if number <= self._heard[party]:
            return False
        if number != self._heard[party] + 1:
            raise PeerError("implausible", f"announcement {number} of {party!r} after {self._heard[party]}")
        if any(len(name.encode()) > LONGEST_ENTITY for name in names):
            raise PeerError("malformed", f"{party!r} announces a name of more than {LONGEST_ENTITY} bytes")
        bit = self._bit[party]
        if len(set(names)) < len(names):
            raise PeerError("malformed", f"{party!r} announces a name twice at once")
        fresh = [name for name in names if not self._names.get(name, 0) & bit]
        # The announcement is heard all the same: refused, it would be missing before all later ones.
        room = self._limit - self._waiting[party]
        self._counts["left_out_entities"] += max(0, len(fresh) - room)
        fresh = fresh[: max(0, room)]
        for name in fresh:
            self._names[name] = self._names.get(name, 0) | bit
            if self._names[name] == self._all:
                self._complete[name] = None
                self.completed += 1
            self._parts.remember(NAME + name.encode(), self._names[name])
        self._waiting[party] += len(fresh)
        self._heard[party] = number
        self._parts.remember(HEARD + party.encode(), number)
        return True

    def draw(self, count: int) -> list[str]:
        """The first so many that all parties have announced, in ascending order; they wait no longer."""
        drawn = [name for name, _ in zip(self._complete, range(count), strict=False)]
        for name in drawn:
            del self._complete[name], self._names[name]
            self._parts.forget(NAME + name.encode())
        for party in self._waiting:
            self._waiting[party] -= len(drawn)
        return sorted(drawn)

    def restore(self, key: bytes, value: bytes) -> bool:
        """Take a part back; False if the key is another's."""
        if key.startswith(NAME):
            name, bits = check_name(key.removeprefix(NAME)), msgspec.msgpack.decode(value, type=int)
            if not 0 < bits <= self._all:
                raise PeerError("malformed", f"{name[:60]!r} was announced by parties that there are not")
            self._names[name] = bits
            for party, bit in self._bit.items():
                self._waiting[party] += bool(bits & bit)
            if bits == self._all:
                self._complete[name] = None
            return True
        if key.startswith(HEARD):
            party = check_name(key.removeprefix(HEARD))
            if party not in self._heard:
                raise PeerError("malformed", f"announcements of {party[:60]!r}, who is no party")
            self._heard[party] = msgspec.msgpack.decode(value, type=Count)
            return True
        return False

    def measure(self) -> Iterator[Measurement]:
        text = "Entities that wait for a window; of a server, that not all parties have announced among them"
        yield Measurement("waiting_entities", "gauge", text, len(self._names))
        yield Measurement("complete_entities", "gauge", "Entities that wait and that all parties have announced", self.complete)
        text = "Entities that wait and that some party has not announced, without a time limit; the log says which party"
        yield Measurement("missing_entities", "gauge", text, len(self._names) - self.complete)
