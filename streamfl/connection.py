"""A bus for use from Python: write records, read a topic, follow it, on Kafka or on the bus in a file.

with streamfl.connect("sqlite://plant.db") as bus:
    bus.write("readings", [{"device": "press-4", "t1": 21.5}], key="device")
    for prediction in bus.follow("plant.predictions", patience=5):
        print(prediction.value["prediction"])
"""

from __future__ import annotations

import math
import time
import uuid
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from types import TracebackType
from typing import Any, Literal

import msgspec

from streamfl.contract.role import BadRecord, ConfigurationError, DataError, IgnoredRecord, Record
from streamfl.records.formats import Format, format_named, is_textual
from streamfl.records.paths import ABSENT, named_in
from streamfl.runtime import bus as buses
from streamfl.runtime.bus import Bus, Outgoing, Subscription

__all__ = ["Connection", "DecodedRecord", "connect", "message_of"]

TURN_SECONDS = 0.2
POLL_RECORDS = 500
# The records that a write gives to the bus at a time.
BATCH_RECORDS = 1000

# The errors that encoders, and the user's function for a key, raise at a bad content.
UNWRITABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    msgspec.MsgspecError,
    BadRecord,
)

Key = str | Callable[[Any], object] | None
Begin = float | Literal["earliest", "latest"]


class DecodedRecord(msgspec.Struct, frozen=True):
    """A decoded record of a topic.

    time: in seconds since 1970.
    key: text, or bytes if it is not UTF-8.
    value: decoded, or bytes if it is not in the format.
    """

    topic: str
    partition: int
    offset: int
    time: float
    key: str | bytes | None
    value: Any
    headers: tuple[tuple[str, bytes], ...] = ()


def connect(url: str, **options: Any) -> Connection:
    """Connect to a bus. url: as in ``bus.url``. options: as in ``[bus.options]``.

    ConfigurationError if URL or options are wrong; :class:`streamfl.runtime.bus.BusUnavailable` if the
    cluster does not answer."""
    return Connection(buses.connect(url, options))


class Connection:
    """Reads and writes outside any federation: it never changes a worker's offsets. Use it from one thread at
    a time.

    >>> connection = connect("memory://doctest")
    >>> connection.create("readings")
    >>> connection.write("readings", [{"device": "press-4", "t1": 21.5}], key="device")
    1
    >>> [(message.key, message.value["t1"]) for message in connection.read("readings")]
    [('press-4', 21.5)]
    """

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        # A follower is a group's member, and has in some client libraries a thread that would keep the
        # process alive.
        self._open: weakref.WeakSet[Generator[DecodedRecord, None, None]] = weakref.WeakSet()

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic if there is none of this name."""
        self.bus.create([buses.TopicSpec(topic, partitions, compacted=False)])

    def write(
        self, topic: str, contents: Iterable[Any], key: Key = None, format: str | Format = "json"
    ) -> int:
        """Write a record for each of ``contents`` and wait until all are durable. Returns their number.

        key: gives each record's key: the name of a field, a path such as "meta.site", or a function of the
        content. None: records without a key, in any partition.
        format: the encoding. ConfigurationError if ``contents`` is one content or a data frame. DataError, or
        ConfigurationError for a key, names the first record that cannot be written; those before it are
        written.
        """
        frame = not callable(getattr(contents, "columns", len))
        if frame or isinstance(contents, (Mapping, str, bytes)):
            # Otherwise each column name, key or letter would become a record.
            rows = 'its rows, such as frame.to_dict("records")' if frame else "such as [content]"
            raise ConfigurationError(
                f"contents is one {type(contents).__name__}: several are expected, {rows}"
            )
        encode, count = _encoder(_format(format)), 0
        for batch in _batches(contents):
            records: list[Outgoing] = []
            wrong: Exception | None = None
            for content in batch:
                try:
                    records.append(Outgoing(topic, _key(content, key), encode(content)))
                except (*UNWRITABLE, ConfigurationError) as error:
                    wrong = error
                    break
            if records:
                self.bus.write(records)
                count += len(records)
            if wrong is not None:
                # A user who corrects the record and writes all of them again would write those before it
                # twice.
                kind = ConfigurationError if isinstance(wrong, ConfigurationError) else DataError
                before = f"Of the records before it {count} came into {topic}"
                raise kind(f"record {count + 1}: {wrong}. {before}: go on from this record") from wrong
        return count

    def read(
        self, topic: str, begin: Begin = "earliest", format: str | Format = "json"
    ) -> Iterator[DecodedRecord]:
        """The records of a topic up to now, one partition after the other.

        begin: "earliest", "latest" or a time in seconds since 1970.
        """
        made = _maker(format)
        for partition, offset in self._offsets(topic, begin).items():
            yield from map(made, self.bus.read_from(topic, partition, offset))

    def follow(
        self, topic: str, begin: Begin = "latest", patience: float = math.inf, format: str | Format = "json"
    ) -> Generator[DecodedRecord, None, None]:
        """The records that come to a topic from now on, without end.

        begin: as in :meth:`read`.
        patience: ends after this many seconds without a record. Closing the connection ends it, too.
        """
        # Offsets are looked up now, not at the first record, so that all that is written from now on is
        # returned.
        going = self._following(topic, self._offsets(topic, begin), patience, _maker(format))
        self._open.add(going)
        return going

    def _following(
        self, topic: str, offsets: Mapping[int, int], patience: float, made: Callable[[Record], DecodedRecord]
    ) -> Generator[DecodedRecord, None, None]:
        with closing(self.records(topic, offsets, patience)) as records:
            yield from map(made, records)

    def records(
        self,
        topic: str,
        offsets: Mapping[int, int],
        patience: float = math.inf,
        group: str = "streamfl-follow",
    ) -> Generator[Record, None, None]:
        """The undecoded records from these offsets on, until none came for ``patience`` seconds. group: the
        beginning of the name of a consumer group."""
        # A new group that never commits: its only member gets every partition, and no offsets are left
        # behind.
        subscription = Subscription(f"{group}-{uuid.uuid4()}", (topic,), guarantee="at_least_once")
        with closing(self.bus.session(subscription)) as session:
            heard = time.monotonic()
            while time.monotonic() - heard < patience:
                polled = session.poll(TURN_SECONDS, POLL_RECORDS)
                for partition in polled.assigned:
                    session.seek(topic, partition, offsets.get(partition, 0))
                if polled:
                    heard = time.monotonic()
                yield from polled.records

    def _offsets(self, topic: str, begin: Begin) -> dict[int, int]:
        if begin not in ("earliest", "latest") and not isinstance(begin, int | float):
            raise ConfigurationError(
                f"begin = {begin!r}: earliest, latest or a time in seconds since 1970 is expected"
            )
        if not self.bus.describe([topic]):
            raise ConfigurationError(f"topic {topic!r} does not exist")
        at = {"earliest": -math.inf, "latest": math.inf}.get(begin) if isinstance(begin, str) else begin
        return dict(self.bus.offsets(topic, -math.inf if at is None else at))

    def close(self) -> None:
        """End all followers and close the bus."""
        for going in list(self._open):
            going.close()
        self.bus.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def message_of(record: Record, decode: Callable[[bytes], Any]) -> DecodedRecord:
    """The record with its key as text and its value decoded; bytes stay where this fails."""
    key: str | bytes | None = record.key
    if record.key is not None:
        try:
            key = record.key.decode()
        except UnicodeDecodeError:
            key = record.key
    value: Any = record.value
    if record.value is not None:
        try:
            value = decode(record.value)
        except (ValueError, msgspec.DecodeError, RecursionError, BadRecord, IgnoredRecord):
            value = record.value
    return DecodedRecord(
        record.topic, record.partition, record.offset, record.timestamp, key, value, record.headers
    )


def _maker(format: str | Format) -> Callable[[Record], DecodedRecord]:
    decode = _format(format).decoder(Any)
    return lambda record: message_of(record, decode)


def _format(format: str | Format) -> Format:
    return format_named(format, "format") if isinstance(format, str) else format


def _encoder(format: Format) -> Callable[[Any], bytes]:
    """A function from a content to its bytes; ValueError if a number in it would be written as null."""
    if is_textual(format):
        return format.encode

    def encode(content: Any) -> bytes:
        written = format.encode(content)
        # JSON has neither NaN nor infinities, and a reader takes null for a missing value.
        found = _infinite(_plain(content), "") if b"null" in written else None
        if found is not None and _infinite(format.decoder(Any)(written), "") is None:
            raise ValueError(
                f"{found[0]} is {found[1]}, which would be written as null: leave the field out, or give "
                "None for it"
            )
        return written

    return encode


def _plain(content: Any) -> Any:
    try:
        return msgspec.to_builtins(content)
    except TypeError:
        # A format may accept more types than msgspec.
        return content


def _infinite(content: Any, come: str) -> tuple[str, float] | None:
    """The path and the value of the first number that is NaN or infinite."""
    if isinstance(content, float):
        return None if math.isfinite(content) else (come or "it", content)
    if isinstance(content, Mapping):
        inner = [(f"{come}.{name}" if come else str(name), value) for name, value in content.items()]
    elif isinstance(content, (list, tuple)):
        inner = [(f"{come}[{place}]", value) for place, value in enumerate(content)]
    else:
        return None
    return next((found for name, value in inner if (found := _infinite(value, name)) is not None), None)


def _key(content: Any, key: Key) -> bytes | None:
    if key is None:
        return None
    if isinstance(key, str):
        found: object = named_in(content, key)
        if found is ABSENT:
            raise ConfigurationError(f"key = {key!r}: there is a record without this field")
    else:
        found = key(content)
    return found if isinstance(found, bytes) or found is None else str(found).encode()


def _batches(contents: Iterable[Any]) -> Iterator[list[Any]]:
    going = iter(contents)
    while batch := list(islice(going, BATCH_RECORDS)):
        yield batch
