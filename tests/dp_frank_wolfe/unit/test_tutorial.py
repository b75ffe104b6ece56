"""The tutorial of three organisations that find what matters, done as its page says."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_command
from page_commands import page_text

from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.privacy.anchor import Anchor
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker

PAGE = page_text("dp-frank-wolfe.md", "Tutorial")
FILES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
MEMBERS = ("hospital", "laboratory", "pharmacy", "institute")
FIELDS = {
    "wards": ("age", "ward", "operations"),
    "blood": ("iron", "protein", "sugar"),
    "prescriptions": ("doses", "opiates"),
    "stays": ("days",),
}
ROWS, WINDOW = 5_600, 400


def read(file: str) -> DPFrankWolfeSettings:
    return DPFrankWolfeSettings(**tomllib.loads(file))


def test_its_configurations_are_valid() -> None:
    """Protects four organisations' first try: all files load, agree where they have to, and are all that is
    needed."""
    settings = [read(file) for file in FILES]
    assert [item.role.kind for item in settings] == ["dp-frank-wolfe-party"] * 3 + ["dp-frank-wolfe-server"]
    assert [item.party.name for item in settings if item.party is not None] == settings[0].federation.parties
    assert len({Public(item).fingerprint for item in settings}) == 1
    assert all(item.privacy.is_private for item in settings)
    centres = [item.bounds.centre for item in settings]
    assert [number for own in centres[:3] for number in own] == centres[3]  # type: ignore[union-attr]


def test_its_table_of_topics_is_whole() -> None:
    """Protects whoever grants rights by the page: these topics and no others are there, and it says who
    writes and reads which."""
    rows = re.findall(r"^\| (`stay[^|]*) \| ([^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
    told = {
        topic: (writer, reader) for names, writer, reader in rows for topic in re.findall(r"`(.*?)`", names)
    }
    settings = {f"the {name}": read(file) for name, file in zip(MEMBERS, FILES, strict=True)}
    channels = {name: find_kind(item.role.kind).channels(item) for name, item in settings.items()}
    for topic, (writer, reader) in told.items():
        if topic.endswith(".state"):
            continue
        assert {name for name, one in channels.items() if topic in one.outputs.values()} == {writer}, topic
        read_by = {
            name for name, one in channels.items() if topic in [each.topic for each in one.inputs.values()]
        }
        assert read_by == {reader} - {"you"}, topic
    every = {topic.name for item in settings.values() for topic in find_kind(item.role.kind).topics(item)}
    assert told.keys() == {
        name for name in every if name.startswith("stay.") and not name.endswith("dead-letters")
    }
    ledgers = {name for name in every if name.endswith(".ledger")}
    assert len(ledgers) == 3
    assert all(f"`{name}`" in PAGE for name in ledgers)


@pytest.fixture(name="patients", scope="module")
def _patients() -> list[dict[str, float]]:
    """Days follow from one column of each party."""
    random = np.random.default_rng(4)
    inputs = random.uniform(-1, 1, (ROWS, 8)).round(3)
    days = 10 + 10 * (inputs @ [0.3, 0, 0, 0, -0.3, 0, 0.3, 0] + 0.05 * random.normal(size=ROWS))
    inputs = inputs * [50, 5, 2, 15, 30, 100, 10, 0.5] + [50, 5, 2, 15, 70, 100, 10, 0.5]
    names = [name for fields in FIELDS.values() for name in fields]
    return [
        dict(zip(names, (*row, day), strict=True))
        for row, day in zip(inputs.tolist(), days.tolist(), strict=True)
    ]


class Tutorial:
    """The four files of the page on a memory bus, with secrets and ledgers made as it says. Windows are
    small, to take seconds."""

    def __init__(self, folder: Path, patients: list[dict[str, float]]) -> None:
        self.now = 1000.0
        self.bus = MemoryBus(clock=lambda: self.now)
        self._patients = patients
        self.settings: list[DPFrankWolfeSettings] = []
        for number, file in enumerate(FILES):
            own, home = tomllib.loads(file), folder / str(number)
            own["window"]["rows"] = WINDOW
            home.mkdir()
            if "party" in own:
                privacy = own["privacy"]
                for key in ("secret_file", "ledger_file"):
                    privacy[key] = str(home / privacy[key])
                secret = Path(privacy["secret_file"])
                secret.touch(mode=0o600)
                secret.write_bytes(hashlib.sha256(b"%d" % number).digest())
                Anchor.create(privacy["ledger_file"], privacy["ledger"], own["party"]["name"])
            self.settings.append(DPFrankWolfeSettings(**own))
            topics = find_kind(self.settings[-1].role.kind).topics(self.settings[-1])
            known = self.bus.describe([topic.name for topic in topics])
            self.bus.create(
                [
                    replace(topic, partitions=topic.partitions or 1)
                    for topic in topics
                    if topic.name not in known
                ]
            )

    def start(self) -> list[Worker]:
        return [build_worker(own, self.bus, lambda: self.now, lambda: self.now) for own in self.settings]

    def settle(self, workers: Sequence[Worker]) -> None:
        idle = 0
        while idle < 20:
            idle = 0 if sum(worker.step(0.0) for worker in workers) else idle + 1
            self.now += idle > 0

    def write(self, topic: str, numbers: Iterable[int]) -> None:
        rows = [
            (f"patient-{number}", {name: self._patients[number][name] for name in FIELDS[topic]})
            for number in numbers
        ]
        self.bus.write([Outgoing(topic, name.encode(), json.dumps(row).encode()) for name, row in rows])

    def models(self) -> list[dict[str, Any]]:
        return [json.loads(record.value or b"") for record in self.bus.read("stay.model")]


def test_a_model_is_there_once_all_four_run_and_nobody_is_in_two(
    tmp_path: Path, patients: list[dict[str, float]]
) -> None:
    """Protects a newcomer's first try: with the files of the page and secrets and ledgers made as it says, a
    fit begins by itself, of patients that all know, and the model looks as the page shows it. The same
    patients make no second fit, others do, also after a restart.
    """
    tutorial = Tutorial(tmp_path, patients)
    workers = tutorial.start()
    for topic, start in (("wards", 0), ("blood", 50), ("prescriptions", 20), ("stays", 0)):
        tutorial.write(topic, range(start, WINDOW + 49))
    tutorial.settle(workers)
    # All four know one too few.
    assert tutorial.models() == []
    for topic in FIELDS:
        tutorial.write(topic, range(WINDOW + 49, WINDOW + 50))
    tutorial.settle(workers)
    models = tutorial.models()
    (line,) = re.findall(r'^    (\{"party".*\})$', PAGE, re.MULTILINE)
    assert [list(model) for model in models] == [list(json.loads(line))] * 3
    assert [(model["party"], model["version"]) for model in models] == [(name, 1) for name in MEMBERS[:3]]
    assert all(len(model["columns"]) == len(model["weights"]) <= 2 for model in models)
    assert sum(abs(weight) for model in models for weight in model["weights"]) <= 1 + 1e-9
    for worker in workers:
        worker.close()
    workers = tutorial.start()
    for topic in FIELDS:
        tutorial.write(topic, range(WINDOW + 50))
    tutorial.settle(workers)
    # Their budgets are spent; those that one party did not know before are too few.
    assert len(tutorial.models()) == 3
    for topic in FIELDS:
        tutorial.write(topic, range(WINDOW + 50, 2 * WINDOW + 50))
    tutorial.settle(workers)
    assert [model["version"] for model in tutorial.models()] == [1, 1, 1, 2, 2, 2]
    for worker in workers:
        worker.close()


def test_the_command_that_says_whether_it_is_worth_it_runs(
    patients: list[dict[str, float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects the first thing that is tried: the command of the page takes the server's file as it stands
    there, without a broker, a secret or a ledger, and what matters in the data is found at epsilon 1.
    """
    pd.DataFrame(patients).to_csv(tmp_path / "history.csv", index=False)
    (tmp_path / "institute.toml").write_text(FILES[3])
    (command,) = re.findall(r"^    streamfl (simulate .*)$", PAGE, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    code, out, error = run_command(monkeypatch, capsys, *shlex.split(command), "--format", "json")
    assert code == 0, error
    found = json.loads(out)
    assert (found["rows"], found["test_rows"], found["r2_of"]) == (5000, 600, "held-out rows")
    assert found["epsilon_spent"] == pytest.approx(1.0, abs=1e-3)
    assert not found["insecure_test_noise"]
    assert found["r2"] > 0.8
