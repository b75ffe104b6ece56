"""A run of ``sgd`` computed again in plain NumPy, from its trace alone: Gu et al. 2020, equation (7) and
Algorithm 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_command

CONFIG = """
[federation]
name = "loans"
seed = 5
parties = ["bank", "shop", "post"]
[role]
kind = "fdskl-worker"
[learning]
solver = "sgd"
loss = "{loss}"
step = 2.0
regularisation = 0.02
block_instances = {instances}
block_features = {features}
features_limit = {limit}
{bandwidth}
[aggregation]
topology = "{topology}"
circle_bits = 64
[standardisation]
transform = "none"
"""
ROWS, TEST, PARTIES = 120, 24, ("bank", "shop", "post")


@pytest.fixture(name="data")
def _data(tmp_path: Path) -> Path:
    draws = np.random.default_rng(8)
    frame = pd.DataFrame(draws.normal(size=(ROWS, 6)) * [1, 5, 2, 1, 1, 9] + 3, columns=list("uvwxyz"))
    frame["late"] = (np.sin(frame["u"]) + (frame["w"] - 3) * (frame["y"] - 3) > 0).astype(int)
    frame["amount"] = 40 + 3 * np.cos(frame["x"]) + frame["u"]
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False)
    return path


def gradient(loss: str, output: np.ndarray[Any, Any], label: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """L'(f, y) of Table 1, written down once more."""
    if loss == "logistic":
        return np.asarray(-label / (1 + np.exp(label * output)))
    if loss == "square":
        return np.asarray(2 * (output - label))
    margin = label * output
    return np.asarray(np.where(margin <= 0, -label, np.where(margin < 1, -label * (1 - margin), 0.0)))


@pytest.mark.parametrize(
    ("loss", "label", "topology", "sizes", "options"),
    [
        ("square", "amount", "ring", (7, 3, 18), ("--epochs", 3)),
        ("smooth-hinge", "late", "star", (7, 3, 18), ("--online", "--label-delay", 10)),
        # The paper to the letter, and a bandwidth that is found out only after many labels.
        ("logistic", "late", "tree", (1, 1, 300), ("--epochs", 2)),
        # Several active parties, whose labels are of every second or third row.
        (
            "square",
            "amount",
            "star",
            (6, 3, 300),
            ("--online", "--label-delay", 10, "--active", "post,bank,shop"),
        ),
        ("logistic", "late", "ring", (2, 1, 300), ("--epochs", 1, "--active", "shop,post")),
    ],
)
def test_coefficients_and_predictions_follow_from_the_trace(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    loss: str,
    label: str,
    topology: str,
    sizes: tuple[int, int, int],
    options: tuple[object, ...],
) -> None:
    """Protects whoever checks a run: columns, frequencies, phases and the order of instances are all that
    coefficients and predictions depend on, whatever the topology, with old features dropped, with labels that
    come late, and whoever is active."""
    config = tmp_path / "bank.toml"
    block, size, limit = sizes
    bandwidth = "bandwidth = 1.5" if block > 1 else ""
    config.write_text(
        CONFIG.format(
            loss=loss, topology=topology, instances=block, features=size, limit=limit, bandwidth=bandwidth
        )
    )
    arguments = (
        "--data",
        data,
        "--label",
        label,
        "--split",
        "bank=0:2,shop=2:4,post=4:6",
        "--trace",
        tmp_path,
    )
    code, _, error = run_command(
        monkeypatch, capsys, "simulate", config, *arguments, *options, "--format", "json"
    )
    assert code == 0, error
    with np.load(tmp_path / "trace.npz", allow_pickle=False) as archive:
        trace = dict(archive)
    raw = pd.read_csv(data)
    columns = np.hstack([trace[f"inputs/{party}"] for party in PARTIES])
    numbers = raw[list("uvwxyz")].to_numpy()
    # Each column apart is the file's, up to a mean and a deviation.
    for column in range(6):
        assert abs(np.corrcoef(numbers[:, column], columns[:, column])[0, 1]) == pytest.approx(1.0)
    given = raw[label].to_numpy(float)
    if loss == "square":
        learnt = given[: ROWS - TEST]
        np.testing.assert_allclose(trace["labels"], (given - learnt.min()) / (learnt.max() - learnt.min()))
    else:
        np.testing.assert_array_equal(trace["labels"], np.where(given == 1, 1, -1))
    omega = np.hstack([trace[f"frequencies/{party}"] for party in PARTIES])
    features = np.sqrt(2) * np.cos(columns @ omega.T + trace["phases"])
    instances = trace["instances"]
    passes = 1 if "--online" in options else options[1]
    assert isinstance(passes, int)
    active = options[-1].split(",") if isinstance(options[-1], str) else ["bank"]
    assert instances.shape == (len(active) * (passes * (ROWS - TEST) // len(active) // block), block)
    learners = trace["learners"].reshape(len(instances), size)
    for rows, own in zip(instances, learners, strict=True):
        # One party learns in an iteration, from labels that only it has, and all of the new coefficients are
        # its own.
        assert {PARTIES.index(active[row % len(active)]) for row in rows.tolist()} == set(own.tolist())
    assert {PARTIES[number] for number in learners.ravel().tolist()} == set(active)
    assert all(len(set(rows)) == block and max(rows) < ROWS - TEST for rows in instances.tolist())
    alphas = np.zeros(len(omega))
    for number, rows in enumerate(instances):
        outputs, new = features[rows] @ alphas, slice(number * size, (number + 1) * size)
        slopes = gradient(loss, outputs, trace["labels"][rows])
        alphas *= 1 - 2.0 * 0.02
        alphas[new] = -2.0 / (block * size) * (features[rows, new].T @ slopes)
        alphas[: max(0, (number + 1) * size - limit)] = 0.0
    first, last = trace["kept"]
    assert (last - first, last) == (min(limit, len(instances) * size), len(instances) * size)
    assert np.abs(alphas).max() > 1e-3
    np.testing.assert_allclose(trace["alphas"], alphas[first:last], atol=1e-9)
    np.testing.assert_allclose(trace["predictions"], features[ROWS - TEST :] @ alphas, atol=1e-9)
