"""``streamfl run``: a role as a long-running consumer."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, NoReturn

from streamfl.cli.access import rights
from streamfl.cli.preflight import Configured, namesake_problem, namesakes, read_configuration, wrong_topics
from streamfl.cli.unreadable import telling_remedy
from streamfl.contract.role import ConfigurationError
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.bus import Bus
from streamfl.runtime.cluster_watch import ClusterWatch, topics_of
from streamfl.runtime.co_partitions import strict_inputs
from streamfl.runtime.dealing import added
from streamfl.runtime.garbage import long_lived_set_aside
from streamfl.runtime.health import Watchdog
from streamfl.runtime.health_server import HealthServer
from streamfl.runtime.identity_watch import IdentityWatch
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.log import configure, logger
from streamfl.runtime.open_transactions import OpenTransactions
from streamfl.runtime.pool import Processes
from streamfl.runtime.rights import Guarded
from streamfl.runtime.tracing import begin_traces
from streamfl.runtime.worker import Worker
from streamfl.terminal.console import ConfigArgument
from streamfl.terminal.exit_codes import ExitCode
from streamfl.terminal.progress import progress

__all__ = ["run", "serve"]

log = logger(__name__)

STOPPING = (signal.SIGTERM, signal.SIGINT)
# An orchestrator kills after 10 s or more; another worker takes up what was not committed by then.
LEAVE_SECONDS = 9.0
LAST_LINE_SECONDS = 1.0
# Several workers may run from one file on a machine, and Prometheus can scrape a range of ports.
OTHER_PORTS = 15


def run(config: ConfigArgument) -> None:
    """Run a role until told to stop (SIGTERM or Ctrl-C: the batch is finished, committed, and the group
    left)."""
    serve(read_configuration(config))


def serve(configured: Configured, kind: RoleKind[Any] | None = None) -> None:
    """Run a worker until told to stop. kind: the worker's role kind; None: the one that the settings name."""
    settings = configured.settings
    configure(settings.log.level, settings.log.format)
    stop, begun, leaving = threading.Event(), threading.Event(), ExitStack()
    lost: list[str] = []
    for number in STOPPING:
        signal.signal(number, lambda _number, _frame: _stop(stop, begun, leaving))
    log.info("connecting", url=settings.bus.url)
    with progress(f"connecting to {settings.bus.url}", write=log.info):
        connected = configured.connect()
    with leaving, closing(connected) as bus, ExitStack() as held:
        _check_cluster(configured, bus, check_names=kind is None)
        traces = begin_traces(settings)
        if traces is not None:
            held.callback(traces.close)
        worker = build_worker(settings, bus, pool=Processes(), kind=kind, traces=traces)
        _watch(configured, bus, worker, held, lambda text: _end_lost(stop, lost, leaving, text))
        log.info(
            "running", role=configured.kind.name, federation=settings.federation.name, group=settings.group
        )
        begun.set()
        try:
            with telling_remedy(configured), long_lived_set_aside():
                worker.run(stop)
        finally:
            # Any other error then follows from the lost topic.
            if lost:
                raise ConfigurationError(lost[0])
    log.info("stopped")


def _check_cluster(configured: Configured, bus: Bus, check_names: bool) -> None:
    """ConfigurationError if a topic is wrong, or another system's roles have the federation's name; warns of
    rights that are missing. check_names: look for these."""
    wrong = wrong_topics(configured, bus)
    if check_names and (others := namesakes(configured, bus)):
        wrong.append(namesake_problem(configured, others))
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    # Most rights are first asked for long after the start: that to read a changelog, when there is state.
    for right in bus.missing_rights(rights(configured, "User:NAME")) if isinstance(bus, Guarded) else ():
        # Topics of the federation are refused above without it.
        needed = right.operations != ("DescribeConfigs",)
        then = "stops when it needs it" if needed else "goes on without it"
        log.warning(
            f"a right on {right.resource} {right.name} is missing: the worker {then}",
            missing=", ".join(right.operations),
            remedy=f"kafka-acls.sh --bootstrap-server … --add {right.arguments}",
        )


def _watch(
    configured: Configured, bus: Bus, worker: Worker, held: ExitStack, end: Callable[[str], None]
) -> None:
    """Begin what runs beside the worker, until ``held`` is closed. end: ends the worker, because a topic is
    gone."""
    settings = configured.settings
    held.callback(Watchdog(worker.health, _end_stalled).close)
    if settings.metrics.port is not None:
        host, port = settings.metrics.host, settings.metrics.port
        server = HealthServer(host, port, worker.health, worker.metrics.render, others=OTHER_PORTS)
        held.callback(server.close)
        if port not in (0, server.port):
            log.warning(
                "metrics.port is taken: another worker on this machine?", port=port, serving_on=server.port
            )
        log.info("serving metrics and health", host=host, port=server.port)
    channels = configured.kind.channels(settings)
    topics = topics_of(channels, settings.dead_letters)
    read = [
        *(source.topic for source in channels.sources.values()),
        *channels.changelogs.values(),
    ]
    watch = ClusterWatch(
        bus,
        topics,
        settings.group,
        worker.health,
        end,
        settings.bus.connect_timeout_seconds,
        lag=worker.lag,
        transactions=OpenTransactions(bus, read, time.monotonic),
        inputs=strict_inputs(channels),
        partitions=channels.partitions,
        grown=lambda topic, before, now: added(topic, before, now, channels, settings.group),
        changelogs=[*channels.changelogs.values()],
    )
    watch.start()
    held.callback(watch.close)
    if settings.identity.key_file is not None:
        keys = IdentityWatch(settings, worker.health)
        keys.start()
        held.callback(keys.close)


def _limit(leaving: ExitStack, end: Callable[[], None]) -> None:
    """End the process after LEAVE_SECONDS, unless it has left by then: without a cluster, leaving the group
    may take longer."""
    timer = threading.Timer(LEAVE_SECONDS, end)
    timer.daemon = True
    leaving.callback(timer.cancel)
    timer.start()


def _stop(stop: threading.Event, begun: threading.Event, leaving: ExitStack) -> None:
    if not begun.is_set():
        # The process holds nothing yet, and connecting to an unavailable cluster may take long.
        _end(0, partial(log.info, "stopped before it began"))
    for number in STOPPING:
        # Otherwise the next one ends the process, without an exit code, while Python shuts down.
        signal.signal(number, signal.SIG_IGN)
    if stop.is_set():
        return
    stop.set()
    _limit(leaving, _end_leaving)


def _end_lost(stop: threading.Event, lost: list[str], leaving: ExitStack, text: str) -> None:
    lost.append(text)
    stop.set()
    # A client library may retry writing to a missing topic for a long time.
    _limit(leaving, lambda: os._exit(ExitCode.CONFIGURATION))
    what = "a topic is gone, was deleted and created again, or has more partitions: ending the process"
    log.critical(what, cause=text, exit_code=ExitCode.CONFIGURATION)


def _end_leaving() -> None:
    what = "the group could not be left in time: ending the process"
    _end(ExitCode.STALLED, partial(log.critical, what, seconds=LEAVE_SECONDS, exit_code=ExitCode.STALLED))


def _end_stalled() -> None:
    # Records have been taken and their commit does not return. They are not committed, so ending here loses
    # nothing.
    what = "the worker loop hangs: ending the process so that another can take over"
    _end(ExitCode.STALLED, partial(log.critical, what, exit_code=ExitCode.STALLED))


def _end(code: int, tell: Callable[[], None]) -> NoReturn:
    """End the process now. What hangs may be the log itself, if nobody reads it: then it ends without the
    line."""
    limit = threading.Timer(LAST_LINE_SECONDS, os._exit, (code,))
    limit.daemon = True
    limit.start()
    try:
        # In this thread: a signal may have come amid another line, and its lock lets only this thread in.
        tell()
    finally:
        os._exit(code)
