"""``streamfl demo quasi-newton``, and what its page says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_command

from streamfl.quasi_newton.tools import demo as demo_scorecard

PAGE = (Path(__file__).parents[3] / "docs" / "quasi-newton.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_demo_shows_what_two_companies_learn_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Protects the first impression: under encryption both come to what one table would give, far beyond the
    guest alone, as the page says; what Kafka carries does not follow the sums, and the picture has a point
    for each.
    """
    said: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
    draw = demo_scorecard._draw

    def noted(out: Path, together: Any, scores: Any, signs: Any, found: Any, heard: Any) -> None:
        trace = together.trace
        sums = trace["inputs/browser"][trace["batches"][0]] @ trace["weights/browser"][0]
        said.append((sums, heard.numbers(len(sums))))
        draw(out, together, scores, signs, found, heard)

    monkeypatch.setattr(demo_scorecard, "_draw", noted)
    # What is learnt does not depend on the length of the key, and a short one is quick.
    monkeypatch.setattr(demo_scorecard, "KEY_BITS", 512)
    picture = tmp_path / "demo.png"
    code, out, error = run_command(
        monkeypatch, capsys, "demo", "quasi-newton", "--out", picture, "--format", "json"
    )
    assert code == 0, error
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(out)
    assert (found["precision"], found["key_bits"]) == ("paillier", 512)
    runs = found["runs"]
    assert runs["together"] == pytest.approx(runs["one table"], abs=0.01)
    assert runs["together"]["auc"] > max(0.95, runs["alone"]["auc"] + 0.2)
    assert runs["together"]["auc"] > runs["logistic"]["auc"] - 0.02
    for name, title in demo_scorecard.TITLES.items():
        (row,) = re.findall(rf"^\| {title} \| ([0-9.]+) \| ([0-9.]+) \| ([0-9.]+) \|$", PAGE, re.MULTILINE)
        measured = [runs[name][one] for one in ("auc", "ks", "accuracy")]
        assert [float(cell) for cell in row] == pytest.approx(measured, abs=0.006), (
            "the page is not of this demo"
        )
    ((sums, sent),) = said
    assert len(set(np.round(sums, 6).tolist())) > 30
    assert len(set(sent.tolist())) == 256
    assert abs(np.corrcoef(sums, sent)[0, 1]) < 5 / 16
    assert 0.2 < sent.std() < 0.4
