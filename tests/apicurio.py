"""A real schema registry for tests: Apicurio in memory, with Confluent's interface.

Maven fetches it once into ``.broker`` of the repository.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fetched import fetched

__all__ = ["apicurio", "register"]

VERSION = "2.6.13.Final"
START_SECONDS = 180.0


@contextmanager
def apicurio() -> Iterator[str]:
    """The registry's URL."""
    jar = fetched(f"apicurio-{VERSION}", _fetch) / f"apicurio-registry-app-{VERSION}-runner.jar"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["-Xmx256m", f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1", "-jar", str(jar)]
    process = subprocess.Popen(["java", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{url}/subjects", timeout=5):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the schema registry did not start") from None
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def register(url: str, subject: str, schema: Any, kind: str = "AVRO") -> int:
    """Registers a schema as its subject's newest. Returns its number."""
    body = {"schema": schema if isinstance(schema, str) else json.dumps(schema), "schemaType": kind}
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(f"{url}/subjects/{subject}/versions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return int(json.load(answer)["id"])


def _fetch(folder: Path) -> Path:
    artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
    command = ["mvn", "-q", "-B", goal, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(
            f"Maven could not fetch the schema registry:\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
        )
    unpacked = folder / "unpacked"
    with tarfile.open(folder / f"apicurio-registry-app-{VERSION}-all.tar.gz") as content:
        content.extractall(unpacked, filter="data")
    return unpacked
