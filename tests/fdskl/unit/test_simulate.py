"""A kernel federation on a file: figures against calculations of their own, and mistakes of whoever asks for
it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_command
from numpy.typing import NDArray

from streamfl.fdskl.tools.run import shown_order

CONFIG = """
[federation]
name = "loans"
seed = 5
parties = {parties}
[role]
kind = "fdskl-worker"
[learning]
block_instances = 32
block_features = 8
features_limit = 64
bandwidth = 2.0
regularisation = 1e-6
{more}
"""
ROWS, TEST = 160, 32
NAMES = ["age", "income", "debts", "visits", "returns"]
TWO, THREE = ["bank", "shop"], ["bank", "shop", "post"]
SPLITS = {2: "bank=0:2,shop=2:5", 3: "bank=0:2,shop=2:4,post=returns"}


class Line:
    """``streamfl simulate`` in this process, on a file of the test's own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch, self._capture = monkeypatch, capture
        self.folder = folder
        draws = np.random.default_rng(3)
        matrix = draws.normal(size=(ROWS, 5)) * [1, 2, 3, 4, 5] + 1
        self.frame = pd.DataFrame(matrix, columns=NAMES)
        scaled = (matrix - 1) / [1, 2, 3, 4, 5]
        self.frame["y"] = (np.sin(2 * scaled[:, 0]) + scaled[:, 2] * scaled[:, 4] > 0).astype(int)
        self.frame["amount"] = 100 + 10 * scaled[:, 0] + scaled[:, 3]

    def __call__(
        self, *arguments: object, more: str = "", parties: list[str] = TWO, label: str = "y"
    ) -> tuple[int, str, str]:
        config, data = self.folder / "loans.toml", self.folder / "data.csv"
        config.write_text(CONFIG.format(parties=parties, more=more))
        self.frame[[*NAMES, label]].to_csv(data, index=False)
        split = () if "--split" in arguments else ("--split", SPLITS[len(parties)])
        return run_command(
            self._monkeypatch,
            self._capture,
            "simulate",
            config,
            "--data",
            data,
            "--label",
            label,
            *split,
            *arguments,
        )

    def json(self, *arguments: object, **settings: Any) -> dict[str, Any]:
        code, out, error = self(*arguments, "--format", "json", **settings)
        assert code == 0, error
        assert out.count("\n") == 1
        return dict(json.loads(out))

    def trace(self) -> dict[str, NDArray[Any]]:
        with np.load(self.folder / "trace.npz", allow_pickle=False) as archive:
            return dict(archive)


@pytest.fixture(name="line")
def _line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(tmp_path, monkeypatch, capsys)


def test_the_figures_are_those_of_the_test_rows(line: Line) -> None:
    """Protects every claim that is made with this command: accuracy, AUC and loss are of the last fifth of
    the rows, by hand."""
    found = line.json("--epochs", 3, "--trace", line.folder)
    outputs, truth = line.trace()["predictions"], line.frame["y"].to_numpy()[ROWS - TEST :]
    pairs = [(a > b) + 0.5 * (a == b) for a in outputs[truth == 1] for b in outputs[truth == 0]]
    assert found["accuracy"] == pytest.approx(np.mean((outputs >= 0) == truth))
    assert found["auc"] == pytest.approx(np.mean(pairs))
    assert found["loss"] == pytest.approx(np.mean(np.log1p(np.exp(-np.where(truth == 1, outputs, -outputs)))))
    assert found["history"][-1]["accuracy"] == found["accuracy"]
    assert (found["entities"], found["test_entities"], found["rmse"]) == (ROWS - TEST, TEST, None)
    # Twelve blocks of 32 labels in three passes of 128.
    assert (found["iterations"], found["features"], found["features_dropped"]) == (12, 64, 0)
    assert found["accuracy"] > 0.7
    # Of somebody whose columns are not there the mean stands in.
    trace = line.trace()
    rows = [np.zeros((TEST, 2)), trace["inputs/shop"][ROWS - TEST :]]
    omega = [trace["frequencies/bank"], trace["frequencies/shop"]]
    phases = sum(own @ one.T for own, one in zip(rows, omega, strict=True)) + trace["phases"]
    absent = np.sqrt(2) * np.cos(phases) @ trace["alphas"]
    assert found["absent"]["bank"]["accuracy"] == pytest.approx(np.mean((absent >= 0) == truth))


def test_a_file_with_a_table_for_each_input_is_simulated(line: Line) -> None:
    """Protects a party whose columns may be missing: its file names inputs in tables, and the command said
    that it names features too. The columns come from the data, whatever the file says of them."""
    party = '[party]\nname = "bank"\n[samples]\ntopic = "accounts"\n'
    table = '[[samples.inputs]]\nfield = "{}"\nas = "number"\nmissing = "zero"\n'
    tables = "".join(table.format(name) for name in NAMES[:2])
    plain, in_tables = line.json(), line.json(more=party + tables)
    assert (in_tables["loss"], in_tables["messages"]) == (plain["loss"], plain["messages"])


def test_messages_are_counted_as_formulas_say(line: Line) -> None:
    """Protects the comparison of topologies: rounds, sums and their bytes are as many as parties and rounds
    make them, whichever the topology is, and what differs is how far a sum has to go.
    """
    seconds = {}
    for topology, hops in (("tree", 2), ("star", 1), ("ring", 2)):
        more = f'solver = "sgd"\n[aggregation]\ntopology = "{topology}"\nrounds_in_flight = 1\n'
        more += "[standardisation]\nfirst_entities = 100\n"
        found = line.json("--network-delay", 3, more=more, parties=THREE)
        assert found["hops"] == hops
        rounds = found["rounds"]
        assert found["traffic"]["rounds"]["messages"] == found["traffic"]["sums"]["messages"] == 2 * rounds
        # Each tells each other of its life, and may be answered once.
        told = found["traffic"]["incarnations"]["messages"]
        assert 6 <= told <= 12
        assert found["messages"] == 4 * rounds + told
        assert found["bytes"] == sum(one["bytes"] for one in found["traffic"].values())
        # 32 entities, at the k-th iteration 8 (k + 1) features; four bytes a number, from each of two.
        numbers = sum(32 * 8 * (k + 1) for k in range(4))
        assert 8 * numbers < found["traffic"]["sums"]["bytes"] < 8 * numbers + 1000 * rounds
        assert (found["abandoned"], found["iterations"]) == (0, 4)
        seconds[topology] = found["virtual_seconds"]
        # An announcement goes one hop, a sum as many as there are; before all, parties hear of each other,
        # and answer.
        assert seconds[topology] == pytest.approx(3 * rounds * (hops + 1) + 3 * (told // 6), abs=1.0)
    assert seconds["star"] < seconds["tree"] == pytest.approx(seconds["ring"], abs=0.5)


def test_whoever_is_active_and_however_sums_are_made_the_model_is_one(line: Line) -> None:
    """Protects the choice of topology and mask: neither changes predictions by more than the circle's
    rounding, and who knows the labels is told.
    """
    outputs = []
    for topology, mask in (("tree", "one-time"), ("ring", "none")):
        more = f'[aggregation]\ntopology = "{topology}"\nmask = "{mask}"\ncircle_bits = 64\n'
        line.json("--active", "bank", "--trace", line.folder, more=more, parties=THREE)
        outputs.append(line.trace()["predictions"])
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-8)
    found = line.json("--active", "shop", parties=THREE)
    assert found["active"] == "shop"
    assert found["parties"]["shop"]["sums_sent"] == 0 < found["parties"]["bank"]["sums_sent"]


def test_a_stream_is_predicted_before_it_is_learnt_from(line: Line) -> None:
    """Protects the progressive figures: each entity is predicted by a model that knows no label of the last
    40 entities, and the first 40 and a whole iteration by one that knows nothing.
    """
    found = line.json("--online", "--label-delay", 40, "--trace", line.folder, more='solver = "sgd"\n')
    assert (found["epochs"], found["label_delay"], found["iterations"]) == (None, 40, 4)
    trace = line.trace()
    np.testing.assert_array_equal(trace["instances"].ravel(), np.arange(128))
    joined = np.hstack([trace["inputs/bank"], trace["inputs/shop"]])
    omega = np.hstack([trace["frequencies/bank"], trace["frequencies/shop"]])
    features = np.sqrt(2) * np.cos(joined @ omega.T + trace["phases"])[:128]
    alphas = np.zeros(32)
    outputs = np.zeros(128)
    labels = trace["labels"][:128]
    for number, rows in enumerate(trace["instances"]):
        # Predictions with this version: of those that come from the last label it knows and the delay on.
        outputs[min(128, 32 * number + 40) :] = (features @ alphas)[min(128, 32 * number + 40) :]
        before = features[rows] @ alphas
        alphas *= 1 - 1e-6
        new = slice(8 * number, 8 * number + 8)
        alphas[new] = (features[rows, new].T @ (labels[rows] / (1 + np.exp(labels[rows] * before)))) / (
            32 * 8
        )
    assert found["progressive"]["accuracy"] == pytest.approx(np.mean((outputs >= 0) == (labels > 0)))
    lost = np.log1p(np.exp(-labels * outputs))
    assert found["progressive"]["loss"] == pytest.approx(np.mean(lost), abs=1e-6)
    share = np.mean(labels > 0)
    constant = -128 * (share * np.log(share) + (1 - share) * np.log(1 - share))
    at_the_end = np.log1p(np.exp(-labels * (features @ alphas))).sum()
    assert found["regret"] == pytest.approx(lost.sum() - min(constant, at_the_end), abs=1e-4)


def test_numbers_are_measured_in_their_own_unit(line: Line) -> None:
    """Protects regression: the label's range is that of the rows that are learnt from, and the error is told
    in both units."""
    found = line.json("--trace", line.folder, label="amount", more='loss = "square"\n')
    truth = line.frame["amount"].to_numpy()
    low, high = truth[: ROWS - TEST].min(), truth[: ROWS - TEST].max()
    assert found["label_range"] == pytest.approx([low, high])
    predicted = low + line.trace()["predictions"] * (high - low)
    assert found["rmse"] ** 2 == pytest.approx(np.mean(np.square(predicted - truth[ROWS - TEST :])))
    assert found["rmse"] ** 2 < truth[ROWS - TEST :].var()
    assert found["accuracy"] is None


def test_an_entity_that_left_the_window_is_shown_again(line: Line) -> None:
    """Protects epochs over tables longer than the window: each label of each pass is learnt from, and none
    waits for ever."""
    more = "window = 40\n"
    found = line.json("--epochs", 3, more=more)
    assert found["iterations"] == 12
    assert not any(found["forgotten_entities"].values())


def test_labels_of_minus_one_are_taken_as_zero(line: Line) -> None:
    """Protects whoever has a table in LIBSVM's form: its labels mean the same, and that `run` wants others is
    said."""
    expected = line.json()["loss"]
    line.frame["y"] = 2 * line.frame["y"] - 1
    code, out, error = line("--format", "json")
    assert code == 0
    assert json.loads(out)["loss"] == expected
    assert "-1 and 1" in error


@pytest.mark.parametrize("size", [1, 5, 7, 12, 30])
def test_no_iteration_has_an_entity_twice(size: int) -> None:
    """Protects epochs whose passes end within an iteration: its labels are of as many entities, and each pass
    still shows all."""
    orders = np.array([np.random.default_rng(seed).permutation(30) for seed in range(5)])
    shown = shown_order(orders, size)
    for begin in range(0, len(shown) - size + 1, size):
        assert len(set(shown[begin : begin + size].tolist())) == size
    for number in range(5):
        assert sorted(shown[30 * number : 30 * number + 30].tolist()) == list(range(30))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--split", "bank=0:2"), "the columns are missing for shop"),
        (("--active", "post"), "active = 'post'"),
        (("--online", "--epochs", 2), "--epochs has no meaning with --online"),
        (("--label-delay", 2), "--label-delay has no meaning without --online"),
        (("--network-delay", -1), "--network-delay -1"),
        (("--coordinator-delay", 1), "--coordinator-delay has no meaning"),
    ],
)
def test_mistakes_are_told(line: Line, arguments: tuple[object, ...], told: str) -> None:
    """Protects a user from options that are read and have no effect: each mistake names its option."""
    code, out, error = line(*arguments)
    assert (code, out) == (2, "")
    assert told in error
    assert "Traceback" not in error


def test_classes_that_are_none_and_runs_that_learn_nothing_are_told(line: Line) -> None:
    """Protects whoever wonders about a figure of one half: a third class is refused, and too few labels for
    an iteration are told with the key to change.
    """
    code, _, error = line("--online", more="window = 5000\n", label="y", parties=TWO)
    assert code == 0
    assert "nothing was learnt" not in error
    line.frame = line.frame.iloc[:30]
    code, out, error = line("--online")
    assert code == 0
    assert "learning.block_instances = 32" in error
    line.frame["y"] = 2
    code, out, error = line()
    assert (code, out) == (5, "")
    assert "the label y is 2 somewhere" in error


@pytest.mark.parametrize("label", ["y", "amount"])
def test_a_model_that_is_worse_than_a_constant_is_told(line: Line, label: str) -> None:
    """Protects users of small tables from a model that is worse than none: the figures say what a constant
    would have lost, and a note says so where it is less.
    """
    more = 'loss = "square"\n' if label == "amount" else ""
    line.frame["y"] = (line.frame["age"] > 1).astype(int)
    found = line.json("--epochs", 3, label=label, more=more)
    truth = line.frame[label].to_numpy(float)
    if label == "y":
        share = truth[ROWS - TEST :].mean()
        expected = -share * np.log(share) - (1 - share) * np.log(1 - share)
    else:
        low, high = found["label_range"]
        expected = ((truth[ROWS - TEST :] - low) / (high - low)).var()
    assert found["constant_loss"] == pytest.approx(expected)
    assert found["loss"] < expected
    told = "worse than none"
    assert told not in line("--epochs", 3, label=label, more=more)[2]
    line.frame[label] = np.random.default_rng(1).permutation(truth)
    assert told in line("--epochs", 3, label=label, more=more)[2]


@pytest.mark.parametrize("loss", ["logistic", "smooth-hinge", "square"])
def test_predictions_that_the_running_mean_beats_are_told(line: Line, loss: str) -> None:
    """Protects users of small tables, of which one iteration or two are made: each prediction is held against
    the mean of the labels before it, which needs nobody's columns.
    """
    label, more = ("amount", 'loss = "square"\n') if loss == "square" else ("y", f'loss = "{loss}"\n')
    line.frame[label] = np.random.default_rng(1).permutation(line.frame[label].to_numpy())
    found = line.json("--online", label=label, more=more)
    truth = line.frame[label].to_numpy(float)[: ROWS - TEST]
    if loss == "square":
        truth = (truth - truth.min()) / np.ptp(truth)
    before = np.array([(0.5 + truth[:place].sum()) / (place + 1) for place in range(len(truth))])
    margins = (2 * truth - 1) * (2 * before - 1)
    lost = {
        "square": np.square(before - truth),
        "logistic": -np.log(np.where(truth > 0.5, before, 1 - before)),
        "smooth-hinge": np.where(margins <= 0, 0.5 - margins, np.square(1 - margins) / 2),
    }[loss]
    assert found["running_mean_loss"] == pytest.approx(lost.mean())
    assert found["progressive"]["loss"] > found["running_mean_loss"]
    notes = " ".join(line("--online", label=label, more=more)[2].split()).split("the loss of ")
    assert any(
        "worse than none" in one and one.startswith("the predictions before each label") for one in notes
    )


def test_noise_on_columns_is_in_the_simulation(line: Line) -> None:
    """Protects whoever asks what noise costs: a configuration with noise is simulated with it, without the
    file of the secret."""
    plain = line.json("--epochs", 2)
    more = '[aggregation]\nsecret_file = "nowhere"\n[privacy]\ninput_norm = 2.0\ninput_noise = 8.0\n'
    noisy = line.json("--epochs", 2, more=more)
    assert noisy["accuracy"] < plain["accuracy"]
    assert noisy["iterations"] == plain["iterations"]


def test_a_table_with_gaps_and_one_class_is_measured(line: Line) -> None:
    """Protects programs that read the figures: what cannot be measured is null, and rows with gaps are
    counted."""
    line.frame.loc[[3, 70], "visits"] = np.nan
    line.frame["y"] = 1
    found = line.json()
    assert (found["dropped_rows"], found["auc"], found["rmse"]) == (2, None, None)
    assert found["accuracy"] > 0.9
