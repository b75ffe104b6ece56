"""A quasi-Newton federation on a file: figures against calculations of their own, and mistakes of whoever
asks for it."""

from __future__ import annotations

import gc
import json

import numpy as np
import pandas as pd
import pytest
from quasi_newton.makers import platt
from quasi_newton.simulated import ROWS, TEST, THREE, TWO, Line
from sklearn.metrics import roc_auc_score, roc_curve

from streamfl.quasi_newton.encryption import bignum
from streamfl.quasi_newton.learning.descent import DescentSettings
from streamfl.quasi_newton.tools.direct import Party, train

pytestmark = pytest.mark.long

LEARNING = DescentSettings(batch=100, memory=3, curvature_every=2, regularisation=0.01)
# Messages one behind the other: outputs, residuals, gradients, opened, inner products, sums and step of an
# iteration; before the first one ready, begin, blinded, answer and aligned.
BEFORE, EACH = 5, 7


def test_roles_learn_exactly_what_the_arithmetic_says(line: Line) -> None:
    """Protects tables that are made without roles: a federation over the bus comes to the same weights,
    pairs, losses and model as the same whole numbers in a loop, bit by bit.
    """
    # A guest that the settings name need not be the first: labels and intercept go there.
    found, trace = line.traced(parties=THREE, guest="shop")
    assert found["guest"] == "shop"
    parties = ["shop", "bank", "post"]
    learnt = int(trace["entities"])
    members = [
        Party(trace[f"inputs/{one}"], trace[f"weights/{one}"][0], trace[f"muted/{one}"]) for one in parties
    ]
    direct = train(members, trace["labels"][:learnt], LEARNING, trace["batches"])
    assert (found["epochs"], found["converged"]) == (direct.epochs, direct.converged)
    for number, party in enumerate(parties):
        np.testing.assert_array_equal(trace[f"weights/{party}"], direct.weights[number])
        np.testing.assert_array_equal(trace[f"steps/{party}"], direct.steps[number])
        np.testing.assert_array_equal(trace[f"curvatures/{party}"], direct.curvatures[number])
        np.testing.assert_array_equal(trace[f"models/{party}"], [own[number] for own in direct.models])
    assert trace["pairs"].tolist() == [[at, kept] for at, kept in direct.pairs]
    assert trace["losses"].tolist() == direct.losses == [one["training_loss"] for one in found["history"]]
    assert trace["batch_losses"].tolist() == direct.batch_losses
    np.testing.assert_allclose(
        trace["predictions"], direct.outputs([trace[f"inputs/{party}"][learnt:] for party in parties])
    )


def test_evidence_is_weighed_at_the_guest_alone(line: Line) -> None:
    """Protects labels, and the setting on a file: the guest's columns have a few values, hosts' are the
    default's."""
    weighed, usual = (
        line.traced("--epochs", 1, more=f'[preprocessing]\nmethod = "{method}"')[1]
        for method in ("weight-of-evidence", "clip")
    )
    assert {len(np.unique(column)) for column in weighed["inputs/bank"].T} <= {2, 3, 4}
    np.testing.assert_array_equal(weighed["inputs/shop"], usual["inputs/shop"])


def test_a_file_with_a_table_for_each_input_is_simulated(line: Line) -> None:
    """Protects a host whose columns may be missing: its file names inputs in tables, and the command said
    that it names features too."""
    host = '[party]\nname = "shop"\n[samples]\ntopic = "baskets"\n'
    table = '[[samples.inputs]]\nfield = "visits"\nas = "number"\nmissing = "zero"\n'
    plain, in_tables = line.json(), line.json(role="host", more=host + table)
    assert in_tables["taylor_loss"] == plain["taylor_loss"]


def test_the_figures_are_those_of_the_test_rows(line: Line) -> None:
    """Protects every claim that is made with this command: loss, AUC and KS are of the last fifth of the
    rows, by other means."""
    found, trace = line.traced()
    outputs = trace["predictions"]
    signs = np.where(line.frame["y"].to_numpy()[ROWS - TEST :] == 1, 1, -1)
    assert found["taylor_loss"] == pytest.approx(np.mean(np.log(2) - signs * outputs / 2 + outputs**2 / 8))
    assert found["accuracy"] == pytest.approx(np.mean((outputs >= 0) == (signs > 0)))
    assert found["auc"] == pytest.approx(roc_auc_score(signs > 0, outputs))
    false, true, _ = roc_curve(signs > 0, outputs)
    assert found["ks"] == pytest.approx(np.abs(true - false).max())
    half = np.arange(TEST) % 2 == 0
    chances = np.empty(TEST)
    for one in (half, ~half):
        chances[one] = platt(outputs[~one], signs[~one] > 0, outputs[one])
    assert found["loss"] == pytest.approx(
        -np.mean(np.log(np.where(signs > 0, chances, 1 - chances))), abs=1e-5
    )
    assert (found["entities"], found["waiting_entities"], found["test_entities"], found["batches"]) == (
        500,
        12,
        TEST,
        5,
    )
    assert found["iterations"] == 5 * found["epochs"]
    assert found["history"][-1]["auc"] == found["auc"]
    assert found["training_loss"] == found["history"][-1]["training_loss"]
    assert found["auc"] > 0.8
    assert found["guest_alone"]["auc"] < found["auc"] - 0.05


def test_a_message_takes_as_long_as_is_asked(line: Line) -> None:
    """Protects whoever plans for a slow network: virtual time is that of the messages that wait for one
    another."""
    found = line.json("--network-delay", 3, "--epochs", 2, learning='optimiser = "sgd"')
    assert (found["epochs"], found["iterations"], found["converged"]) == (2, 10, False)
    assert found["virtual_seconds"] == pytest.approx(3 * (BEFORE + EACH * 10), rel=0.01)
    assert found["history"][0]["seconds"] == pytest.approx(3 * (BEFORE + EACH * 5), rel=0.01)


def test_any_members_file_is_the_same_federation(line: Line) -> None:
    """Protects a newcomer: a host's file does as the coordinator's, and what they say of keys and secrets is
    not looked at. Encrypted numbers come to the same as plain ones, and cost as many ciphertexts as the
    formula says."""
    more = 'key_file = "nowhere"\nkey_fingerprint = "' + "ab" * 32 + '"\nsecret_file = "nowhere"\n'
    party = '[party]\nname = "shop"\n[samples]\ntopic = "own"\nfeatures = ["x"]\n'
    plain = line.json("--epochs", 1, "--precision", "plain", precision="paillier")
    hidden = line.json("--epochs", 1, role="host", more=more + party, precision="paillier")
    same = ("loss", "auc", "iterations", "history", "virtual_seconds", "messages")
    assert [plain[name] for name in same] == [hidden[name] for name in same]
    assert hidden["bytes"] > plain["bytes"]
    assert (plain["precision"], plain["key_bits"]) == ("plain", None)
    assert (hidden["precision"], hidden["key_bits"]) == ("paillier", 512)
    # Outputs and residuals are one ciphertext a row; uploads and inner products are packed into a few.
    rounds = hidden["iterations"] + hidden["pairs_offered"]
    assert 2 * 100 * rounds + 4 * rounds <= hidden["ciphertexts"] <= 2 * 100 * rounds + 20 * rounds
    assert hidden["ciphertexts"] == sum(party["ciphertexts"] for party in hidden["parties"].values())
    steps = hidden["seconds_by_step"]
    assert set(steps) == {"encrypt", "add", "multiply", "decrypt", "align", "rest"}
    assert min(steps.values()) > 0
    assert line.json("--epochs", 1, "--seed", 6)["auc"] != plain["auc"]


def test_labels_of_minus_one_are_taken_as_zero(line: Line) -> None:
    """Protects whoever has a table in LIBSVM's form: its labels mean the same, and that `run` wants others is
    said."""
    expected = line.json("--epochs", 1)["loss"]
    line.frame["y"] = 2 * line.frame["y"] - 1
    _, out, error = line("--epochs", 1, "--format", "json")
    assert json.loads(out)["loss"] == expected
    assert "-1 and 1" in error


def test_a_table_with_gaps_and_one_class_in_the_end_is_measured(line: Line) -> None:
    """Protects programs that read the figures: what cannot be measured is null, and rows with gaps are
    counted."""
    line.frame.loc[3, "visits"], line.frame.loc[70, "visits"] = np.nan, 1e30
    line.frame.loc[ROWS - TEST :, "y"] = 1
    found = line.json("--epochs", 1)
    assert (found["dropped_rows"], found["auc"], found["ks"], found["loss"]) == (2, None, None, None)
    assert found["taylor_loss"] > 0


def test_a_rare_column_is_left_out_and_told(line: Line) -> None:
    """Protects whoever wonders where a column is: one with too few rows of its own in a batch is not learnt
    from."""
    line.frame["visits"] = (np.arange(ROWS) % 211 == 0).astype(float)
    code, _, error = line(
        "--epochs", 1, "--trace", line.folder, more='[preprocessing]\nmethod = "standardise"\n'
    )
    assert code == 0
    assert "learning.min_support = 5" in error
    assert "largest_leverage" not in error
    assert "shop 1" in error
    with np.load(line.folder / "trace.npz") as archive:
        assert archive["inputs/shop"].shape == (ROWS, 3)


def test_rows_that_are_far_out_are_told(line: Line) -> None:
    """Protects whoever wonders what became of a row: how many are learnt from with zeros is said, and is in
    the figures."""
    # Of two columns that are the same but in few rows: no cut at a range helps. Values that are far out are
    # cut, and not told.
    frame, (age, income, visits, returns) = line.frame, line.frame.columns[:4]
    frame[income], frame[returns] = frame[age], frame[visits]
    frame.loc[4, income] = frame[age].median() + (frame.loc[4, age] < frame[age].median())
    frame.loc[[3, 8], returns] += np.where(frame.loc[[3, 8], visits] < frame[visits].median(), 0.5, -0.5)
    frame.loc[20, visits] += 90.0
    frame.loc[20, returns] += 90.0
    more = '[preprocessing]\nmethod = "standardise"\n'
    code, out, error = line("--epochs", 1, "--format", "json", more=more)
    assert code == 0
    assert "learning.largest_leverage = 0.2" in error
    assert "bank 1, shop 2" in error
    assert [json.loads(out)["parties"][party]["muted_rows"] for party in TWO] == [1, 2]
    assert "largest_leverage" not in line("--epochs", 1, learning="largest_leverage = 1", more=more)[2]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--split", "bank=0:2"), "the columns are missing for shop"),
        (("--split", "bank=0:2,shop=2:4+y"), "y is the label"),
        (("--test-fraction", 1), "--test-fraction 1"),
        (("--online",), "--online has no meaning"),
        (("--test-fraction", 0.9), "learning.batch = 100: the 64 rows to learn from fill no batch"),
    ],
)
def test_mistakes_are_told(line: Line, arguments: tuple[object, ...], told: str) -> None:
    """Protects a user from options that are read and have no effect: each mistake names its option or its
    key."""
    code, out, error = line(*arguments)
    assert (code, out) == (2, "")
    assert told in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("learning", "code", "told"),
    [("output_bound = 0.01", 5, "lower learning.learning_rate"), ("epochs = 0", 2, "learning.epochs")],
)
def test_settings_that_cannot_work_are_told(line: Line, learning: str, code: int, told: str) -> None:
    """Protects a user from an empty table: a training that comes to nothing, and a wrong file, end with the
    reason and a code."""
    found, out, error = line(learning=learning)
    assert (found, out) == (code, "")
    assert told in error
    assert "Traceback" not in error


def test_data_that_cannot_be_learnt_from_is_told(line: Line) -> None:
    """Protects a user from a traceback: a third class, and more columns than batches may have, are told with
    what is allowed."""
    wide = pd.DataFrame(
        {f"c{number}": np.random.default_rng(number).normal(size=ROWS) for number in range(6)}
    )
    line.frame = pd.concat([line.frame, wide], axis=1)
    code, out, error = line("--split", "bank=age+income,shop=debts+visits+c0+c1+c2+c3+c4+c5")
    assert (code, out) == (5, "")
    assert "a batch of 100 rows with 8 columns" in error
    line.frame["y"] = 2
    code, out, error = line()
    assert (code, out) == (5, "")
    assert "the label y is 2 somewhere" in error


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_who_lacks_the_extra_is_told(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects whoever does not encrypt: without phe and gmpy2 the command says here what to do."""
    monkeypatch.setattr(bignum, "gmpy2", None)
    code, _, error = line(precision="paillier")
    assert code == 2
    assert "pip install 'streamfl[paillier]'" in error
    # The folder of its secrets, which the process's end would take away.
    gc.collect()


def test_who_is_held_out_is_not_learnt_from(line: Line) -> None:
    """Protects calibration in production: the guest's share stays out of every batch here too, and is
    counted."""
    found, trace = line.traced("--epochs", 1, held_out=0.25)
    assert (found["entities"], found["batches"]) == (300, 3)
    assert 90 < found["held_out_entities"] < 170
    assert found["held_out_entities"] + found["waiting_entities"] + 300 == ROWS - TEST
    assert trace["batches"].shape == (3, 100)


def test_a_scorecard_that_is_worse_than_the_mean_is_told(line: Line) -> None:
    """Protects users from taking a scorecard for useful whose probabilities the labels' own shares beat."""
    code, out, error = line("--epochs", 2, "--format", "json")
    share = line.frame["y"].to_numpy(float)[-TEST:].mean()
    expected = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert json.loads(out)["constant_loss"] == pytest.approx(expected)
    assert (code, "worse than none" in error) == (0, False)
    line.frame["y"] = np.random.default_rng(1).permutation(line.frame["y"].to_numpy())
    assert "worse than none" in line("--epochs", 2)[2]
