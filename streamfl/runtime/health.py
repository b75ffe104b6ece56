"""Is the worker going round? Asked over HTTP by whoever restarts it, and by a watchdog that ends it if it hangs.

``/healthz`` 503: the loop has not completed a round for the stated time. ``/readyz`` 503: no partition or table can be served now.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from streamfl.role import ConfigurationError
from streamfl.runtime.metrics import CONTENT_TYPE

__all__ = ["Health", "HealthServer", "Watchdog"]


class Health:
    """What the loop reports and others read, from any thread. ``clock`` counts seconds and never runs backwards.

    >>> seconds = iter([0.0, 5.0, 500.0])
    >>> health = Health(stall_seconds=120, clock=lambda: next(seconds))
    >>> health.alive, health.alive
    (True, False)
    """

    def __init__(self, stall_seconds: float = 120.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.stall_seconds = stall_seconds
        self._clock = clock
        self._last_round = clock()
        self._trouble: str | None = "starting"
        self._stuck_since: float | None = None

    def begin(self) -> None:
        """Records have been taken and wait for their commit."""
        self._stuck_since = self._clock()

    def completed(self) -> None:
        """A round is over and the cluster answered."""
        self._last_round = self._clock()
        self._stuck_since = None
        self._trouble = None

    def failed(self, text: str) -> None:
        """A round is over, but nothing could be done."""
        self._stuck_since = None
        self._trouble = text

    @property
    def alive(self) -> bool:
        """A round was completed within ``stall_seconds``."""
        return self._clock() - self._last_round <= self.stall_seconds

    @property
    def trouble(self) -> str | None:
        """Why the worker does not serve at present; None if it does."""
        return self._trouble

    @property
    def stuck(self) -> bool:
        """Records have waited for their commit for longer than ``stall_seconds``: a call that will not return."""
        since = self._stuck_since
        return since is not None and self._clock() - since > self.stall_seconds


class HealthServer:
    """Serves ``/metrics``, ``/healthz`` and ``/readyz`` from a thread of its own; ``port`` 0 takes a free one.

    ConfigurationError if the address cannot be had.
    """

    def __init__(self, host: str, port: int, health: Health, render: Callable[[], bytes]) -> None:
        class Handler(_Handler):
            pages = _pages(health, render)

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ConfigurationError(f"metrics.host = {host!r}, metrics.port = {port}: {error.strerror}") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> HealthServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Watchdog:
    """Calls ``on_stall`` once, from its own thread, when the loop is stuck: no client library's hang may last for ever."""

    def __init__(self, health: Health, on_stall: Callable[[], None], every_seconds: float = 1.0) -> None:
        self._health = health
        self._on_stall = on_stall
        self._every_seconds = every_seconds
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(self._every_seconds):
            if self._health.stuck:
                self._on_stall()
                return


Page = Callable[[], tuple[int, str, bytes]]
TEXT = "text/plain; charset=utf-8"


def _pages(health: Health, render: Callable[[], bytes]) -> dict[str, Page]:
    def healthz() -> tuple[int, str, bytes]:
        if health.alive:
            return 200, TEXT, b"ok\n"
        reason = health.trouble or "the loop does not go round"
        return 503, TEXT, f"no round completed for {health.stall_seconds:g} s: {reason}\n".encode()

    def readyz() -> tuple[int, str, bytes]:
        return (200, TEXT, b"ok\n") if health.trouble is None else (503, TEXT, f"{health.trouble}\n".encode())

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": lambda: (200, CONTENT_TYPE, render())}


class _Handler(BaseHTTPRequestHandler):
    pages: dict[str, Page]
    # A client that connects and says nothing must not hold a thread for ever.
    timeout = 10

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
        """Say nothing: a scrape every few seconds is no event."""
