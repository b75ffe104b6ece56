"""A real Prometheus with promtool for tests: the installed one, or Debian's package, fetched once into
``.broker``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker import free_ports
from fetched import fetched

__all__ = ["Prometheus", "promtool", "running_prometheus"]

START_SECONDS = 60.0
CONFIGURATION = """
global: {{scrape_interval: {interval}, evaluation_interval: {interval}}}
rule_files: {rules}
scrape_configs:
  - job_name: streamfl
    static_configs: [{{targets: {targets}}}]
"""


class Prometheus:
    """A running Prometheus. url: its address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, expression: str, at: float | None = None) -> list[tuple[Mapping[str, str], float]]:
        """The series of a query, each with its labels and its value. RuntimeError if the query is invalid."""
        parameters = {"query": expression} | ({} if at is None else {"time": str(at)})
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/query?{urllib.parse.urlencode(parameters)}", timeout=30
            ) as answer:
                found: Any = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(f"{expression}: {error.read().decode()}") from None
        return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]

    def has_scraped(self, ports: Iterable[int], since: float) -> bool:
        """Whether it has scraped all of these ports successfully since a time. On a busy machine it misses
        some scrapes."""
        asked = {labels["instance"] for labels, at in self.ask("timestamp(up) and (up == 1)") if at > since}
        return asked >= {f"127.0.0.1:{port}" for port in ports}

    def value(self, expression: str, at: float | None = None) -> float:
        """The value of a query with a single series."""
        [(_, value)] = self.ask(expression, at)
        return value


@contextmanager
def running_prometheus(
    targets: Sequence[int], folder: Path, interval: str = "1s", rules: Sequence[Path] = ()
) -> Iterator[Prometheus]:
    """A Prometheus that scrapes these ports of this machine, by default once a second. rules: rule files."""
    (port,) = free_ports(1)
    configuration = folder / "prometheus.yml"
    ports = json.dumps([f"127.0.0.1:{target}" for target in targets])
    configuration.write_text(
        CONFIGURATION.format(targets=ports, interval=interval, rules=json.dumps([str(one) for one in rules]))
    )
    options = [
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([_program("prometheus"), *options], stdout=log, stderr=log)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"Prometheus did not start:\n{(folder / 'prometheus.log').read_text()[-2000:]}"
                    ) from None
                time.sleep(0.1)
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(30)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The output of promtool. It makes much garbage and lives for seconds: collecting it seldom saves a fifth
    of the processor time, and one thread of the rest a fourteenth."""
    return subprocess.run(
        [_program("promtool"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "GOGC": "800", "GOMAXPROCS": "1"},
    )


def _program(name: str) -> str:
    return shutil.which(name) or str(fetched("prometheus", _fetch) / "usr" / "bin" / name)


def _fetch(folder: Path) -> Path:
    if _run(folder, "apt-get", "download", "prometheus").returncode:
        # A machine may have no package lists yet. Reading them into a folder of its own needs no root rights.
        (folder / "lists" / "partial").mkdir(parents=True)
        own = ("apt-get", "-o", f"Dir::State::Lists={folder / 'lists'}", "-o", "APT::Sandbox::User=")
        _checked(_run(folder, *own, "update"))
        _checked(_run(folder, *own, "download", "prometheus"))
    [package] = folder.glob("prometheus_*.deb")
    _checked(_run(folder, "dpkg", "-x", str(package), "unpacked"))
    return folder / "unpacked"


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError(
            f"Prometheus is not on the path, and {command[0]} is not here to fetch Debian's package of it"
        ) from None


def _checked(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise RuntimeError(
            f"Prometheus is not on the path, and {' '.join(done.args)} failed:\n{done.stderr[-2000:]}"
        )
