"""The metrics on the pages, from what roles and a worker measure.

Some metrics exist only under certain settings, or after a label. The fuzzer's federations have all these settings and good
messages, so their roles have all metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from random import Random

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.measurement import declared
from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import System, load
from streamfl.monitoring.pages import table
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.metrics import Described, describe
from streamfl.testing.fuzz.targets import RoleTarget
from streamfl.testing.proof import GROUP, Proof, installed_proofs

__all__ = ["metrics_section", "role_metrics", "worker_metrics"]

HEADING = ("metric", "kind", "labels", "meaning")


def role_metrics(system: System) -> dict[str, dict[str, Described]]:
    """The metrics of each role of a system, by role kind and name. Where the text depends on a setting, the first text is used."""
    found: dict[str, dict[str, Described]] = {kind: {} for kind in system.kinds}
    kinds: Mapping[str, RoleKind[RoleSettings]] = load(system.roles)
    for name, kind in kinds.items():
        described = [Described(str(one), one.kind, tuple(one.labels), one.help) for one in declared(*kind.metrics)]
        found[name] = {one.name: one for one in described}
    proof = installed_proofs().get(system.name)
    for target in _roles(proof) if proof and proof.fuzz and not any(found.values()) else ():
        # Sends good messages to the role, because metrics about learning exist only after some.
        target.finish()
        for measured in target.role.measure():
            one = describe(measured)
            found[target.settings.role.kind].setdefault(one.name, one)
    return found


def worker_metrics() -> dict[str, Described]:
    """The metrics of a worker of any role, by name."""
    target = next((role for proof in installed_proofs().values() if proof.fuzz for role in _roles(proof)), None)
    if target is None:
        raise ConfigurationError(f"no installed package has a role to measure: the group {GROUP} names none")
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
    return "\n\n".join(f"### Metrics of {kind}\n\n{_table(metrics)}" for kind, metrics in role_metrics(system).items() if metrics)


def _table(found: dict[str, Described]) -> str:
    rows = [(f"`{name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help) for name, one in found.items()]
    return table(HEADING, rows)


def _roles(proof: Proof) -> Iterator[RoleTarget]:
    for name, make in load(proof.fuzz or "")(Random(0)).items():
        target = make(name)
        if isinstance(target, RoleTarget):
            yield target
