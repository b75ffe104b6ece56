"""The client of schema registries: its requests and logins. An outage loses no record."""

from __future__ import annotations

import base64
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from registry import FakeRegistry, serving
from streamfl_connectors.registry import Registry, Schema

from streamfl.contract.role import BadRecord, ConfigurationError, NotYetReadable
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import Prediction
from streamfl.pofmkl.roles import ROLES
from streamfl.records.formats import Format, format_of
from streamfl.records.predictions import PredictionsSection, prediction_encoder
from streamfl.records.topic import RegistrySection, TopicSection

NUMBER = {"type": "record", "name": "N", "fields": [{"name": "x", "type": "double"}]}


@pytest.fixture(name="served")
def _served() -> Iterator[FakeRegistry]:
    with serving() as registry:
        yield registry


def section(served: FakeRegistry, **keys: Any) -> RegistrySection:
    return RegistrySection(url=served.url, **keys)


def topic(served: FakeRegistry, format: str, **keys: Any) -> Format:
    return format_of(TopicSection(topic="t", format=format, registry=section(served), **keys))


def anything(format: Format) -> Any:
    return format.decoder(Any)  # type: ignore[arg-type]


def test_a_schema_is_asked_for_once(served: FakeRegistry) -> None:
    """Protects the registry and the speed: thousands of records a second use the same schema."""
    number = served.add(NUMBER)
    decode = anything(topic(served, "avro"))
    value = struct.pack(">bId", 0, number, 0.0)[:5] + struct.pack("<d", 2.5)
    assert [decode(value) for _ in range(10)] == [{"x": 2.5}] * 10
    assert served.asked == [f"/schemas/ids/{number}"]


def test_schemas_that_name_others_are_put_together(served: FakeRegistry) -> None:
    """Protects records whose schema is spread over several subjects, also with mutual references."""
    deep = {"subject": "deep", "name": "Deep", "version": 1}
    served.add({"type": "enum", "name": "Deep", "symbols": ["A", "B"]}, subject="deep")
    served.add(
        {"type": "record", "name": "Mid", "fields": [{"name": "e", "type": "Deep"}]},
        subject="mid",
        references=[deep],
    )
    mid = {"subject": "mid", "name": "Mid", "version": 1}
    number = served.add(
        {
            "type": "record",
            "name": "Top",
            "fields": [{"name": "m", "type": "Mid"}, {"name": "d", "type": "Deep"}],
        },
        references=[mid, deep],
    )
    assert anything(topic(served, "avro"))(struct.pack(">bI", 0, number) + b"\x02\x00") == {
        "m": {"e": "B"},
        "d": "A",
    }
    served.add('syntax = "proto3"; package p; message Part { double x = 1; }', "PROTOBUF", "part")
    text = 'syntax = "proto3"; import "p/part.proto"; message Other {} message Whole { p.Part part = 1; }'
    number = served.add(
        text, "PROTOBUF", references=[{"subject": "part", "name": "p/part.proto", "version": 1}]
    )
    value = struct.pack(">bI", 0, number) + b"\x02\x02" + b"\x0a\x09\x09" + struct.pack("<d", 7.0)
    assert anything(topic(served, "protobuf"))(value) == {"part": {"x": 7.0}}
    with pytest.raises(ValueError, match="Other, Whole is expected"):
        anything(topic(served, "protobuf", message="Whole"))(struct.pack(">bI", 0, number) + b"\x00")


@pytest.mark.parametrize("status", [500, 503, 429, 401, 403, 301])
def test_a_registry_that_does_not_serve_is_waited_for(served: FakeRegistry, status: int) -> None:
    """Protects records from an outage, a wrong password, and a redirect that would send the password
    elsewhere."""
    number = served.add(NUMBER)
    now = [0.0]
    registry = Registry(section(served), clock=lambda: now[0])
    served.status, served.location = status, "http://127.0.0.1:1/elsewhere" if status == 301 else None
    for _ in range(5):
        with pytest.raises(NotYetReadable, match=str(status)):
            registry.schema(number)
    assert len(served.asked) == 1, "it is asked again and again"
    served.status, served.location, now[0] = None, None, 2.0
    assert registry.schema(number).kind == "AVRO"


def test_a_registry_that_is_away_or_slow_is_waited_for(served: FakeRegistry) -> None:
    """Protects the worker's loop from a registry that accepts but never answers, and from a missing one."""
    number = served.add(NUMBER)
    served.delay = 1.0
    with pytest.raises(NotYetReadable, match="Records stay in their topic"):
        Registry(section(served, timeout_seconds=0.2)).schema(number)
    with pytest.raises(NotYetReadable, match="refused"):
        Registry(RegistrySection(url="http://127.0.0.1:9")).schema(number)


def test_a_registry_that_did_not_answer_does_not_hold_the_worker_again() -> None:
    """Protects the partitions whose schemas are known: while a registry accepted requests and never answered,
    each of them held the worker's loop for registry.timeout_seconds, five seconds of six.

    It is asked once at a time, and whoever asks for the same gets the answer.
    """
    back, asked = threading.Event(), list[str]()

    def serve(server: socket.socket) -> None:
        for number in range(3):
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(10_000).decode().split()[1])
                if number:
                    back.wait(60)
                    connection.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"schema": "1"}')
                else:
                    connection.sendall(b"HTTP/1.1 503 Busy\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        now = [0.0]
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        registry = Registry(RegistrySection(url=url, timeout_seconds=30), clock=lambda: now[0])
        for _ in range(2):
            for number in (7, 7, 8):
                with pytest.raises(NotYetReadable, match="503"):
                    registry.schema(number)
            now[0] += 2
        assert asked == ["/schemas/ids/7"] * 2
        back.set()
        for number in (7, 8):
            while True:
                with suppress(NotYetReadable):
                    assert registry.schema(number).text == "1"
                    break
        assert asked == ["/schemas/ids/7"] * 2 + ["/schemas/ids/8"]
        thread.join()


def test_who_waits_can_ask_again_without_doing_a_step_again(served: FakeRegistry) -> None:
    """Protects workers with a large state: they restore it for a step once the registry has answered, and a
    refusal is an answer."""
    now = [0.0]
    registry = Registry(section(served), clock=lambda: now[0])
    schema = Schema("AVRO", '"double"')
    served.status = 503
    with pytest.raises(NotYetReadable) as first:
        registry.register("s", schema)
    now[0] += 2
    with pytest.raises(NotYetReadable) as second:
        first.value.again()
    with pytest.raises(NotYetReadable):
        second.value.again()
    for served.status in (None, 422):
        now[0] += 2
        second.value.again()


@pytest.mark.parametrize(
    ("at_once", "told"),
    [
        (b"", "took longer than 0.3 s"),
        (b"HTTP/1.1 200 OK\r\n", "took longer than 0.3 s"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "took longer than 0.3 s"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "500 Oops"),
    ],
    ids=["status", "headers", "content", "refusal"],
)
def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(at_once: bytes, told: str) -> None:
    """Protects the worker's loop: a registry, or what stands before it, that sends a byte now and then held
    it for longer than registry.timeout_seconds."""
    answer = b'HTTP/1.1 200 OK\r\n\r\n{"schema": "1", "message": "late"}'
    rest = (
        answer[len(b"HTTP/1.1 200 OK\r\n\r\n") :] if at_once.endswith(b"\r\n\r\n") else answer[len(at_once) :]
    )

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        # A client that has gone ends it.
        with connection, suppress(OSError):
            connection.recv(10_000)
            connection.sendall(at_once)
            for number in range(len(rest)):
                time.sleep(0.05)
                connection.sendall(rest[number : number + 1])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        registry = Registry(
            RegistrySection(url=f"http://127.0.0.1:{server.getsockname()[1]}", timeout_seconds=0.3)
        )
        with pytest.raises(NotYetReadable, match=told):
            registry.schema(1)
        thread.join()


def test_an_unknown_number_is_waited_for_and_then_refused(served: FakeRegistry) -> None:
    """Protects a new schema that the registry does not know yet, and the stream from made-up numbers: one
    delay a minute."""
    now = [0.0]
    registry = Registry(section(served), clock=lambda: now[0])
    with pytest.raises(NotYetReadable, match="does not know the schema 7 yet"):
        registry.schema(7)
    now[0] = 6.0
    with pytest.raises(BadRecord) as refused:
        registry.schema(7)
    assert refused.value.reason == "unknown_schema"
    with pytest.raises(BadRecord):
        registry.schema(8)
    now[0] = 70.0
    with pytest.raises(NotYetReadable):
        registry.schema(9)


def test_it_logs_in_with_a_password_a_token_or_oauth(served: FakeRegistry, tmp_path: Path) -> None:
    """Protects registries with access control. A secret that is changed in its file is used at once."""
    number = served.add(NUMBER)
    secret = tmp_path / "secret"
    secret.write_text("old\n")
    now = [0.0]
    basic = Registry(section(served, user="u", password_file=str(secret)), clock=lambda: now[0])
    served.login = "Basic " + base64.b64encode(b"u:new").decode()
    with pytest.raises(NotYetReadable, match="401"):
        basic.schema(number)
    secret.write_text("new\n")
    now[0] = 2.0
    assert basic.schema(number)
    served.login = "Bearer new"
    assert Registry(section(served, token_file=str(secret), headers={"target-sr-cluster": "c"})).schema(
        number
    )
    assert served.headers["target-sr-cluster"] == "c"
    served.login = "Bearer t1"
    client = {
        "oauth_token_url": f"{served.url}/token",
        "oauth_client_id": "c",
        "oauth_client_secret_file": str(secret),
    }
    oauth = Registry(section(served, **client), clock=lambda: now[0])
    assert oauth.schema(number)
    served.token, served.login = "t2", "Bearer t2"
    other = served.add({**NUMBER, "name": "M"})
    with pytest.raises(NotYetReadable, match="401"):
        oauth.schema(other)
    now[0] = 4.0
    assert oauth.schema(other)


def test_what_is_written_is_read_back(served: FakeRegistry) -> None:
    """Protects records that streamfl writes with a registry: the topic's newest schema, or one that streamfl
    registers."""
    served.add(NUMBER, subject="t-value")
    format = topic(served, "avro")
    assert anything(format)(format.encode({"x": 2.5})) == {"x": 2.5}
    text = 'syntax = "proto3"; message A {} message B { message C { double x = 1; } }'
    served.add(text, "PROTOBUF", "t-value")
    format = topic(served, "protobuf", message="B.C")
    assert anything(format)(format.encode({"x": 2.5})) == {"x": 2.5}
    assert Registry(section(served)).register("new", Schema("AVRO", '"double"')) == 3
    with pytest.raises(ConfigurationError, match="'none' has no schema"):
        Registry(section(served)).latest("none")


def test_predictions_in_avro_need_a_registry() -> None:
    """Protects readers from records whose schema nobody has."""
    with pytest.raises(ConfigurationError, match=r"predictions.format = \"avro\" needs \[registry\]"):
        prediction_encoder(PredictionsSection(format="avro"), "f.predictions", Prediction)


def test_a_schema_of_predictions_is_registered_once(served: FakeRegistry) -> None:
    """Protects the registry, and predictions during an outage: they wait until it knows their schema."""
    written = PredictionsSection(format="avro", registry=section(served))
    prediction = Prediction("anna", "s1", 2.5, 3, None)
    encode = prediction_encoder(written, "f.predictions", Prediction)
    assert encode(prediction) == encode(prediction)
    assert served.asked == ["/subjects/f.predictions-value/versions"]
    served.status = 503
    with pytest.raises(NotYetReadable):
        prediction_encoder(written, "f.predictions", Prediction)(prediction)


def test_debezium_in_avro(served: FakeRegistry) -> None:
    """Protects change logs with a registry: the same rows as from JSON."""
    row = {"type": "record", "name": "Value", "fields": [{"name": "temp", "type": "double"}]}
    number = served.add(
        {
            "type": "record",
            "name": "Envelope",
            "fields": [
                {"name": "before", "type": ["null", row]},
                {"name": "after", "type": ["null", "Value"]},
                {"name": "op", "type": "string"},
            ],
        }
    )
    value = struct.pack(">bI", 0, number) + b"\x00\x02" + struct.pack("<d", 2.5) + b"\x02c"
    assert anything(topic(served, "debezium"))(value) == {"temp": 2.5, "__op": "c"}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"url": "http://user:word@host"}, "url"),
        ({"url": "file:///etc/passwd"}, "url"),
        ({"url": "http://host", "user": "u"}, "password_file is missing"),
        ({"url": "http://host", "oauth_token_url": "http://host"}, "oauth_client_id is missing"),
        ({"url": "http://host", "user": "u", "password_file": "p", "token_file": "t"}, "exclude"),
        ({"url": "http://host", "timeout_seconds": 31}, "timeout_seconds"),
    ],
)
def test_what_cannot_work_is_refused(keys: dict[str, Any], text: str) -> None:
    """Protects the operator from half a login, and keeps passwords out of settings files."""
    with pytest.raises(ValidationError, match=text):
        RegistrySection(**keys)
    with pytest.raises(ConfigurationError, match="token_file"):
        Registry(RegistrySection(url="http://host", token_file="/nowhere"))


def test_one_registry_serves_all_topics_and_is_no_part_of_the_state() -> None:
    """Protects running federations: the registry may move, because its address is not part of the state or of
    messages."""
    content: dict[str, Any] = {
        "federation": {"name": "f", "clients": 3},
        "role": {"kind": "pofmkl-client"},
        "samples": {"topic": "s", "features": ["x"], "sample_id": "i"},
        "labels": {"topic": "l", "sample_id": "i", "label": "y", "registry": {"url": "http://other"}},
    }
    without = PofmklSettings(**content)
    settings = PofmklSettings(**content, registry={"url": "http://host"})
    assert settings.samples is not None
    assert settings.labels is not None
    assert settings.samples.registry == RegistrySection(url="http://host")
    assert settings.labels.registry == RegistrySection(url="http://other")
    kind = ROLES["pofmkl-client"]
    assert kind.state_settings(settings) == kind.state_settings(without)
    assert not any("registry" in key or "schema" in key for key in kind.state_settings(settings).values)
