"""The example notebook: its cells, run in order, show what its text says."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebook"
# The notebook's table, and a smaller one that shows the same in a fifth of the time.
AS_IT_STANDS, SMALLER = "rows, presses = 50_000, 1_000\n", "rows, presses = 5_000, 100\n"


@pytest.fixture(name="notebook")
def _notebook() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / "federation.ipynb").read_text(encoding="utf-8"))
    return content


def test_it_is_a_notebook_without_outputs(notebook: dict[str, Any]) -> None:
    """Protects the repository from pictures: every cell has the right format and no output."""
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_its_cells_run_and_show_something(
    notebook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the first try on a larger table: no cell fails, each shows something, and the figures match
    the text."""
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    names: dict[str, Any] = {}
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert AS_IT_STANDS in sources[0]
    shown = [_shown(source.replace(AS_IT_STANDS, SMALLER), names) for source in sources]
    errors = (names["alone"] ** 2).mean()
    assert errors["streamfl.Regressor"] < errors["running mean"]
    together, compared = names["together"], names["compared"]
    assert (
        together.figures["rmse"] < together.figures["rmse_local_only"] < together.figures["rmse_running_mean"]
    )
    assert {line.get_label() for line in shown[3].get_lines()} >= {"federation", "each client on its own"}
    assert "<table>" in together._repr_html_()
    assert [one["method"] for one in compared.figures["methods"]] == ["default", "local", "running-mean"]
    assert len(names["predicted"]) == len(names["readings"]) == 5_000
    first = names["readings"].to_dict("records")[0]
    assert shown[-1] == (first["press"], first)


def _shown(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does, and return the value of its last line."""
    tree = ast.parse(source)
    last = tree.body[-1]
    assert isinstance(last, ast.Expr), source
    tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], last.value), last)
    exec(compile(ast.fix_missing_locations(tree), "cell", "exec"), names)
    return names["_"]
