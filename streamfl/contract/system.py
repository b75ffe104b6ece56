"""The manifest of a learning system, and which systems are installed.

A system is one folder: its roles, and its tools: simulation, dashboards, comparison. Nothing outside that
folder knows its name. streamfl finds it by an entry point of the group ``streamfl.systems``, in this or any
other package::

    [project.entry-points."streamfl.systems"]
    running-mean = "running_mean:SYSTEM"

What proves it is not in its manifest: see :mod:`streamfl.testing.proof`.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from streamfl.contract.refusals import Reason
from streamfl.contract.role import ConfigurationError

__all__ = [
    "System",
    "find_system",
    "installed_systems",
    "load",
    "load_parts",
    "parts_of_systems",
    "systems_with",
]

log = logging.getLogger(__name__)

GROUP = "streamfl.systems"
OWN = "streamfl"
# The source of members: not a part of them, so that the options of `streamfl replay` load no settings.
SAMPLES_OF_CLIENTS = "streamfl.simulation.sources:client_samples"


@dataclass(frozen=True)
class System:
    """One learning system.

    Every value but name, summary, kinds, rank, refusals, notices and extras is a place, "module:attribute".
    It is loaded only when it is needed: a worker never imports a system's tools.

    name: the name in ``streamfl demo NAME`` and ``make simulate SYSTEM=NAME``.
    summary: what it learns from, in a few words.
    kinds: the names of its roles, as in ``[role] kind``.
    roles: a dictionary from each of these names to its :class:`streamfl.roles.role_kind.RoleKind`.
    members: who takes part, a :class:`streamfl.simulation.clients.ClientMembers`. ``simulate`` and ``demo``
    follow from it, and the source of the first of ``kinds``, unless they are named, and so do scenarios under
    faults and targets of wrong messages that a registered proof does not name.
    rank: the order in which systems are listed. If a user names none, the first system with a demo is shown.
    simulate: a :class:`streamfl.simulation.system_tools.Simulation`, for ``streamfl simulate``.
    demo: a :class:`streamfl.simulation.system_tools.Demo`, for ``streamfl demo``.
    sources: by role kind, a :class:`streamfl.simulation.system_tools.Source`: a table's rows as that role's
    records.
    commands: by name, functions that become commands of ``streamfl``.
    dashboards: a tuple of :class:`streamfl.monitoring.dashboard.Dashboard`, the overview first. None: one
    that is made from the declared metrics.
    alerts: a tuple of :class:`streamfl.monitoring.alerts.Alert`. None: one for each declared headline
    counter, if it stops.
    report: a :class:`streamfl.simulation.page.Reports`, for ``streamfl report``.
    readers: by the last part of a topic's name, such as "updates", a
    :class:`streamfl.simulation.system_tools.Readers`.
    inspect: by role kind, a :class:`streamfl.simulation.system_tools.Inspection`: what is shown of the role's
    state.
    standings: by role kind, a :class:`streamfl.simulation.system_tools.Standings`: how it stands with its
    peers; left out: what the role waits for before it learns, if it can say that.
    exports: by name, the object that is exported as ``streamfl.NAME``.
    refusals, notices: the system's own reasons for refusing records and for notices in the log.
    :mod:`.refusals` has the common ones.
    extras: by name, the extras that its parts need, and what for.
    """

    name: str
    summary: str
    kinds: tuple[str, ...]
    roles: str
    rank: int = 100
    simulate: str | None = None
    demo: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, str] = field(default_factory=dict)
    dashboards: str | None = None
    alerts: str | None = None
    report: str | None = None
    readers: Mapping[str, str] = field(default_factory=dict)
    inspect: Mapping[str, str] = field(default_factory=dict)
    standings: Mapping[str, str] = field(default_factory=dict)
    exports: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, Reason] = field(default_factory=dict)
    notices: Mapping[str, Reason] = field(default_factory=dict)
    extras: Mapping[str, str] = field(default_factory=dict)
    members: str | None = None

    def __post_init__(self) -> None:
        texts = [self.name, self.summary, self.roles]
        if not isinstance(self.kinds, tuple) or not all(
            isinstance(text, str) for text in (*texts, *self.kinds)
        ):
            raise TypeError(f"{self.name}: name, summary and roles are texts, and kinds is a tuple of texts")
        if not isinstance(self.rank, int):
            raise TypeError(f"{self.name}: rank = {self.rank!r} is no whole number")
        if self.members is not None:
            for part in ("simulate", "demo"):
                object.__setattr__(self, part, getattr(self, part) or f"{self.members}.{part}")
            sources = self.sources or dict.fromkeys(self.kinds[:1], SAMPLES_OF_CLIENTS)
            object.__setattr__(self, "sources", sources)
        own = (self.members, self.simulate, self.demo, self.dashboards, self.alerts, self.report)
        parts = [part for part in own if part is not None]
        groups = (self.sources, self.commands, self.readers, self.inspect, self.standings, self.exports)
        for group in (*groups, self.refusals, self.notices, self.extras):
            if not isinstance(group, Mapping):
                raise TypeError(
                    f"{self.name}: sources, commands, readers, inspect, standings, exports, refusals, "
                    f"notices and extras are dictionaries, not {group!r}"
                )
        parts += [place for group in groups for place in group.values()]
        for name, reason in (*self.refusals.items(), *self.notices.items()):
            if not isinstance(reason, Reason):
                raise TypeError(
                    f"{self.name}: {name!r} is {reason!r}, a streamfl.contract.refusals.Reason is expected"
                )
        for place in (self.roles, *parts):
            if not isinstance(place, str) or ":" not in place:
                raise TypeError(f'{self.name}: {place!r} is not a place: "module:attribute" is expected')


@functools.cache
def installed_systems() -> tuple[System, ...]:
    """Every system of the group ``streamfl.systems``, sorted by rank and name.

    A system whose manifest cannot be loaded, or whose name is taken, is left out and logged: it must not stop
    the others. Names go to streamfl's own systems first.
    """
    found: list[System] = []
    own_first = sorted(
        entry_points(group=GROUP),
        key=lambda entry: (entry.dist is None or entry.dist.name != OWN, entry.name),
    )
    for entry in own_first:
        try:
            system = entry.load()
            if not isinstance(system, System):
                raise TypeError(f"it is a {type(system).__name__}, not a streamfl.contract.system.System")
            taken = {name for other in found for name in (other.name, *other.kinds)} & {
                system.name,
                *system.kinds,
            }
            if taken:
                raise TypeError(f"another system has the name {', '.join(sorted(taken))}")
        except (Exception, SystemExit) as error:
            log.warning(
                "the system %r, %s, cannot be loaded and is left out: %s", entry.name, entry.value, error
            )
            continue
        found.append(system)
    return tuple(sorted(found, key=lambda system: (system.rank, system.name)))


def parts_of_systems(part: str) -> dict[str, Any]:
    """The loaded part, such as "simulate", by the name of each system that has it. A part that cannot be
    loaded is left out."""
    return load_parts({name: getattr(system, part) for name, system in systems_with(part).items()})


def systems_with(part: str) -> dict[str, System]:
    """The systems that have this part, such as "demo", by name."""
    return {system.name: system for system in installed_systems() if getattr(system, part)}


def find_system(kind: str) -> System:
    """The system that has this role. ConfigurationError if there is none; it names the roles that exist."""
    for system in installed_systems():
        if kind in system.kinds:
            return system
    known = sorted(kind for system in installed_systems() for kind in system.kinds)
    raise ConfigurationError(f"role.kind = {kind!r}: there is no such role; known are {', '.join(known)}")


def load(place: str) -> Any:
    """The object at "module:attribute", or at an attribute of it; ConfigurationError if the module does not
    have it."""
    module, _, attribute = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(f"{place}: {module} has no {attribute}; a system's manifest names it")
        found = getattr(found, name)
    return found


def load_parts(places: Mapping[str, str]) -> dict[str, Any]:
    """The objects at these places, by the same names. An object that cannot be loaded is left out and
    logged."""
    found = {}
    for name, place in places.items():
        try:
            found[name] = load(place)
        except (Exception, SystemExit) as error:
            # Our own parts are always installed: a failure here means that the machine lacks resources.
            if place.startswith(f"{OWN}."):
                raise
            log.warning("%s: %s cannot be loaded and is left out: %s", name, place, error)
    return found
