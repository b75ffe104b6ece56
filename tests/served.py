"""Workers that have joined their group, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from streamfl.configuration.settings import load_kind, load_settings
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

__all__ = ["Served", "joined", "served_by"]

Served = dict[str, tuple[str, set[str]]]


def joined(configuration: Path, sections: Mapping[str, Any], bus: MemoryBus) -> Worker:
    """A worker with this configuration that has joined its group, with its topics created."""
    kind = find_kind(load_kind(configuration))
    settings = load_settings(configuration, kind.settings, {"bus": {"url": "memory://"}, **sections})
    specs = kind.topics(settings)
    there = bus.describe([spec.name for spec in specs])
    bus.create([replace(spec, partitions=spec.partitions or 2) for spec in specs if spec.name not in there])
    worker = build_worker(settings, bus)
    while not worker.step(0.01):
        pass
    # Normally the thread beside the loop does this.
    worker.lag.look()
    return worker


def served_by(worker: Worker) -> Served:
    """Type and labels of every metric that a worker serves, by name."""
    families = list(text_string_to_metric_families(worker.metrics.render().decode()))
    # The parser removes the suffix of a counter's name, and the library adds a creation time for each
    # counter.
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in families
        if not family.name.endswith("_created")
    }
