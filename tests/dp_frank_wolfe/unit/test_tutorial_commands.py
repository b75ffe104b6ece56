"""The commands of the tutorial of three organisations, run as they stand there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from page_commands import PageCommands, page_text

ROWS = 150
COLUMNS = ["age", "ward", "operations", "iron", "protein", "sugar", "doses", "opiates"]


@pytest.fixture(name="page")
def _page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[PageCommands]:
    page = PageCommands(tmp_path, page_text("dp-frank-wolfe.md", "Tutorial"), monkeypatch, capsys)
    yield page
    page.close()


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
    page.commands += ["ledger show hospital.toml"]
    assert "hospital-patients" in page.do("ledger show")
    assert page.commands == []
