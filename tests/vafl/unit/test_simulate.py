"""A vertical federation on a file: figures and trace against calculations of their own, and mistakes of
whoever asks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_command
from numpy.typing import NDArray

from streamfl.contract.role import DataError
from streamfl.simulation.vertical.table import VerticalTable
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.tools.federation import Delay, VerticalFederation
from streamfl.vafl.tools.run import run_vertical

pytestmark = pytest.mark.long

CONFIG = """
[federation]
name = "loans"
seed = 5
parties = ["bank", "shop"]
embedding_size = 1
precision = "float64"
[role]
kind = "{kind}"
[learning]
optimiser = "sgd"
learning_rate = 0.2
batch_size = 8
{more}
[embedding]
standardise = false
"""
SYNCHRONOUS = "wait_for = 2\nregularisation = 0.01\n[alignment]\nquorum = 2\n"
ROWS, LEARNT = 150, 120


class Line:
    """``streamfl simulate`` in this process, on a file of the test's own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch, self._capture = monkeypatch, capture
        self.folder = folder
        generator = np.random.default_rng(3)
        matrix = generator.normal(size=(ROWS, 5)) * [1, 2, 3, 4, 5] + 1
        score = matrix @ [1, -1, 0.5, 0.3, -0.2]
        self.frame = pd.DataFrame(matrix, columns=["age", "income", "debts", "visits", "returns"])
        self.frame["y"] = (score + generator.normal(size=ROWS) > 0).astype(int)
        self.frame["amount"] = 100 + 10 * score
        self.frame["kind"] = generator.integers(0, 3, ROWS)
        self.frame.to_csv(folder / "data.csv", index=False)

    def __call__(
        self, *arguments: object, more: str = "", kind: str = "vafl-coordinator"
    ) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, for parties with the columns 0:2 and 2:5 unless these arguments say
        otherwise."""
        config = self.folder / "loans.toml"
        config.write_text(CONFIG.format(kind=kind, more=more))
        split = () if "--split" in arguments else ("--split", "bank=0:2,shop=2:5")
        data = () if "--data" in arguments else ("--data", self.folder / "five.csv")
        self.frame[["age", "income", "debts", "visits", "returns", "y"]].to_csv(
            self.folder / "five.csv", index=False
        )
        return run_command(self._monkeypatch, self._capture, "simulate", config, *data, *split, *arguments)

    def json(self, *arguments: object, **settings: str) -> dict[str, Any]:
        code, out, error = self(*arguments, "--format", "json", **settings)
        assert code == 0, error
        assert out.count("\n") == 1
        return dict(json.loads(out))

    def trace(self) -> dict[str, NDArray[Any]]:
        with np.load(self.folder / "trace.npz", allow_pickle=False) as archive:
            return dict(archive)


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(tmp_path, monkeypatch, capsys)


def test_a_synchronous_run_is_computed_again_from_its_trace(line: Line) -> None:
    """Protects whoever checks a run: from the trace's inputs, labels and orders alone, every embedding that
    was sent, the final parameters and the printed figures come out again, by gradient descent on the joined
    table.
    """
    found = line.json("--epochs", 3, "--delays", "bank=1,shop=4", "--trace", line.folder, more=SYNCHRONOUS)
    trace = line.trace()
    joined = np.hstack(
        [np.hstack([trace[f"inputs/{party}"], np.ones((ROWS, 1))]) for party in ("bank", "shop")]
    )
    raw = line.frame.to_numpy(float)
    np.testing.assert_allclose(joined[:, :2] * found["input_norms"]["bank"], raw[:, :2])
    np.testing.assert_allclose(np.square(joined[:LEARNT, 3:6]).mean(), 1.0)
    labels = trace["labels"]
    assert trace["orders"].shape == (3, LEARNT)
    assert all(sorted(order) == list(range(LEARNT)) for order in trace["orders"])
    assert (trace["orders"][0] != trace["orders"][1]).any()
    theta = np.zeros(7)
    iterates = [theta]
    for rows in trace["orders"].reshape(-1, 8):
        errors = 1 / (1 + np.exp(-joined[rows] @ theta)) - labels[rows]
        theta = theta - 0.2 * (joined[rows].T @ errors / 8 + 0.01 * theta)
        iterates.append(theta)
    np.testing.assert_allclose(np.hstack([trace["final/bank"], trace["final/shop"]]), theta, atol=1e-10)
    assert len(trace["upload_values"]) == found["uploads"] == 2 * 3 * LEARNT
    own = [slice(0, 3), slice(3, 7)]
    for party, entity, version, values in zip(
        trace["upload_party"],
        trace["upload_entity"],
        trace["upload_version"],
        trace["upload_values"],
        strict=True,
    ):
        assert values[0] == pytest.approx(
            joined[entity, own[party]] @ iterates[version][own[party]], abs=1e-10
        )
    scores, truth = joined[LEARNT:] @ theta, labels[LEARNT:]
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[truth == 1] for b in scores[truth == 0]]
    assert found["auc"] == pytest.approx(np.mean(pairs))
    assert found["accuracy"] == pytest.approx(np.mean((scores > 0) == truth))
    assert found["loss"] == pytest.approx(np.mean(np.log1p(np.exp(-np.where(truth == 1, scores, -scores)))))
    assert found["history"][-1]["accuracy"] == found["accuracy"]


def test_a_party_that_is_absent_is_stood_for_by_its_mean(line: Line) -> None:
    """Protects what is said of missing parties: the mean of all embeddings that were sent takes the place of
    an absent party's, and the figures say what is lost by that.
    """
    found = line.json("--online", "--label-delay", 5, "--trace", line.folder)
    trace = line.trace()
    scores = [
        np.hstack([trace[f"inputs/{party}"], np.ones((ROWS, 1))]) @ trace[f"final/{party}"]
        for party in ("bank", "shop")
    ]
    means = [trace["upload_values"][trace["upload_party"] == number].mean() for number in (0, 1)]
    truth = trace["labels"][LEARNT:]
    for absent, name in enumerate(("bank", "shop")):
        outputs = scores[1 - absent][LEARNT:] + means[absent]
        assert found["absent"][name]["accuracy"] == pytest.approx(np.mean((outputs > 0) == truth))
        assert found["absent"][name]["loss"] == pytest.approx(
            np.mean(np.logaddexp(0, outputs) - truth * outputs)
        )
        assert found["absent"][name]["loss"] > found["loss"]


@pytest.mark.parametrize("late", [(), ("--network-delay", 2.25, "--coordinator-delay", 0.7)])
def test_an_asynchronous_run_is_computed_again_from_its_trace(line: Line, late: tuple[object, ...]) -> None:
    """Protects the trace where order decides: uploads, labels and replies are there in the order in which
    they had effect, so that every gradient follows from the embeddings that the coordinator held.
    """
    options = ("--online", "--label-delay", 20, "--delays", "bank=1,shop=3", *late, "--trace", line.folder)
    found = line.json(*options, more="quorum = 1\n")
    trace = line.trace()
    labels, means, counts = trace["labels"], np.zeros(2), np.zeros(2)
    held: dict[int, dict[int, tuple[int, float]]] = {}
    known: set[int] = set()
    expected: dict[tuple[int, int], float] = {}
    due = list(zip(trace["label_entity"].tolist(), trace["label_before"].tolist(), strict=True))

    def learn(entity: int, parties: list[int]) -> None:
        row = [held[entity][party][1] if party in held[entity] else means[party] for party in (0, 1)]
        gradient = 1 / (1 + np.exp(-sum(row))) - labels[entity]
        expected.update({(party, held[entity][party][0]): gradient for party in parties})

    for number in range(found["uploads"] + 1):
        while due and due[0][1] <= number:
            entity = due.pop(0)[0]
            known.add(entity)
            if entity in held:
                learn(entity, sorted(held[entity]))
        if number < found["uploads"]:
            party, entity = int(trace["upload_party"][number]), int(trace["upload_entity"][number])
            value = float(trace["upload_values"][number, 0])
            counts[party] += 1
            means[party] += (value - means[party]) / counts[party]
            held.setdefault(entity, {})[party] = (int(trace["upload_sequence"][number]), value)
            if entity in known:
                learn(entity, [party])
    replies = zip(
        trace["reply_party"].tolist(),
        trace["reply_sequence"].tolist(),
        trace["reply_values"][:, 0],
        strict=True,
    )
    sent = {(party, sequence): value for party, sequence, value in replies}
    assert sent.keys() == expected.keys()
    np.testing.assert_allclose([sent[key] for key in expected], list(expected.values()), atol=1e-12)
    assert not trace["reply_asks"].any()


def test_labels_come_as_late_as_was_asked(line: Line) -> None:
    """Protects experiments on late labels: none is there before the farthest party has shown so many more
    entities, all come in the end, and each party learns from each entity once.
    """
    found = line.json("--online", "--label-delay", 30, "--delays", "shop=2", "--trace", line.folder)
    trace = line.trace()
    assert trace["label_entity"].tolist() == list(range(LEARNT))
    for entity, before in zip(trace["label_entity"], trace["label_before"], strict=True):
        shown = np.bincount(trace["upload_party"][:before], minlength=2).max()
        assert shown >= min(entity + 1 + 30, LEARNT)
    assert trace["upload_entity"][trace["upload_party"] == 0].tolist() == list(range(LEARNT))
    assert [one["gradients"] for one in found["parties"].values()] == [LEARNT, LEARNT]
    assert found["progressive"]["accuracy"] is not None
    assert (found["epochs"], found["label_delay"]) == (None, 30)


def test_a_far_slower_party_costs_no_idle_turns(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects whoever simulates a party that is very slow: turns in which nothing can happen are not gone
    through one by one, and what is learnt is what comes at a lesser delay.
    """
    turns = 0
    turn = VerticalFederation._take_turn

    def counted(federation: VerticalFederation, number: int) -> None:
        nonlocal turns
        turns += 1
        assert turns < 1_000
        turn(federation, number)

    monkeypatch.setattr(VerticalFederation, "_take_turn", counted)
    for distribution in ("constant", "exponential"):
        turns = 0
        slow, less = (
            line.json(
                "--delays", f"bank=1,shop={delay}", "--delay-distribution", distribution, more=SYNCHRONOUS
            )
            for delay in (1_000_000, 50)
        )
        # The parameters depend on the entities' order only.
        assert (slow["loss"], slow["uploads"]) == (less["loss"], less["uploads"])
        if distribution == "constant":
            assert slow["virtual_seconds"] == pytest.approx(15e6)
        turns = 0
        # Entities expire meanwhile, at the slow party too.
        line.json("--online", "--delays", "bank=1,shop=1000000", "--delay-distribution", distribution)


@pytest.mark.parametrize(
    ("late", "network"),
    [
        ("max_staleness = 0\n[alignment]\nreply_seconds = 7.5", 3.25),
        ('loss = "square"\nin_flight = 40', 0),
        ("", 3.25),
    ],
)
def test_a_party_that_sleeps_changes_nothing_that_is_said(
    line: Line, monkeypatch: pytest.MonkeyPatch, late: str, network: float
) -> None:
    """Protects the results of simulations: with turns in which nothing can happen passed over, or every one
    gone through, the same is sent at the same times, requests that nobody answers in time included.
    """
    options = (
        "--online",
        "--label-delay",
        12,
        "--delays",
        "bank=0.5,shop=37",
        "--network-delay",
        network,
        "--trace",
        line.folder,
    )
    line.json(*options, more=late)
    asleep = line.trace()

    def stays_awake(federation: VerticalFederation, number: int) -> None:
        federation._schedule(number, federation._turn_after(number, federation.now))

    monkeypatch.setattr(VerticalFederation, "_sleep", stays_awake)
    line.json(*options, more=late)
    awake = line.trace()
    assert asleep.keys() == awake.keys()
    for name, values in awake.items():
        np.testing.assert_array_equal(asleep[name], values, err_msg=name)


@pytest.mark.parametrize(("delay", "expected"), [(0.0625, 4.6875), (10.0, 750.0)])
def test_no_label_is_lost_between_two_turns(delay: float, expected: float) -> None:
    """Protects virtual time and late labels at any speed: 1,200 entities, 16 a turn, are shown in 75 turns;
    labels that are 300 entities late come at the pace of the turns, none is lost while parties are waited
    for, and no time is passed over."""
    draws = np.random.default_rng(1)
    inputs = [draws.normal(size=(1300, 2)) for _ in range(2)]
    table = VerticalTable(inputs, (inputs[0][:, 0] > 0).astype(float), test=100)
    settings = VaflSettings.model_validate(
        {
            "federation": {"name": "f", "parties": ["bank", "shop"], "embedding_size": 1},
            "role": {"kind": "simulation"},
            "alignment": {"reply_seconds": 10.0, "patience_seconds": 10_000.0},
        }
    )
    outcome = run_vertical(settings, table, delays=[Delay(delay)] * 2, epochs=None, label_delay=300)
    assert [one["gradients"] for one in outcome.parties.values()] == [1200, 1200]
    assert not any(outcome.forgotten.values())
    # The last samples are shown at the turn after 74 others; 300 labels take 19 turns more, and one brings
    # the gradients.
    assert outcome.seconds == pytest.approx(74 * delay + 19 * delay, abs=2.001 * delay)
    assert expected <= outcome.seconds < 1.3 * expected


def test_coordinator_and_network_take_the_time_that_they_are_given(line: Line) -> None:
    """Protects claims about speed where messages travel: by hand, of two parties that wait for each other, 15
    rounds of eight."""
    for network, busy in ((0.0, 0.0), (2.0, 0.75)):
        found = line.json(
            "--network-delay",
            network,
            "--coordinator-delay",
            busy,
            "--delays",
            "bank=1,shop=1",
            more=SYNCHRONOUS,
        )
        # What bank sends is taken first. Gradients are there after both, at a whole turn, with which the next
        # are sent.
        round_trip = max(1.0, np.ceil(network + 2 * busy + network))
        assert found["virtual_seconds"] == pytest.approx(15 * round_trip)
        assert found["uploads"] == 2 * LEARNT
        assert min(found["uplink_bytes"], found["downlink_bytes"]) > found["uploads"] * 8


def test_names_and_ranges_mean_the_same_columns(line: Line) -> None:
    """Protects a split by names: both ways give the same run, to the last bit, whichever member's file is
    read."""
    ranges = line.json("--split", "shop=2:5,bank=0:2")
    assert line.json("--split", "bank=age+income,shop=debts+3:5", kind="vafl-party") == ranges


def test_columns_that_are_no_numbers_are_told_of_ranges_alone(line: Line) -> None:
    """Protects the message's worth: whoever names each column has chosen, and is not told of the column with
    the entity's name."""
    file = line.folder / "customers.csv"
    named = line.frame[["age", "income", "debts", "visits", "returns", "y"]]
    named.assign(customer=[f"c{n}" for n in range(ROWS)]).to_csv(file, index=False)
    code, _, error = line("--data", file, "--split", "bank=age+income,shop=debts+3:5", "--format", "json")
    assert (code, "not numbers: customer" in error) == (0, True)
    code, _, error = line("--data", file, "--split", "bank=age+income,shop=debts+visits", "--format", "json")
    assert (code, "customer" in error) == (0, False)


def test_numbers_and_classes_are_learnt_too(line: Line) -> None:
    """Protects regression and classes: errors in the label's own unit, and labels as the loss needs them."""
    data = ("--data", line.folder / "data.csv")
    regression = line.json(*data, "--label", "amount", "--epochs", 30, more='loss = "square"')
    low, high = regression["label_range"]
    amounts = line.frame["amount"].to_numpy()
    assert (low, high) == pytest.approx((amounts[:LEARNT].min(), amounts[:LEARNT].max()))
    assert regression["rmse"] == pytest.approx(regression["scaled_mse"] ** 0.5 * (high - low))
    assert regression["rmse"] ** 2 < 0.1 * amounts[LEARNT:].var()
    more = 'loss = "softmax"\nclasses = 3\n[head]\nkind = "network"\n'
    classes = line.json(*data, "--label", "kind", "--trace", line.folder, more=more)
    assert 0 <= classes["accuracy"] <= 1
    assert classes["auc"] is None
    assert len(line.trace()["final/vafl-coordinator"]) == 2 * 3 + 3
    assert (line.trace()["initial/vafl-coordinator"] != line.trace()["final/vafl-coordinator"]).any()


@pytest.mark.parametrize("sound", [True, False])
def test_mu_is_what_was_sent_and_learnt(line: Line, sound: bool) -> None:
    """Protects the privacy figure: the noise's cost by its formula, called mu only where it covers what
    training tells too."""
    (line.folder / "secret").write_bytes(bytes(range(32)))
    (line.folder / "secret").chmod(0o600)
    more = f'[privacy]\nembedding_norm = 1.0\nembedding_noise = 4.0\nsecret_file = "{line.folder}/secret"\n'
    found = line.json(
        "--epochs", 2, more=more + ("gradient_norm = 1.0\ngradient_noise = 8.0\n" if sound else "")
    )
    assert found["noisy"]["accuracy"] is not None
    own = 2 * (2 / 4.0) ** 2
    if sound:
        assert found["mu"] == pytest.approx((own + 2 * (2 / 8.0) ** 2) ** 0.5)
        assert found["mu_all_parties"] == pytest.approx(2**0.5 * found["mu"])
        assert found["mu_per_release"] is None
    else:
        assert (found["mu"], found["mu_all_parties"]) == (None, None)
        assert found["mu_per_release"] == pytest.approx(own**0.5)
        assert "no guarantee" in line(more=more)[1]


def test_mu_of_labels_is_that_of_one_life_in_all_passes(line: Line) -> None:
    """Protects the figure of labels: remembered over two passes, each is told once."""
    (line.folder / "secret").write_bytes(bytes(range(32)))
    (line.folder / "secret").chmod(0o600)
    more = f'[privacy]\nreply_noise = 4.0\nsecret_file = "{line.folder}/secret"\n'
    assert line.json("--epochs", 2, more=more)["label_mu"] == 0.25
    assert "mu of an entity's label" in line(more=more)[1]
    assert line.json()["label_mu"] is None


def test_noisy_figures_are_with_the_noise(line: Line) -> None:
    """Protects whoever decides on the noise by what it costs: the figures are of embeddings with all parties'
    noise. Where that is far larger than they are, half of the test entities have a loss of its size: .56 of
    the noise of one party, on average."""
    (line.folder / "secret").write_bytes(bytes(range(32)))
    (line.folder / "secret").chmod(0o600)
    more = (
        f'[privacy]\nembedding_norm = 1.0\nembedding_noise = 1000.0\nsecret_file = "{line.folder}/secret"\n'
    )
    found = line.json(more=more)
    assert found["loss"] < 10
    assert 250 < found["noisy"]["loss"] < 900
    assert found["noisy"]["accuracy"] == pytest.approx(0.5, abs=0.3)


def test_a_model_that_is_worse_than_the_mean_is_told(line: Line) -> None:
    """Protects users from taking a federation for useful whose predictions a constant beats."""
    told = "worse than none"
    code, out, error = line("--epochs", 5, "--format", "json")
    found = json.loads(out)
    assert (code, told in error) == (0, False)
    share = line.frame["y"].to_numpy()[LEARNT:].mean()
    assert found["constant_loss"] == pytest.approx(-share * np.log(share) - (1 - share) * np.log(1 - share))
    line.frame["y"] = np.random.default_rng(1).permutation(line.frame["y"].to_numpy())
    error = " ".join(line("--online")[2].split())
    assert "the predictions before each label" in error
    assert error.count(told) == 2


@pytest.mark.parametrize("loss", ["logistic", "square"])
def test_progressive_figures_are_of_what_was_said_before_the_label(line: Line, loss: str) -> None:
    """Protects the figure of predictions before learning: the sum of the embeddings as they were sent,
    against each label."""
    found = line.json("--online", "--label-delay", 20, "--trace", line.folder, more=f'loss = "{loss}"')[
        "progressive"
    ]
    trace = line.trace()
    outputs = np.zeros(LEARNT)
    np.add.at(outputs, trace["upload_entity"], trace["upload_values"][:, 0])
    assert len(trace["upload_entity"]) == 2 * LEARNT
    labels = trace["labels"][:LEARNT]
    if loss == "square":
        assert found["scaled_mse"] == pytest.approx(np.mean((outputs - labels) ** 2))
        return
    pairs = [(a > b) + 0.5 * (a == b) for a in outputs[labels == 1] for b in outputs[labels == 0]]
    assert found["accuracy"] == pytest.approx(np.mean((outputs > 0) == labels))
    assert found["loss"] == pytest.approx(np.mean(np.logaddexp(0, outputs) - labels * outputs))
    assert found["auc"] == pytest.approx(np.mean(pairs))
    assert found["accuracy"] > 0.6


MISTAKES = {
    "--split is missing": ((), "", "split"),
    "is none of federation.parties (bank, shop)": (("--split", "bank=0:2,phone=2:5"), "", ""),
    "the columns are missing for shop": (("--split", "bank=0:5"), "", ""),
    "no range within the 5 input columns": (("--split", "bank=0:2,shop=2:6"), "", ""),
    "neither a range such as 0:5 nor a column": (("--split", "bank=0:2,shop=2-5"), "", ""),
    "y is the label": (("--split", "bank=0:2,shop=y"), "", ""),
    "bank is there twice": (("--split", "bank=0:2,bank=2:5"), "", ""),
    "PARTY=… is expected": (("--split", "bank"), "", ""),
    "number of seconds, 1e-06 to 1,000,000, is expected": (("--delays", "bank=1e7"), "", ""),
    "with 120 entities to learn from at most 416,666 passes": (("--epochs", 99999999999), "", ""),
    "--delays shop=soon": (("--delays", "shop=soon"), "", ""),
    "--network-delay -1: a number of seconds, 0 to 1,000,000, is expected": (("--network-delay", -1), "", ""),
    "--epochs has no meaning with --online": (("--epochs", 2, "--online"), "", ""),
    "--label-delay has no meaning without --online": (("--label-delay", 2), "", ""),
    "a number between 0 and 1": (("--test-fraction", 1), "", ""),
    "--clients, --rounds have no meaning with role.kind = 'vafl-coordinator'": (
        ("--clients", 2, "--rounds", 3),
        "",
        "",
    ),
    "would wait for ever": ((), "in_flight = 4", ""),
    "labels that come only after": (("--online", "--label-delay", 20), "in_flight = 16", ""),
    "learning.wait_for = 3": ((), "wait_for = 3", ""),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_wrong_options_are_explained(line: Line, message: str) -> None:
    """Protects whoever mistypes: exit code 2 and a line that says which option is wrong, never a run of
    something else."""
    arguments, more, without = MISTAKES[message]
    if without:
        config = line.folder / "bare.toml"
        config.write_text(CONFIG.format(kind="vafl-party", more=more))
        code, out, error = run_command(
            line._monkeypatch, line._capture, "simulate", config, "--data", line.folder / "data.csv"
        )
    else:
        code, out, error = line(*arguments, more=more)
    assert (code, out) == (2, "")
    assert message in error
    assert "Traceback" not in error


def test_labels_that_the_loss_does_not_have_are_refused(line: Line) -> None:
    """Protects against a run in which every label is refused, and nothing learnt, without a word."""
    data = ("--data", line.folder / "data.csv")
    code, out, error = line(*data, "--label", "kind")
    assert (code, out) == (5, "")
    assert 'the label kind is 2 somewhere, one of 0 .. 1 is expected with learning.loss = "logistic"' in error
    code, _, error = line(*data, "--label", "colour")
    assert (code, "no column colour" in error) == (5, True)
    code, _, error = line("--test-fraction", 0.999)
    assert (code, "leave 0 to learn from" in error) == (5, True)


def test_labels_that_noise_does_not_hide_are_refused() -> None:
    """Protects the mu of labels in a simulation too: one outside the range is told of, and not quietly left
    out."""
    settings = VaflSettings.model_validate(
        {
            "federation": {"name": "f", "parties": ["bank"], "embedding_size": 1},
            "role": {"kind": "simulation"},
            "learning": {"loss": "square"},
            "privacy": {"reply_noise": 1.0, "secret_file": "secret"},
        }
    )
    table = VerticalTable([np.ones((4, 1))], np.array([0.0, 1.5, 1.0, 0.5]), test=1)
    with pytest.raises(DataError, match=r"outside labels.label_range.* 0 to 1.5, 0 to 1 is expected"):
        run_vertical(settings, table)


def test_rows_with_gaps_are_left_out_and_counted(line: Line) -> None:
    """Protects the figures from gaps: a row that some party does not know wholly is nobody's."""
    line.frame.loc[[3, 70], "visits"] = np.nan
    found = line.json("--trace", line.folder)
    assert (found["dropped_rows"], found["entities"], found["test_entities"]) == (2, 118, 30)
    assert np.isfinite(line.trace()["inputs/shop"]).all()


def test_options_of_parties_are_refused_for_clients(line: Line) -> None:
    """Protects a user of the other system from options that would be read and ignored."""
    config = line.folder / "client.toml"
    config.write_text('[federation]\nname = "plant"\nclients = 2\n[role]\nkind = "pofmkl-client"\n')
    arguments = ("--data", line.folder / "data.csv", "--split", "a=0:2", "--online")
    code, out, error = run_command(line._monkeypatch, line._capture, "simulate", config, *arguments)
    assert (code, out) == (2, "")
    assert "--split, --online have no meaning with role.kind = 'pofmkl-client'" in error


def test_entities_that_are_forgotten_too_early_are_counted_and_the_key_is_named(line: Line) -> None:
    """Protects who wonders why nothing was learnt: entities that the coordinator had forgotten when their
    label came, or that gave way to others, are counted by reason, and one line says which key to raise; where
    none were, nothing is said.
    """
    early = ("--online", "--label-delay", 40)
    code, out, error = line(*early, "--format", "json", more="[alignment]\nexpiry_seconds = 2.5\n")
    assert code == 0
    found = json.loads(out)
    assert [one["gradients"] for one in found["parties"].values()] == [0, 0]
    # Eight embeddings a second, labels five seconds later: every entity is forgotten before its label. Of the
    # last, whose labels come when nothing more does, it is not.
    assert LEARNT - 40 <= found["forgotten_entities"]["no_label"] <= LEARNT
    (said,) = [text for text in error.splitlines() if "forgot" in text]
    assert "alignment.expiry_seconds = 2.5" in said
    assert f"no_label {found['forgotten_entities']['no_label']}" in said
    assert "alignment.limit" not in said
    code, out, error = line(*early, more="[alignment]\nlimit = 10\n")
    assert code == 0
    assert "Entities forgotten" in out
    assert "displaced" in out
    assert "alignment.limit = 10" in error
    assert "expiry_seconds" not in error
    code, out, error = line(*early, "--format", "json")
    assert not any(json.loads(out)["forgotten_entities"].values())
    assert "forgot" not in error
