"""The metrics on the pages, from what roles and a worker measure.

Some metrics exist only under certain settings, or after a label. The fuzzer's federations have all these settings and good
messages, so their roles have all metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from random import Random

from streamfl.monitoring.pages import table
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.metrics import Described, describe
from streamfl.system import System, load, systems_with
from streamfl.testing.fuzz.federations import Fuzzed
from streamfl.testing.fuzz.targets import RoleTarget

__all__ = ["metrics_section", "role_metrics", "worker_metrics"]

HEADING = ("metric", "kind", "labels", "meaning")


def role_metrics(system: System) -> dict[str, dict[str, Described]]:
    """The metrics of each role of a system, by role kind and name. If a setting changes the text, the first text counts."""
    found: dict[str, dict[str, Described]] = {kind: {} for kind in system.kinds}
    for target in _roles(system):
        # Gives the role good messages, so that figures on learning exist.
        target.finish()
        for one in target.role.measure():
            described = describe(one)
            found[target.settings.role.kind].setdefault(described.name, described)
    return found


def worker_metrics() -> dict[str, Described]:
    """The metrics of a worker of any role, by name."""
    target = next(role for system in systems_with("fuzz").values() for role in _roles(system))
    settings, bus = target.settings, MemoryBus()
    bus.create([replace(spec, partitions=spec.partitions or 1) for spec in find_kind(settings.role.kind).topics(settings)])
    with closing(build_worker(settings, bus)) as worker:
        while not worker.step(0.01):
            pass
        worker.lag.look()
        own = {describe(one).name for one in worker.role.measure()}
        measured = [described for one in worker.measure() if (described := describe(one)).name not in own]
        return {described.name: described for described in (*measured, *worker.metrics.counted)}


def metrics_section(system: System | None) -> str:
    """The metrics of a system by role, or no text if it has no roles that the fuzzer can run. None: those of every worker."""
    if system is None:
        return _table(worker_metrics())
    found = role_metrics(system) if system.fuzz else {}
    return "\n\n".join(f"### Metrics of {kind}\n\n{_table(metrics)}" for kind, metrics in found.items())


def _table(found: dict[str, Described]) -> str:
    rows = [(f"`{name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help) for name, one in found.items()]
    return table(HEADING, rows)


def _roles(system: System) -> Iterator[RoleTarget]:
    fuzzed: Fuzzed = load(system.fuzz or "")
    for name, make in fuzzed.targets(Random(0)).items():
        target = make(name)
        if isinstance(target, RoleTarget):
            yield target
