"""A party that is driven by hand-made messages: what it says, what it refuses, and what it does not take
twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dp_frank_wolfe.party_driver import COLUMNS, NAMES, ROWS, Driver, ask_of, reason, settings, table

from streamfl.contract.role import ConfigurationError, Received
from streamfl.dp_frank_wolfe.learning.blocks import Block
from streamfl.dp_frank_wolfe.learning.selection import clip_rows
from streamfl.dp_frank_wolfe.messages import (
    Answers,
    Ask,
    Chosen,
    Entities,
    Frozen,
    OtherRows,
    Products,
    read_content,
)
from streamfl.dp_frank_wolfe.party.fit import PartyFit
from streamfl.dp_frank_wolfe.party.selection import PartySelection
from streamfl.dp_frank_wolfe.party.window import Bounds, Window, freeze
from streamfl.dp_frank_wolfe.tools.centring import centre_for

SELECTING = {"learning": {"estimator": "two-round", "columns": 4}}


def one(count: int) -> Bounds:
    return Bounds(np.zeros(count), np.ones(count))


def window() -> Window:
    return freeze(*table(), one(COLUMNS), one(1), ROWS)


def test_entities_are_announced_once_both_records_came() -> None:
    """Protects the manifest: a name that the server hears has a row and a label here, and it hears it
    once."""
    party = Driver(settings())
    features, labels = table()
    party.feed([party.sample("x", features[0].tolist()), party.label("y", 0.5)])
    assert party.feed([]) == []
    party.feed([party.label("x", float(labels[0])), party.label("x", 0.1)])
    (message,) = party.feed([])
    assert (message.kind, message.window, message.iteration) == ("entities", 0, 1)
    assert read_content(message.content, Entities).names == ["x"]
    party.feed([party.sample("x", features[1].tolist())])
    assert party.feed([]) == []


def test_many_names_are_announced_in_several_messages() -> None:
    """Protects the server's limit on a message, with names as long as they may be."""
    names = [f"{number:03}" + "ö" * 120 for number in range(400)]
    party = Driver(settings(window={"rows": ROWS, "limit": 1000}))
    for name in names:
        party.feed([party.sample(name, [0.0] * COLUMNS), party.label(name, 0.0)])
    messages = party.feed([])
    assert [message.iteration for message in messages] == [1, 2]
    assert [name for message in messages for name in read_content(message.content, Entities).names] == names
    assert reason(party, party.sample("ö" * 129, [0.0] * COLUMNS)) == "malformed"


def test_its_answers_are_those_of_the_arithmetic(tmp_path: Path) -> None:
    """Protects the proofs, which are of ``PartyFit`` on the frozen window: the party adds nothing and leaves
    nothing out."""
    party = Driver(settings(tmp_path)).begun()
    public = party.public
    blocks: dict[int, Block] = {
        number: block for number, block in enumerate(public.blocks) if block.party == "a"
    }
    own = centre_for(public, {"a": window()}, lambda _: party.task.given.place(party.settings, 1)).windows[
        "a"
    ]
    fit = PartyFit(
        own, blocks, public.fit_plan("a", 1), public.sketch(1), party.task.given.place(party.settings, 1)
    )
    random = np.random.default_rng(1)
    weights = np.zeros(COLUMNS)
    for iteration in range(6):
        others = random.normal(size=8)
        (message,) = party.feed([party.ask(iteration, weights, others)])
        wanted = fit.answer(iteration, list(blocks), weights, others)
        answers: Answers = read_content(message.content, Answers)
        assert answers.gap is None
        assert [answer.block for answer in answers.answers] == sorted(wanted)
        for answer in answers.answers:
            vertex = wanted[answer.block].vertex
            assert (answer.column, answer.positive) == (vertex.column, vertex.sign > 0)
            sums = wanted[answer.block].sums
            assert answer.sums == (b"" if sums is None else sums.astype("<i8").tobytes())
            weights[answer.column] += 0.05
    (message,) = [message for message in party.sent if message.kind == "frozen"]
    assert len(read_content(message.content, Frozen).manifest) == 32
    assert [message.link for message in party.sent] == [0, 1, 2, 3, 4, 5, 6, 7]


def test_without_noise_it_tells_its_gap() -> None:
    """Protects the end of fits that promise nothing: the sum of the gaps bounds how far the objective is from
    its optimum."""
    party = Driver(settings(privacy={"epsilon": float("inf")})).begun()
    (message,) = party.feed([party.ask(0)])
    answers: Answers = read_content(message.content, Answers)
    features, labels = table()
    features, labels = (np.clip(one - one.mean(axis=0), -1, 1) for one in (features, labels))
    assert answers.gap == pytest.approx(0.5 * np.abs(features.T @ labels).max() / ROWS, rel=1e-3)
    assert answers.answers[0].column == 1


@pytest.mark.parametrize("estimator", ["marginal", "two-round"])
def test_estimators_that_choose_once_are_those_of_the_arithmetic(tmp_path: Path, estimator: str) -> None:
    """Protects the proofs, which are of ``PartySelection``: the same releases in the same order, through a
    restart."""
    learning = {"estimator": estimator, "columns": 4}
    party = Driver(settings(tmp_path, learning=learning)).begun()
    plan = party.public.selection_plan("a")
    own = centre_for(
        party.public, {"a": window()}, lambda _: party.task.given.place(party.settings, 1)
    ).windows["a"]
    wanted = PartySelection(own, plan, party.task.given.place(party.settings, 1))
    (message,) = party.feed([party.server("choose", 1, 0, b"")])
    chosen: Chosen = read_content(message.content, Chosen)
    assert np.frombuffer(chosen.columns, "<u4").tolist() == wanted.choose()
    assert chosen.values == wanted.values().tobytes()
    if estimator == "marginal":
        assert (chosen.norms, chosen.rows) == (wanted.norms().tobytes(), b"")
        return
    assert (chosen.norms, chosen.rows) == (b"", wanted.rows().tobytes())
    party = Driver(party.settings, party.state)
    others = np.random.default_rng(2).normal(size=(ROWS, 2))
    (message,) = party.feed([party.server("rows", 1, 0, OtherRows(others.tobytes()))])
    products: Products = read_content(message.content, Products)
    assert products.gram == wanted.gram().tobytes()
    assert products.products == wanted.products(clip_rows(others, plan.row_bound)).tobytes()


def test_a_fit_ends_with_its_model_and_another_window_begins() -> None:
    """Protects the stream: rows that were frozen are gone, the model is there, and the next window has its
    own fit."""
    party = Driver(settings()).begun()
    party.feed([party.ask(0)])
    column = read_content(party.sent[-1].content, Answers).answers[0].column
    weights = np.eye(COLUMNS)[column] / 10
    assert party.feed([party.model(weights)]) == []
    again = Driver(party.settings, party.state)
    assert (again.task.model.version, again.task.model.weights.tolist()) == (1, weights.tolist())
    assert not [key for _, key in party.state if key.startswith((b"window/", b"entity/", b"fit"))]
    others = [f"other {number:02}" for number in range(ROWS)]
    party.feed(party.rows(1, others))
    party.feed([])
    party.feed([party.manifest(2, others)])
    assert party.feed([party.ask(0, window=2)])[0].window == 2
    assert party.rejections == []


# ---- what is refused


def refused_asks(party: Driver) -> dict[str, tuple[Received, str]]:
    nan, zeros = np.full(8, np.nan), np.zeros(8)
    good = ask_of([0, 0, 0, 0], zeros)
    return {
        "another federation": (party.server("ask", 1, 1, good, fingerprint=7), "configuration"),
        "a party": (party.server("ask", 1, 1, good, sender="b"), "forged"),
        "a later window": (party.server("ask", 2, 0, good), "implausible"),
        "beyond T": (party.server("ask", 1, 6, good), "implausible"),
        "another kind": (party.server("choose", 1, 0, b""), "malformed"),
        "no kind": (party.server("hello", 1, 0, b""), "malformed"),
        "no content": (party.server("ask", 1, 1, b""), "malformed"),
        "a text": (party.server("ask", 1, 1, b"\xa3abc"), "malformed"),
        "too many numbers": (party.server("ask", 1, 1, ask_of([0] * 4, np.zeros(9))), "shape"),
        "too few numbers": (party.server("ask", 1, 1, ask_of([0] * 4, np.zeros(7))), "shape"),
        "numbers that are none": (party.server("ask", 1, 1, ask_of([0] * 4, nan)), "not_finite"),
        "numbers beyond all": (party.server("ask", 1, 1, ask_of([0] * 4, zeros + 1e300)), "implausible"),
        "a weight beyond the ball": (
            party.server("ask", 1, 1, ask_of([0, 0.6, 0, 0], zeros)),
            "out_of_bounds",
        ),
        "weights that overflow": (
            party.server("ask", 1, 1, ask_of([1e308, 1e308, 1e308, 0], zeros)),
            "out_of_bounds",
        ),
        "a weight that is none": (party.server("ask", 1, 1, ask_of([0, np.nan, 0, 0], zeros)), "not_finite"),
        "a column that there is not": (
            party.server("ask", 1, 1, Ask(b"\x09\0\0\0", bytes(8), zeros.tobytes())),
            "implausible",
        ),
        "half a column": (party.server("ask", 1, 1, Ask(b"\x01\0", bytes(8), zeros.tobytes())), "shape"),
        "a column twice": (
            party.server("ask", 1, 1, Ask(bytes(8), bytes(16), zeros.tobytes())),
            "implausible",
        ),
        "a column that was never chosen": (
            party.server("ask", 1, 1, ask_of([0.1, 0.1, 0.1, 0.1], zeros)),
            "implausible",
        ),
        "the same ask with another content": (
            party.server("ask", 1, 0, ask_of([0] * 4, zeros + 1)),
            "another_ask",
        ),
        "another manifest": (party.manifest(1, sorted([*NAMES[1:], "another"])), "another_ask"),
        "a manifest of unknown names": (
            party.manifest(2, [f"{number:02}" for number in range(ROWS)]),
            "implausible",
        ),
        "a manifest of numbers that wait no longer": (party.manifest(2), "implausible"),
        "a short manifest": (party.server("manifest", 2, 0, [NAMES[:-1]]), "malformed"),
        "a manifest that is out of order": (
            party.server("manifest", 2, 0, [[NAMES[1], NAMES[0], *NAMES[2:]]]),
            "malformed",
        ),
        "a manifest with a name twice": (
            party.server("manifest", 2, 0, [[NAMES[0], *NAMES[:-1]]]),
            "malformed",
        ),
        "a model of a later window": (party.model(window=2), "implausible"),
        "a model beyond the ball": (party.model([2, 0, 0, 0]), "out_of_bounds"),
        "a model without content": (party.server("model", 1, 0, b""), "malformed"),
    }


def test_wrong_messages_change_nothing(tmp_path: Path) -> None:
    """Protects a party from its server: each is refused for its reason, before anything is charged, chosen or
    remembered."""
    party = Driver(settings(tmp_path)).begun()
    party.feed([party.ask(0)])
    found = {name: reason(party, message) for name, (message, _) in refused_asks(party).items()}
    assert found == {name: wanted for name, (_, wanted) in refused_asks(party).items()}
    undisturbed = Driver(settings(tmp_path), dict(party.state))
    assert party.feed([party.ask(1)]) == undisturbed.feed([undisturbed.ask(1)])
    assert party.task.trouble is None


def test_wrong_messages_to_a_party_that_chooses_once_change_nothing() -> None:
    """Protects a party from its server, where it chooses once."""
    party = Driver(settings(**SELECTING)).begun()
    good = OtherRows(np.zeros((ROWS, 2)).tobytes())
    assert reason(party, party.server("rows", 1, 0, good)) == "implausible"
    assert reason(party, party.server("choose", 1, 0, b"now")) == "malformed"
    assert reason(party, party.ask(0)) == "malformed"
    party.feed([party.server("choose", 1, 0, b"")])
    for content, wanted in (
        (np.zeros((ROWS, 3)), "shape"),
        (np.zeros((ROWS - 1, 2)), "shape"),
        (np.full((ROWS, 2), np.inf), "not_finite"),
        (np.full((ROWS, 2), 1e200), "implausible"),
    ):
        assert reason(party, party.server("rows", 1, 0, OtherRows(content.tobytes()))) == wanted
    assert len(party.feed([party.server("rows", 1, 0, good)])) == 1
    assert party.task.trouble is None


def test_what_comes_twice_is_counted_and_answered_once(tmp_path: Path) -> None:
    """Protects the ledger from a server that asks again: one release for each place, and none for what is
    past."""
    party = Driver(settings(tmp_path)).begun()
    messages = [party.manifest(), party.ask(0), party.ask(2), party.model([0, 0, 0, 0])]
    for number, message in enumerate(messages):
        party.feed([message])
        state = dict(party.state)
        for earlier in messages[: number + 1]:
            assert party.feed([earlier]) == []
        assert party.feed([party.ask(1, others=np.ones(8))] if number > 1 else []) == []
        assert party.state == state
    assert party.rejections == []
    assert party.role.counts.repeated_messages == 1 + (1 + 2 + 3 + 4) + 2
    assert reason(party, party.model([0, 0.1, 0, 0])) == "another_ask"


def test_a_sampling_that_leaves_the_party_out_asks_nothing_of_it() -> None:
    """Protects the plan: an answer out of turn is one that was not counted when the noise was chosen."""
    party = Driver(settings(learning={"sampling": "uniform", "iterations": 40})).begun()
    due = {t for t in range(40) if party.public.sampling.blocks_of(1, t) == [0]}
    assert 0 < len(due) < 40
    for t in range(40):
        assert reason(party, party.ask(t)) == (None if t in due else "implausible")
    assert len([message for message in party.sent if message.kind == "answers"]) == len(due)


def test_settings_that_do_not_fit_are_mistakes(tmp_path: Path) -> None:
    """Protects operators: a missing secret, a missing ledger file and a wrong number of columns are said at
    the start."""
    with pytest.raises(ConfigurationError, match=r"privacy\.secret_file"):
        Driver(settings(privacy={"insecure_test_noise": False}))
    own = settings(tmp_path)
    (tmp_path / "ledger").unlink()
    with pytest.raises(ConfigurationError, match="streamfl ledger init"):
        Driver(own)
    with pytest.raises(ConfigurationError, match=r"federation\.columns"):
        Driver(settings(samples={"features": ["x0", "x1"]}))
