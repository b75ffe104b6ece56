"""The file of an SQLite bus: its schema, and connections with one transaction at a time.

The file is in WAL mode, so that readers and the one writer do not wait for each other. With ``synchronous =
FULL`` a commit is on the disk before it returns. ``NORMAL`` would also survive ``kill -9``, because the
operating system has what was written to the log. But a power cut could then undo commits that a producer or a
reader of predictions already knows of.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable

__all__ = ["Database", "create_file", "prepare"]

APPLICATION = int.from_bytes(b"sfl1")
SCHEMA_VERSION = 1
# The size to which the log is cut back after a larger step.
LOG_BYTES = 64 * 1024 * 1024
# Between two attempts at a statement for which SQLite itself does not wait.
RETRY_SECONDS = 0.02

SCHEMA = """
CREATE TABLE topics (name TEXT PRIMARY KEY, first_log INTEGER NOT NULL, partitions INTEGER NOT NULL,
                     compacted INTEGER NOT NULL, options TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE logs (id INTEGER PRIMARY KEY, end INTEGER NOT NULL, tidy INTEGER NOT NULL);
CREATE TABLE records (id INTEGER PRIMARY KEY, key BLOB, value BLOB, headers BLOB, timestamp REAL NOT NULL);
CREATE TABLE survivors (log INTEGER NOT NULL, key BLOB NOT NULL, record INTEGER NOT NULL,
                        PRIMARY KEY (log, key)) WITHOUT ROWID;
CREATE TABLE groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL, partitions INTEGER NOT NULL)
                     WITHOUT ROWID;
CREATE TABLE members (id INTEGER PRIMARY KEY AUTOINCREMENT, group_name TEXT NOT NULL, beat INTEGER NOT NULL,
                      timeout REAL NOT NULL);
CREATE INDEX members_of_groups ON members (group_name);
CREATE TABLE owners (group_name TEXT NOT NULL, partition INTEGER NOT NULL, member INTEGER NOT NULL,
                     since INTEGER NOT NULL, PRIMARY KEY (group_name, partition)) WITHOUT ROWID;
CREATE TABLE offsets (group_name TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
                      position INTEGER NOT NULL, PRIMARY KEY (group_name, topic, partition)) WITHOUT ROWID;
"""


class Database:
    """A connection to the file, with one transaction at a time. SQLite's errors become the bus's errors."""

    def __init__(self, path: Path, patience: float) -> None:
        self.path = path
        self._lock = threading.Lock()
        with self.failing():
            self.connection = sqlite3.connect(
                path, timeout=patience, isolation_level=None, check_same_thread=False
            )
        with self._lock, self.failing(), ExitStack() as made:
            made.callback(self.connection.close)
            self.connection.execute("PRAGMA synchronous = FULL")
            self.connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            made.pop_all()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: one consistent view of the file."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: one atomic change of the file. No other connection writes meanwhile."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def version(self) -> int:
        """A number that changes when another connection has committed."""
        with self._lock, self.failing():
            return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Close the connection; an open transaction is rolled back."""
        with self._lock:
            self.connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock, self.failing():
            self.connection.execute(begin)
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    with suppress(sqlite3.Error):
                        self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Turn SQLite's errors inside into BusUnavailable, or into ConfigurationError if trying again cannot
        help."""
        try:
            yield
        except sqlite3.DataError as error:
            raise ConfigurationError(
                f"{self.path}: a record is larger than SQLite can hold: {error}"
            ) from error
        except sqlite3.DatabaseError as error:
            # Errors without a code of SQLite come from Python's module: they are mistakes of this code.
            if not hasattr(error, "sqlite_errorcode"):
                raise
            # The lower byte is the kind of error; the rest is detail.
            kind = error.sqlite_errorcode & 0xFF
            if kind == sqlite3.SQLITE_NOTADB:
                raise ConfigurationError(
                    f"bus.url: {self.path} is not an SQLite database; name another file"
                ) from error
            if kind == sqlite3.SQLITE_CORRUPT:
                raise ConfigurationError(
                    f"bus.url: {self.path} is damaged ({error}); restore a copy of it, or start over with "
                    "another file"
                ) from error
            if kind in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
                raise ConfigurationError(
                    f"bus.url: {self.path} cannot be used ({error}); this user needs to read and write the "
                    "file and its folder"
                ) from error
            if kind in (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE):
                raise
            raise BusUnavailable(f"{self.path}: {error}") from error


def create_file(path: Path) -> None:
    """Create an empty file that only its owner may read; the files that SQLite puts beside it get the same
    mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise ConfigurationError(f"bus.url: {path} is not a file") from None
    except OSError as error:
        raise ConfigurationError(f"bus.url: {path} cannot be created: {error.strerror}") from error


def prepare(database: Database, patience: float) -> None:
    """Create the schema in an empty file; ConfigurationError if another program or version made the file."""
    if _is_new(database):
        _turn_on_log(database, patience)
        with database.writing() as connection:
            # Another process may have been first.
            if connection.execute("PRAGMA application_id").fetchone() == (0,):
                for statement in SCHEMA.split(";")[:-1]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _is_new(database: Database) -> bool:
    with database.reading() as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == APPLICATION and version == SCHEMA_VERSION:
        return False
    if application == APPLICATION:
        raise ConfigurationError(
            f"bus.url: {database.path} was made by another version of streamfl (its schema is {version}, "
            f"here it is {SCHEMA_VERSION}); use that version, or another file"
        )
    if application or version or tables:
        raise ConfigurationError(
            f"bus.url: {database.path} is an SQLite database of another program; name another file"
        )
    return True


def _turn_on_log(database: Database, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            with database.failing():
                mode = database.connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except BusUnavailable:
            # SQLite does not wait here while another process does the same.
            if time.monotonic() >= deadline:
                raise
            time.sleep(RETRY_SECONDS)
            continue
        if mode != "wal":
            raise ConfigurationError(
                f"bus.url: {database.path} is on a file system that does not support SQLite's log (its mode "
                f"stays {mode}); use a local disk"
            )
        return
