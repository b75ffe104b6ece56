"""A worker's steps as OpenTelemetry spans: poll, receive, commit, and two spans for each sample with a trace.

A batch has many senders, so a step is a trace of its own, with links to the samples' traces, as in
OpenTelemetry's conventions for messaging. A sample's own trace gets two spans: for its processing, and for
the sending of its prediction.
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
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.role import ConfigurationError, Headers, Received, Rejection, Role, Send, Work
from streamfl.runtime.bus import Bus, Polled, Session, Step, Subscription
from streamfl.runtime.worker import Worker

__all__ = ["TracedWorker", "Traces", "export_traces"]

# The most samples, and the most predictions, of a step that get spans of their own: a batch may have
# thousands.
MOST_SPANS = 100
# By its standard a tracestate has at most 512 characters; a traceparent has 55.
LONGEST_HEADER = 512
# The exporter would retry an unavailable collector for longer, until the worker is killed.
CLOSE_SECONDS = 3.0
PATH = "/v1/traces"
NAMES = ("traceparent", "tracestate")

_propagator = TraceContextTextMapPropagator()


def export_traces(settings: RoleSettings) -> Traces:
    """Traces that send spans to a collector by OTLP over HTTP, in batches and from a thread of their own."""
    federation, kind = settings.federation.name, settings.role.kind
    given = {SERVICE_NAMESPACE: federation, SERVICE_INSTANCE_ID: f"{settings.group}-{os.getpid()}"}
    if not os.environ.get("OTEL_SERVICE_NAME") and SERVICE_NAME not in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        given[SERVICE_NAME] = kind
    endpoint = settings.tracing.endpoint
    # For an unavailable collector one line a batch is enough.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)
    try:
        provider = TracerProvider(resource=Resource.create(given), shutdown_on_exit=False)
        exporter = OTLPSpanExporter() if endpoint is None else OTLPSpanExporter(endpoint.rstrip("/") + PATH)
        provider.add_span_processor(BatchSpanProcessor(exporter))
    except ValueError as error:
        named = ", ".join(sorted(name for name in os.environ if name.startswith("OTEL_"))) or "none is set"
        raise ConfigurationError(
            f"tracing: a variable of OpenTelemetry is invalid ({named}): {error}"
        ) from None
    return Traces(provider, settings.bus.url.partition("://")[0], settings.group)


class Traces:
    """The spans of one worker. Only the worker's thread calls it, except :meth:`close`.

    provider: takes the spans.
    scheme: the scheme of the bus's URL.
    group: the consumer group.
    """

    def __init__(self, provider: TracerProvider, scheme: str, group: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("streamfl", version("streamfl"))
        # The conventions name the messaging system, not the client library.
        self._common: dict[str, Any] = {
            "messaging.system": scheme.partition("+")[0],
            "messaging.consumer.group.name": group,
        }
        self._step: Span | None = None
        self._failed = False

    def close(self) -> None:
        """Send the remaining spans, for at most ``CLOSE_SECONDS``."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)

    def polled(self, polled: Polled, begun: int) -> None:
        """A poll returned. An empty poll makes no span, so that an idle worker sends none."""
        if not polled:
            return
        count = {
            "messaging.batch.message_count": len(polled.records),
            "streamfl.table_records": len(polled.tables),
        }
        self._span("poll", self._begin(begun), begun, SpanKind.CLIENT, **count)

    def received(self, batch: Sequence[Received], begun: int) -> None:
        """The role took a batch, an empty one for a tick."""
        if self._step is None:
            # A tick without results makes no span. If a tick leads to a commit, the step's span begins with
            # the commit.
            return
        self._span(
            "receive", self._step, begun, SpanKind.INTERNAL, **{"messaging.batch.message_count": len(batch)}
        )
        where = (
            (one.record.topic, one.record.headers, one.record.partition, one.record.offset) for one in batch
        )
        self._of_samples("process", where, begun, SpanKind.CONSUMER, link=True)

    def committed(self, step: Step, begun: int, error: Exception | None) -> None:
        """A commit returned. error: why it failed; None if it did not."""
        root = self._begin(begun)
        messages = {
            "messaging.batch.message_count": len(step.outputs),
            "streamfl.changelog_records": len(step.changelog),
        }
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
            self._step = self._tracer.start_span(
                "step", Context(), SpanKind.INTERNAL, self._common, None, begun
            )
            of = self._step.get_span_context()
            if self._step.is_recording():
                # For all log lines until the step is over.
                structlog.contextvars.bind_contextvars(
                    trace_id=f"{of.trace_id:032x}", span_id=f"{of.span_id:016x}"
                )
        return self._step

    def _span(self, name: str, parent: Span, begun: int, kind: SpanKind, **attributes: Any) -> None:
        of = self._common | {"messaging.operation.name": name} | attributes
        self._tracer.start_span(name, set_span_in_context(parent), kind, of, None, begun).end()

    def _of_samples(
        self,
        name: str,
        records: Iterable[tuple[str, Headers, int | None, int | None]],
        begun: int,
        kind: SpanKind,
        link: bool,
    ) -> None:
        """A span for each record with a trace. records: topic, headers, partition, offset. link: whether the
        step links to it."""
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
            attributes: dict[str, Any] = {
                **self._common,
                "messaging.operation.name": name,
                "messaging.destination.name": topic,
            }
            if partition is not None:
                attributes["messaging.destination.partition.id"] = str(partition)
            if offset is not None:
                attributes["messaging.kafka.offset"] = offset
            if link:
                step.add_link(get_current_span(parent).get_span_context())
            to_step = [Link(step.get_span_context())]
            self._tracer.start_span(f"{name} {topic}", parent, kind, attributes, to_step, begun).end()


def _context(headers: Headers) -> Context | None:
    """The trace context in the headers; None if there is none."""
    carrier: dict[str, str] = {}
    for name, value in headers:
        if name.lower() in NAMES and len(value) <= LONGEST_HEADER:
            carrier.setdefault(name.lower(), value.decode("ascii", "replace"))
    if "traceparent" not in carrier:
        return None
    found = _propagator.extract(carrier, Context())
    return found if get_current_span(found).get_span_context().is_valid else None


class _Traced:
    """A proxy for another object, with some methods replaced."""

    def __init__(self, inner: Any, traces: Traces) -> None:
        self._inner = inner
        self._traces = traces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


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
    """A worker that reports its steps to ``traces``. Role and bus do not know of it."""

    def __init__(
        self, role: Role, channels: Any, bus: Bus, *given: Any, traces: Traces, **named: Any
    ) -> None:
        super().__init__(
            role,
            channels,
            cast(Bus, _TracedBus(bus, traces)),
            *given,
            **named,
        )
        self._traces = traces

    def _receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection | Work]:
        begun = time.time_ns()
        replies = super()._receive(batch, now)
        self._traces.received(batch, begun)
        return replies

    def step(self, timeout: float) -> bool:
        """As :meth:`Worker.step`."""
        try:
            return super().step(timeout)
        finally:
            self._traces.ended()
