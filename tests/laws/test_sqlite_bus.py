"""The SQLite bus obeys the laws of every bus, and a few of its own: a file has permissions, versions and a
full disk."""

from __future__ import annotations

import resource
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import (
    Bus,
    BusUnavailable,
    CommitRefused,
    Moved,
    Outgoing,
    Session,
    Step,
    Subscription,
    connect,
)
from streamfl.testing.bus_laws import BusLaws


class TestSqliteBus(BusLaws):
    @pytest.fixture
    def bus(self, tmp_path: Path) -> Iterator[Bus]:
        bus = connect(f"sqlite://{tmp_path}/bus.db", {"session_timeout_seconds": 3})
        yield bus
        bus.close()


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "plant.db"


@pytest.fixture(name="bus")
def _bus(path: Path) -> Iterator[Bus]:
    with closing(opened(path)) as bus:
        bus.create([TopicSpec("samples", 2, compacted=False), TopicSpec("outputs", 1, compacted=False)])
        yield bus


def opened(path: Path, **options: Any) -> Bus:
    return connect(f"sqlite://{path}", options)


@contextmanager
def member(bus: Bus, **settings: Any) -> Iterator[Session]:
    with closing(bus.session(Subscription("group", ("samples",), **settings))) as session:
        yield session


def change(path: Path, statement: str) -> None:
    """Change the file as another program would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def found(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def test_two_connections_are_one_cluster(bus: Bus, path: Path) -> None:
    """Protects several processes: what one process has created and written is visible to others that open the
    file."""
    with closing(opened(path)) as other:
        assert other.describe(["samples"])["samples"].partitions == 2
        other.write([Outgoing("samples", b"k", b"x", 1, (("h", b"1"),))])
        assert [(record.partition, record.value, record.headers) for record in bus.read("samples")] == [
            (1, b"x", (("h", b"1"),))
        ]


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a laptop's short configuration, and the rule that the text after sqlite:// is the path."""
    monkeypatch.chdir(tmp_path)
    connect("sqlite://here.db").close()
    assert (tmp_path / "here.db").is_file()


def test_only_the_owner_may_read_the_file(bus: Bus, path: Path) -> None:
    """Protects samples and predictions from the machine's other users, also in the files that SQLite adds."""
    assert sorted(file.name for file in path.parent.iterdir()) == ["plant.db", "plant.db-shm", "plant.db-wal"]
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}


def test_many_may_open_a_new_file_at_once(path: Path) -> None:
    """Protects the start of a whole deployment: a process that opens the file while another makes it waits,
    and finds it complete."""
    together = threading.Barrier(8)

    def create(number: int) -> None:
        together.wait()
        with closing(opened(path)) as bus:
            bus.create(
                [TopicSpec("shared", 3, compacted=False), TopicSpec(f"own-{number}", 2, compacted=False)]
            )

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(create, range(8)))
    with closing(opened(path)) as bus:
        names = ["shared", *(f"own-{number}" for number in range(8))]
        assert [state.partitions for state in bus.describe(names).values()] == [3] + [2] * 8
        bus.write([Outgoing(name, None, name.encode()) for name in names])
        assert [record.value for name in names for record in bus.read(name)] == [*map(str.encode, names)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("text.txt", "not an SQLite database"),
        ("other.db", "another program"),
        ("newer.db", "another version"),
        ("folder", "not a file"),
    ],
)
def test_a_wrong_file_is_said_and_left_as_it_was(tmp_path: Path, name: str, text: str) -> None:
    """Protects other files and files of a newer version: the operator gets an error, and nothing is
    written."""
    path = tmp_path / name
    match name:
        case "text.txt":
            path.write_text("day, pressure\n" * 1000)
        case "other.db":
            change(path, "CREATE TABLE readings (day TEXT)")
        case "newer.db":
            opened(path).close()
            change(path, "PRAGMA user_version = 1000")
        case "folder":
            path.mkdir()
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(ConfigurationError, match=text):
        opened(path)
    assert (path.read_bytes() if path.is_file() else b"") == before


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///nowhere/at/all/plant.db"])
def test_a_wrong_url_is_a_configuration_error(url: str) -> None:
    """Protects the operator: an impossible path is reported at the start, with its key."""
    with pytest.raises(ConfigurationError, match=r"bus\.url"):
        connect(url)


@pytest.mark.parametrize(
    "options",
    [
        {"session_timeout_ms": 5000},
        {"session_timeout_seconds": 0},
        {"session_timeout_seconds": "5"},
        {"retention_hours": True},
    ],
)
def test_wrong_options_are_configuration_errors(path: Path, options: dict[str, Any]) -> None:
    """Protects the operator: a misspelt option or an invalid value must not be ignored."""
    with pytest.raises(ConfigurationError, match=f"bus.options.{next(iter(options))}"):
        opened(path, **options)
    assert not path.exists()


def test_a_damaged_file_is_a_configuration_error(bus: Bus, path: Path) -> None:
    """Protects the operator of a failing disk from a traceback and from endless retries."""
    bus.write([Outgoing("samples", None, b"x" * 1000, 0) for _ in range(1000)])
    bus.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(ConfigurationError, match="damaged"), closing(opened(path)) as broken:
        list(broken.read("samples"))


def test_a_locked_file_is_an_unavailable_bus(bus: Bus, path: Path) -> None:
    """Protects a worker when another process hangs during a write: the error says to try again, and nothing
    is half done."""
    bus.write([Outgoing("samples", None, b"x", 0)])
    with closing(opened(path, connect_timeout_seconds=0.05)) as hasty, member(hasty) as session:
        session.poll(0, 10)
        session.poll(0, 10)
        with closing(sqlite3.connect(path, isolation_level=None)) as hanging:
            hanging.execute("BEGIN IMMEDIATE")
            with pytest.raises(BusUnavailable, match="locked"):
                session.commit(Step({("samples", 0): 1}, [Outgoing("outputs", None, b"y")]))
            with pytest.raises(BusUnavailable, match="locked"):
                hasty.write([Outgoing("outputs", None, b"z")])
            # Readers do not wait for writers.
            assert len(list(hasty.read("samples"))) == 1
        polled = session.poll(0, 10)
        assert (polled.revoked, polled.assigned) == ([0, 1], [0, 1])
        assert len(session.poll(0, 10).records) == 1
        session.commit(Step({("samples", 0): 1}, [Outgoing("outputs", None, b"y")]))
    assert [record.value for record in bus.read("outputs")] == [b"y"]


def test_a_full_disk_is_an_unavailable_bus(bus: Bus) -> None:
    """Protects a site with a full disk: the step is rolled back whole, and succeeds once there is room."""
    bus.write([Outgoing("samples", None, b"x", 0)])
    with member(bus) as session:
        session.poll(0, 10)
        session.poll(0, 10)
        step = Step({("samples", 0): 1}, [Outgoing("outputs", None, b"y" * 100_000) for _ in range(100)])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, limits[1]))
        try:
            with pytest.raises(BusUnavailable):
                session.commit(step)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(bus.read("outputs")) == []
        assert session.committed("samples", 0) is None
        session.poll(0, 10)
        session.commit(step)
        assert len(list(bus.read("outputs"))) == 100


@pytest.mark.parametrize("table", ["records", "offsets"])
def test_a_commit_is_one_transaction(bus: Bus, path: Path, table: str) -> None:
    """Protects exactly-once: if any part of a step cannot be written, no part is."""
    bus.create([TopicSpec("state", 1, compacted=True)])
    bus.write([Outgoing("samples", None, b"x", 0)])
    with member(bus) as session:
        session.poll(0, 10)
        session.poll(0, 10)
        condition = "NEW.value = x'66'" if table == "records" else "true"
        change(
            path,
            f"CREATE TRIGGER broken BEFORE INSERT ON {table} WHEN {condition} BEGIN SELECT RAISE(ABORT, "
            "'broken'); END",
        )
        changelog = [Outgoing("state", b"k", b"e"), Outgoing("state", b"k", b"f")]
        step = Step({("samples", 0): 1}, [Outgoing("outputs", None, b"y")], changelog)
        with pytest.raises(sqlite3.IntegrityError, match="broken"):
            session.commit(step)
        assert [*bus.read("outputs"), *bus.read("state")] == []
        assert session.committed("samples", 0) is None
        with pytest.raises(CommitRefused):
            session.commit(Step({}, [Outgoing("outputs", None, b"z")]))
        change(path, "DROP TRIGGER broken")
        assert session.poll(0, 10).assigned == [0, 1]
        session.commit(step)
        assert [record.value for topic in ("outputs", "state") for record in bus.read(topic)] == [
            b"y",
            b"e",
            b"f",
        ]
        assert session.committed("samples", 0) == 1


def test_restoring_is_a_sign_of_life(path: Path) -> None:
    """Protects a member with much to restore: it must not be declared dead meanwhile, which would repeat for
    ever."""
    # The timeout is so short that every heartbeat is due.
    with closing(opened(path, session_timeout_seconds=1e-6)) as bus:
        bus.create([TopicSpec("samples", 1, compacted=False), TopicSpec("state", 1, compacted=True)])
        bus.write([Outgoing("state", f"{number}".encode(), b"x", 0) for number in range(5_000)])
        with member(bus) as session:
            ((before,),) = found(path, "SELECT beat FROM members")
            assert len(list(session.restore("state", 0))) == 5_000
            ((after,),) = found(path, "SELECT beat FROM members")
            assert after == before + 5_000
            session.attend()
            assert found(path, "SELECT beat FROM members") == [(after + 1,)]


def test_compaction_waits_as_long_as_the_topic_says(bus: Bus) -> None:
    """Protects slow readers of the model: versions younger than min.compaction.lag.ms stay."""
    bus.create([TopicSpec("model", 1, compacted=True, options={"min.compaction.lag.ms": "3600000"})])
    for _ in range(20):
        bus.write([Outgoing("model", b"k", b"v", 0) for _ in range(500)])
    assert len(list(bus.read("model"))) == 10_000


def test_old_records_go_after_the_retention(bus: Bus, path: Path) -> None:
    """Protects the disk: other topics lose records older than retention_hours, a part at each write."""
    with member(bus) as session:
        session.poll(0, 10)
        bus.write([Outgoing("samples", None, b"old", 0) for _ in range(3_500)])
        time.sleep(0.01)
        with closing(opened(path, retention_hours=1e-9)) as brief:
            for _ in range(4):
                brief.write([Outgoing("samples", None, b"new", 0)])
        values = [record.value for record in bus.read("samples")]
        assert values == [b"old"] * 500 + [b"new"] * 4
        assert session.lag()["samples", 0] == 504
        assert session.poll(0, 1).moved == [Moved("samples", 0, 0, 3_000)]
        assert session.poll(0, 1).records[0].offset == 3_000
