"""A sample's trace through POF-MKL: to its prediction, and not to the server."""

from __future__ import annotations

import json
from dataclasses import replace

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streamfl.configuration.settings import BusSection, RoleSection
from streamfl.contract.role import Headers
from streamfl.pofmkl.config import PofmklFederation, PofmklSettings
from streamfl.records.samples import SamplesSection
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.spans import Traces

OF_SAMPLE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED: Headers = (("traceparent", f"00-{OF_SAMPLE}-00f067aa0ba902b7-01".encode()),)


def test_a_samples_trace_leads_to_its_prediction_and_not_to_the_server() -> None:
    """Protects whoever follows a sample, and the samples from the server: prediction and spans are in the
    sample's trace, and an update names none."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    bus = MemoryBus()
    for kind in ("pofmkl-server", "pofmkl-client"):
        settings = PofmklSettings(
            federation=PofmklFederation(name="plant", clients=1, features=["t"]),
            role=RoleSection(kind=kind),
            bus=BusSection(commit_interval_ms=0),
            samples=SamplesSection(topic="readings", client="device", features=["t"], label="y"),
        )
        wanted = {spec.name: spec for spec in find_kind(kind).topics(settings)}
        missing = wanted.keys() - bus.describe(wanted).keys()
        bus.create(
            [replace(wanted[name], partitions=wanted[name].partitions or 1) for name in sorted(missing)]
        )
    worker = build_worker(settings, bus, traces=Traces(provider, "memory", settings.group))
    worker.step(0.0)
    bus.write(
        [
            Outgoing(
                "readings", b"press", json.dumps({"device": "press", "t": 1.0, "y": 0.5}).encode(), 0, TRACED
            )
        ]
    )
    for _ in range(10):
        worker.step(0.0)
    [prediction] = bus.read("plant.predictions")
    assert prediction.headers == TRACED
    [update] = bus.read("plant.updates")
    assert OF_SAMPLE.encode() not in b"".join(value for _, value in update.headers) + (update.value or b"")
    spans = exporter.get_finished_spans()
    of_sample = [
        span.name
        for span in spans
        if span.context is not None and f"{span.context.trace_id:032x}" == OF_SAMPLE
    ]
    assert of_sample == ["process readings", "send plant.predictions"]
    worker.close()
