"""The client library's own positions: they pass transaction markers, and go back where a log was cut."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from kafka import OffsetAndMetadata
from kafka import TopicPartition as KafkaPartition
from kafka import errors as kafka_errors

from streamfl.runtime.bus import Moved, Polled, TopicPartition
from streamfl_connectors.positions import Positions
from streamfl_connectors.reading import Logs

__all__ = ["LibraryPositions", "library_offsets"]


class LibraryPositions:
    """Where the library reads on, beside the positions that the member reports.

    subscription: the library's state of each assigned partition.
    """

    def __init__(self, subscription: Any, logs: Logs, positions: Positions) -> None:
        self._subscription = subscription
        self._logs = logs
        self._positions = positions

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Have the library read on at ``offset``."""
        # With the epoch the library notices a log that is cut back before the next record comes (KIP-320).
        target = OffsetAndMetadata(offset, "", self._positions.epoch(place))
        self._subscription.seek(KafkaPartition(*place), target)

    def follow(
        self,
        batches: Mapping[Any, Any],
        gone: Mapping[TopicPartition, int],
        lost: Collection[int],
        polled: Polled,
    ) -> None:
        """Take the library's positions after these batches. If the next record is gone, have reading go on
        after the gap, or where the log was truncated.

        gone: positions whose records the cluster does not have. lost: numbers of partitions that were revoked
        meanwhile.
        """
        # Once, because the library goes back at any moment.
        library = self._now()
        moves = self._moves(batches, gone, lost, library)
        for move in moves:
            place, before = (move.topic, move.partition), min(move.position, move.following)
            polled.records = [
                one for one in polled.records if (one.topic, one.partition) != place or one.offset < before
            ]
            if kept := [one for one in batches.get(KafkaPartition(*place), ()) if one.offset < before]:
                self._positions.came(place, kept[-1].offset + 1, kept[-1].leader_epoch, polled)
            self._positions.skip(move)
            self.seek(place, move.following)
            if move.following != move.position:
                polled.moved.append(move)
        moved = {(move.topic, move.partition) for move in moves}
        for place in library.keys() - moved:
            own = library[place]
            self._positions.now[place] = own.offset
            self._positions.came(place, own.offset, own.leader_epoch, polled)
            if own.leader_epoch < 0 <= self._positions.epoch(place):
                self._give_epoch(place, own)

    def _moves(
        self,
        batches: Mapping[Any, Any],
        gone: Mapping[TopicPartition, int],
        lost: Collection[int],
        library: Mapping[TopicPartition, Any],
    ) -> list[Moved]:
        # A partition that was revoked meanwhile begins anew at the commit.
        kept = {place: position for place, position in self._positions.now.items() if place[1] not in lost}
        going = {place: position for place, position in gone.items() if place in kept}
        moves = [
            Moved(*place, going[place], following)
            for place, following in self._logs.going_on(going, self._positions.epoch).items()
        ]
        for place, own in library.items():
            if place not in kept or place in going:
                continue
            position, following = kept[place], own.offset
            batch = batches.get(KafkaPartition(*place))
            if batch and batch[0].offset < position:
                following = batch[0].offset
            elif batch:
                position = batch[-1].offset + 1
            if following < position:
                # By the epochs of leaders (KIP-320) the library knows that records were lost.
                moves.append(Moved(*place, position, following))
        return moves

    def _now(self) -> dict[TopicPartition, Any]:
        assignment = self._subscription.assignment
        states = {place: assignment.get(KafkaPartition(*place)) for place in self._positions.now}
        return {
            place: state.position
            for place, state in states.items()
            if state is not None and state.position is not None
        }

    def _give_epoch(self, place: TopicPartition, own: Any) -> None:
        """Tell the library again which leader wrote the record before: an empty answer makes it forget that,
        and then it does not see that a log was cut back and has grown to its old end."""
        read, state = self._positions.read[place], self._subscription.assignment.get(KafkaPartition(*place))
        if state is not None and state.position is own and read.offset == own.offset:
            with suppress(kafka_errors.IllegalStateError):
                state.position = OffsetAndMetadata(own.offset, "", read.epoch)


def library_offsets(positions: Mapping[TopicPartition, int]) -> dict[Any, Any]:
    """Offsets in the library's types."""
    return {KafkaPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in positions.items()}
