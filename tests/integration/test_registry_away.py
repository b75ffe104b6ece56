"""A schema registry that becomes unreachable for a federation on a real broker, and comes back."""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from broker import Broker
from registry import FakeRegistry, serving

from streamfl.configuration.settings import load_settings
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Outgoing, connect
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.worker import Worker

pytestmark = pytest.mark.broker

CONFIGURATION = """
[federation]
name = "{name}"
clients = 4
[bus]
url = "{url}"
commit_interval_ms = 0
[role]
kind = "pofmkl-client"
[registry]
url = "{registry}"
timeout_seconds = 2
[samples]
topic = "{name}-readings"
format = "avro"
features = ["x"]
label = "y"
[learning]
features_per_kernel = 4
staleness = "async"
"""
OLD: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": name, "type": "double"} for name in ("x", "y")],
}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "unit", "type": "string"}]}


def until(worker: Worker, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, worker.metrics.render().decode()
        worker.step(0.2)


def test_an_outage_loses_and_doubles_nothing(broker: Broker, tmp_path: Path) -> None:
    """Protects records from an outage of the registry, on a cluster: they wait, and are not dead-lettered.

    Records with a known schema go on. The worker is not ready and says why. A worker that starts meanwhile,
    with the other connector and without any schema, waits too. Once the registry is back each record is
    predicted once.
    """
    name = f"outage-{uuid.uuid4().hex[:8]}"
    registry = FakeRegistry()
    old = registry.add(OLD)

    def records(schema: int, keys: list[bytes], more: bytes = b"") -> list[Outgoing]:
        value = struct.pack(">bI", 0, schema) + struct.pack("<dd", 0.5, 1.0) + more
        return [Outgoing(f"{name}-readings", key, value) for key in keys]

    def predicted() -> list[bytes | None]:
        return [record.key for record in bus.read(f"{name}.predictions")]

    def waits(worker: Worker) -> bool:
        return "cannot be asked" in (worker.health.trouble or "")

    # These two keys are in different partitions of two.
    ahead, behind = [b"north"] * 5, [b"south"] * 5
    with ExitStack() as stack:
        bus = stack.enter_context(closing(connect(broker.url)))
        with serving(registry):
            path = tmp_path / "client.toml"
            path.write_text(CONFIGURATION.format(name=name, url=broker.url, registry=registry.url))
            settings = load_settings(path, PofmklSettings)
            topics = find_kind(settings.role.kind).topics(settings)
            bus.create([replace(spec, partitions=spec.partitions or 2) for spec in topics])
            bus.write(records(old, [*ahead, *behind]))
            first = stack.enter_context(closing(build_worker(settings, bus)))
            until(first, lambda: len(predicted()) == 10)
            assert first.health.trouble is None
            new = registry.add(NEW)
        bus.write(records(new, behind, b"\x02C") + records(old, ahead))
        until(first, lambda: len(predicted()) == 15 and waits(first))
        assert predicted().count(b"north") == 10
        first.close()
        other = stack.enter_context(closing(connect(f"kafka+librdkafka://{broker.address}")))
        second = stack.enter_context(closing(build_worker(settings, other)))
        bus.write(records(old, ahead))
        until(second, lambda: waits(second))
        assert len(predicted()) == 15
        with serving(registry):
            until(second, lambda: len(predicted()) >= 25 and second.health.trouble is None)
        assert sorted(key or b"" for key in predicted()) == [b"north"] * 15 + [b"south"] * 10
        assert list(bus.read(f"{name}.dead-letters")) == []
        samples = {
            msgspec.json.decode(record.value or b"")["sample"] for record in bus.read(f"{name}.predictions")
        }
        assert len(samples) == 25
