"""A Frank-Wolfe federation on a file: figures against calculations of their own, and mistakes of whoever asks
for it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from dp_frank_wolfe.simulated import COLUMNS, PARTIES, ROWS, WINDOW, Line

from streamfl.dp_frank_wolfe.config import SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.tools import run
from streamfl.dp_frank_wolfe.tools.run import run_fits
from streamfl.simulation.vertical.table import VerticalTable

pytestmark = pytest.mark.long

CONTRACT = [
    "r2",
    "objective",
    "gap",
    "support",
    "l1_norm",
    "epsilon",
    "delta",
    "uplink_numbers",
    "bytes",
    "iterations",
    "virtual_seconds",
]
RADIUS, ITERATIONS = 1.5, 7
LABORATORY = "not private, laboratory only"
PRIVATE = {"epsilon": 2.0, "learning": "sketch_rows = 8"}


def test_figures_are_those_of_the_model(line: Line) -> None:
    """Protects who reads a report: without noise, sketch and intercept, figures are those of the weights, to
    1e-12. What the weights are is tried on traces (papers/test_trace.py)."""
    found, trace = line.traced(learning='sketch = "identity"\ncolumns = 27\nintercept = false')
    assert list(found)[: len(CONTRACT)] == CONTRACT
    table, sizes = line.frame.to_numpy(), list(PARTIES.values())
    columns, labels = table[:WINDOW, :COLUMNS], table[:WINDOW, -1]
    x = np.concatenate([trace[f"1/x/{party}"][-1] for party in PARTIES])
    residuals = columns @ x - labels
    gradient = columns.T @ residuals / WINDOW
    best = [np.abs(own).max() for own in np.split(gradient, np.cumsum(sizes)[:-1])]
    assert found["objective"] == pytest.approx(float(residuals @ residuals) / (2 * WINDOW), abs=1e-12)
    assert found["gap"] == pytest.approx(float(gradient @ x) + RADIUS / 3 * sum(best), abs=1e-12)
    assert found["l1_norm"] == pytest.approx(np.abs(x).sum(), abs=1e-12)
    assert (found["support"], found["iterations"]) == (np.count_nonzero(x), ITERATIONS)
    assert (found["epsilon"], found["epsilon_spent"], found["delta"]) == (None, None, 0.001)
    held_out, predicted = table[WINDOW:, -1], table[WINDOW:, :COLUMNS] @ x
    r2 = 1 - np.sum((held_out - predicted) ** 2) / np.sum((held_out - held_out.mean()) ** 2)
    assert (found["r2"], found["r2_of"]) == (pytest.approx(r2), "held-out rows")
    assert found["r2"] > 0.3
    np.testing.assert_array_equal(trace["predicted_rows"], np.arange(WINDOW, ROWS))
    assert found["uplink_numbers"] == 3 * ITERATIONS + found["support"] * WINDOW
    assert [one["objective"] for one in found["history"]][-1] == found["objective"]
    assert len(found["history"]) == ITERATIONS + 1
    # Without noise there is one draw.
    assert len(found["r2_draws"]) == 1


def held_out_r2(table: np.ndarray, columns: list[int]) -> float:
    """Of least squares with an intercept on the window's rows, without privacy."""
    design = np.column_stack([np.ones(ROWS), table[:, columns]])
    weights = np.linalg.lstsq(design[:WINDOW], table[:WINDOW, -1], rcond=None)[0]
    held_out = table[WINDOW:, -1]
    return float(
        1 - np.sum((held_out - design[WINDOW:] @ weights) ** 2) / np.sum((held_out - held_out.mean()) ** 2)
    )


def test_a_private_run_says_what_it_cost_and_what_is_not_private(line: Line) -> None:
    """Protects whoever reads a report, and decides by one number: epsilon is that of the configuration,
    numbers sent are within what the plans allow, what is of the data is labelled, and R^2 is of several draws
    of noise, beside that of the best party alone and of all columns."""
    found, told = line.json(**PRIVATE), line(**PRIVATE)[1]
    assert found["epsilon"] == found["epsilon_spent"] == pytest.approx(2.0, abs=1e-3)
    labelled = {"r2", "objective", "gap", "history", "r2_draws", "alone", "pooled", "served_r2"}
    assert set(found["not_private"]) == labelled
    # A mean of each column, and of the label by each party; signed indices; sketches.
    indices = 12 + 3 * ITERATIONS
    assert indices < found["uplink_numbers"] <= found["uplink_most"] == indices + 3 * 8
    assert found["l1_norm"] <= RADIUS * (1 + 1e-12)
    assert found["support"] <= 3
    assert found["insecure_test_noise"]
    assert (found["served_r2"], found["prediction_noise"]) == (None, 0.0)
    for measure in ("R^2 of held-out rows", "Objective", "Duality gap"):
        assert f"{measure} ({LABORATORY})" in told
    assert "none: insecure_test_noise" in told
    draws = found["r2_draws"]
    assert len(set(draws)) == len(draws) == 5
    assert draws[0] == found["r2"]
    spread = f"{np.mean(draws):.3f} ± {np.std(draws, ddof=1):.3f}, mean and deviation of 5 draws"
    assert f"{spread}; this one {draws[0]:.3f}" in told
    table, ends = line.frame.to_numpy(), np.cumsum([0, *PARTIES.values()])
    alone = {name: held_out_r2(table, list(range(ends[k], ends[k + 1]))) for k, name in enumerate(PARTIES)}
    assert found["alone"] == pytest.approx(alone, abs=1e-9)
    assert found["pooled"] == pytest.approx(held_out_r2(table, list(range(COLUMNS))), abs=1e-9)
    best = max(alone, key=alone.__getitem__)
    assert f"{alone[best]:.3f}, {best}" in told
    assert line.json("--draws", 2, **PRIVATE)["r2_draws"] == draws[:2]
    assert line.json("--epsilon", "inf", **PRIVATE)["epsilon"] is None


@pytest.mark.parametrize(
    "learning",
    [
        'estimator = "marginal"',
        'estimator = "two-round"',
        'sketch_rows = 8\nblocks = 2\nsampling = "nice"\nsampled_blocks = 3\nradii = {bank = 0.2, shop = '
        "0.9, post = 0.4}\ncandidates = 2\nintercept = false",
    ],
)
def test_draws_are_what_the_federation_would_have_come_to(
    line: Line, monkeypatch: pytest.MonkeyPatch, learning: str
) -> None:
    """Protects the spread: with the federation's own secrets a draw without members is its model, bit for
    bit, whatever is set."""
    monkeypatch.setattr(run, "_drawn", lambda settings, places, number: places)
    found = line.json(epsilon=4.0, learning=learning, privacy="shares = {bank = 0.5, shop = 0.2, post = 0.2}")
    assert found["r2_draws"] == [found["r2"]] * 5


def test_the_same_seed_is_the_same_run_and_a_secret_is_not(line: Line) -> None:
    """Protects experiments, which are repeated, and privacy, whose noise is never drawn twice."""
    first, again = (line.json(**PRIVATE) for _ in range(2))
    assert first.pop("seconds") != again.pop("seconds")
    assert first == again
    other = line.json("--seed", 6, **PRIVATE)
    assert other["history"] != first["history"]
    settings = {**PRIVATE, "insecure": False}
    secret = [line.json(**settings) for _ in range(2)]
    assert secret[0]["history"] != secret[1]["history"]
    assert not secret[0]["insecure_test_noise"]
    assert "epsilon 2 of 2, delta 0.001, over all parties" in line(**settings)[1]


@pytest.mark.parametrize("estimator", ["marginal", "two-round"])
def test_estimators_that_choose_once_are_measured(line: Line, estimator: str) -> None:
    """Protects the other estimators: they learn without noise, and send as many numbers as their plans
    say."""
    found = line.json(learning=f'estimator = "{estimator}"')
    assert found["r2"] > 0.5
    assert (found["iterations"], found["estimator"]) == (1, estimator)
    assert 0 < found["uplink_numbers"] <= found["uplink_most"]
    assert found["gap"] > -1e-12


def test_the_default_estimator_is_the_one_that_serves() -> None:
    """Protects whoever sets nothing of learning: columns and label have a mean, and it learns more than the
    paper's algorithm."""
    random, names = np.random.default_rng(8), ["bank", "shop"]
    centres, common = np.array([0.5, -0.6, 0.4, 0.3, -0.5, 0.6]), 0.04 * random.normal(size=(3, 6))
    columns = np.clip(
        centres + random.normal(size=(2_600, 3)) @ common + 0.15 * random.normal(size=(2_600, 6)), -1, 1
    )
    inputs, labels = [columns[:, :3], columns[:, 3:]], 0.5 + (columns - centres) @ [0.5, 0, -0.4, 0.6, 0, 0.3]
    found = {}
    learnings: list[dict[str, str]] = [{}, {"estimator": "frank-wolfe"}]
    for learning in learnings:
        settings = DPFrankWolfeSettings.model_validate(
            {
                "federation": {"name": "f", "parties": names, "columns": dict.fromkeys(names, 3)},
                "role": {"kind": SERVER},
                "window": {"rows": 2_000},
                "privacy": {"epsilon": 8.0, "delta": 1e-5, "insecure_test_noise": True},
                "learning": learning,
            }
        )
        outcome = run_fits(settings, VerticalTable(inputs, labels, 600))
        assert outcome.r2 is not None
        found[learning.get("estimator", "default")] = outcome.r2
    assert found["default"] > max(0.5, found["frank-wolfe"] + 0.1), found


def test_without_rows_to_hold_out_it_says_so(line: Line) -> None:
    """Protects a reader from a figure of training rows that passes for one of others."""
    line.frame = line.frame[:WINDOW]
    # With an intercept a model is fitted to values that are cut once more.
    found = line.json(learning="intercept = false")
    assert (found["r2_of"], found["test_rows"], found["rows"]) == ("training rows", 0, WINDOW)
    # Objective and R^2 are of the same rows then.
    labels = line.frame["y"].to_numpy()
    assert found["r2"] == pytest.approx(
        1 - 2 * WINDOW * found["objective"] / np.sum((labels - labels.mean()) ** 2)
    )


def test_windows_are_of_different_rows_and_fitted_one_after_the_other(line: Line) -> None:
    """Protects the budget of an entity: each row is in one window, and figures are of the last one and of the
    rows behind it."""
    line.frame = pd.concat([line.frame, line.frame.iloc[::-1]], ignore_index=True)
    found, trace = line.traced("--windows", 3)
    rows = [trace[f"{window}/rows"].tolist() for window in (1, 2, 3)]
    assert sorted(row for window in rows for row in window) == list(range(3 * WINDOW))
    assert (found["windows"], found["rows"], found["test_rows"]) == (3, 3 * WINDOW, 2 * ROWS - 3 * WINDOW)
    assert found["iterations"] == 3 * ITERATIONS


def test_a_message_takes_as_long_as_is_asked(line: Line) -> None:
    """Protects whoever plans for a slow network: names, manifest, frozen, two messages an iteration and the
    model wait for each other.
    """
    found = line.json("--network-delay", 3)
    assert found["virtual_seconds"] == pytest.approx(3 * (4 + 2 * ITERATIONS), rel=0.02)


def test_any_members_file_is_the_same_federation(line: Line) -> None:
    """Protects a newcomer: a party's file does as the server's, and what it says of its own secret and ledger
    is not looked at."""
    more = (
        '[party]\nname = "shop"\n[samples]\ntopic = "own"\nfeatures = ["x"]\n[labels]\ntopic = "told"\nlabel '
        '= "z"\n'
    )
    privacy = 'secret_file = "nowhere"\nledger = "own"\nledger_file = "nowhere"\n'
    found = line.json(kind="party", more=more, privacy=privacy, **PRIVATE)
    expected = line.json(**PRIVATE)
    assert {**found, "seconds": 0} == {**expected, "seconds": 0}


def test_bounds_of_all_columns_stand_in_the_servers_file(line: Line) -> None:
    """Protects columns of different sizes: centres and bounds are dealt as columns are, and predictions scale
    back."""
    expected = line.json(learning='sketch = "identity"')
    sizes = np.array([1.0, 2, 4, 8, 16, 32, 64, 128, 256])
    line.frame.iloc[:, :COLUMNS] = line.frame.iloc[:, :COLUMNS] * sizes + 4 * sizes
    line.frame["y"] = line.frame["y"] * 8 + 16
    bounds = (
        f"centre = {(4 * sizes).tolist()}\nbound = {sizes.tolist()}\nlabel_centre = 16.0\nlabel_bound = 8.0"
    )
    found = line.json(learning='sketch = "identity"', bounds=bounds)
    for name in ("r2", "objective", "gap"):
        assert found[name] == pytest.approx(expected[name])
    party = (
        '[party]\nname = "shop"\n[samples]\ntopic = "own"\nfeatures = ["x"]\n[labels]\ntopic = "told"\nlabel '
        '= "z"\n'
    )
    code, _, error = line(kind="party", more=party, bounds="bound = [1.0, 2.0, 3.0, 4.0]")
    assert code == 2
    assert "bounds.bound is a list" in error


def test_rows_with_gaps_are_left_out_and_told(line: Line) -> None:
    """Protects the count of rows: what has no number is not in the table, and is counted."""
    line.frame.loc[3, "c1"], line.frame.loc[70, "c1"] = np.nan, 1e30
    line.frame.loc[71] = 1e308
    code, out, error = line("--format", "json")
    assert code == 0
    assert "3 rows have no number" in error
    assert "worse than none" not in error
    assert json.loads(out)["dropped_rows"] == 3


@pytest.mark.parametrize(
    ("arguments", "settings", "text"),
    [
        (
            ["--trace", "folder"],
            {"epsilon": 1.0, "insecure": False},
            "set privacy.insecure_test_noise = true",
        ),
        (["--split", "bank=0:2,shop=2:7,post=7:9"], {}, "bank 3, not 2, shop 4, not 5"),
        (["--windows", 2], {}, "window.rows = 60: 2 of them are more than the 100 usable rows"),
        (["--epsilon", -1], {}, "--epsilon -1: a number above 0, or inf, is expected"),
        (["--epochs", 2], {}, "--epochs has no meaning"),
        (["--split", "bank=0:3"], {}, "the columns are missing for shop, post"),
        (["--network-delay", -1], {}, "--network-delay -1"),
        ([], {"epsilon": 60.0, "learning": "sketch_rows = 8"}, "privacy.epsilon = 60"),
        (["--epsilon", 800], {}, "privacy.epsilon = 800"),
        ([], {"learning": "tolerance = 0.1", "epsilon": 1.0}, "learning.tolerance"),
    ],
)
def test_mistakes_are_named(
    line: Line, arguments: list[object], settings: dict[str, object], text: str
) -> None:
    """Protects whoever tries it first: each mistake says what is expected, and no trace of a secret is
    written."""
    code, out, error = line(*arguments, **settings)
    assert (code, out) == (2, "")
    assert text in error
    assert "Traceback" not in error
    assert not (line.folder / "folder").exists()


def test_what_is_kept_for_predictions_is_not_spent_by_a_fit(line: Line) -> None:
    """Protects the difference between what an entity may be charged and what it was: a fit has a part of the
    budget, and what ledgers were charged is that part.
    """
    found = line.json(more='[serving]\nmode = "private"\nshare = 0.5', insecure=False, **PRIVATE)
    assert found["epsilon"] == pytest.approx(2.0, abs=1e-3)
    # cost of a half; epsilon is about a root of it.
    assert 2.0 * 0.5 < found["epsilon_spent"] < 2.0 * 0.85


def test_serving_without_noise_is_told(line: Line) -> None:
    """Protects a reader from an epsilon that does not cover what is served."""
    told = line(more='[serving]\nmode = "exact"', insecure=False, **PRIVATE)[1]
    assert "predictions are not covered" in told


def test_what_noise_leaves_of_predictions_is_told(line: Line) -> None:
    """Protects who turns serving on because the model is good: each single prediction has noise of its own,
    which R^2 of the model leaves out."""
    served = {**PRIVATE, "more": '[serving]\nmode = "private"'}
    found = line.json(**served)
    spread = line.frame["y"][WINDOW:].var(ddof=0)
    assert found["served_r2"] == pytest.approx(found["r2"] - found["prediction_noise"] ** 2 / spread)
    assert "served_r2" in found["not_private"]
    _, out, error = line(**served)
    assert f"the noise has a deviation of {found['prediction_noise']:.4g}" in out
    assert "predictions with their noise" in error


def test_a_model_that_is_worse_than_the_mean_is_told(line: Line) -> None:
    """Protects users from a model of noise alone: R^2 is printed either way, and below 0 a note says what
    that means."""
    assert "worse than none" in line(epsilon=0.01, learning="sketch_rows = 8")[2]


def test_columns_that_bounds_cut_off_are_told(line: Line) -> None:
    """Protects who simulates with a server's file, which has no bounds of columns: all of a column in another
    unit would be one number."""
    assert "are clipped" not in line()[2]
    line.frame.iloc[:, 2] += 10.0
    line.frame.iloc[: ROWS // 5, 4] = -3.0
    line.frame.iloc[:10, 5] = 3.0
    told = " ".join(line()[2].split())
    cut = f"{line.frame.columns[2]} (100%), {line.frame.columns[4]} (20%)."
    assert "values beyond bounds.centre +- bounds.bound are clipped" in told
    assert cut in told
