"""``streamfl.connect`` for reading and writing outside a federation, on each bus that needs no cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import streamfl
from streamfl.connection import Connection
from streamfl.contract.role import ConfigurationError, DataError
from streamfl.runtime.bus import Outgoing


@pytest.fixture(name="connection", params=["memory", "sqlite"])
def _connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connection]:
    url = f"memory://{tmp_path.name}" if request.param == "memory" else f"sqlite://{tmp_path}/plant.db"
    with streamfl.connect(url) as connection:
        connection.create("readings", partitions=2)
        yield connection


def test_what_is_written_is_read_with_its_key(connection: Connection) -> None:
    """Protects a notebook: contents come back unchanged, and the key decides the partition."""
    rows = [{"device": f"press-{number % 3}", "t1": number} for number in range(30)]
    assert connection.write("readings", iter(rows), key="device") == 30
    found = list(connection.read("readings"))
    assert sorted(one.value["t1"] for one in found) == list(range(30))
    assert all(one.key == one.value["device"] for one in found)
    assert {one.key: one.partition for one in found} == {
        key: connection.bus.partition_of(key.encode(), 2) for key in ("press-0", "press-1", "press-2")
    }


def test_reading_begins_where_it_is_told(connection: Connection) -> None:
    """Protects readers of today's records: earlier ones are skipped, and an invalid start is an error."""
    connection.write("readings", [{"n": 1}])
    time.sleep(0.02)
    between = time.time()
    connection.write("readings", [{"n": 2}])
    assert [one.value["n"] for one in connection.read("readings", begin=between)] == [2]
    assert list(connection.read("readings", begin="latest")) == []
    for begin, topic in (("yesterday", "readings"), ("earliest", "nothing")):
        with pytest.raises(ConfigurationError):
            list(connection.read(topic, begin=begin))  # type: ignore[arg-type]


def test_a_follower_gets_what_comes_after_it_asked(connection: Connection) -> None:
    """Protects against records lost between the request and the first poll, and against endless waits in a
    script."""
    connection.write("readings", [{"n": 1}])
    following = connection.follow("readings", patience=1.0)
    connection.write("readings", [{"n": number} for number in range(2, 12)])
    assert sorted(one.value["n"] for one in following) == list(range(2, 12))
    everything = connection.follow("readings", begin="earliest", patience=1.0)
    assert sorted(one.value["n"] for one in everything) == list(range(1, 12))


def test_a_reader_leaves_nothing_behind(connection: Connection) -> None:
    """Protects workers: a follower joins no group of theirs and commits nothing."""
    connection.write("readings", [{"n": 1}])
    assert len(list(connection.follow("readings", begin="earliest", patience=0.5))) == 1
    assert connection.bus.committed("plant.pofmkl-client") == {}


def test_what_is_no_json_comes_as_its_bytes(connection: Connection) -> None:
    """Protects readers of a topic with a stranger's record in it: one record does not end the reading."""
    connection.bus.write([Outgoing("readings", b"\xff", b"\xfe", 0), Outgoing("readings", None, None, 0)])
    assert [(one.key, one.value) for one in connection.read("readings")] == [(b"\xff", b"\xfe"), (None, None)]


def test_a_key_that_is_not_there_is_told(connection: Connection) -> None:
    """Protects against a topic that should have keys and has none: a client's records would be spread over
    partitions."""
    with pytest.raises(ConfigurationError, match="'machine'"):
        connection.write("readings", [{"device": "a"}], key="machine")
    for one in ({"device": "a"}, "text", b"bytes"):
        with pytest.raises(ConfigurationError, match="several are expected"):
            connection.write("readings", one)
    assert connection.write("readings", [{"device": "a"}], key=lambda content: content["device"].upper()) == 1
    assert [one.key for one in connection.read("readings")] == ["A"]


def test_a_data_frame_is_no_list_of_records(connection: Connection) -> None:
    """Protects a notebook: a frame in place of its rows would give one record for each column name."""
    frame = pd.DataFrame({"device": ["a"], "t1": [21.5]})
    with pytest.raises(ConfigurationError, match="to_dict"):
        connection.write("readings", frame)
    assert connection.write("readings", frame.to_dict("records"), key="device") == 1
    assert [one.value for one in connection.read("readings")] == [{"device": "a", "t1": 21.5}]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_no_null_in_silence(
    connection: Connection, number: float
) -> None:
    """Protects a measurement: JSON's null would turn an infinity into a missing value. A format with
    infinities keeps it."""
    content = {"note": "null", "t": [1.0, {"u": number}]}
    with pytest.raises(DataError, match=r"record 2: t\[1\]\.u is -?(nan|inf).*1 came into readings"):
        connection.write("readings", [{"t": None, "note": "nan"}, content])
    assert [one.value for one in connection.read("readings")] == [{"t": None, "note": "nan"}]
    connection.create("packed")
    assert connection.write("packed", [content], format="msgpack") == 1
    (found,) = connection.read("packed", format="msgpack")
    assert found.value["t"][1]["u"] == pytest.approx(number, nan_ok=True)


@pytest.mark.parametrize(
    ("wrong", "kind"), [({"k": "a", "x": {object()}}, DataError), ({"x": 1}, ConfigurationError)]
)
def test_a_write_that_stops_says_where_to_go_on(
    connection: Connection, wrong: object, kind: type[Exception]
) -> None:
    """Protects a retry after an error: without the number of written records, they would be written twice or
    left out."""
    rows = [{"k": "a", "x": number} for number in range(1500)]
    with pytest.raises(kind, match=r"record 1203: .*Of the records before it 1202 came into readings"):
        connection.write("readings", [*rows[:1202], wrong, *rows[1202:]], key="k")
    assert connection.write("readings", rows[1202:], key="k") == 298
    assert [one.value for one in connection.read("readings")] == rows


def test_closing_ends_what_is_followed(connection: Connection) -> None:
    """Protects a script's end: with some client libraries an open membership keeps threads alive."""
    following = connection.follow("readings", begin="earliest")
    connection.write("readings", [{"n": 1}])
    assert next(following).value == {"n": 1}
    connection.close()
    assert list(following) == []
