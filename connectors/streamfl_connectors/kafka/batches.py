"""Reads the batches that kafka-python fetched: checked, bounded, and with the place of a record that cannot
be read.

The library raises an error and does not say at which record. It takes an unknown format for a known one. It
asks again and again for a log that the broker reports as damaged. It forgets fetched records of a partition
that was paused, and does not read on behind a marker that compaction has emptied. This module uses the
library's private parts, so the library is pinned to one exact version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from kafka import errors as kafka_errors
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.util import decode_varint

from streamfl.runtime.bus import Unreadable
from streamfl_connectors.codecs import decompress

__all__ = ["check_batches", "gives_nothing"]

MAGIC_OFFSET, LAST_DELTA_OFFSET = 16, 23
NEWEST_FORMAT = 2
LONGEST_CAUSE = 300


def check_batches(consumer: Any) -> None:
    """Have a consumer raise :class:`Unreadable` at a record that it cannot read, now and at each later
    poll."""
    fetcher = consumer._fetcher
    fetcher.PartitionRecords = _PartitionRecords
    parse = fetcher._parse_fetched_data
    fetcher.given_nothing = given_nothing = {}
    beyond: dict[Any, int] = {}

    def parse_or_tell(fetch: Any) -> Any:
        place, offset, data = fetch.topic_partition, fetch.fetched_offset, fetch.partition_data
        if data.error_code == kafka_errors.CorruptRecordError.errno:
            # The library would ask again for ever, without an error.
            raise Unreadable(
                place.topic, place.partition, offset, "the broker says that its log is damaged there"
            )
        if data.error_code == 0 and not data.records and offset < data.last_stable_offset:
            given_nothing[place] = offset
        else:
            given_nothing.pop(place, None)
        try:
            part = parse(fetch)
        except kafka_errors.KafkaError as error:
            if "no complete records were found" in str(error):
                cause = "its length exceeds what the broker has"
                raise Unreadable(place.topic, place.partition, offset, cause, bytes(data.records)) from None
            raise
        if part is not None:
            part.batches.expected, part.batches.end = offset, data.high_watermark
            part.batches.beyond, part.batches.place = beyond, place
        return part

    fetcher._parse_fetched_data = parse_or_tell
    _give_what_was_set_aside(fetcher)


def _give_what_was_set_aside(fetcher: Any) -> None:
    """Have a fetcher return records that it set aside while their partition was paused, once the partition is
    resumed.

    The library looks for them only if it holds no other records, and counts records that are used up as held.
    Meanwhile it does not fetch the partition, so that nothing would come from it for ever.
    """
    fetched_records = fetcher.fetched_records

    def given(*arguments: Any, **named: Any) -> Any:
        if fetcher._next_partition_records is not None and not fetcher._next_partition_records:
            fetcher._next_partition_records = None
        return fetched_records(*arguments, **named)

    fetcher.fetched_records = given


def gives_nothing(consumer: Any, place: Any) -> Unreadable | None:
    """Why a partition does not move on, if the broker returned no records and reported that the partition
    goes on; else None."""
    state = consumer._subscription.assignment.get(place)
    offset = consumer._fetcher.given_nothing.get(place)
    if offset is None or state is None or state.position is None or state.position.offset != offset:
        return None
    cause = "the broker returns nothing from there on, although the partition has more"
    return Unreadable(place.topic, place.partition, offset, cause)


class _FetchedBatch(DefaultRecordBatch):  # type: ignore[misc]
    __slots__ = ()

    def _maybe_uncompress(self: Any) -> None:
        if not self._decompressed and self.compression_type:
            self._buffer = bytearray(
                decompress(self.compression_type, bytes(memoryview(self._buffer)[self._pos :]))
            )
            self._pos = 0
        self._decompressed = True

    def __next__(self: Any) -> Any:
        try:
            return super().__next__()
        except kafka_errors.CorruptRecordError as error:
            if not isinstance(error.__context__, UnicodeDecodeError):
                raise
            self._next_record_index += 1
            return self._with_any_names()

    def _with_any_names(self: Any) -> Any:
        """The next record, whatever bytes its headers' names have: brokers accept any, and a record must not
        stop a partition."""
        buffer, position = self._buffer, self._pos

        def number() -> int:
            nonlocal position
            value, position = decode_varint(buffer, position)
            return int(value)

        def content() -> bytes | None:
            nonlocal position
            size = number()
            if size > len(buffer) - position:
                raise ValueError(f"{size} bytes are announced, {len(buffer) - position} are left")
            begin, position = position, position + max(0, size)
            return None if size < 0 else bytes(buffer[begin:position])

        length = number()
        number()
        timestamp = self.first_timestamp + number()
        if self.timestamp_type == self.LOG_APPEND_TIME:
            timestamp = self.max_timestamp
        offset = self.base_offset + number()
        key, value = content(), content()
        headers = [((content() or b"").decode(errors="replace"), content()) for _ in range(number())]
        self._pos = position
        return DefaultRecord(length, offset, timestamp, self.timestamp_type, key, value, headers)


class _Batches:
    """The library's batches of one answer, and the bytes of the current one. Refuses batches of an unknown
    format."""

    def __init__(self, records: Any) -> None:
        self._records = records
        self.current = b""
        self.following: int | None = None
        # The offsets that the next batch has to reach, and may not go beyond.
        self.expected, self.end = 0, 0
        # By partition: where the previous answer had a batch that went beyond the partition's end.
        self.beyond: dict[Any, int] = {}
        self.place: Any = None

    def next_batch(self) -> Any:
        found = self._records._next_slice
        self.current, self.following = bytes(found or b""), None
        batch = self._records.next_batch()
        if batch is None:
            return None
        after = self._records._next_slice
        if after is not None and len(after) >= 8:
            (self.following,) = struct.unpack_from(">q", after)
        elif len(self.current) >= LAST_DELTA_OFFSET + 4:
            (delta,) = struct.unpack_from(">i", self.current, LAST_DELTA_OFFSET)
            self.following = batch.base_offset + delta + 1
        magic = self.current[MAGIC_OFFSET]
        if magic > NEWEST_FORMAT:
            raise ValueError(f"its format has the number {magic}, which is unknown")
        if magic == NEWEST_FORMAT:
            # The base offset is not covered by the checksum, and a position taken from it would be committed.
            if batch.last_offset >= self.end and self._asks_again():
                return None
            if not (self.expected <= batch.last_offset and batch.base_offset <= batch.last_offset < self.end):
                if self.following is not None and self.following <= self.expected:
                    # The batch was passed over before; the broker takes it for the one that was asked for.
                    return self.next_batch()
                raise ValueError(
                    f"it says to hold offsets {batch.base_offset} to {batch.last_offset}, which is "
                    "impossible there"
                )
            self.expected = batch.next_offset
            batch.__class__ = _FetchedBatch
        self.beyond.pop(self.place, None)
        return batch

    def _asks_again(self) -> bool:
        """Whether to fetch a batch beyond the end once more.

        The broker notes where the partition ends and then reads it, so an answer may have records that were
        written in between. The next answer's end is after these, unless the offset is wrong.
        """
        first = self.beyond.get(self.place) != self.expected
        self.beyond[self.place] = self.expected
        return first


class _PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    def _unpack_records(self, place: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
        self.batches = _Batches(records)
        return _Readable(self, self.batches, super()._unpack_records(place, self.batches, *deserializers))

    def _contains_abort_marker(self, batch: Any) -> bool:
        # Compaction removes the end of a transaction from its batch, and leaves the empty batch while it is
        # its producer's last. The library takes that for an error.
        return batch._num_records > 0 and bool(super()._contains_abort_marker(batch))


class _Readable:
    """Records as they come, up to one that cannot be read. From then on every call raises the same
    Unreadable.

    If the iterator ended instead, the library would look for more records without end.
    """

    def __init__(self, part: Any, batches: _Batches, records: Iterator[Any]) -> None:
        self._part = part
        self._batches = batches
        self._records = records
        self._failure: Unreadable | None = None

    def __iter__(self) -> _Readable:
        return self

    def __next__(self) -> Any:
        if self._failure is None:
            try:
                return next(self._records)
            except (StopIteration, MemoryError):
                raise
            except Exception as error:
                place = self._part.topic_partition
                content, following = self._batches.current, self._batches.following
                self._failure = Unreadable(
                    place.topic,
                    place.partition,
                    self._part.next_fetch_offset,
                    _cause(error),
                    content,
                    following,
                )
                self._failure.__cause__ = error
        raise self._failure


def _cause(error: Exception) -> str:
    text = str(error)
    if "failed crc check" in text:
        return "its checksum does not match its content"
    return f"{text or type(error).__name__}"[:LONGEST_CAUSE]
