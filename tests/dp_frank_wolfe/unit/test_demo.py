"""``streamfl demo dp-frank-wolfe``, and what its page says of it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import run_command

from streamfl.dp_frank_wolfe.tools import demo as demo_sparse

PAGE = (Path(__file__).parents[3] / "docs" / "dp-frank-wolfe.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_demo_shows_what_three_find_for_epsilon_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Protects the first impression: at epsilon 1 the three come near whoever has one table and no privacy,
    find what matters, and spend what is allowed, as the page says; what works badly is shown as well.
    """
    # The curves take most of the time, and the table needs none of them.
    monkeypatch.setattr(demo_sparse, "EPSILONS", (1.0,))
    picture = tmp_path / "demo.png"
    code, out, error = run_command(
        monkeypatch, capsys, "demo", "dp-frank-wolfe", "--out", picture, "--format", "json"
    )
    assert code == 0, error
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(out)
    assert found["epsilon_spent"] == pytest.approx(1.0, abs=1e-3)
    measured = ["r2", "objective", "gap", "history", "r2_draws", "alone", "pooled", "served_r2"]
    assert found["not_private"] == measured
    runs = found["runs"]
    assert np.mean(runs["marginal"]["r2"]) > runs["one table"]["r2"][0] - 0.02
    assert (runs["marginal"]["right"], runs["marginal"]["numbers"]) == (6, 90)
    assert runs["one table"]["r2"][0] > runs["alone"]["r2"][0] + 0.3
    assert runs["frank-wolfe"]["numbers"] < 2_000
    for name, title in demo_sparse.TITLES.items():
        cells = r"([-0-9.]+)(?: ± ([0-9.]+))? \| (\d+) \| (\d+) \| ([0-9,]+)"
        (row,) = re.findall(rf"^\| {re.escape(title.format('hospital'))} \| {cells} \|$", PAGE, re.MULTILINE)
        told = [float(cell.replace(",", "") or "nan") for cell in row]
        draws = runs[name]["r2"]
        spread = np.std(draws, ddof=1) if len(draws) > 1 else math.nan
        wanted = [np.mean(draws), spread, *(runs[name][one] for one in ("right", "wrong", "numbers"))]
        assert told == pytest.approx(wanted, abs=0.006, nan_ok=True)
        assert len(draws) == (5 if name in demo_sparse.NAMES else 1)


def test_the_last_release_of_a_fit_reaches_the_budget_and_none_is_beyond() -> None:
    """Protects the picture of the budget: epsilon grows with each release of the plans, to what was
    configured."""
    for estimator, releases in (("marginal", 18), ("frank-wolfe", 48)):
        spent = demo_sparse._spent(demo_sparse._settings(7, estimator))
        assert len(spent) == releases + 1
        assert spent == sorted(spent)
        assert spent[-1] == pytest.approx(1.0, abs=1e-3)
