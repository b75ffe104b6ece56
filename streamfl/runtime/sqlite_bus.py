"""The bus in one SQLite file: several processes of one machine, no Kafka.

A commit is one transaction: the check that the member still owns its partitions, outputs, changelog and
offsets. The bus obeys the same laws as the Kafka connector (:mod:`streamfl.testing.bus_laws`), and under
every guarantee a commit is atomic. :mod:`streamfl.runtime.sqlite.file` describes what a commit survives,
:mod:`streamfl.runtime.sqlite.membership` how members watch each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.assignment import partition_of
from streamfl.runtime.bus import Outgoing, Subscription, TopicPartition, TopicState
from streamfl.runtime.sqlite.file import Database, create_file, prepare
from streamfl.runtime.sqlite.session import SqliteSession
from streamfl.runtime.sqlite.store import Store

__all__ = ["SqliteBus", "connect"]

SCHEME = "sqlite://"

OPTIONS = {"connect_timeout_seconds": 30.0, "retention_hours": 168.0, "session_timeout_seconds": 10.0}


def connect(url: str, options: Mapping[str, Any]) -> SqliteBus:
    """The bus in the file that ``url`` names, made if it does not exist.

    ``sqlite:///var/lib/plant.db`` is an absolute path, ``sqlite://plant.db`` one below the working directory.

    options:
        ``session_timeout_seconds`` (10): silence after which a member counts as dead.
        ``retention_hours`` (168): age at which records of topics that are not compacted are deleted.
        ``connect_timeout_seconds`` (30): how long to wait while another process writes.

    ConfigurationError if url, options or file cannot be used; BusUnavailable if the file stays locked.
    """
    return SqliteBus(url, options)


class SqliteBus:
    """A cluster in a file; see :func:`connect`. It may be used from several threads.

    clock: the time of its records.
    monotonic: the clock by which members watch each other.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        chosen = _options(options or {})
        self.path = _path(url)
        self.monotonic = monotonic
        self.session_timeout = chosen["session_timeout_seconds"]
        self._patience = chosen["connect_timeout_seconds"]
        create_file(self.path)
        self.database = self.open()
        self.store = Store(self.database, self.open, clock, chosen["retention_hours"] * 3600)
        try:
            prepare(self.database, self._patience)
            opened = self.path.stat()
            self._file = opened.st_dev, opened.st_ino
        except BaseException:
            self.database.close()
            raise

    def open(self) -> Database:
        """A new connection to the file."""
        return Database(self.path, self._patience)

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name; none if the file was removed or replaced."""
        states: dict[str, TopicState] = {}
        if not self._is_the_file():
            return states
        with self.database.reading() as connection:
            for name in topics:
                topic = self.store.look_up(connection, name)
                if topic is not None:
                    identity = f"{topic.first_log}"
                    states[name] = TopicState(
                        name, topic.partitions, topic.compacted, topic.options, identity=identity
                    )
        return states

    def partition_of(self, key: bytes, partitions: int) -> int:
        """The partition of a record with this key, in a topic of ``partitions`` partitions."""
        return partition_of(key, partitions)

    def members(self, group: str) -> int:
        """The members of a consumer group at present."""
        with self.database.reading() as connection:
            (count,) = connection.execute(
                "SELECT count(*) FROM members WHERE group_name = ?", (group,)
            ).fetchone()
        return int(count)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The committed offsets of a consumer group."""
        with self.database.reading() as connection:
            rows = connection.execute(
                "SELECT topic, partition, position FROM offsets WHERE group_name = ?", (group,)
            )
            return {(topic, partition): int(position) for topic, partition, position in rows}

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet; existing ones stay as they are."""
        self.store.create(topics)

    def session(self, subscription: Subscription) -> SqliteSession:
        """Join a group; ConfigurationError names a topic that is missing."""
        return SqliteSession(
            self.store, self.database, self.open, subscription, self.session_timeout, self.monotonic
        )

    def write(self, records: Sequence[Outgoing]) -> None:
        """Write records in one transaction; they are on the disk when this returns."""
        if records:
            with self.database.writing() as connection:
                self.store.append(connection, records)

    def read(self, topic: str, limit: int | None = None) -> Iterator[Record]:
        """Committed records from the beginning of every partition to the present end, at most ``limit``."""
        found = self.store.topic(topic)
        yield from self.store.scan(found, found.first_log, found.partitions, limit)

    def peek(self, topic: str, partitions: Sequence[int], count: int) -> list[Record]:
        """The first and the last ``count`` committed records of each partition."""
        found = self.store.topic(topic)
        with self.database.reading() as connection:
            return [
                record
                for partition in partitions
                for record in self.store.edges(connection, found, partition, count)
            ]

    def read_from(self, topic: str, partition: int, offset: int) -> Iterator[Record]:
        """Committed records of one partition from ``offset`` to its present end."""
        found = self.store.topic(topic)
        return (
            record for record in self.store.scan(found, found.log(partition), 1) if record.offset >= offset
        )

    def offsets(self, topic: str, at: float) -> dict[int, int]:
        """By partition, the offset of the first record of that time or later, or of the end."""
        found = self.store.topic(topic)
        with self.database.reading() as connection:
            return {
                partition: self.store.offset_at(connection, found, partition, at)
                for partition in range(found.partitions)
            }

    def undecided(self, topic: str) -> dict[int, tuple[int, int]]:
        """None: an open transaction holds nothing back."""
        return {}

    def codecs(self) -> Sequence[str]:
        """None: nothing is compressed."""
        return ()

    def close(self) -> None:
        """Close the file. Sessions have to be closed separately."""
        self.database.close()

    def _is_the_file(self) -> bool:
        """Whether the path still leads to the open file: a removed file can still be read and written while
        it is open."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file


def _options(given: Mapping[str, Any]) -> dict[str, float]:
    unknown = sorted(given.keys() - OPTIONS.keys())
    if unknown:
        raise ConfigurationError(
            f"bus.options.{unknown[0]} is not known to sqlite:// (known: {', '.join(OPTIONS)})"
        )
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise ConfigurationError(f"bus.options.{name}: a positive number is expected")
    return {**OPTIONS, **given}


def _path(url: str) -> Path:
    text = url.removeprefix(SCHEME)
    if not text or text.endswith("/") or "?" in text or "\0" in text:
        raise ConfigurationError(
            "bus.url: expected a file, as in sqlite:///var/lib/plant.db, or sqlite://plant.db below the "
            "working folder"
        )
    return Path(text).absolute()
