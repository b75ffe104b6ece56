"""``/metrics``, ``/healthz`` and ``/readyz`` over HTTP. Whatever strangers do to the port, it takes little of
the worker's time.

One thread serves all connections, and rests when it has taken more than its share of the processor. A
connection has ``REQUEST_SECONDS`` from its beginning to the answer's last byte. When there are too many
connections the oldest is dropped, so that clients that send their request at once are answered.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from types import TracebackType

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.health import Health
from streamfl.runtime.metrics import CONTENT_TYPE
from streamfl.terminal.printable import printable_lines

__all__ = ["HealthServer"]

log = logging.getLogger(__name__)

LAST_PORT = 65_535
TEXT = "text/plain; charset=utf-8"

# Enough for Prometheus, probes and a few people with a browser.
CONNECTIONS = 64
# Prometheus gives up after this time, too.
REQUEST_SECONDS = 10.0
REQUEST_BYTES = 16_384
# Connections that may wait in the operating system to be accepted; they cost the worker nothing.
BACKLOG = 256
ACCEPTED_AT_ONCE = 16
TOLD_EVERY_SECONDS = 60.0
# At each system call Python's threads hand the interpreter over, which costs the learning thread more than
# the call itself.
CALL_SECONDS = 50e-6
CALLS_OF_A_CONNECTION = 6

Page = Callable[[], tuple[int, str, bytes]]


class Allowance:
    """How much processor time the server may take, and how long it has to rest after it took more.

    The limit is a share of the process's own time: under a quota, or on a busy machine, the process itself
    gets little.

    now: seconds that never run backwards.
    process: seconds of a processor that the process has had.

    >>> allowance = Allowance(now=0.0, process=0.0)
    >>> allowance.rest(worked=0.2, now=0.0, process=0.2)
    0.0
    >>> round(allowance.rest(worked=0.059, now=0.0, process=0.2), 6)
    0.3
    >>> allowance.rest(worked=9.0, now=0.5, process=9.2)
    0.5
    """

    SHARE = 0.03
    # The share of elapsed time that an idle process may take.
    IDLE_SHARE = 0.002
    # The most seconds that can be saved up. A page with many figures takes .05.
    AT_MOST_SECONDS = 0.25
    # The longest rest: a probe waits for no longer.
    REST_SECONDS = 0.5

    def __init__(self, now: float, process: float) -> None:
        self._left, self._now, self._process = self.AT_MOST_SECONDS, now, process

    def rest(self, worked: float, now: float, process: float) -> float:
        """The seconds of rest that follow ``worked`` seconds of a processor's time."""
        earned = self.SHARE * (process - self._process) + self.IDLE_SHARE * (now - self._now)
        self._now, self._process = now, process
        self._left = max(
            min(self.AT_MOST_SECONDS, self._left + earned) - worked, -self.SHARE * self.REST_SECONDS
        )
        return max(0.0, -self._left / self.SHARE)


class HealthServer:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` from a thread of its own.

    port: 0 takes a free one.
    others: the number of ports after it to try if it is taken, for further workers on the machine.

    ConfigurationError if the address is not available.
    """

    def __init__(
        self, host: str, port: int, health: Health, render: Callable[[], bytes], others: int = 0
    ) -> None:
        self._listener = _listen(host, port, others)
        self._listener.setblocking(False)
        self._pages = _pages(health, render)
        self._open: dict[socket.socket, _Connection] = {}
        self._dropped, self._told_at = 0, -TOLD_EVERY_SECONDS
        self._closed = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._woken, self._waker = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self._listener.getsockname()[1])

    @property
    def thread(self) -> int:
        """The serving thread's identifier, as for the system's thread clocks."""
        return self._thread.ident or 0

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._waker.send(b"\0")
        self._thread.join()
        for connection in list(self._open.values()):
            self._end(connection)
        self._selector.close()
        for one in (self._listener, self._woken, self._waker):
            one.close()

    def __enter__(self) -> HealthServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        allowance = Allowance(time.monotonic(), time.process_time())
        while not self._closed.is_set():
            found = self._selector.select(self._patience())
            worked, calls = time.thread_time(), len(found)
            for key, _ in found:
                if key.fileobj is self._listener:
                    calls += CALLS_OF_A_CONNECTION * self._accept()
                elif (connection := self._open.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                    self._go_on(connection)
            now = time.monotonic()
            for connection in [one for one in self._open.values() if one.until <= now]:
                self._drop(connection)
            self._closed.wait(
                allowance.rest(time.thread_time() - worked + calls * CALL_SECONDS, now, time.process_time())
            )

    def _patience(self) -> float | None:
        # The dictionary keeps connections in the order in which they came.
        oldest = next(iter(self._open.values()), None)
        return None if oldest is None else max(0.0, oldest.until - time.monotonic())

    def _accept(self) -> int:
        """Accept waiting connections; returns how many."""
        for number in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return number
            except OSError:
                # The process has no file descriptor left. The waiting connections stay, and dropping one
                # makes room for them.
                self._drop_oldest()
                return number
            if len(self._open) >= CONNECTIONS:
                self._drop_oldest()
            accepted.setblocking(False)
            connection = self._open[accepted] = _Connection(accepted, time.monotonic() + REQUEST_SECONDS)
            self._selector.register(accepted, selectors.EVENT_READ)
            # A client that has sent its request is answered at once, however many come after it.
            self._go_on(connection)
        return ACCEPTED_AT_ONCE

    def _go_on(self, connection: _Connection) -> None:
        try:
            if not connection.unsent:
                said = connection.socket.recv(REQUEST_BYTES)
                connection.heard += said
                if said and not connection.asked:
                    return
                connection.unsent = memoryview(_Answer(self._pages, bytes(connection.heard)).content)
                self._selector.modify(connection.socket, selectors.EVENT_WRITE)
            connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :]
        except BlockingIOError:
            return
        except OSError:
            # A client that hung up is no fault of this worker.
            connection.unsent = memoryview(b"")
        except Exception as error:
            log.error("an HTTP request failed: %s: %s", type(error).__name__, error)
        if not connection.unsent:
            self._end(connection)

    def _end(self, connection: _Connection) -> None:
        del self._open[connection.socket]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _drop_oldest(self) -> None:
        for connection in list(self._open.values())[:1]:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._end(connection)
        self._dropped += 1
        now = time.monotonic()
        if now - self._told_at >= TOLD_EVERY_SECONDS:
            self._told_at = now
            text = (
                "connections to metrics.port were closed, because they were too slow or too many: %d so far"
            )
            log.warning(text, self._dropped)


@dataclass(eq=False)
class _Connection:
    socket: socket.socket
    until: float
    heard: bytearray = field(default_factory=bytearray)
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))

    @property
    def asked(self) -> bool:
        """Whether the request is complete, or so long that the server waits for no more."""
        return b"\r\n\r\n" in self.heard or b"\n\n" in self.heard or len(self.heard) >= REQUEST_BYTES


class _Answer(BaseHTTPRequestHandler):
    """The answer to a request whose bytes have all come."""

    def __init__(self, pages: dict[str, Page], heard: bytes) -> None:
        self.pages = pages
        self.rfile, self.wfile = BytesIO(heard), (said := BytesIO())
        self.handle_one_request()
        self.content = said.getvalue()

    def do_GET(self) -> None:
        page = self.pages.get(self.path.partition("?")[0])
        status, kind, content = page() if page else (404, TEXT, b"not found\n")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: a scrape every few seconds is not worth a line."""


def _listen(host: str, port: int, others: int) -> socket.socket:
    last = min(port + others, LAST_PORT) if port else port
    for candidate in range(port, last + 1):
        try:
            return socket.create_server((host, candidate), backlog=BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and candidate < last:
                continue
            tried = f", and up to {last}" if last > port else ""
            raise ConfigurationError(
                f"metrics.host = {host!r}, metrics.port = {port}{tried}: {error.strerror}"
            ) from None
    raise AssertionError("a range of ports needs a last one")


def _pages(health: Health, render: Callable[[], bytes]) -> dict[str, Page]:
    def healthz() -> tuple[int, str, bytes]:
        trouble = health.trouble
        if not health.alive:
            reason = trouble or "the worker loop hangs"
            return _text(503, f"no round completed for {health.stall_seconds:g} s:\n{reason}\n")
        return _text(200, f"alive, but not ready:\n{trouble}\n" if trouble else _fine(health))

    def readyz() -> tuple[int, str, bytes]:
        trouble = health.trouble
        return _text(200, _fine(health)) if trouble is None else _text(503, f"{trouble}\n")

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": lambda: (200, CONTENT_TYPE, render())}


def _text(status: int, text: str) -> tuple[int, str, bytes]:
    return status, TEXT, printable_lines(text).encode()


def _fine(health: Health) -> str:
    standby, backlog = health.standby, health.backlog
    return ("ok\n" if standby is None else f"ok, standby: {standby}\n") + (
        "" if backlog is None else f"{backlog}\n"
    )
