"""Pictures need the extra ``plots``; everything else works without it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from command_line import Command

import streamfl.simulation.pictures as pictures
from streamfl.contract.role import ConfigurationError


@pytest.fixture(autouse=True)
def _without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )


def test_a_demo_without_matplotlib_shows_its_table(command: Command) -> None:
    """Protects users without the extra: the figures are printed, and one line says how to get the picture."""
    code, out, error = command("demo", "--format", "json")
    assert code == 0
    assert json.loads(out)["picture"] is None
    assert "pip install 'streamfl[plots]'" in error
    assert not Path("demo.png").exists()


def test_a_chart_without_matplotlib_is_refused_before_anything_runs(command: Command) -> None:
    """Protects a long comparison from a traceback at its last step: the check comes first."""
    code, _, error = command(
        "compare",
        "nothing.toml",
        "--data",
        "nothing.csv",
        "--label",
        "y",
        "--chart",
        "chart.png",
    )
    assert code == 2
    assert "pip install 'streamfl[plots]'" in error
    assert "Traceback" not in error


def test_a_plot_without_matplotlib_says_what_to_install() -> None:
    """Protects a notebook: ModuleNotFoundError would not name the extra."""
    with pytest.raises(ConfigurationError, match="plots"):
        pictures.new_pyplot()
