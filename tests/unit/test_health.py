"""The HTTP health answers and the watchdog, while the worker works and when it hangs."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from clock import Clock

from streamfl.contract.role import ConfigurationError, Measurement
from streamfl.runtime import health_server
from streamfl.runtime.health import Health, Watchdog
from streamfl.runtime.health_server import Allowance, HealthServer
from streamfl.runtime.metrics import CONTENT_TYPE, Metrics


@pytest.fixture(name="clock")
def _clock() -> Clock:
    return Clock()


@pytest.fixture(name="health")
def _health(clock: Clock) -> Health:
    return Health(stall_seconds=10, clock=clock)


@pytest.fixture(name="server")
def _server(health: Health) -> Iterator[HealthServer]:
    metrics = Metrics(
        lambda: [
            Measurement("updates", "counter", "By fate.", 2.0, (("fate", fate),)) for fate in ("sent", "lost")
        ]
    )
    with HealthServer("127.0.0.1", 0, health, metrics.render) as server:
        yield server


def ask(server: HealthServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def test_health_turns_red_when_the_loop_stops(server: HealthServer, health: Health, clock: Clock) -> None:
    """Protects the restart of a hanging process: 503 after the stated time without a loop, 200 again after
    the next one."""
    health.completed()
    clock.now = 10.0
    assert ask(server, "/healthz")[0] == 200
    clock.now = 10.1
    status, _, text = ask(server, "/healthz")
    assert status == 503
    assert "10 s" in text
    health.completed()
    assert ask(server, "/healthz")[0] == 200


def test_an_outage_is_not_ready_at_once_and_red_in_the_end(
    server: HealthServer, health: Health, clock: Clock
) -> None:
    """Protects workers from restarts for a short outage of the cluster; the answer names the cause."""
    assert ask(server, "/readyz")[0] == 503
    health.completed()
    assert ask(server, "/readyz")[0] == 200
    health.failed("no broker answered")
    status, _, text = ask(server, "/readyz")
    assert (status, text) == (503, "bus: no broker answered\n")
    assert ask(server, "/healthz")[0] == 200
    clock.now = 11.0
    health.failed("no broker answered")
    status, _, text = ask(server, "/healthz")
    assert status == 503
    assert "no broker answered" in text


def test_metrics_are_in_prometheus_format(server: HealthServer) -> None:
    """Protects scraping: the content type, one family for all labels of a name, and every metric with its
    prefix."""
    status, kind, text = ask(server, "/metrics")
    assert (status, kind) == (200, CONTENT_TYPE)
    assert text.count("# TYPE streamfl_updates_total counter") == 1
    assert 'streamfl_updates_total{fate="sent"} 2.0' in text
    assert 'streamfl_updates_total{fate="lost"} 2.0' in text


def test_other_paths_are_not_found(server: HealthServer) -> None:
    """Protects against a probe on a misspelt path that would always succeed."""
    assert ask(server, "/")[0] == 404
    assert ask(server, "/healthzz")[0] == 404
    assert ask(server, "/healthz?verbose")[0] == 200
    assert ask(server, "/healthz", "HEAD") == (200, "text/plain; charset=utf-8", "")


def test_a_taken_port_is_a_configuration_error(server: HealthServer, health: Health) -> None:
    """Protects the operator from a traceback: two workers on one port are a configuration error that names
    the key."""
    with pytest.raises(ConfigurationError, match=r"metrics\.port"):
        HealthServer("127.0.0.1", server.port, health, bytes)


def test_an_idle_worker_is_not_stuck(health: Health, clock: Clock) -> None:
    """Protects quiet federations from their watchdog: only records that wait for their commit count."""
    seen = []
    health.completed()
    clock.now = 1000.0
    seen.append(health.stuck)
    health.begin()
    clock.now = 1010.0
    seen.append(health.stuck)
    clock.now = 1010.1
    seen.append(health.stuck)
    health.failed("the broker is away")
    seen.append(health.stuck)
    assert seen == [False, False, True, False]


def test_the_watchdog_ends_a_hang(health: Health, clock: Clock) -> None:
    """Protects against a client library's call that never returns: the watchdog acts, and only once."""
    barked = threading.Semaphore(0)
    watchdog = Watchdog(health, barked.release, every_seconds=0.001)
    health.begin()
    clock.now = 11.0
    assert barked.acquire(timeout=60)
    watchdog.close()
    assert not barked.acquire(blocking=False)


def hang_up(server: HealthServer, said: bytes, at_once: bool) -> None:
    """Send a request, read nothing, and reset the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(said)
        if not at_once:
            connection.recv(1)


def test_who_hangs_up_leaves_no_traceback(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    """Protects the log from load balancers that probe the port: half requests and resets are not reported as
    errors."""
    health = Health(stall_seconds=10, clock=clock)
    with HealthServer("127.0.0.1", 0, health, lambda: b"x" * 20_000_000) as server:
        for said in (
            b"",
            b"GET /met",
            b"GET /metrics HTTP/1.1\r\n",
            b"\x16\x03\x01\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n\r\n",
        ):
            for _ in range(5):
                hang_up(server, said, at_once=True)
        hang_up(server, b"GET /metrics HTTP/1.1\r\n\r\n", at_once=False)
        assert ask(server, "/metrics")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_page_that_fails_is_one_line(
    clock: Clock, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Protects the log from a traceback at every scrape; the error is reported in one line."""

    def broken() -> bytes:
        raise MemoryError("no room")

    with (
        HealthServer("127.0.0.1", 0, Health(clock=clock), broken) as server,
        pytest.raises(http.client.HTTPException),
    ):
        ask(server, "/metrics")
    assert "MemoryError" in caplog.text
    assert "Traceback" not in caplog.text + capfd.readouterr().err


def slow(server: HealthServer, many: int) -> list[socket.socket]:
    """Connections with half a request each."""
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(many)]
    for connection in connections:
        connection.sendall(b"GET /met")
    return connections


def is_gone(connection: socket.socket) -> bool:
    """Wait until the server closes it."""
    try:
        return not connection.recv(1)
    except ConnectionError:
        return True


@pytest.fixture(name="endless")
def _endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection times out."""
    monkeypatch.setattr(health_server, "REQUEST_SECONDS", 1e6)


@pytest.mark.usefixtures("endless")
def test_slow_connections_are_bounded(server: HealthServer, caplog: pytest.LogCaptureFixture) -> None:
    """Protects learning from strangers: each silent connection had its own thread. Now the oldest are closed,
    with one log line."""
    before = threading.active_count()
    with ExitStack() as held:
        connections = [held.enter_context(connection) for connection in slow(server, 200)]
        # A complete request is answered although all places are taken.
        assert ask(server, "/metrics")[0] == 200
        assert threading.active_count() == before
        assert all(is_gone(connection) for connection in connections[: 200 - health_server.CONNECTIONS])
    assert caplog.text.count("too slow or too many") == 1


def test_a_request_that_drips_in_ends(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the places from a client that sends a byte now and then. A timeout for each byte would never
    end that."""
    monkeypatch.setattr(health_server, "REQUEST_SECONDS", 0.3)
    with (
        HealthServer("127.0.0.1", 0, health, bytes) as server,
        slow(server, 1)[0] as connection,
        suppress(ConnectionError),
    ):
        for _ in range(1200):
            connection.sendall(b"r")
            time.sleep(0.05)
        pytest.fail("it goes on after a minute")


def test_an_answer_that_nobody_reads_ends(
    health: Health, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects the worker's memory from a client that requests large pages and never reads them."""
    monkeypatch.setattr(health_server, "REQUEST_SECONDS", 0.3)
    with ExitStack() as held:
        server = held.enter_context(HealthServer("127.0.0.1", 0, health, lambda: b"x" * 50_000_000))
        connection = held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for _ in range(1200):
            if "too slow" in caplog.text:
                break
            time.sleep(0.05)
        read = 0
        with suppress(ConnectionError):
            while said := connection.recv(1_000_000):
                read += len(said)
    assert 0 < read < 50_000_000


@pytest.mark.usefixtures("endless")
def test_without_a_file_left_the_port_goes_on(server: HealthServer) -> None:
    """Protects from an accept loop that spins and never answers again when the process has no file descriptor
    left."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        connections = [held.enter_context(connection) for connection in slow(server, 20)]
        waiting = held.enter_context(socket.socket())
        waiting.settimeout(60)
        # Earlier connections have been accepted.
        assert ask(server, "/healthz")[0] == 200
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limits[1]))
        with suppress(OSError):
            while True:
                held.callback(os.close, os.dup(waiting.fileno()))
        waiting.connect(("127.0.0.1", server.port))
        waiting.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert waiting.recv(100).startswith(b"HTTP/1.0 200")
        assert is_gone(connections[0])


def test_the_port_takes_its_share_of_a_processor_and_no_more() -> None:
    """Protects learning from any flood: over time the port uses at most its share, and no probe waits longer
    than a second."""
    for share in (1.0, 0.25):
        # The share of a processor that the process gets: all of it, or what a quota allows.
        now = process = worked = 0.0
        allowance = Allowance(now, process)
        while now < 1000.0:
            rest = allowance.rest(0.0005, now, process)
            assert rest <= Allowance.REST_SECONDS
            worked, now = worked + 0.0005, now + 0.0005 + rest
            process = share * now
        assert worked / process < 0.04
        assert allowance.rest(5.0, now, process) == pytest.approx(Allowance.REST_SECONDS)
        # Unused time that was saved up is bounded too.
        assert allowance.rest(Allowance.AT_MOST_SECONDS, now + 10_000.0, process + 10_000.0) == 0.0
        assert allowance.rest(0.002, now + 10_000.0, process + 10_000.0) > 0.0
