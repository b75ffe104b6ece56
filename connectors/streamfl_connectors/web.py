"""One request to a web server, with a bound in time and in bytes."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["MOST_BYTES", "ask", "basic"]

MOST_BYTES = 2 << 20


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    # A redirect would take the password to another host.
    def redirect_request(self, *arguments: Any, **options: Any) -> None:
        return None


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

    seconds: for the whole request. context: for https. clock: seconds that never run backwards.
    """
    deadline = clock() + seconds
    secured = [urllib.request.HTTPSHandler(context=context)] if context is not None else []
    opener = urllib.request.build_opener(_NoRedirect(), *secured)
    with opener.open(urllib.request.Request(url, body, dict(headers)), timeout=seconds) as answer:
        content = b""
        while piece := answer.read1(1 << 16):
            content += piece
            if len(content) > MOST_BYTES:
                raise ValueError(f"its answer is longer than {MOST_BYTES} bytes")
            # The connection's own timeout begins anew with every byte.
            if clock() > deadline:
                raise ValueError(f"its answer took longer than {seconds:g} s")
    return json.loads(content)


def basic(user: str, password: str) -> str:
    """The Authorization header of a user with a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
