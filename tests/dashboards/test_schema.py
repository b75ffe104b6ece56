"""The dashboards' files, checked with the types that Grafana publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

FILES = sorted((Path(__file__).parents[2] / "dashboards").glob("*.json"))


def read_and_written(board: Any) -> Any:
    """A dashboard after Grafana's types have read and written it. Unknown keys are lost."""
    return json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))


@pytest.fixture(autouse=True, scope="module")
def _plugins() -> None:
    register_default_plugins()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_grafanas_types_know_all_that_a_file_says(path: Path) -> None:
    """Protects a panel from an option that Grafana silently ignores: each key and each choice is one of
    Grafana's."""
    board = json.loads(path.read_text(encoding="utf-8"))
    assert read_and_written(board) == board


def test_a_word_that_grafana_does_not_know_is_lost() -> None:
    """Protects the test above: a misspelt key is lost."""
    board = json.loads(FILES[0].read_text(encoding="utf-8"))
    board["panels"][0]["fieldConfig"]["defaults"]["unitt"] = "short"
    assert read_and_written(board) != board
