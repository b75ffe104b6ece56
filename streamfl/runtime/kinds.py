"""From ``[role] kind`` to a running role: every package ``streamfl.<system>`` with a module ``roles`` offers its own kinds."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
import time
from collections.abc import Callable
from typing import Any, TypeVar

import streamfl
from streamfl.identity import load_identity, sealed_channels
from streamfl.role import Channels, ConfigurationError
from streamfl.role_kind import RoleKind
from streamfl.runtime.bus import Bus, Subscription, new_transactional_id
from streamfl.runtime.repair import Repair
from streamfl.runtime.worker import Worker
from streamfl.settings import RoleSettings

__all__ = ["build_channels", "build_repair", "build_worker", "find_kind", "known_kinds"]

AnyWorker = TypeVar("AnyWorker", bound=Worker)


@functools.cache
def known_kinds() -> dict[str, RoleKind[Any]]:
    """Every role kind that is installed, by name."""
    kinds: dict[str, RoleKind[Any]] = {}
    for system in pkgutil.iter_modules(streamfl.__path__, "streamfl."):
        # Looked up as a file: importing every system only to see whether it has roles would load the command line too.
        if system.ispkg and _has_roles(system.name):
            kinds.update(importlib.import_module(f"{system.name}.roles").ROLES)
    return kinds


def find_kind(name: str) -> RoleKind[Any]:
    """The role kind of this name; ConfigurationError names those that exist."""
    kinds = known_kinds()
    if name not in kinds:
        raise ConfigurationError(f"role.kind = {name!r}: there is no such role; known are {', '.join(sorted(kinds))}")
    return kinds[name]


def build_channels(settings: RoleSettings) -> Channels:
    """The channels of the role that ``settings`` describe, sealed if its federation's members have keys.

    ConfigurationError if there is no such role, or key file and members' file do not fit.
    """
    channels = find_kind(settings.role.kind).channels(settings)
    identity = load_identity(settings)
    return channels if identity is None else sealed_channels(channels, identity)


def build_worker(
    settings: RoleSettings,
    bus: Bus,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Worker:
    """A worker of the role that ``settings`` describe, on ``bus``.

    clock: the role's time in seconds. monotonic, sleep: by what the worker measures its own waiting.
    ConfigurationError if there is no such role or its settings do not fit together.
    """
    return _build(Worker, settings, bus, clock=clock, monotonic=monotonic, sleep=sleep)


def build_repair(settings: RoleSettings, bus: Bus) -> Repair:
    """A worker of the role that ``settings`` describe, for one change of what it remembers; errors as :func:`build_worker`."""
    return _build(Repair, settings, bus)


def _build(worker: type[AnyWorker], settings: RoleSettings, bus: Bus, **clocks: Callable[..., Any]) -> AnyWorker:
    kind = find_kind(settings.role.kind)
    role = kind.build(settings)
    channels = build_channels(settings)
    subscription = Subscription(
        group=settings.group,
        inputs=tuple(source.topic for source in channels.inputs.values()),
        tables=tuple(table.topic for table in channels.tables.values()),
        guarantee=settings.bus.processing_guarantee,
        auto_offset_reset=settings.bus.auto_offset_reset,
        transactional_id=new_transactional_id(settings.group),
    )
    return worker(
        role,
        channels,
        bus,
        subscription,
        settings.dead_letters,
        commit_interval=settings.bus.commit_interval_ms / 1000,
        max_records=settings.bus.max_poll_records,
        restore_seconds=settings.bus.connect_timeout_seconds,
        stall_seconds=settings.bus.stall_timeout_seconds,
        progress_seconds=settings.log.progress_seconds,
        made_with=kind.made_with(settings),
        **clocks,
    )


def _has_roles(package: str) -> bool:
    specification = importlib.util.find_spec(package)
    locations = specification.submodule_search_locations if specification else None
    return any(module.name == "roles" for module in pkgutil.iter_modules(locations)) if locations else False
