"""Data sets: every kind of file gives the same rows, and a missing one gives a clear error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamfl_connectors.replay import read

from streamfl.contract.role import DataError


def test_csv_and_parquet_agree_and_keep_gaps_and_names(tmp_path: Path) -> None:
    """Rows with gaps are dropped and counted later, so a gap must stay a gap."""
    frame = pd.DataFrame({"t1": [1.0, None, 3.0], "site": ["a", "b", "c"], "y": [1, 0, 1]})
    frame.to_csv(tmp_path / "f.csv", index=False)
    frame.to_parquet(tmp_path / "f.parquet")
    for name in ("f.csv", "f.parquet"):
        table = read(str(tmp_path / name))
        assert list(table.columns) == ["t1", "site", "y"]
        np.testing.assert_array_equal(table.columns["t1"], [1.0, np.nan, 3.0])
        assert table.columns["site"].tolist() == ["a", "b", "c"]
        assert table.inputs(["y"]) == ["t1"]


def test_json_lines_are_read_as_write_takes_them(tmp_path: Path) -> None:
    """Protects who tries out on the file what `streamfl write` is to put into a topic: nested fields have the
    names that settings have, and a missing one is a gap."""
    file = tmp_path / "f.jsonl"
    file.write_text('{"meta": {"site": "a"}, "t1": 1, "y": true}\n\n{"t1": 2.5, "meta": {"site": null}}\n')
    table = read(str(file))
    assert {name: values.tolist() for name, values in table.columns.items() if name != "y"} == {
        "t1": [1.0, 2.5],
        "meta.site": ["a", None],
    }
    assert table.inputs([]) == ["t1", "y"]


@pytest.mark.parametrize("line", [b"[1]", b"{", b'{"a": ' + b"[" * 100_000, b"\xff"])
def test_a_line_that_is_no_json_object_is_named(tmp_path: Path, line: bytes) -> None:
    """Protects from a traceback, and from rows that are passed over."""
    (tmp_path / "f.jsonl").write_bytes(b'{"a": 1}\n' + line)
    with pytest.raises(DataError, match=r"f\.jsonl: line 2: is not JSON as expected"):
        read(str(tmp_path / "f.jsonl"))


def test_npz_learns_from_its_matrix_alone(tmp_path: Path) -> None:
    """Other arrays may hold the target in another form: learning from them unasked would leak it."""
    matrix = np.arange(6.0).reshape(3, 2)
    asides = {
        "raw": matrix * 2,
        "site": np.array([0, 1, 0]),
        "X_val": np.ones((9, 2)),
        "names": np.array(["a", "b"]),
    }
    np.savez(tmp_path / "f.npz", X=matrix, y=np.array([1.0, 2.0, 3.0]), **asides)  # type: ignore[arg-type]
    table = read(str(tmp_path / "f.npz"))
    assert table.rows == 3
    assert table.inputs(["y"]) == ["x0", "x1"]
    assert table.inputs(["y", "x0"]) == ["x1"]
    np.testing.assert_array_equal(table.columns["x1"], [1.0, 3.0, 5.0])
    assert table.columns["site"].tolist() == [0, 1, 0]
    assert "names" not in table.columns


def test_npz_with_pickles_is_refused(tmp_path: Path) -> None:
    """A pickle in a data file would run its author's code."""
    np.savez(tmp_path / "f.npz", X=np.array([[{}]], dtype=object))
    with pytest.raises(DataError, match="cannot be read"):
        read(str(tmp_path / "f.npz"))


def test_river_carries_data_without_a_network() -> None:
    """The demo needs this."""
    table = read("river:TrumpApproval", ["gallup", "y"])
    assert list(table.columns) == ["gallup", "y"]
    assert table.rows == 1001


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("nothing.csv", "cannot be read"),
        ("nothing.xls", r"\.csv, \.jsonl, \.parquet, \.npz or river:NAME"),
        ("river:Nothing", "TrumpApproval"),
    ],
)
def test_what_cannot_be_read_says_why(location: str, expected: str) -> None:
    """Exit code 5 has a reason, not a traceback."""
    with pytest.raises(DataError, match=expected):
        read(location)


def test_missing_columns_and_empty_files(tmp_path: Path) -> None:
    """The error about a missing column lists the existing ones."""
    (tmp_path / "f.csv").write_text("a,b\n")
    with pytest.raises(DataError, match="no rows"):
        read(str(tmp_path / "f.csv"))
    (tmp_path / "f.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"no column c \(there are: a, b\)"):
        read(str(tmp_path / "f.csv"), ["c"])
