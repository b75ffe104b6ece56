"""One request to a web server, with a bound in time and in bytes."""

from __future__ import annotations

import base64
import http.client
import io
import json
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

__all__ = ["MOST_BYTES", "ask", "basic"]

MOST_BYTES = 2 << 20


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    # A redirect would take the password to another host.
    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


class _UntilDeadline(io.RawIOBase):
    """The bytes of a socket until a deadline: its own timeout begins anew with every byte.

    left: seconds until the deadline.
    """

    def __init__(self, sock: socket.socket, left: Callable[[], float]) -> None:
        self._sock, self._left = sock, left
        self._bytes = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._left()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        self._bytes.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *given: Any, left: Callable[[], float], **named: Any) -> None:
        super().__init__(sock, *given, **named)
        self.fp.close()
        self.fp = io.BufferedReader(_UntilDeadline(sock, left))


class _Bounded(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens connections whose answers have to be whole before a deadline, headers included.

    left: seconds until the deadline.
    context: for https.
    """

    def __init__(self, left: Callable[[], float], context: ssl.SSLContext | None) -> None:
        super().__init__(context=context)
        self._response, self._tls = partial(_Response, left=left), context

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, http.client.HTTPSConnection), req, context=self._tls)

    def _connection(
        self, kind: type[http.client.HTTPConnection], host: str, /, **options: Any
    ) -> http.client.HTTPConnection:
        connection = kind(host, **options)
        vars(connection)["response_class"] = self._response
        return connection


def ask(
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    seconds: float,
    context: ssl.SSLContext | None,
    clock: Callable[[], float] = time.monotonic,
) -> Any:
    """A server's answer, decoded from JSON. OSError or ValueError if there is none, HTTPError if the server
    refuses.

    seconds: for the whole request.
    context: for https.
    clock: seconds that never run backwards.
    """
    deadline = clock() + seconds
    opener = urllib.request.build_opener(_NoRedirect(), _Bounded(lambda: deadline - clock(), context))
    content = b""
    try:
        with opener.open(urllib.request.Request(url, body, dict(headers)), timeout=seconds) as answer:
            while piece := answer.read1(1 << 16):
                content += piece
                if len(content) > MOST_BYTES:
                    raise ValueError(f"its answer is longer than {MOST_BYTES} bytes")
    except TimeoutError:
        raise ValueError(f"its answer took longer than {seconds:g} s") from None
    return json.loads(content)


def basic(user: str, password: str) -> str:
    """The Authorization header of a user with a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
