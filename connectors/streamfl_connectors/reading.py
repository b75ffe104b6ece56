"""Reads committed records of given partitions without a group, in one way for every client library."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice

from streamfl.contract.role import Record
from streamfl.runtime.bus import BusUnavailable, TopicPartition
from streamfl_connectors.outgoing import no_partition

__all__ = ["Logs", "Reader", "Readers", "ask_until"]

TURN_SECONDS = 0.2
TURN_RECORDS = 4_000
# Between two requests to a cluster that does not answer.
PAUSE_SECONDS = 0.1


class Reader(ABC):
    """Reads committed records of given partitions without a group.

    The abstract methods are the client library's part.

    patience: seconds after which it is an error if a partition brings nothing although records are there.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience

    @abstractmethod
    def go_to(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Read exactly these partitions, each from its offset. None: from the first record that is left."""

    @abstractmethod
    def positions(self) -> dict[TopicPartition, int | None]:
        """The next offset of each partition; None if it is not known yet."""

    @abstractmethod
    def first(self, place: TopicPartition) -> int:
        """An offset at or before the first record that is left."""

    @abstractmethod
    def ends(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The offset after the last committed record of each partition."""

    @abstractmethod
    def take(self, timeout: float, most: int) -> list[Record]:
        """Records that came, at most ``most``, after waiting for at most ``timeout`` seconds."""

    @abstractmethod
    def explain(self, place: TopicPartition, position: int | None) -> None:
        """Raise Unreadable if the partition brings nothing because of the record there."""

    @abstractmethod
    def close(self) -> None:
        """Release what the reader holds."""

    # Only some libraries need it.
    def check(self) -> None:  # noqa: B027
        """Raise BusUnavailable if :meth:`take` will never bring anything again."""

    def read_whole(self, places: Sequence[TopicPartition]) -> Iterator[Record]:
        """All committed records of the partitions up to their present ends, where the reader then goes on.

        BusUnavailable if nothing moves for ``patience`` seconds; Unreadable if that is because of a record
        there.
        """
        if places:
            self.go_to(dict.fromkeys(places))
            yield from self.read_to_end()

    def read_to_end(self) -> Iterator[Record]:
        """The records left up to the present ends; errors as :meth:`read_whole`."""
        ends = self.ends(self.positions().keys())
        before: dict[TopicPartition, int | None] | None = None
        moved = time.monotonic()
        while True:
            # Compared by position and not by the last record's offset: a partition may end with transaction
            # markers.
            now = self.positions()
            behind = [
                place for place, end in ends.items() if (position := now[place]) is None or position < end
            ]
            if not behind:
                return
            if now != before:
                before, moved = now, time.monotonic()
            elif time.monotonic() - moved > self._patience:
                for place in behind:
                    self.explain(place, now[place])
                raise self._nothing_from(behind[0])
            yield from self.take(TURN_SECONDS, TURN_RECORDS)

    def read_edges(self, place: TopicPartition, count: int) -> list[Record]:
        """The first and the last committed records of a partition, at most ``count`` of each, in order and
        without duplicates.

        There are fewer last records if transaction markers are among them. BusUnavailable as
        :meth:`read_whole`.
        """
        first, end = self.first(place), self.ends([place])[place]
        found: dict[int, Record] = {}
        for start, most in ((first, count), (max(first, end - count), end)):
            self.go_to({place: start})
            taken = 0
            moved = time.monotonic()
            while taken < most and ((position := self.positions()[place]) is None or position < end):
                for record in self.take(TURN_SECONDS, count):
                    if taken < most and record.offset < end:
                        found[record.offset] = record
                        taken += 1
                if self.positions()[place] != position:
                    moved = time.monotonic()
                elif time.monotonic() - moved > self._patience:
                    raise self._nothing_from(place)
        return [found[offset] for offset in sorted(found)]

    def _nothing_from(self, place: TopicPartition) -> BusUnavailable:
        return BusUnavailable(f"nothing could be read from {place[0]!r} for {self._patience:g} s")


class Readers:
    """Readers that are reused, because each takes a connection. Any thread may take one."""

    def __init__(self, make: Callable[[], Reader]) -> None:
        self._make = make
        self._free: list[Reader] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def one(self) -> Iterator[Reader]:
        """A reader that nobody else uses meanwhile. After an error it is closed; to read less than there is
        is none."""
        with self._lock:
            free = self._free.pop() if self._free else None
        reader = self._make() if free is None else free
        try:
            yield reader
        except GeneratorExit:
            # It would fetch more.
            reader.go_to({})
            self._put_back(reader)
            raise
        except BaseException:
            reader.close()
            raise
        self._put_back(reader)

    def _put_back(self, reader: Reader) -> None:
        with self._lock:
            if not self._closed:
                self._free.append(reader)
                return
        reader.close()

    def close(self) -> None:
        """Close the readers that are not in use, and the others once they are not."""
        with self._lock:
            free, self._free, self._closed = self._free, [], True
        for reader in free:
            reader.close()


class Logs(ABC):
    """The logs of a cluster: the records of topics' partitions, and where partitions end.

    counts: the partitions of topics; it raises ConfigurationError if one is missing or not allowed.
    connect_timeout: seconds to wait for a cluster that does not answer.
    """

    def __init__(self, counts: Callable[[Iterable[str]], Mapping[str, int]], connect_timeout: float) -> None:
        self._counts = counts
        self.connect_timeout = connect_timeout

    @abstractmethod
    def reader(self) -> Reader:
        """A new reader."""

    @abstractmethod
    def ends(
        self, places: Iterable[TopicPartition], patience: float | None = None
    ) -> dict[TopicPartition, int]:
        """Offset after the last committed record of each partition.

        patience: seconds after which BusUnavailable is raised; None: the connector's own limit.
        """

    @abstractmethod
    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end; Unreadable with the batch's
        bytes."""

    @abstractmethod
    def ends_soon(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """:meth:`ends` for a caller that must not wait for a cluster that is away."""

    def count(self, topic: str) -> int:
        """The partitions of a topic; ConfigurationError if it is missing or not allowed."""
        return self._counts([topic])[topic]

    @abstractmethod
    def first_since(self, places: Iterable[TopicPartition], at: float) -> dict[TopicPartition, int]:
        """By partition, the offset of the first record of that time or later; below 0 if there is none.

        at: in seconds; minus infinity: the first record that is left.
        """

    def going_on(
        self, positions: Mapping[TopicPartition, int], epoch: Callable[[TopicPartition], int]
    ) -> dict[TopicPartition, int]:
        """Where reading goes on in partitions whose record at the position is gone.

        That is the first record that is left. If the log was truncated, it is where the records end that were
        read. epoch: of the leader that wrote the record before the position; -1: not known."""
        first, ends = self.first_since(positions, -math.inf), self.ends(positions)
        known = {place: epoch(place) for place in positions if epoch(place) >= 0}
        ends |= {place: min(cut, ends[place]) for place, cut in self.ends_of(known).items()} if known else {}
        return {place: max(first[place], min(ends[place], position)) for place, position in positions.items()}

    @abstractmethod
    def ends_of(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """By partition, where the records of this epoch's leader and of earlier ones end (KIP-320). Unknown
        ends are left out."""

    def offsets(self, topic: str, at: float) -> dict[int, int]:
        """By partition, the offset of the first record of that time or later, or of the end."""
        places = [(topic, partition) for partition in range(self.count(topic))]
        # The ends first: records written meanwhile come after these ends, and an end read later would skip
        # them.
        ends = self.ends(places)
        found = self.first_since(places, at) if at < math.inf else ends
        return {place[1]: end if found[place] < 0 else found[place] for place, end in ends.items()}

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        """Committed records from the beginning of every partition to its present end, at most ``limit``."""
        places = [(topic, partition) for partition in range(self.count(topic))]
        if limit is None or limit > 0:
            with closing(self.reader()) as reader:
                yield from islice(reader.read_whole(places), limit)

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        """The first and the last committed records of each partition, at most ``count`` of each."""
        self.check_places(topic, partitions)
        with closing(self.reader()) as reader:
            return [
                record for partition in partitions for record in reader.read_edges((topic, partition), count)
            ]

    def check_places(self, topic: str, partitions: Iterable[int]) -> None:
        """ConfigurationError if the topic is missing or not allowed, or has not got one of these
        partitions."""
        count = self.count(topic)
        for partition in partitions:
            if not 0 <= partition < count:
                raise no_partition(topic, partition, count)


def ask_until(seconds: float, ask: Callable[[float], dict[TopicPartition, int]]) -> dict[TopicPartition, int]:
    """The answer. Waits for a cluster that is away, or whose leaders have just changed: kafka-python gives up
    at once while a broker cannot be reached.

    ask: gets the seconds that are left. BusUnavailable, its last one, after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask(max(PAUSE_SECONDS, deadline - time.monotonic()))
        except BusUnavailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_SECONDS)
