"""A vertical federation of worker processes, with the files that stand on the page of its tutorial."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pandas as pd
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.backlog.systems import ENTITY, System
from benchmarks.processes import Processes
from streamfl.runtime.bus import connect

DOCS = Path(__file__).resolve().parents[2] / "docs"
# A file's block, behind the last name of a file before it.
FILES = re.compile(r"`([\w-]+)\.toml`(?:(?!`[\w-]+\.toml`|```).)*?\n\n```toml\n(.*?)```", re.DOTALL)
FINGERPRINT = "encryption.key_fingerprint"


def settings_of(settings: Sequence[str]) -> dict[str, str]:
    """``section.key=value``, by section.key."""
    return dict(one.partition("=")[::2] for one in settings)


class Federation:
    """Each member has a folder of its own, with the secrets that the page has it make. Their topics are in
    one SQLite file.

    rows: of all members.
    settings: in place of the files' and the system's own.
    """

    def __init__(self, system: System, folder: Path, rows: pd.DataFrame, settings: Mapping[str, str]) -> None:
        self._system = system
        self._url = f"sqlite://{folder}/topics.db"
        files = dict(FILES.findall((DOCS / system.page).read_text(encoding="utf-8")))
        environment = {"bus.url": self._url, **system.settings, **settings}
        if any("encryption" in content for content in files.values()):
            # The coordinator's key; its fingerprint is printed.
            environment[FINGERPRINT] = Processes(folder).command("keys", "init", "auditor.keys").split()[0]
        link = os.urandom(32)
        self._ports: dict[str, int] = {}
        self._members: dict[str, Processes] = {}
        self._writers: list[subprocess.Popen[bytes]] = []
        for name in system.members:
            home = folder / name
            home.mkdir()
            for secret, content in (("own.secret", os.urandom(32)), ("link.secret", link)):
                (home / secret).write_bytes(content)
                (home / secret).chmod(0o600)
            if (folder / "auditor.keys").exists() and name == "auditor":
                (folder / "auditor.keys").rename(home / "auditor.keys")
            self._ports[name] = _free_port()
            own = {**environment, "metrics.port": str(self._ports[name])}
            self._members[name] = Processes(home, **_variables(own))
            inputs = "--create-inputs" if name in system.writers else "--create"
            self._members[name].configure(name, files[name], inputs, "--partitions", "1")
            if "ledger_file" in files[name]:
                self._members[name].command("ledger", "init", f"{name}.toml")
        rows.to_csv(folder / "rows.csv", index=False)
        self._rows = str(folder / "rows.csv")
        self._bus = connect(self._url)
        self._offset = 0

    def write(self) -> None:
        """Write all rows, as fast as they go, one member after the other."""
        for name in self._system.writers:
            self._members[name].command(*self._replay(name))

    def write_at(self, rate: float) -> None:
        """Begin to write so many rows a second, each at all members, labels later."""
        system = self._system
        later = system.labels_alone
        for name in (one for one in system.writers if one != later):
            delay: list[str] = []
            if system.label_rows and not later and name == "bank":
                delay = ["--label-delay", str(system.label_rows)]
            self._write_at(name, rate, *delay)
        if later is not None:
            time.sleep(system.label_rows / rate)
            self._write_at(later, rate)

    def _write_at(self, name: str, rate: float, *more: str) -> None:
        writer = self._members[name].running(*self._replay(name), "--rate", str(rate), *more)
        self._writers.append(writer)

    def start(self, name: str) -> None:
        """Start a member's worker."""
        self._members[name].start(name)

    def wait_until_serving(self) -> None:
        for member in self._members.values():
            member.wait_until_serving()

    def look(self) -> list[tuple[float, dict[str, Any]]]:
        """What was said to users since the last look, and when. RuntimeError if a worker has ended."""
        for member in self._members.values():
            member.check()
        found = []
        for record in self._bus.read_from(self._system.topic, 0, self._offset):
            self._offset = record.offset + 1
            found.append((record.timestamp, json.loads(record.value or b"")))
        return found

    @property
    def is_writing(self) -> bool:
        return any(one.poll() is None for one in self._writers)

    def figure(self, name: str, metric: str) -> float:
        """A metric of a member, its labels added up."""
        with urlopen(f"http://127.0.0.1:{self._ports[name]}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return sum(one.value for one in samples if one.name == f"streamfl_{metric}")

    def simulate(self, more: Sequence[str]) -> dict[str, Any]:
        """What ``streamfl simulate`` says of the rows."""
        system, name = self._system, self._system.members[0]
        options = ["--split", system.split, "--label", system.label, *system.simulate, *more]
        told = self._members[name].command(
            "simulate", f"{name}.toml", "--data", self._rows, "--format", "json", *options
        )
        return dict(json.loads(told))

    def close(self) -> None:
        """End every process."""
        for writer in self._writers:
            writer.kill()
            writer.wait()
        for member in self._members.values():
            member.close()
        self._bus.close()

    def _replay(self, name: str) -> list[str]:
        return ["replay", f"{name}.toml", "--data", self._rows, "--entity-column", ENTITY]


def _variables(settings: dict[str, str]) -> dict[str, str]:
    """The environment variables that stand for these keys."""
    return {f"STREAMFL_{key.upper().replace('.', '__')}": value for key, value in settings.items()}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
