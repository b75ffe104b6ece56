"""From ``[role] kind`` to a running role, through the installed systems."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.channels import Channels, TopicSpec
from streamfl.contract.refusals import REFUSALS
from streamfl.contract.system import find_system, installed_systems, load
from streamfl.identity import load_identity, sealed_channels
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.bus import Bus, Subscription, new_transactional_id
from streamfl.runtime.co_partitions import placed_inputs
from streamfl.runtime.metrics import Metrics
from streamfl.runtime.pool import Pool
from streamfl.runtime.repair import Repair
from streamfl.runtime.repartition import Repartition
from streamfl.runtime.reset import Reset
from streamfl.runtime.worker import Worker

if TYPE_CHECKING:
    from streamfl.runtime.spans import Traces

__all__ = [
    "build_channels",
    "build_repair",
    "build_repartition",
    "build_reset",
    "build_worker",
    "federation_topics",
    "find_kind",
]

AnyWorker = TypeVar("AnyWorker", bound=Worker)


@functools.cache
def find_kind(name: str) -> RoleKind[Any]:
    """The role kind of this name. ConfigurationError if there is none; it names those that exist."""
    kind: RoleKind[Any] = load(find_system(name).roles)[name]
    return kind


def federation_topics(members: Iterable[RoleSettings], partitions: int) -> list[TopicSpec]:
    """The topics of the members, each once. partitions: of those that may have any number."""
    specs = {
        spec.name: spec for settings in members for spec in find_kind(settings.role.kind).topics(settings)
    }
    return [dataclasses.replace(spec, partitions=spec.partitions or partitions) for spec in specs.values()]


def build_channels(settings: RoleSettings) -> Channels:
    """The channels of the role that ``settings`` describe, sealed if its federation's members have keys.

    ConfigurationError if there is no such role, or key file and members' file do not fit together.
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
    pool: Pool | None = None,
    kind: RoleKind[Any] | None = None,
    traces: Traces | None = None,
) -> Worker:
    """A worker of the role that ``settings`` describe, on ``bus``.

    clock: the role's time in seconds.
    monotonic, sleep: the clock and the sleep for the worker's own waiting.
    pool: does the role's work; None: the loop does it.
    kind: None takes the kind of ``settings.role``; another kind has no peers.
    traces: gets the spans of its steps.
    ConfigurationError if there is no such role or its settings do not fit together.
    """
    given: dict[str, Any] = {"clock": clock, "monotonic": monotonic, "sleep": sleep, "pool": pool}
    if traces is None:
        return _build(Worker, settings, bus, kind, **given)
    # Imported here, so that OpenTelemetry is loaded only for traces.
    from streamfl.runtime.spans import TracedWorker

    return _build(TracedWorker, settings, bus, kind, traces=traces, **given)


def build_repair(settings: RoleSettings, bus: Bus, kind: RoleKind[Any] | None = None) -> Repair:
    """A worker that makes one change of the role's state. kind, errors: as for :func:`build_worker`."""
    return _build(Repair, settings, bus, kind)


def build_reset(settings: RoleSettings, bus: Bus, kind: RoleKind[Any] | None = None) -> Reset:
    """A worker that resets the role that ``settings`` describe. kind, errors: as for :func:`build_worker`."""
    return _build(Reset, settings, bus, kind)


def build_repartition(settings: RoleSettings, bus: Bus, kind: RoleKind[Any] | None = None) -> Repartition:
    """A worker that deals the role's state over more partitions. kind, errors: as for
    :func:`build_worker`."""
    bus_settings = settings.bus.model_copy(update={"processing_guarantee": "exactly_once"})
    return _build(Repartition, settings.model_copy(update={"bus": bus_settings}), bus, kind)


def _build(
    worker: type[AnyWorker], settings: RoleSettings, bus: Bus, own: RoleKind[Any] | None, **given: Any
) -> AnyWorker:
    kind = own or find_kind(settings.role.kind)
    role = kind.build(settings)
    channels = build_channels(settings) if own is None else own.channels(settings)
    return worker(
        role,
        channels,
        bus,
        subscription_of(settings, channels),
        settings.dead_letters,
        commit_interval=settings.bus.commit_interval_ms / 1000,
        max_records=settings.bus.max_poll_records,
        restore_seconds=settings.bus.connect_timeout_seconds,
        stall_seconds=settings.bus.stall_timeout_seconds,
        progress_seconds=settings.log.progress_seconds,
        state_settings=kind.state_settings(settings),
        metrics=_metrics(settings, kind),
        **given,
    )


def subscription_of(settings: RoleSettings, channels: Channels) -> Subscription:
    """What a worker with these settings and channels joins."""
    return Subscription(
        group=settings.group,
        inputs=tuple(source.topic for source in channels.inputs.values()),
        tables=tuple(table.topic for table in channels.tables.values()),
        guarantee=settings.bus.processing_guarantee,
        auto_offset_reset=settings.bus.auto_offset_reset,
        transactional_id=new_transactional_id(settings.group),
        placed=placed_inputs(channels),
        partitions=channels.partitions,
    )


def _metrics(settings: RoleSettings, kind: RoleKind[Any]) -> Metrics:
    # A role that is not installed, such as a test's own, counts as its own system.
    system = next((one for one in installed_systems() if settings.role.kind in one.kinds), None)
    name, refusals = (kind.name, {}) if system is None else (system.name, system.refusals)
    labels = {
        "system": name,
        "federation": settings.federation.name,
        "role": kind.name,
        "group": settings.group,
    }
    inputs = [source.topic for source in kind.channels(settings).inputs.values()]
    return Metrics(labels=labels, refusals={**REFUSALS, **refusals}, inputs=inputs)
