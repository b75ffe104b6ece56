"""Fixtures that several folders share."""

from __future__ import annotations

from pathlib import Path

import pytest
from dp_frank_wolfe.simulated import Line


@pytest.fixture(name="line")
def _line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(tmp_path, monkeypatch, capsys)
