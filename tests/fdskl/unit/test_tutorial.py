"""The tutorial of two organisations that learn a kernel model, done as its page says."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from command_line import run_command
from page_commands import page_text

from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.worker.role import FdsklWorker
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

PAGE = page_text("fdskl.md", "Tutorial")
FILES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
HISTORY, STREAM = 1536, 200
FIELDS = {
    "accounts": ("age", "income", "debts"),
    "baskets": ("visits", "returns"),
    "outcomes": ("defaulted",),
}
# A customer that the shop shows later than the bank.
LATE = HISTORY + 7


def read(file: str) -> FdsklSettings:
    return FdsklSettings(**tomllib.loads(file))


def test_its_configurations_are_valid() -> None:
    """Protects two organisations' first try: both files load, agree where they have to, and are all that is
    needed."""
    settings = [read(file) for file in FILES]
    assert [item.party.name for item in settings if item.party is not None] == settings[0].federation.parties
    assert settings[0].federation == settings[1].federation
    assert [item.is_active for item in settings] == [True, False]


def test_its_table_of_topics_is_whole() -> None:
    """Protects whoever grants rights by the page: these topics and no others are there, and it says who
    writes and reads which."""
    rows = re.findall(r"^\| (`credit[^|]*) \| ([^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
    told = {
        topic: (writer, reader) for names, writer, reader in rows for topic in re.findall(r"`(.*?)`", names)
    }
    settings = {name: read(file) for name, file in zip(("the bank", "the shop"), FILES, strict=True)}
    channels = {name: find_kind(item.role.kind).channels(item) for name, item in settings.items()}
    for topic, (writer, reader) in told.items():
        writers = {name for name, one in channels.items() if topic in one.outputs.values()}
        readers = {
            name for name, one in channels.items() if topic in [each.topic for each in one.inputs.values()]
        }
        if topic.endswith(".state"):
            continue
        assert writers == {writer}, topic
        assert readers == ({reader} - {"you"}), topic
    every = {topic.name for item in settings.values() for topic in find_kind(item.role.kind).topics(item)}
    assert told.keys() == {
        name for name in every if name.startswith("credit.") and not name.endswith("dead-letters")
    }


@pytest.fixture(name="customers", scope="module")
def _customers() -> list[dict[str, float]]:
    """Who defaulted follows from the bank's and the shop's columns together, and from no column alone."""
    inputs = np.random.default_rng(4).normal(size=(HISTORY + STREAM, 5)).round(3)
    defaulted = (inputs[:, 2] * inputs[:, 3] + 0.3 * inputs[:, 4] > 0).astype(float)
    # In the units of the page.
    inputs = inputs * [12, 9000, 700, 3, 2] + [45, 31000, 900, 6, 2]
    columns = (*FIELDS["accounts"], *FIELDS["baskets"], "defaulted")
    return [
        dict(zip(columns, (*row, label), strict=True))
        for row, label in zip(inputs.tolist(), defaulted.tolist(), strict=True)
    ]


class Tutorial:
    """The two files of the page on a memory bus, the topics between them, and the time."""

    def __init__(self) -> None:
        self.bus = MemoryBus(clock=lambda: self.now)
        self.now = 1000.0
        self.draws = np.random.default_rng(9)
        for settings in map(read, FILES):
            topics = find_kind(settings.role.kind).topics(settings)
            known = self.bus.describe([topic.name for topic in topics])
            self.bus.create([replace(topic, partitions=1) for topic in topics if topic.name not in known])

    def start(self) -> list[Worker]:
        """As processes start, but with secrets that are the same in every run of the test."""
        workers = [build_worker(read(file), self.bus, lambda: self.now, lambda: self.now) for file in FILES]
        for worker in workers:
            role = cast(FdsklWorker, worker.role)
            role.given = replace(
                role.given, secret=self.draws.bytes(32), entropy=lambda: self.draws.bytes(32)
            )
        return workers

    def settle(self, workers: Sequence[Worker]) -> None:
        """Until nothing has happened for longer than anybody is waited for."""
        idle = 0
        while idle < 15:
            idle = 0 if sum(worker.step(0.0) for worker in workers) else idle + 1
            self.now += idle > 0

    def write(self, topic: str, numbers: Iterable[int], customers: list[dict[str, float]]) -> None:
        rows = [
            (f"customer-{number}", {name: customers[number][name] for name in FIELDS[topic]})
            for number in numbers
        ]
        self.bus.write([Outgoing(topic, name.encode(), json.dumps(row).encode()) for name, row in rows])

    def predictions(self) -> list[dict[str, Any]]:
        return [json.loads(record.value or b"") for record in self.bus.read("credit.predictions")]


def test_history_is_learnt_from_and_the_stream_is_predicted_from_both(
    customers: list[dict[str, float]],
) -> None:
    """Protects a newcomer's first try: a history written as the page says is learnt from, the model is there
    after a restart, a customer that the shop shows later is predicted twice with what the page says of both,
    and what follows is mostly right."""
    tutorial = Tutorial()
    workers = tutorial.start()
    tutorial.write("baskets", range(HISTORY), customers)
    tutorial.settle(workers)
    # As replay writes them: each row's columns, then its label.
    for begin in range(0, HISTORY, 64):
        tutorial.write("accounts", range(begin, begin + 64), customers)
        tutorial.write("outcomes", range(begin, begin + 64), customers)
    tutorial.settle(workers)
    for worker in workers:
        worker.close()
    history = tutorial.predictions()
    assert len({one["entity"] for one in history}) == HISTORY
    workers = tutorial.start()
    tutorial.settle(workers)
    numbers = range(HISTORY, HISTORY + STREAM)
    tutorial.write("baskets", (number for number in numbers if number != LATE), customers)
    tutorial.settle(workers)
    tutorial.write("accounts", numbers, customers)
    tutorial.settle(workers)
    tutorial.write("baskets", [LATE], customers)
    tutorial.settle(workers)
    stream = tutorial.predictions()[len(history) :]
    newest = {one["entity"]: one for one in stream}
    assert len(newest) == STREAM
    late = [(one["parties"], one["revision"]) for one in stream if one["entity"] == f"customer-{LATE}"]
    assert late == [(1, 0), (2, 1)]
    assert {one["parties"] for one in newest.values()} == {2}
    # After each 256 labels, and before after 32, 64 and 128.
    assert {one["model"] for one in newest.values()} == {HISTORY // 256 + 3}
    fields = re.findall(r'^    (\{"entity".*\})$', PAGE, re.MULTILINE)
    assert [list(json.loads(line)) for line in fields] == [list(stream[0])] * 2
    right = np.mean(
        [(one["prediction"] > 0.5) == customers[int(name[9:])]["defaulted"] for name, one in newest.items()]
    )
    assert right >= 0.8
    for worker in workers:
        worker.close()


@pytest.mark.parametrize("name", ["bank", "shop"])
def test_the_command_that_says_whether_it_is_worth_it_runs(
    name: str,
    customers: list[dict[str, float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects the first thing that is tried: the command of the page takes either party's file as it stands
    there, without a broker, and says what each party is worth.
    """
    pd.DataFrame(customers).to_csv(tmp_path / "history.csv", index=False)
    (tmp_path / "bank.toml").write_text(FILES[("bank", "shop").index(name)])
    (command,) = re.findall(r"^    streamfl (simulate .*)$", PAGE, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    code, out, error = run_command(monkeypatch, capsys, *shlex.split(command), "--format", "json")
    assert code == 0, error
    found = json.loads(out)
    assert found["active"] == "bank"
    assert found["accuracy"] > 0.8
    assert all(found["absent"][party]["accuracy"] < found["accuracy"] - 0.1 for party in ("bank", "shop"))
