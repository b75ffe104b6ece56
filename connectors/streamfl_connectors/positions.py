"""A member's positions in the partitions that it reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, Moved, Polled, Step, TopicPartition

__all__ = ["Beginnings", "Positions", "no_offset"]


class Beginnings:
    """Notices partitions that wait for the group's offset, and so bring nothing, for longer than a
    transaction stays undecided.

    seconds: how long a transaction may stay undecided.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waiting: set[object] = set()
        self._since = 0.0

    def check(self, waiting: Collection[object]) -> None:
        """BusUnavailable if the same partitions have been waiting for too long. waiting: those that could not
        begin just now."""
        if self._waiting != set(waiting):
            self._waiting, self._since = set(waiting), time.monotonic()
        elif waiting and time.monotonic() - self._since > self.seconds:
            raise BusUnavailable(
                f"partitions did not begin for {self.seconds:g} s: the group's offsets are not stable"
            )


class ReadTo(NamedTuple):
    """Records before ``offset`` were read, and the leader of this epoch wrote the last of them."""

    offset: int
    epoch: int


class Positions:
    """A member's positions in its input partitions.

    now: the offset of the next record, by partition.
    base: the offset that the group has committed, or where reading began.
    origins: where reading of a partition first began, when nobody had committed an offset. Kept after the
    partition is lost.
    read: how far records were read, and the epoch of the leader that wrote the last of them, if it is known.
    """

    def __init__(self) -> None:
        self.now: dict[TopicPartition, int] = {}
        self.base: dict[TopicPartition, int] = {}
        self.origins: dict[TopicPartition, int] = {}
        self.read: dict[TopicPartition, ReadTo] = {}
        self._followed: dict[TopicPartition, ReadTo] = {}
        self._last_lag: dict[TopicPartition, int] = {}

    def begin(self, place: TopicPartition, offset: int, epoch: int = -1) -> None:
        """A partition begins at this offset."""
        self.origins.setdefault(place, offset)
        self.move(place, offset, epoch)

    def move(self, place: TopicPartition, offset: int, epoch: int = -1) -> None:
        """The caller goes on at this offset. epoch: of the leader that wrote the record before; -1: not
        known."""
        self.now[place] = self.base[place] = offset
        # An epoch of earlier may be out of date: another member may have had the partition, and read on.
        self._forget_epoch(place)
        if epoch >= 0:
            self.read[place] = ReadTo(offset, epoch)

    def skip(self, moved: Moved) -> None:
        """The records from the position on are gone: reading goes on elsewhere."""
        place = moved.topic, moved.partition
        self.now[place] = moved.following
        if moved.following < moved.position and place in self.read:
            self.read[place] = self.read[place]._replace(offset=moved.following)
        else:
            # Another leader may have written the record before the new position.
            self._forget_epoch(place)

    def came(self, place: TopicPartition, offset: int, epoch: int | None, polled: Polled) -> None:
        """Records before this offset came, and the leader of this epoch wrote the last of them. None, or
        below 0: not known."""
        if epoch is None or epoch < 0:
            return
        known, self.read[place] = self.read.get(place), ReadTo(offset, epoch)
        if known != self.read[place]:
            polled.epochs[place] = epoch
            if known is not None and known.epoch != epoch:
                self._followed[place] = known

    def epoch(self, place: TopicPartition) -> int:
        """The epoch of the leader that wrote the record before the position; -1: not known."""
        return self.read[place].epoch if place in self.read else -1

    def take_followed(self) -> dict[TopicPartition, ReadTo]:
        """How far had been read where records of another leader came since the last call."""
        followed, self._followed = self._followed, {}
        return followed

    def _forget_epoch(self, place: TopicPartition) -> None:
        self.read.pop(place, None)
        self._followed.pop(place, None)

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """These offsets were committed."""
        self.base.update(positions)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget every partition whose number is not among these."""
        for places in (self.now, self.base, self.read, self._followed):
            for place in [place for place in places if place[1] not in numbers]:
                del places[place]
                self._last_lag.pop(place, None)

    def fence(self, step: Step, reported: Collection[int]) -> dict[TopicPartition, int]:
        """Offsets that change nothing and make a commit safe; the commit names them beside its own.

        There is one for each partition whose changelog the step writes without a position of it, and one for
        any partition if the step has no position at all. They make the cluster check that the member is still
        in the group. A worker that takes such a partition over asks for its offset, and so waits until the
        transaction is decided, however late its end comes.

        reported: the numbers of the partitions that the member has.
        """
        held = {place[1]: (place, offset) for place, offset in self.base.items() if place[1] in reported}
        written = {record.partition for record in step.changelog} - {
            partition for _, partition in step.positions
        }
        fenced = [held[partition] for partition in held.keys() & written]
        return dict(fenced or ([] if step.positions else list(held.values())[:1]))

    def lag(
        self, ends: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]]
    ) -> Mapping[TopicPartition, int]:
        """Records between the position and the end of each partition; control records count. May be called
        from any thread.

        ends: asks the cluster. While the cluster does not answer, the last known figures are returned.
        """
        positions = dict(self.now)
        with suppress(BusUnavailable, ConfigurationError):
            found = ends(positions)
            self._last_lag = {
                place: found[place] - offset for place, offset in positions.items() if place in found
            }
        return self._last_lag


def no_offset(group: str, place: TopicPartition) -> ConfigurationError:
    """The error for a group without an offset and without a setting that says where to begin."""
    return ConfigurationError(
        f"group {group!r} has no committed offset on {place[0]!r} partition {place[1]} and "
        "bus.auto_offset_reset = 'error': choose 'earliest' or 'latest', or restore the group's offsets"
    )
