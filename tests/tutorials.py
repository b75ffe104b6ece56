"""A page's tutorial in one process: its members on a memory bus, its table of topics, and its command
``simulate``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import run_command

from streamfl.configuration.settings import RoleSettings
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

__all__ = ["CREDIT_FIELDS", "Row", "Tutorial", "check_topics", "files_of", "simulated"]

# Of one entity, the value of each column.
Row = dict[str, float]
# The topics of the pages about a bank and a shop.
CREDIT_FIELDS = {
    "accounts": ("age", "income", "debts"),
    "baskets": ("visits", "returns"),
    "outcomes": ("defaulted",),
}


def files_of(page: str) -> list[str]:
    """The settings files that stand in a page."""
    return re.findall(r"```toml\n(.*?)```", page, re.DOTALL)


class Tutorial:
    """Members on a memory bus whose topics have one partition, and the time.

    entity: what an entity's name begins with; its number follows.
    fields: each topic's columns.
    patience: seconds without a record after which nobody is waited for.
    """

    def __init__(
        self,
        members: Sequence[RoleSettings],
        entity: str,
        rows: Sequence[Row],
        fields: Mapping[str, Sequence[str]],
        patience: int,
    ) -> None:
        self.now = 1000.0
        self.bus = MemoryBus(clock=lambda: self.now)
        self.workers: list[Worker] = []
        self._members = members
        self._entity = entity
        self._rows = rows
        self._fields = fields
        self._patience = patience
        for settings in members:
            topics = find_kind(settings.role.kind).topics(settings)
            known = self.bus.describe([topic.name for topic in topics])
            self.bus.create([replace(topic, partitions=1) for topic in topics if topic.name not in known])

    def start(self) -> None:
        self.workers = [
            build_worker(one, self.bus, lambda: self.now, lambda: self.now) for one in self._members
        ]

    def stop(self) -> None:
        for worker in self.workers:
            worker.close()

    def settle(self) -> None:
        """Run until nothing has happened for longer than anybody is waited for."""
        idle = 0
        while idle < self._patience:
            idle = 0 if sum(worker.step(0.0) for worker in self.workers) else idle + 1
            self.now += idle > 0

    def write(self, topic: str, numbers: Iterable[int]) -> None:
        """Write these entities' columns of a topic."""
        for number in numbers:
            content = {name: self._rows[number][name] for name in self._fields[topic]}
            self.bus.write(
                [Outgoing(topic, f"{self._entity}-{number}".encode(), json.dumps(content).encode())]
            )

    def contents(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(record.value or b"") for record in self.bus.read(topic)]


def check_topics(page: str, members: Mapping[str, RoleSettings]) -> None:
    """A page's table of the federation's topics lacks none, has no other, and names who writes and reads
    each.

    members: by the name that the table has for them.
    """
    (name,) = {item.federation.name for item in members.values()}
    rows = re.findall(rf"^\| (`{name}[^|]*) \| ([^|]*) \| ([^|]*) \|$", page, re.MULTILINE)
    told = {
        topic: (writer, reader) for names, writer, reader in rows for topic in re.findall(r"`(.*?)`", names)
    }
    channels = {member: find_kind(item.role.kind).channels(item) for member, item in members.items()}
    for topic, (writer, reader) in told.items():
        if topic.endswith(".state"):
            continue
        assert {member for member, one in channels.items() if topic in one.outputs.values()} == {writer}, (
            topic
        )
        readers = {
            member
            for member, one in channels.items()
            if topic in [each.topic for each in one.inputs.values()]
        }
        assert readers == {reader} - {"you"}, topic
    every = {topic.name for item in members.values() for topic in find_kind(item.role.kind).topics(item)}
    assert told.keys() == {
        topic for topic in every if topic.startswith(f"{name}.") and not topic.endswith("dead-letters")
    }


def simulated(
    page: str,
    configuration: Path,
    content: str,
    rows: Sequence[Row],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> dict[str, Any]:
    """What the page's ``streamfl simulate`` finds in these rows, with ``content`` in the file that it
    names."""
    configuration.write_text(content)
    pd.DataFrame(rows).to_csv(configuration.parent / "history.csv", index=False)
    (command,) = re.findall(r"^    streamfl (simulate .*)$", page, re.MULTILINE)
    monkeypatch.chdir(configuration.parent)
    code, out, error = run_command(monkeypatch, capsys, *shlex.split(command), "--format", "json")
    assert code == 0, error
    return dict(json.loads(out))
