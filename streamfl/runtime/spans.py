"""A worker's steps as OpenTelemetry's spans: poll, receive, commit, and what became of each sample that is traced.

A batch has many senders, so a step is a trace of its own, with links to the samples' traces, as OpenTelemetry's conventions for
messaging have it. In the trace of a sample stand two spans: that it was processed, and that its prediction was sent.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, cast

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_NAMESPACE, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from streamfl.role import ConfigurationError, Headers, Received, Rejection, Role, Send, Work
from streamfl.runtime.bus import Bus, Polled, Session, Step, Subscription
from streamfl.runtime.worker import Worker
from streamfl.settings import RoleSettings

__all__ = ["TracedWorker", "Traces", "export_traces"]

# So many samples, and so many predictions, of one step have spans of their own: a batch may have thousands.
MOST_SPANS = 100
# tracestate has 512 characters at most by its standard; a traceparent has 55.
LONGEST_HEADER = 512
# A collector that is away is tried for longer, and the worker is killed at last.
CLOSE_SECONDS = 3.0
PATH = "/v1/traces"
NAMES = ("traceparent", "tracestate")

_propagator = TraceContextTextMapPropagator()


def export_traces(settings: RoleSettings) -> Traces:
    """Spans go to a collector by OTLP over HTTP, in batches and from a thread of their own."""
    federation, kind = settings.federation.name, settings.role.kind
    given = {SERVICE_NAMESPACE: federation, SERVICE_INSTANCE_ID: f"{settings.group}-{os.getpid()}"}
    if not os.environ.get("OTEL_SERVICE_NAME") and SERVICE_NAME not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        given[SERVICE_NAME] = kind
    endpoint = settings.tracing.endpoint
    # Of a collector that is away one line a batch says enough.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    try:
        provider = TracerProvider(resource=Resource.create(given), shutdown_on_exit=False)
        exporter = OTLPSpanExporter() if endpoint is None else OTLPSpanExporter(endpoint.rstrip("/") + PATH)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except ValueError as error:
        named = ", ".join(sorted(name for name in os.environ if name.startswith("OTEL_"))) or "none is set"
        raise ConfigurationError(f"tracing: a variable of OpenTelemetry's will not do ({named}): {error}") from None
    return Traces(provider, settings.bus.url.partition("://")[0], settings.group)


class Traces:
    """The spans of one worker. All but :meth:`close` is called by the worker's thread.

    provider: takes the spans. scheme: of the bus. group: the consumer group.
    """

    def __init__(self, provider: TracerProvider, scheme: str, group: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("streamfl", version("streamfl"))
        # The conventions have a name for a cluster, whichever library reaches it.
        self._common: dict[str, Any] = {"messaging.system": scheme.partition("+")[0], "messaging.consumer.group.name": group}
        self._step: Span | None = None
        self._failed = False

    def close(self) -> None:
        """Send what is left, as far as that takes no longer than a worker has to end."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)

    def polled(self, polled: Polled, begun: int) -> None:
        """A poll came back. One that brought nothing is no span: a worker without records makes none."""
        if not polled:
            return
        count = {"messaging.batch.message_count": len(polled.records), "streamfl.table_records": len(polled.tables)}
        self._span("poll", self._begin(begun), begun, SpanKind.CLIENT, **count)

    def received(self, batch: Sequence[Received], begun: int) -> None:
        """The role took a batch, an empty one for a tick."""
        if self._step is None:
            # A tick that led to nothing is none either; what is committed of one begins with the commit.
            return
        self._span("receive", self._step, begun, SpanKind.INTERNAL, **{"messaging.batch.message_count": len(batch)})
        where = ((one.record.topic, one.record.headers, one.record.partition, one.record.offset) for one in batch)
        self._of_samples("process", where, begun, SpanKind.CONSUMER, link=True)

    def committed(self, step: Step, begun: int, error: Exception | None) -> None:
        """A commit came back. error: why nothing of it counts."""
        root = self._begin(begun)
        messages = {"messaging.batch.message_count": len(step.outputs), "streamfl.changelog_records": len(step.changelog)}
        of = self._common | {"messaging.operation.name": "commit"} | messages
        span = self._tracer.start_span("commit", set_span_in_context(root), SpanKind.CLIENT, of, None, begun)
        if error is not None:
            self._failed = True
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        else:
            where = ((one.topic, one.headers, one.partition, None) for one in step.outputs)
            self._of_samples("send", where, begun, SpanKind.PRODUCER, link=False)
        span.end()

    def ended(self) -> None:
        """The worker's step is over."""
        if self._step is None:
            return
        if self._failed:
            self._step.set_status(Status(StatusCode.ERROR))
        self._step.end()
        self._step, self._failed = None, False
        structlog.contextvars.unbind_contextvars("trace_id", "span_id")

    def _begin(self, begun: int) -> Span:
        if self._step is None:
            self._step = self._tracer.start_span("step", Context(), SpanKind.INTERNAL, self._common, None, begun)
            of = self._step.get_span_context()
            if self._step.is_recording():
                # Whatever the log says until the step is over.
                structlog.contextvars.bind_contextvars(trace_id=f"{of.trace_id:032x}", span_id=f"{of.span_id:016x}")
        return self._step

    def _span(self, name: str, parent: Span, begun: int, kind: SpanKind, **attributes: Any) -> None:
        of = self._common | {"messaging.operation.name": name} | attributes
        self._tracer.start_span(name, set_span_in_context(parent), kind, of, None, begun).end()

    def _of_samples(
        self, name: str, records: Iterable[tuple[str, Headers, int | None, int | None]], begun: int, kind: SpanKind, link: bool
    ) -> None:
        """A span in the trace of each record that has one: its topic, headers, partition and offset. link: from the step to it."""
        assert self._step is not None
        step, made = self._step, 0
        for topic, headers, partition, offset in records:
            if made == MOST_SPANS:
                step.set_attribute("streamfl.spans_left_out", True)
                return
            parent = _context(headers)
            if parent is None:
                continue
            made += 1
            attributes: dict[str, Any] = {**self._common, "messaging.operation.name": name, "messaging.destination.name": topic}
            if partition is not None:
                attributes["messaging.destination.partition.id"] = str(partition)
            if offset is not None:
                attributes["messaging.kafka.offset"] = offset
            if link:
                step.add_link(get_current_span(parent).get_span_context())
            to_step = [Link(step.get_span_context())]
            self._tracer.start_span(f"{name} {topic}", parent, kind, attributes, to_step, begun).end()


def _context(headers: Headers) -> Context | None:
    """The trace that the headers name; None if they name none."""
    carrier: dict[str, str] = {}
    for name, value in headers:
        if name.lower() in NAMES and len(value) <= LONGEST_HEADER:
            carrier.setdefault(name.lower(), value.decode("ascii", "replace"))
    if "traceparent" not in carrier:
        return None
    found = _propagator.extract(carrier, Context())
    return found if get_current_span(found).get_span_context().is_valid else None


class _Traced:
    """Stands for another object, but for what it has itself."""

    def __init__(self, inner: Any, traces: Traces) -> None:
        self._inner = inner
        self._traces = traces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _TracedRole(_Traced):
    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
        begun = time.time_ns()
        replies: Sequence[Send | Rejection | Work] = self._inner.receive(batch, now)
        self._traces.received(batch, begun)
        return replies


class _TracedBus(_Traced):
    def session(self, subscription: Subscription) -> Session:
        return cast(Session, _TracedSession(self._inner.session(subscription), self._traces))


class _TracedSession(_Traced):
    def poll(self, timeout: float, max_records: int) -> Polled:
        begun = time.time_ns()
        polled: Polled = self._inner.poll(timeout, max_records)
        self._traces.polled(polled, begun)
        return polled

    def commit(self, step: Step) -> None:
        begun = time.time_ns()
        try:
            self._inner.commit(step)
        except Exception as error:
            self._traces.committed(step, begun, error)
            raise
        self._traces.committed(step, begun, None)


class TracedWorker(Worker):
    """A worker whose steps are told to ``traces``; role and bus know nothing of it."""

    def __init__(self, role: Role, channels: Any, bus: Bus, *given: Any, traces: Traces, **named: Any) -> None:
        super().__init__(cast(Role, _TracedRole(role, traces)), channels, cast(Bus, _TracedBus(bus, traces)), *given, **named)
        self._traces = traces

    def step(self, timeout: float) -> bool:
        """As :meth:`Worker.step`."""
        try:
            return super().step(timeout)
        finally:
            self._traces.ended()
