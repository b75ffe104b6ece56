"""The tutorial of three organisations that find what matters, done as its page says."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from page_commands import page_text
from tutorials import Row, Tutorial, check_topics, files_of, simulated

from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.privacy.anchor import Anchor
from streamfl.runtime.kinds import find_kind

PAGE = page_text("dp-frank-wolfe.md", "Tutorial")
FILES = files_of(PAGE)
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
    settings = {f"the {name}": read(file) for name, file in zip(MEMBERS, FILES, strict=True)}
    check_topics(PAGE, settings)
    every = {topic.name for item in settings.values() for topic in find_kind(item.role.kind).topics(item)}
    ledgers = {name for name in every if name.endswith(".ledger")}
    assert len(ledgers) == 3
    assert all(f"`{name}`" in PAGE for name in ledgers)


@pytest.fixture(name="patients", scope="module")
def _patients() -> list[Row]:
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


def members_in(folder: Path) -> list[DPFrankWolfeSettings]:
    """The members of the page, with secrets and ledgers made as it says. Windows are small, to take
    seconds."""
    members = []
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
        members.append(DPFrankWolfeSettings(**own))
    return members


def test_a_model_is_there_once_all_four_run_and_nobody_is_in_two(tmp_path: Path, patients: list[Row]) -> None:
    """Protects a newcomer's first try: with the files of the page and secrets and ledgers made as it says, a
    fit begins by itself, of patients that all know, and the model looks as the page shows it. The same
    patients make no second fit, others do, also after a restart.
    """
    tutorial = Tutorial(members_in(tmp_path), "patient", patients, FIELDS, patience=20)
    tutorial.start()
    for topic, start in (("wards", 0), ("blood", 50), ("prescriptions", 20), ("stays", 0)):
        tutorial.write(topic, range(start, WINDOW + 49))
    tutorial.settle()
    # All four know one too few.
    assert tutorial.contents("stay.model") == []
    for topic in FIELDS:
        tutorial.write(topic, range(WINDOW + 49, WINDOW + 50))
    tutorial.settle()
    models = tutorial.contents("stay.model")
    (line,) = re.findall(r'^    (\{"party".*\})$', PAGE, re.MULTILINE)
    assert [list(model) for model in models] == [list(json.loads(line))] * 3
    assert [(model["party"], model["version"]) for model in models] == [(name, 1) for name in MEMBERS[:3]]
    assert all(len(model["columns"]) == len(model["weights"]) <= 2 for model in models)
    assert sum(abs(weight) for model in models for weight in model["weights"]) <= 1 + 1e-9
    tutorial.stop()
    tutorial.start()
    for topic in FIELDS:
        tutorial.write(topic, range(WINDOW + 50))
    tutorial.settle()
    # Their budgets are spent; those that one party did not know before are too few.
    assert len(tutorial.contents("stay.model")) == 3
    for topic in FIELDS:
        tutorial.write(topic, range(WINDOW + 50, 2 * WINDOW + 50))
    tutorial.settle()
    assert [model["version"] for model in tutorial.contents("stay.model")] == [1, 1, 1, 2, 2, 2]
    tutorial.stop()


def test_the_command_that_says_whether_it_is_worth_it_runs(
    patients: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the first thing that is tried: the command of the page takes the server's file as it stands
    there, without a broker, a secret or a ledger, and what matters in the data is found at epsilon 1.
    """
    found = simulated(PAGE, tmp_path / "institute.toml", FILES[3], patients, monkeypatch, capsys)
    assert (found["rows"], found["test_rows"], found["r2_of"]) == (5000, 600, "held-out rows")
    assert found["epsilon_spent"] == pytest.approx(1.0, abs=1e-3)
    assert not found["insecure_test_noise"]
    assert found["r2"] > 0.8
