"""The commands of the tutorial of three organisations, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from page_commands import PageCommands, page_text
from tutorials import check_topics, files_of

from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.runtime.bus import connect

ROWS = 150
TEXT = page_text("dp-frank-wolfe.md", "Tutorial")
COLUMNS = ["age", "ward", "operations", "iron", "protein", "sugar", "doses", "opiates"]


@pytest.fixture(name="page")
def _page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[PageCommands]:
    page = PageCommands(tmp_path, TEXT, monkeypatch, capsys)
    yield page
    page.close()


def test_its_table_of_topics_is_whole() -> None:
    """Protects whoever grants rights by the page: these topics and no others are there, and it says who
    writes and reads which."""
    settings = [DPFrankWolfeSettings(**tomllib.loads(file)) for file in files_of(TEXT)]
    members = ("hospital", "laboratory", "pharmacy", "institute")
    check_topics(TEXT, {f"the {name}": own for name, own in zip(members, settings, strict=True)})
    assert len({Public(own).fingerprint for own in settings}) == 1
    assert all(own.privacy.is_private for own in settings)
    centres = [own.bounds.centre for own in settings]
    assert [number for own in centres[:3] for number in own] == centres[3]  # type: ignore[union-attr]


@pytest.mark.long
def test_every_command_of_the_page_runs(page: PageCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects three organisations' first try: secrets, ledgers, topics, history, check and processes, in the
    page's own words, lead to a model. Patients are few, so that it takes seconds.
    """
    monkeypatch.setenv("STREAMFL_WINDOW__ROWS", "100")
    parties = [member for member in page.files if member != "institute.toml"]
    for member in parties:
        path = page.folder / Path(member).stem / "own.secret"
        path.touch(mode=0o600)
        path.write_bytes(os.urandom(32))
    draws = np.random.default_rng(4)
    history = pd.DataFrame(draws.uniform(size=(ROWS, 8)) * [100, 10, 4, 30, 100, 200, 20, 1], columns=COLUMNS)
    history["days"] = (history["age"] / 10 + history["operations"]).round(1)
    page.put("history.csv", history.to_csv(index=False))
    assert "epsilon" in page.do("simulate")
    history.insert(0, "patient", [f"patient-{number}" for number in range(ROWS)])
    page.put("history.csv", history.to_csv(index=False))
    page.do("topics")
    # "Once, and so at the laboratory and the pharmacy"; likewise the history.
    page.commands += [f"ledger init {member}" for member in parties[1:]]
    page.do("ledger init")
    page.commands += [f"replay {member} --data history.csv --entity-column patient" for member in parties]
    page.do("replay")
    page.do("check")
    page.start()
    page.wait_for("stay.model", len(parties))
    page.stop()
    with closing(connect(f"sqlite://{page.folder}/topics.db")) as bus:
        models = [json.loads(record.value or b"") for record in bus.read("stay.model")]
    (line,) = re.findall(r'^    (\{"party".*\})$', TEXT, re.MULTILINE)
    assert [list(model) for model in models] == [list(json.loads(line))] * 3
    assert sum(abs(weight) for model in models for weight in model["weights"]) <= 1 + 1e-9
    page.commands += ["ledger show hospital.toml"]
    assert "hospital-patients" in page.do("ledger show")
    assert page.commands == []
