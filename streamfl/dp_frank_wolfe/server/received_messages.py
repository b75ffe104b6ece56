"""Which of each party's numbered messages have come."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_name
from streamfl.encoding.wire import Count
from streamfl.state.changelog import ChangedParts
from streamfl.state.table import StateRow

__all__ = ["Gap", "ReceivedMessages", "check_gaps", "fill"]

Gap = tuple[int, int]
"""The first and the last number of a gap."""

# Most gaps of a party that are remembered. Beyond it the shortest is closed: its messages count as come.
MOST_GAPS = 16


class ReceivedMessages:
    """The owner of the numbers under which each party's messages have come, from 1.

    A number may be missing: its record was deleted unread, or was refused and comes again from the dead
    letters. It counts as new whenever it comes, and those after it do not wait for it.

    row: of state, by party: the latest number; where numbers are missing also the first and the last of each
        gap. what: what is numbered, for messages about damaged state.
    """

    def __init__(self, parts: ChangedParts, row: StateRow, parties: Sequence[str], what: str) -> None:
        self._kept = parts.named(row, check_name, object, self._restore)
        self._what = what
        self._latest = dict.fromkeys(parties, 0)
        # Ascending.
        self._gaps: dict[str, list[tuple[int, int]]] = {party: [] for party in parties}

    @property
    def gaps(self) -> dict[str, list[tuple[int, int]]]:
        """The first and the last number of each gap, by party; parties without any are left out."""
        return {party: gaps for party, gaps in self._gaps.items() if gaps}

    def begin_anew(self, party: str, number: int) -> None:
        """Forget what has come of the party. Its next message has the number after this one."""
        self._latest[party], self._gaps[party] = number, []
        self._kept.remember(party, number)

    @property
    def is_begun(self) -> bool:
        """Whether any message has come."""
        return any(self._latest.values())

    def is_new(self, party: str, number: int) -> bool:
        """Whether this message of the party has not come before."""
        if number > self._latest[party]:
            return True
        return any(first <= number <= last for first, last in self._gaps[party])

    def take(self, party: str, number: int) -> None:
        """A new message has come."""
        gaps = self._gaps[party]
        self._latest[party] = fill(gaps, self._latest[party], number)
        ends = [end for gap in gaps for end in gap]
        self._kept.remember(party, [self._latest[party], *ends] if gaps else self._latest[party])

    def _restore(self, party: str, value: object) -> None:
        if party not in self._latest:
            raise BadRecord("malformed", f"{self._what} of {party[:60]!r}, which is not a party")
        latest, *ends = msgspec.convert([value] if isinstance(value, int) else value, list[Count])
        gaps = list(zip(ends[::2], ends[1::2], strict=True))
        check_gaps(gaps, latest, f"{self._what} of {party!r}")
        self._latest[party], self._gaps[party] = latest, gaps


def fill(gaps: list[Gap], latest: int, number: int) -> int:
    """A new number has come: it is above the latest one, or in a gap. Returns the latest one.

    gaps: below the latest number, ascending. There are at most ``MOST_GAPS`` afterwards.

    >>> gaps = []
    >>> fill(gaps, fill(gaps, 1, 9), 4), gaps
    (9, [(2, 3), (5, 8)])
    """
    if number > latest:
        gaps += [(latest + 1, number - 1)] if number > latest + 1 else []
    else:
        at = next(at for at, (first, last) in enumerate(gaps) if first <= number <= last)
        first, last = gaps[at]
        around = ((first, number - 1), (number + 1, last))
        gaps[at : at + 1] = [(one, other) for one, other in around if one <= other]
    if len(gaps) > MOST_GAPS:
        gaps.remove(min(gaps, key=lambda gap: gap[1] - gap[0]))
    return max(number, latest)


def check_gaps(gaps: Sequence[Gap], latest: int, what: str) -> None:
    """Raises BadRecord for gaps in a state that cannot have been written. what: they are of."""
    if len(gaps) > MOST_GAPS:
        raise BadRecord("malformed", f"{what}: {len(gaps)} gaps, at most {MOST_GAPS} are kept")
    came = 0
    for first, last in gaps:
        if not came < first <= last < latest:
            raise BadRecord("malformed", f"{what}: {first} to {last} are no gap")
        came = last + 1
