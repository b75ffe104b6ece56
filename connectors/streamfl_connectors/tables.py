"""The tables of a session: topics that every member reads whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamfl.contract.role import Record
from streamfl.runtime.bus import TopicPartition
from streamfl_connectors.reading import Reader

__all__ = ["Tables"]


class Tables:
    """The partitions of all tables, and the reader that follows them once they were read whole.

    make: makes the reader.
    places: the partitions, at least one.
    """

    def __init__(self, make: Callable[[], Reader], places: Sequence[TopicPartition]) -> None:
        self.reader: Reader | None = None
        self._make = make
        self._places = places

    def read_whole(self) -> list[Record]:
        """The tables as compaction would leave them, in the order of the last writing. A later call returns
        nothing.

        A log may be far longer than its table.
        """
        if self.reader is not None:
            return []
        reader = self._make()
        latest: dict[tuple[str, int, bytes | int], Record] = {}
        try:
            for record in reader.read_whole(self._places):
                # A record without a key replaces nothing.
                key = (record.topic, record.partition, record.offset if record.key is None else record.key)
                latest.pop(key, None)
                latest[key] = record
        except BaseException:
            reader.close()
            raise
        self.reader = reader
        return list(latest.values())

    def take(self, timeout: float, most: int) -> list[Record]:
        """Records that came, after waiting for at most ``timeout`` seconds."""
        return [] if self.reader is None else self.reader.take(timeout, most)

    def read_to_end(self) -> list[Record]:
        """All records that have been written up to now and were not read yet."""
        return [] if self.reader is None else list(self.reader.read_to_end())

    def check(self) -> None:
        """Raise BusUnavailable if :meth:`take` will never bring anything again."""
        if self.reader is not None:
            self.reader.check()

    def close(self) -> None:
        """Close the reader."""
        if self.reader is not None:
            self.reader.close()
