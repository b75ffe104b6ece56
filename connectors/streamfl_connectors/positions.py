"""A member's positions in the partitions that it reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, Polled, Step, TopicPartition

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


class Positions:
    """A member's positions in its input partitions.

    now: the offset of the next record, by partition.
    base: the offset that the group has committed, or where reading began.
    origins: where reading of a partition first began, when nobody had committed an offset. Kept after the
    partition is lost.
    epochs: the epoch of the leader that wrote the last record that came since reading began there, if known.
    """

    def __init__(self) -> None:
        self.now: dict[TopicPartition, int] = {}
        self.base: dict[TopicPartition, int] = {}
        self.origins: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self._last_lag: dict[TopicPartition, int] = {}

    def begin(self, place: TopicPartition, offset: int) -> None:
        """A partition begins at this offset."""
        self.origins.setdefault(place, offset)
        self.move(place, offset)

    def move(self, place: TopicPartition, offset: int) -> None:
        """The caller goes on at this offset."""
        self.now[place] = self.base[place] = offset
        # The epoch may be out of date: another member may have had the partition since, and read on.
        self.epochs.pop(place, None)

    def came(self, place: TopicPartition, epoch: int | None, polled: Polled) -> None:
        """The leader of this epoch wrote the last record that came. None, or below 0: not known."""
        if epoch is not None and epoch >= 0 and self.epochs.get(place) != epoch:
            self.epochs[place] = polled.epochs[place] = epoch

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """These offsets were committed."""
        self.base.update(positions)

    def keep(self, numbers: Collection[int]) -> None:
        """Forget every partition whose number is not among these."""
        for places in (self.now, self.base, self.epochs):
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
