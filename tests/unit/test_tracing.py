"""A worker's spans: a trace shows the worker's work, and without tracing there is no cost."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from counting import CHANNELS, TOPICS, CountingRole, number
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from streamfl.configuration.settings import (
    BusSection,
    FederationSection,
    RoleSection,
    RoleSettings,
    TracingSection,
)
from streamfl.contract.role import ConfigurationError, Headers, Received, Record, Rejection, Send
from streamfl.runtime import spans
from streamfl.runtime.bus import Outgoing, Polled, Subscription
from streamfl.runtime.log import logger
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.spans import TracedWorker, Traces, export_traces
from streamfl.runtime.tracing import begin_traces

OF_SAMPLE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
log = logger("streamfl.test")
TRACED: Headers = (("traceparent", f"00-{OF_SAMPLE}-{PARENT}-01".encode()),)


class Echo(CountingRole):
    """Answers each number with the same headers."""

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        if batch:
            log.warning("the role has a batch")
        replies = super().receive(batch, now)
        headers = {one.record.key: one.record.headers for one in batch}
        return [
            Send(one.channel, one.key, one.value, None, headers[one.key]) if isinstance(one, Send) else one
            for one in replies
        ]


class Watched:
    """A worker on a memory bus, and the spans of its steps."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.bus.create(TOPICS)
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.role = Echo()
        subscription = Subscription("counters", ("numbers",), ("factor",))
        self.worker = TracedWorker(
            self.role,
            CHANNELS,
            self.bus,
            subscription,
            "dead-letters",
            traces=Traces(provider, "memory", "counters"),
        )
        self.drain()
        self.spans()

    def send(self, *values: bytes, headers: Headers = TRACED) -> None:
        records = [
            Outgoing("numbers", f"pump-{place}".encode(), value, 0, headers)
            for place, value in enumerate(values)
        ]
        self.bus.write(records)

    def drain(self) -> None:
        while self.worker.step(0.0):
            pass

    def spans(self) -> list[ReadableSpan]:
        """The spans since the last call."""
        found = [*self._exporter.get_finished_spans()]
        self._exporter.clear()
        return found


@pytest.fixture
def watched() -> Iterator[Watched]:
    one = Watched()
    yield one
    one.worker.close()


def test_a_traced_worker_has_the_role_itself(watched: Watched) -> None:
    """Protects histories from a stand-in for the role: from Python 3.12 on it has none of the role's further
    interfaces, such as the one by which a backlog is read slowly."""
    assert watched.worker.role is watched.role


def named(found: list[ReadableSpan], name: str) -> ReadableSpan:
    [span] = [one for one in found if one.name == name]
    return span


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def test_a_step_has_its_parts_and_a_sample_has_its_own_trace(watched: Watched) -> None:
    """Protects the search for where a sample's time went: poll, receive and commit are in the step's trace,
    in order. The sample's own trace shows what happened to it."""
    watched.send(number(1, 5))
    begun = time.time_ns()
    watched.drain()
    found = watched.spans()
    step = named(found, "step")
    assert step.parent is None
    for one in found:
        assert (
            begun
            <= (step.start_time or 0)
            <= (one.start_time or 0)
            <= (one.end_time or 0)
            <= (step.end_time or 0)
        ), one.name
    assert (step.end_time or 0) <= time.time_ns()
    assert (named(found, "send totals").start_time or 0) == (named(found, "commit").start_time or 0)
    assert step.context is not None
    parts = [named(found, name) for name in ("poll", "receive", "commit")]
    assert [part.parent.span_id for part in parts if part.parent] == [step.context.span_id] * 3
    times = [part.start_time or 0 for part in parts]
    assert times == sorted(times)
    assert {trace_id(part) for part in parts} == {trace_id(step)} != {OF_SAMPLE}
    for name in ("process numbers", "send totals"):
        one = named(found, name)
        assert trace_id(one) == OF_SAMPLE
        assert one.parent is not None
        assert f"{one.parent.span_id:016x}" == PARENT
        assert [link.context.span_id for link in one.links] == [step.context.span_id]
    assert [f"{link.context.trace_id:032x}" for link in step.links] == [OF_SAMPLE]
    assert (named(found, "process numbers").attributes or {})["messaging.kafka.offset"] == 0
    assert len(found) == 6


def test_a_worker_without_records_makes_no_spans(watched: Watched) -> None:
    """Protects the collector: a waiting worker sends nothing, however long it waits."""
    for _ in range(5):
        watched.worker.step(0.0)
    assert watched.spans() == []


def test_a_refused_commit_is_an_error_and_the_step_comes_again(watched: Watched) -> None:
    """Protects the search for a repetition's cause: the first step is marked as failed, the second is not."""

    def lose_the_group() -> None:
        watched.role.before_reply = lambda: None
        watched.bus.session(Subscription("counters", ("numbers",))).close()

    watched.role.before_reply = lose_the_group
    watched.send(number(1, 5))
    watched.drain()
    found = watched.spans()
    codes = {
        name: [one.status.status_code for one in found if one.name == name] for name in ("step", "commit")
    }
    assert codes["step"][0] is StatusCode.ERROR
    assert codes["commit"] == [StatusCode.ERROR, StatusCode.UNSET]
    assert codes["step"].count(StatusCode.ERROR) == 1
    assert len([one for one in found if one.name == "send totals"]) == 1


@pytest.mark.parametrize(
    "value", [b"", b"\xff" * 55, b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01", b"00-" * 1000]
)
def test_what_a_stranger_writes_as_a_trace_is_passed_over(watched: Watched, value: bytes) -> None:
    """Protects the worker from headers: an invalid trace has no span, and the record is processed."""
    watched.send(number(1, 5), headers=(("traceparent", value), ("tracestate", b"\x00" * 600)))
    watched.drain()
    assert {one.name for one in watched.spans()} == {"step", "poll", "receive", "commit"}
    assert watched.role.totals[0]


def test_a_large_batch_has_few_spans(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects worker and collector: of a step's thousands of samples a fixed number have spans, and the step
    says so."""
    monkeypatch.setattr(spans, "MOST_SPANS", 3)
    watched.send(*(number(1, 5) for _ in range(20)))
    watched.drain()
    found = watched.spans()
    assert len([one for one in found if one.name == "process numbers"]) == 3
    assert (named(found, "step").attributes or {})["streamfl.spans_left_out"] is True


def test_a_sample_that_is_not_sampled_has_no_span(watched: Watched) -> None:
    """Protects the writers' sampling: a sample that they do not record has no span here either."""
    watched.send(number(1, 5), headers=(("traceparent", f"00-{OF_SAMPLE}-{PARENT}-00".encode()),))
    watched.drain()
    assert {one.name for one in watched.spans()} == {"step", "poll", "receive", "commit"}


def test_log_lines_carry_their_trace(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """Protects the way from a log line to its trace: lines of a step have the step's trace, a refused
    record's line its own, and later lines none."""
    watched.send(number(1, 5), b"no number")
    watched.drain()
    step = trace_id(named(watched.spans(), "step"))
    log.warning("between steps")
    lines = {one.msg["event"]: one.msg for one in caplog.records if isinstance(one.msg, dict)}
    assert lines["the role has a batch"]["trace_id"] == step
    assert lines["a record was refused"]["trace_id"] == OF_SAMPLE
    assert not {"trace_id", "span_id"} & lines["between steps"].keys()


def settings(endpoint: str | None = None, enabled: bool = True) -> RoleSettings:
    return RoleSettings(
        federation=FederationSection(name="plant"),
        role=RoleSection(kind="counter"),
        bus=BusSection(url="memory://"),
        tracing=TracingSection(enabled=enabled, endpoint=endpoint),
    )


def test_without_tracing_nothing_of_it_is_loaded() -> None:
    """Protects workers without tracing: no library, no thread and no wrapper."""
    assert begin_traces(settings(enabled=False)) is None
    program = (
        "import sys, streamfl.cli.run; sys.exit(any(name.startswith('opentelemetry') for name in "
        "sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_tracing_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the operator from a traceback if the extra is not installed."""
    monkeypatch.delitem(sys.modules, "streamfl.runtime.spans")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'streamfl\[tracing\]'"):
        begin_traces(settings())


def test_spans_reach_a_collector_by_otlp() -> None:
    """Protects the export: a collector gets the spans by OTLP over HTTP, with their owner, when the worker
    ends."""
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/traces"
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Writes nothing to stderr."""

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        traces = export_traces(settings(f"http://127.0.0.1:{server.server_port}/"))
        bus = MemoryBus()
        bus.create(TOPICS)
        worker = TracedWorker(
            Echo(), CHANNELS, bus, Subscription("counters", ("numbers",)), "dead-letters", traces=traces
        )
        bus.write([Outgoing("numbers", b"pump", number(1, 5), 0, TRACED)])
        while worker.step(0.0):
            pass
        worker.close()
        traces.close()
        server.shutdown()
        thread.join()
    sent = [ExportTraceServiceRequest.FromString(body).resource_spans for body in bodies]
    [resource] = [one for group in sent for one in group]
    attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (attributes["service.name"], attributes["service.namespace"]) == ("counter", "plant")
    names = {span.name for scope in resource.scope_spans for span in scope.spans}
    assert {"step", "commit", "process numbers", "send totals"} <= names


@pytest.mark.long
def test_a_collector_that_does_not_answer_holds_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a worker's end: it stops in time, with its own exit code, whatever happens to the last
    spans."""
    assert spans.CLOSE_SECONDS <= 5.0
    monkeypatch.setattr(spans, "CLOSE_SECONDS", 0.01)
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        traces = export_traces(settings(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        traces.polled(Polled(records=[Record("numbers", 0, 0, b"pump", number(1, 5))]), time.time_ns())
        traces.ended()
        traces.close()
        sending = set(threading.enumerate()) - before
        # Sending goes on, and the worker did not wait for it.
        assert sending
    # The exporter tries again at random times, and draws them by a module that other tests use too.
    for thread in sending:
        thread.join(60.0)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "-1"),
    ],
)
def test_a_variable_that_opentelemetry_refuses_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the operator from a traceback: environment variables are configuration too."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=name):
        begin_traces(settings("http://127.0.0.1:1"))


def test_a_collectors_address_holds_no_secret() -> None:
    """Protects keys from logs and process lists: an address with a user name in it is refused."""
    with pytest.raises(ValueError, match="only an address"):
        TracingSection(enabled=True, endpoint="http://user:password@collector:4318")
