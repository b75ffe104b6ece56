"""How errors are told: in the label's own unit, beside the bytes that they cost, and so that a picture can be
read."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run_command
from sklearn import metrics

from streamfl.pofmkl.tools import comparison_picture
from streamfl.pofmkl.tools.comparison import Contender, method_names
from streamfl.pofmkl.tools.errors import errors_of, rmse_over_time
from streamfl.pofmkl.tools.record_size import record_bytes
from streamfl.simulation.notebook import FrameTable

CONFIG = """
[federation]
name = "plant"
clients = 2
[role]
kind = "pofmkl-client"
[learning]
features_per_kernel = 4
"""


def test_errors_are_those_of_scikit_learn_over_the_samples_that_there_are() -> None:
    """Protects every table: RMSE and MAE are of the label's own unit, and a client with fewer samples counts
    with those it has."""
    generator = np.random.default_rng(3)
    labels, predictions = generator.uniform(20, 60, size=(2, 7, 3))
    labels[4:, 1] = predictions[4:, 1] = np.nan
    there = ~np.isnan(labels)
    scaled = (labels - 20.0) / 40.0
    squared = np.square((predictions - labels) / 40.0)
    found = errors_of(squared, scaled, 40.0)
    assert found.rmse == pytest.approx(metrics.root_mean_squared_error(labels[there], predictions[there]))
    assert found.mae == pytest.approx(metrics.mean_absolute_error(labels[there], predictions[there]))
    over_time = rmse_over_time(squared, scaled, 40.0)
    for count in (1, 4, 5, 7):
        part = there[:count]
        expected = metrics.root_mean_squared_error(labels[:count][part], predictions[:count][part])
        assert over_time[count - 1] == pytest.approx(expected)


def test_a_record_has_the_bytes_of_its_json() -> None:
    """Protects who compares what is sent with the record itself: names, numbers and texts are counted as a
    producer writes them."""
    table = FrameTable({"site": ["a", "bb", "c"], "t": [1.5, 22.25, 3.0], "y": [1, 20, 3]})
    rows = [{"t": 1.5, "y": 1, "site": "a"}, {"t": 22.25, "y": 20, "site": "bb"}]
    expected = sum(len(json.dumps(row, separators=(",", ":"))) for row in rows) / 2
    assert record_bytes(table, ["t", "y", "site"], np.array([[0, 1], [-1, -1]])) == round(expected)


def test_both_commands_tell_one_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects who goes from one table to the next: the same federation has the same error, bytes and record
    in both."""
    generator = np.random.default_rng(5)
    inputs = generator.uniform(size=(40, 2))
    content = np.column_stack([inputs, 300.0 + 80.0 * inputs[:, 0]])
    np.savetxt(tmp_path / "data.csv", content, delimiter=",", header="t,u,grams", comments="")
    (tmp_path / "client.toml").write_text(CONFIG)
    asked = ["--data", tmp_path / "data.csv", "--label", "grams"]

    def said(*command: Any) -> str:
        code, out, error = run_command(monkeypatch, capsys, *command)
        assert code == 0, error
        return out

    one = json.loads(said("simulate", tmp_path / "client.toml", *asked, "--format", "json"))
    compare = ("compare", tmp_path / "client.toml", *asked, "--methods", "default,local,running-mean")
    other = json.loads(said(*compare, "--format", "json"))
    by_name = {method["method"]: method for method in other["methods"]}
    assert other["record_bytes"] == one["record_bytes"] > 40
    for method, whose in (("default", ""), ("local", "_local_only"), ("running-mean", "_running_mean")):
        for error in ("rmse", "mae"):
            assert by_name[method][error] == pytest.approx(one[f"{error}{whose}"], rel=1e-6)
    assert by_name["default"]["uplink_bytes_per_sample"] == one["uplink_bytes_per_sample"]
    # Nothing is learnt before the first label, so an error of the labels' size is there; none is a share of
    # their range.
    assert 1.0 < one["mae"] < one["rmse"] < 80.0
    heading = f"bytes sent a sample (a record: {one['record_bytes']})"
    for table in (said(*compare), said("simulate", tmp_path / "client.toml", *asked)):
        assert all(text in table for text in ("RMSE, units of grams", "MAE, units of grams", heading))


def test_no_text_of_the_picture_covers_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects comparison.png, whose names lay one on another: of all methods, most of them equally good,
    each can be read."""
    drawn: list[Any] = []
    pyplot = comparison_picture.new_pyplot()
    monkeypatch.setattr(pyplot, "close", drawn.append)
    labels = np.random.default_rng(7).uniform(size=(20, 2))
    contenders = []
    for number, name in enumerate(method_names()):
        error = (
            np.inf if name == "per-fed-avg" else 0.1 + 0.001 * (number % 3) + 3.0 * (name == "em-kofl-mean")
        )
        predictions = labels + error
        contenders.append(
            Contender(name, predictions, np.square(predictions - labels), 1e4 * (number % 2), 40.0, labels)
        )
    comparison_picture.picture(contenders, tmp_path / "c.png", "data.csv: 2 clients", "units of grams", 136)
    [figure] = drawn
    figure.canvas.draw()
    left, right = figure.axes
    # The names of all methods stand at the right.
    texts = [*right.texts, *right.get_yticklabels(), right.xaxis.label, left.xaxis.label, left.yaxis.label]
    said = [text.get_text() for text in texts]
    assert all(any(line.startswith(f"{name}: ") for line in said) for name in method_names())
    assert any("diverged" in line for line in said)
    assert any("136 bytes" in line for line in said)
    boxes = [text.get_window_extent() for text in texts]
    within = figure.bbox
    for box, line in zip(boxes, said, strict=True):
        assert within.x0 <= box.x0, f"{line} is cut off"
        assert box.x1 <= within.x1, f"{line} is cut off"
    for (one, first), (other, second) in itertools.combinations(zip(boxes, said, strict=True), 2):
        assert not one.overlaps(other), f"{first} | {second}"
