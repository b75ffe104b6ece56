"""A schema registry's HTTP interface, served by a thread of the test, with failures on request."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["FakeRegistry", "serving"]


class FakeRegistry:
    """Registered schemas, received requests, and failures to simulate.

    schemas: answers by number.
    subjects: answers by subject and version.
    status: HTTP status of every answer while it is set.
    delay: seconds before each answer.
    login: required value of the header Authorization.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, str], dict[str, Any]] = {}
        self.status: int | None = None
        self.delay = 0.0
        self.login: str | None = None
        self.token = "t1"
        self.asked: list[str] = []
        self.headers: dict[str, str] = {}
        self.location: str | None = None
        self.url = ""

    def add(self, schema: Any, kind: str = "AVRO", subject: str = "", references: Any = ()) -> int:
        """Adds a schema as its subject's newest. Returns its number."""
        number = len(self.schemas) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        content = {"schema": text, "schemaType": kind, "references": list(references)}
        self.schemas[number] = content
        if subject:
            self.subjects[subject, "latest"] = self.subjects[subject, "1"] = {**content, "id": number}
        return number

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        path, _, _ = path.partition("?")
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "as the test says"}
        if path == "/token":
            return 200, {"access_token": self.token, "expires_in": 300}
        parts = path.strip("/").split("/")
        if parts[:2] == ["schemas", "ids"] and int(parts[2]) in self.schemas:
            return 200, self.schemas[int(parts[2])]
        if parts[0] == "subjects" and len(parts) == 4 and (parts[1], parts[3]) in self.subjects:
            return 200, self.subjects[parts[1], parts[3]]
        if parts[0] == "subjects" and len(parts) == 3:
            said = json.loads(body)
            return 200, {"id": self.add(said["schema"], said["schemaType"], parts[1])}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def serving(
    registry: FakeRegistry | None = None, context: ssl.SSLContext | None = None
) -> Iterator[FakeRegistry]:
    """Serves a registry on a free port. registry: an earlier one, which gets its port again. context: for
    https."""
    registry = registry or FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            registry.asked.append(self.path)
            registry.headers = {name.lower(): text for name, text in self.headers.items()}
            time.sleep(registry.delay)
            status, content = registry.answer(self.path, body)
            if (
                registry.login is not None
                and self.path != "/token"
                and self.headers.get("Authorization") != registry.login
            ):
                status, content = 401, {"error_code": 401, "message": "Unauthorized"}
            text = json.dumps(content).encode()
            try:
                self.send_response(status)
                if registry.location is not None:
                    self.send_header("Location", registry.location)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)
            except OSError:
                # The client did not wait for the answer.
                pass

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", int(registry.url.rpartition(":")[2] or 0)), Handler)
    if context is not None:
        # A failing TLS handshake blocks a thread of its own, not the server's.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    registry.url = f"http{'' if context is None else 's'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
