"""What a learning system brings along, and which systems are installed.

A system is one folder: its roles, and a laboratory in which it is simulated, shown, compared and broken. Nothing outside that
folder knows its name. It is found by an entry point of the group ``streamfl.systems``, in this package or in anybody's::

    [project.entry-points."streamfl.systems"]
    running-mean = "running_mean:SYSTEM"
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from streamfl.role import ConfigurationError

__all__ = ["System", "find_system", "installed_systems", "load", "load_parts", "parts_of_systems", "systems_with"]

log = logging.getLogger(__name__)

GROUP = "streamfl.systems"
OWN = "streamfl"


@dataclass(frozen=True)
class System:
    """One learning system.

    Every value but name, summary, kinds, rank, refusals and extras is a place, "module:attribute". It is loaded when asked for: a
    worker never imports a laboratory.

    name: as ``streamfl demo NAME`` and ``make simulate SYSTEM=NAME`` say it.
    summary: what it learns from, in a few words.
    kinds: the names of its roles, as ``[role] kind`` says them.
    roles: a dictionary from each of these names to its :class:`streamfl.role_kind.RoleKind`.
    rank: systems are listed by it; the first that has a demo is shown where none is named.
    simulate: a :class:`streamfl.simulation.system_tools.Simulation`, for ``streamfl simulate``.
    demo: a :class:`streamfl.simulation.system_tools.Demo`, for ``streamfl demo``.
    sources: by role kind, a :class:`streamfl.simulation.system_tools.Source`: a table's rows as that role's records.
    faults: a :class:`streamfl.simulation.faults.FaultSimulation`: scenarios by seed, and what has to hold of them.
    fuzz: a :class:`streamfl.testing.fuzz.federations.Fuzzed`: recorded messages, and who takes wrong ones.
    commands: by name, functions that become commands of ``streamfl``.
    dashboards: a tuple of :class:`streamfl.monitoring.dashboard.Dashboard`, the overview first.
    alerts: a tuple of :class:`streamfl.monitoring.alerts.Alert`.
    report: a :class:`streamfl.simulation.page.Reports`, for ``streamfl report``.
    readers: by the last part of a topic's name, such as "updates", a :class:`streamfl.simulation.system_tools.Readers`.
    inspect: by role kind, a :class:`streamfl.simulation.system_tools.Inspection`: what is shown of the role's state.
    standings: by role kind, a :class:`streamfl.simulation.system_tools.Standings`: how it stands with its peers.
    exports: by name, what ``streamfl.NAME`` is.
    refusals: reasons why its roles alone refuse records, and what each means; :mod:`streamfl.refusals` has those of all systems.
    extras: by name, extras that parts of it need, and what for.
    """

    name: str
    summary: str
    kinds: tuple[str, ...]
    roles: str
    rank: int = 100
    simulate: str | None = None
    demo: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    faults: str | None = None
    fuzz: str | None = None
    commands: Mapping[str, str] = field(default_factory=dict)
    dashboards: str | None = None
    alerts: str | None = None
    report: str | None = None
    readers: Mapping[str, str] = field(default_factory=dict)
    inspect: Mapping[str, str] = field(default_factory=dict)
    standings: Mapping[str, str] = field(default_factory=dict)
    exports: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        texts = [self.name, self.summary, self.roles]
        if not isinstance(self.kinds, tuple) or not all(isinstance(text, str) for text in (*texts, *self.kinds)):
            raise TypeError(f"{self.name}: name, summary and roles are texts, and kinds is a tuple of texts")
        if not isinstance(self.rank, int):
            raise TypeError(f"{self.name}: rank = {self.rank!r} is no whole number")
        own = (self.simulate, self.demo, self.faults, self.fuzz, self.dashboards, self.alerts, self.report)
        parts = [part for part in own if part is not None]
        shown = (self.readers, self.inspect, self.standings)
        for group in (self.sources, self.commands, *shown, self.exports, self.refusals, self.extras):
            if not isinstance(group, Mapping):
                raise TypeError(
                    f"{self.name}: sources, commands, readers, inspect, standings, exports, refusals and extras are dictionaries, "
                    f"not {group!r}"
                )
            parts += [] if group is self.refusals or group is self.extras else group.values()
        for place in (self.roles, *parts):
            if not isinstance(place, str) or ":" not in place:
                raise TypeError(f"{self.name}: {place!r} is no place: \"module:attribute\" is expected")


@functools.cache
def installed_systems() -> tuple[System, ...]:
    """Every system of the group ``streamfl.systems``, by rank and name.

    A package is left out, and the log says why, if its manifest cannot be loaded or takes a name that is taken: it must not stop
    the others. Those of streamfl come first.
    """
    found: list[System] = []
    own_first = sorted(entry_points(group=GROUP), key=lambda entry: (entry.dist is None or entry.dist.name != OWN, entry.name))
    for entry in own_first:
        try:
            system = entry.load()
            if not isinstance(system, System):
                raise TypeError(f"it is a {type(system).__name__}, not a streamfl.system.System")
            taken = {name for other in found for name in (other.name, *other.kinds)} & {system.name, *system.kinds}
            if taken:
                raise TypeError(f"another system has the name {', '.join(sorted(taken))}")
        except (Exception, SystemExit) as error:
            log.warning("the system %r, %s, cannot be loaded and is left out: %s", entry.name, entry.value, error)
            continue
        found.append(system)
    return tuple(sorted(found, key=lambda system: (system.rank, system.name)))


def parts_of_systems(part: str) -> dict[str, Any]:
    """By the name of each system that has this part, such as "simulate", what it is; what cannot be loaded is left out."""
    return load_parts({name: getattr(system, part) for name, system in systems_with(part).items()})


def systems_with(part: str) -> dict[str, System]:
    """By name, the systems that have this part, such as "demo"."""
    return {system.name: system for system in installed_systems() if getattr(system, part)}


def find_system(kind: str) -> System:
    """The system that has this role; ConfigurationError names the roles that exist."""
    for system in installed_systems():
        if kind in system.kinds:
            return system
    known = sorted(kind for system in installed_systems() for kind in system.kinds)
    raise ConfigurationError(f"role.kind = {kind!r}: there is no such role; known are {', '.join(known)}")


def load(place: str) -> Any:
    """What stands at "module:attribute"; ConfigurationError if it is not there."""
    module, _, attribute = place.partition(":")
    found = importlib.import_module(module)
    if not hasattr(found, attribute):
        raise ConfigurationError(f"{place}: {module} has no {attribute}; a system's manifest names it")
    return getattr(found, attribute)


def load_parts(places: Mapping[str, str]) -> dict[str, Any]:
    """What stands at these places, by the same names; what cannot be loaded is left out, and the log says why."""
    found = {}
    for name, place in places.items():
        try:
            found[name] = load(place)
        except (Exception, SystemExit) as error:
            # What is our own is there, unless the machine gives too little.
            if place.startswith(f"{OWN}."):
                raise
            log.warning("%s: %s cannot be loaded and is left out: %s", name, place, error)
    return found
