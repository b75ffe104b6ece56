"""The accuracy figures: which runs are repeated, and what the tables show."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
# The benchmarks are programs beside the package. They are not installed with it.
sys.path.insert(0, str(ROOT))

from benchmarks import accuracy  # noqa: E402
from benchmarks.accuracy_document import (  # noqa: E402
    Figures,
    fill,
    overview,
    picture,
    state,
    tables,
)
from benchmarks.accuracy_plan import CELLS, METHODS, SETS  # noqa: E402
from benchmarks.accuracy_runs import Cache, Method, Run, Stream, compute, curve_points, measure, source_hash  # noqa: E402

CLIENTS, SAMPLES = 3, 20
MEAN = Method("running-mean", ("streamfl/learning/challengers.py",), draws=False)


def deal(data: str, clients: int, samples: int, seed: int) -> Stream:
    generator = np.random.Generator(np.random.PCG64(seed + len(data)))
    inputs = generator.uniform(-1.0, 1.0, size=(samples, clients, 2))
    return Stream(inputs, np.clip(0.5 + 0.4 * inputs[..., 0], 0.0, 1.0))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "accuracy.json")


def kept(
    cache: Cache, method: str, data: str, errors: list[float | None], sent: float = 0.0, delay: int = 0
) -> None:
    """Stores results for seeds 0, 1, … at K = 40."""
    for seed, error in enumerate(errors):
        cache.put(
            Run(method, data, *CELLS[0], seed, delay),
            {"source": "s", "mse": error, "bytes": sent, "samples": 300},
        )


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_only_what_is_missing_or_of_other_code_is_run(tmp_path: Path, cache: Cache) -> None:
    """Protects an hour of computing: only missing runs, or runs of other code, are repeated. No table shows
    figures of old code."""
    runs = [Run("mean", "a", CLIENTS, SAMPLES, seed) for seed in (0, 1)]
    said: list[str] = []
    assert measure(runs, {"mean": MEAN}, cache, deal, said.append) == 2
    assert measure(runs, {"mean": MEAN}, cache, deal, said.append) == 0
    again = Cache(tmp_path / "accuracy.json")
    assert measure([*runs, Run("mean", "b", CLIENTS, SAMPLES)], {"mean": MEAN}, again, deal, said.append) == 1
    other = Method("running-mean", ("streamfl/learning/challengers.py", "streamfl/contract/role.py"))
    assert measure(runs, {"mean": other}, again, deal, said.append) == 2
    assert [text.split(":")[0] for text in said] == [
        run.key for run in (*runs, Run("mean", "b", CLIENTS, SAMPLES), *runs)
    ]


def test_a_hash_is_of_what_code_does(tmp_path: Path) -> None:
    """Protects against a changed constant with old figures, and against a comment that costs an hour."""
    source = tmp_path / "part.py"
    method = Method("direct", ("*.py",))
    stepped = Method("direct", ("*.py",), {"learning": {"exploration": 0.0}})
    source.write_text("RATE = 1\n", encoding="utf-8")
    first = source_hash(method, tmp_path)
    source.write_text("# Half would do.\nRATE  =  1\n", encoding="utf-8")
    assert source_hash(method, tmp_path) == first
    assert source_hash(stepped, tmp_path) != first
    source.write_text("RATE = 2\n", encoding="utf-8")
    assert source_hash(method, tmp_path) != first
    with pytest.raises(FileNotFoundError, match=r"other\.py"):
        source_hash(Method("direct", ("other.py",)), tmp_path)


def test_every_method_names_sources_that_are_there() -> None:
    """Protects `make accuracy` from ending before its first run: a file that a method depends on had
    moved."""
    assert all(len(source_hash(method)) == 16 for method in METHODS.values())


def test_a_run_is_judged_by_its_predictions() -> None:
    """Protects the figures: the mean over all samples and clients, times 1000, and the running error at the
    kept points."""
    stream = deal("set", CLIENTS, SAMPLES, 0)
    found = compute(MEAN, Run("mean", "set", CLIENTS, SAMPLES, delay=0), stream)
    means = np.array([stream.labels[:t].mean(axis=0) if t else np.zeros(CLIENTS) for t in range(SAMPLES)])
    errors = 1e3 * np.square(means - stream.labels)
    assert found["mse"] == pytest.approx(errors.mean(), rel=1e-3)
    assert found["curve"] == pytest.approx(
        [errors[:point].mean() for point in curve_points(SAMPLES)], rel=1e-3
    )
    assert (found["bytes"], found["samples"]) == (0.0, SAMPLES)
    late = compute(MEAN, Run("mean", "set", CLIENTS, SAMPLES, delay=5), stream)
    means = np.array(
        [stream.labels[: t - 5].mean(axis=0) if t > 5 else np.zeros(CLIENTS) for t in range(SAMPLES)]
    )
    assert late["mse"] == pytest.approx(1e3 * np.square(means - stream.labels).mean(), rel=1e-3)


def test_a_direct_run_is_the_federation_on_the_bus() -> None:
    """Protects the ablation's ratios: the denominator comes from the bus, the numerators come from direct
    runs."""
    stream, run = deal("set", CLIENTS, SAMPLES, 0), Run("default", "set", CLIENTS, SAMPLES, 1)
    method = METHODS["default"]
    direct = compute(Method("direct", method.sources, method.settings), run, stream)
    bus = compute(method, run, stream)
    assert bus["mse"] == direct["mse"]
    assert bus["bytes"] > 5 * 200 * 4 * (SAMPLES - 1) / SAMPLES * 0.75
    assert direct["bytes"] is None


def test_methods_are_ordered_by_all_sets_and_the_best_is_marked(cache: Cache) -> None:
    """Protects the reader, who looks at the first line and at bold numbers."""
    for data in SETS:
        kept(cache, "knn", data, [1.0, 3.0, 2.0])
        kept(cache, "default", data, [1.0] * 3 if data == "air" else [4.0, 6.0, 5.0], 4000.0)
        kept(cache, "paper, M = 1", data, [None, 2.0] if data == "air" else [9.0])
    methods = ("paper, M = 1", "default", "knn", "hoeffding")
    table = overview(Figures(cache), methods, CELLS[0])
    assert [row[0] for row in rows(table)] == ["knn", "default", "paper, M = 1"]
    knn, default, paper = rows(table)
    # The last set is dealt without a seed, so a method without random draws has only one run there.
    assert knn[1:] == ["**2.00 ± 1**", "2.00 ± 1", "**2.00 ± 1**", "**2.00 ± 1**", "**1.00**", "none"]
    assert default[1:] == ["5.00 ± 1", "**1.00 ± 0**", *["5.00 ± 1"] * 3, "4,000"]
    assert paper[1:3] == ["9.00", "diverged"]
    # If a method lacks sets, the order uses the sets that all methods have.
    kept(cache, "hoeffding", "air", [0.5])
    table = overview(Figures(cache), methods, CELLS[0])
    assert [row[0] for row in rows(table)] == ["hoeffding", "default", "knn", "paper, M = 1"]
    assert rows(table)[0][1:3] == ["-", "**0.500**"]


def test_the_page_says_what_is_missing_or_older(cache: Cache) -> None:
    """Protects the reader from unmarked figures of two versions of the code side by side."""
    one = Run("default", "air", 40, 300)
    two = Run("default", "air", 40, 300, 1)
    other = Run("knn", "air", 40, 300)
    kept(cache, "default", "air", [1.0])
    found = state([one, two, other], cache)
    assert (
        found
        == "Not measured yet: default (1), knn (1).\n\nMeasured with code that has changed since: default "
        "(1)."
    )
    assert state([], cache) == "Every run is there, and of the code as it is."


def test_tables_go_between_their_marks() -> None:
    """Protects the text around the tables, and reports a missing mark."""
    text = "A\n<!-- begin one -->\nold\n<!-- end -->\nB\n<!-- begin two -->\n<!-- end -->\n"
    filled = fill(text, {"one": "| 1 |", "two": r"| \1 |"})
    assert (
        filled
        == "A\n<!-- begin one -->\n\n| 1 |\n\n<!-- end -->\nB\n<!-- begin two -->\n\n| \\1 |\n\n<!-- end "
        "-->\n"
    )
    assert fill(filled, {"one": "| 1 |", "two": r"| \1 |"}) == filled
    with pytest.raises(ValueError, match="begin three"):
        fill(text, {"three": ""})


def test_the_document_has_a_mark_for_every_table(cache: Cache, tmp_path: Path) -> None:
    """Protects an hour of computing from ending in an error, and the picture from an empty set."""
    fill((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8"), tables(cache) | {"state": ""})
    measure(
        [Run("running-mean", "naval", *CELLS[0])],
        {"running-mean": MEAN},
        cache,
        lambda *_: deal("", CLIENTS, 9, 0),
    )
    picture(cache, tmp_path / "picture.svg")
    assert "<svg" in (tmp_path / "picture.svg").read_text(encoding="utf-8")


def test_without_the_data_the_program_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the user from a traceback: the data sets are not part of the repository."""
    monkeypatch.setattr(sys, "argv", ["accuracy", "--out", str(tmp_path)])
    for folder in (None, str(tmp_path)):
        if folder is None:
            monkeypatch.delenv("STREAMFL_DATA", raising=False)
        else:
            monkeypatch.setenv("STREAMFL_DATA", folder)
        with pytest.raises(SystemExit) as ended:
            accuracy.main()
        assert ended.value.code == 2
        assert "STREAMFL_DATA" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["accuracy", "--only", "knm"])
    with pytest.raises(SystemExit) as ended:
        accuracy.main()
    assert ended.value.code == 2
    assert "known are default; " in capsys.readouterr().err
