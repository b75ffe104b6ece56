"""Which of a sender's message numbers were received, although anybody may write any number under its name.

A sender counts its messages by ``sequence`` within an ``epoch``. An epoch is one life of the sender's state,
named by the microsecond in which it began. Nothing proves that a number comes from the sender, so no number
shuts out others: received numbers are remembered as *ranges* without a gap, and only a number within a range
counts as repeated. A number far ahead begins a range of its own, and the sender's range goes on beside it. So
does an earlier epoch that keeps coming, or the epoch that a sender takes after its clock was set right.
"""

from __future__ import annotations

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import Count

__all__ = [
    "LARGEST_COUNT",
    "MOST_RANGES",
    "NumberRange",
    "check_numbers",
    "epoch_at",
    "is_to_come",
    "note",
    "was_heard",
]

# Any language holds this exactly as a number; a sender that counts a million a second needs 285 years to
# reach it.
LARGEST_COUNT = 2**53
MOST_RANGES = 16
# Seconds by which a sender's clock may be ahead of its reader's.
EPOCH_SLACK = 86_400.0
# A sender gives up an epoch that is ahead of its own clock by half of that, because its reader's clock may be
# behind.
EPOCH_MARGIN = EPOCH_SLACK / 2


class NumberRange(msgspec.Struct, array_like=True, gc=False):
    """Numbers ``first`` to ``last`` of an epoch, all of them received."""

    epoch: Count
    first: Count
    last: Count


def epoch_at(now: float) -> int:
    """The epoch that begins at ``now``, in seconds."""
    return int(now * 1e6)


def is_to_come(epoch: int, now: float) -> bool:
    """Whether a sender needs another epoch, because a clock that was far ahead named its own, and readers
    would refuse it.

    The sequence goes on in the new epoch, so that no sequence number has two meanings, whichever epoch a
    reader gets.

    >>> is_to_come(epoch_at(200_000.0), 1000.0), is_to_come(epoch_at(1000.0), 1000.0)
    (True, False)
    """
    return epoch > (now + EPOCH_MARGIN) * 1e6


def check_numbers(epoch: int, sequence: int, at: float) -> None:
    """BadRecord with reason implausible for numbers that no sender can have reached by ``at``, in seconds."""
    if not 0 <= sequence <= LARGEST_COUNT:
        raise BadRecord("implausible", f"its sequence is {sequence}, a number from 0 to 2^53 is expected")
    if not 0 <= epoch <= (at + EPOCH_SLACK) * 1e6:
        raise BadRecord(
            "implausible",
            f"its epoch is {epoch}, more than a day after it was written: is the sender's clock ahead?",
        )


def was_heard(ranges: list[NumberRange], epoch: int, sequence: int) -> bool:
    """Whether this number was noted before."""
    latest = ranges[-1] if ranges else None
    if len(ranges) == 1 and latest is not None and latest.epoch == epoch and sequence > latest.last:
        # The fast path of nearly all numbers.
        return False
    return any(one.epoch == epoch and one.first <= sequence <= one.last for one in ranges)


def note(ranges: list[NumberRange], epoch: int, sequence: int) -> bool:
    """Remember a number. True if the number noted just before was later: then two lives of the sender send in
    turns.

    ranges: the range touched last is at the end. At most ``MOST_RANGES`` stay; the one that was untouched for
    longest is dropped.

    >>> ranges = []
    >>> [note(ranges, 7, number) for number in (1, 2, 1000, 3)]
    [False, False, False, True]
    >>> [(one.first, one.last) for one in ranges]
    [(1000, 1000), (1, 3)]
    """
    if len(ranges) == 1 and ranges[0].epoch == epoch and ranges[0].last + 1 == sequence:
        ranges[0].last = sequence
        return False
    behind = bool(ranges) and (epoch, sequence) < (ranges[-1].epoch, ranges[-1].last)
    if was_heard(ranges, epoch, sequence):
        return behind
    own = [one for one in ranges if one.epoch == epoch]
    before = next((one for one in own if one.last == sequence - 1), None)
    after = next((one for one in own if one.first == sequence + 1), None)
    first = sequence if before is None else before.first
    last = sequence if after is None else after.last
    ranges[:] = [one for one in ranges if one is not before and one is not after][-(MOST_RANGES - 1) :]
    ranges.append(NumberRange(epoch, first, last))
    return behind
