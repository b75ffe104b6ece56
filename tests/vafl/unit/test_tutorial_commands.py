"""The commands of the pages of vertical federations, run as they stand there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from page_commands import PageCommands

ROWS = 200


@pytest.fixture(name="page")
def _page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[PageCommands]:
    page = PageCommands(tmp_path, ["vertical-tutorial.md", "vertical.md"], monkeypatch, capsys)
    yield page
    page.close()


@pytest.mark.long
def test_every_command_of_the_page_runs(page: PageCommands) -> None:
    """Protects two organisations' first try: topics, history, check and processes, in the page's own words, lead to predictions."""
    values = np.random.default_rng(4).normal(size=(ROWS, 5)).round(3)
    history = pd.DataFrame(values, columns=["age", "income", "debts", "visits", "returns"])
    history["defaulted"] = (values.sum(axis=1) > 0).astype(int)
    # What is simulated has no column of names: it would be an input.
    page.put("history.csv", history.to_csv(index=False))
    assert "Accuracy" in page.do("simulate")
    history.insert(0, "customer", [f"customer-{number}" for number in range(ROWS)])
    page.put("history.csv", history.to_csv(index=False))
    page.put("baskets.csv", history[["customer", "visits", "returns"]].to_csv(index=False))
    assert "--allow-principal" not in page.do("topics")
    page.do("replay")
    page.do("check")
    page.start()
    page.wait_for("credit.predictions", ROWS)
    page.stop()
    assert page.commands == ["demo vafl"], "run by another test"
