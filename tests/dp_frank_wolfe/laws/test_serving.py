"""Predictions between fits: exact, or with noise that the entity's budget covers."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from dp_frank_wolfe.federations import COLUMNS, ROWS, SERVER_MEMBER, settings_of
from dp_frank_wolfe.laws.closed_loop import ClosedLoop, federation, names_of
from dp_frank_wolfe.party_driver import Driver
from dp_frank_wolfe.party_driver import settings as party_settings

from streamfl.dp_frank_wolfe.party.window import FEATURE_ONE
from streamfl.dp_frank_wolfe.serving.partials import PartialPlan, largest_partial
from streamfl.privacy.release_bits import Release, release_bits
from streamfl.privacy.zcdp import cost_of_gaussian


def with_model(folder: Path | None = None, **sections: dict[str, Any]) -> ClosedLoop:
    loop = federation(2, folder, **sections)
    loop.write_rows(names_of())
    for _ in range(1000):
        loop.turn()
        if loop.server.model and not any(one.unread for one in loop.members.values()):
            return loop
    raise AssertionError("no model")


def shown(loop: ClosedLoop, names: list[str], seed: int = 3) -> dict[str, float]:
    """Rows of these entities come; what the published model says of them, b + x'a."""
    rows = np.random.default_rng(seed).uniform(-1, 1, (len(names), 2 * COLUMNS))
    for name, row in zip(names, rows, strict=True):
        loop.write_columns(name, row)
    loop.settle()
    x = np.concatenate(list(loop.models().values()))
    intercept = loop.published("model")[-1]["intercept"]
    return dict(zip(names, (intercept + rows @ x).tolist(), strict=True))


def test_nothing_is_predicted_unless_it_is_asked_for() -> None:
    """Protects rows: off is the default, and no part of a prediction leaves a party."""
    loop = with_model()
    shown(loop, names_of(5, 500))
    assert all(b"partial" not in value for _, _, _, value in loop.writes)
    assert "predictions" not in loop.members[SERVER_MEMBER].outputs


def test_exact_predictions_are_the_model() -> None:
    """Protects users' numbers: the label's scale, the model's version, and the word that epsilon does not
    cover them."""
    bounds = {"label_centre": 10.0, "label_bound": 4.0}
    names = ["party-0", "party-1", SERVER_MEMBER]
    given = {name: settings_of(name, 2, serving={"mode": "exact"}, bounds=bounds) for name in names}
    loop = ClosedLoop(given)
    loop.write_rows(names_of())
    loop.settle()
    # The model's intercept is remembered.
    loop.restart(SERVER_MEMBER)
    outputs = shown(loop, names_of(5, 500))
    assert loop.published("model")[-1]["intercept"] != 0
    found = {one["entity"]: one for one in loop.published("predictions")}
    assert found.keys() == outputs.keys()
    for name, output in outputs.items():
        assert found[name] == {
            "entity": name,
            "prediction": found[name]["prediction"],
            "model": 1,
            "private": False,
        }
        assert found[name]["prediction"] == pytest.approx(10.0 + 4.0 * output, abs=4 / FEATURE_ONE)
    for member in loop.members.values():
        assert [one.reason for one in member.role.notices()] == ["exact"]
    assert loop.rejections() == []


def test_private_predictions_are_charged_before_they_are_sent(tmp_path: Path) -> None:
    """Protects the claim: each part is a link, and in no commit is a part sent whose entity was not charged
    in an earlier one."""
    loop = with_model(tmp_path, serving={"mode": "private", "predictions": 2})
    codec, public = loop.server.codec, loop.public
    names = names_of(6, 500)
    for seed in (3, 4, 5):
        shown(loop, names, seed)
    for party in loop.parties:
        member, task = loop.members[party], loop.party(party)
        told = [codec.decode(value) for who, _, _, value in loop.committed if who == party]
        told = [one for one in told if one.kind == "partial"]
        # Twice in its life, and no third time.
        assert len(told) == 2 * len(names)
        assert [one.iteration for one in told] == [one.link for one in told] == list(range(1, len(told) + 1))
        assert member.role.counts.unpredicted_entities == len(names)
        each = public.prediction_cost(party)
        assert each == pytest.approx(public.cost / 2 * 0.2 / 2)
        assert all(task.ledger.spend.spent(name) == pytest.approx(2 * each) for name in names)
        # A fit and two predictions are the whole of its share.
        task.ledger.spend.spend(names[0], task.ledger.fit_cost)
        assert task.ledger.spend.spent(names[0]) == pytest.approx(public.party_cost(party))
        (notice,) = {one.text for one in task.outbox.notices.collect()}
        assert "no budget for another one" in notice
    published = loop.published("predictions")
    assert len(published) == 2 * len(names)
    assert all(one["private"] for one in published)


def test_predictions_have_the_noise_that_is_told() -> None:
    """Protects who reads predictions: the server says when noise hides what they are to tell, and how much
    noise `simulate` promises is how much they have."""
    # The noise of a model, and so of its predictions, follows the seed: by another one it may be small.
    loop = with_model(serving={"mode": "private"}, bounds={"label_bound": 4.0})
    outputs = shown(loop, names_of(300, 500))
    found = {one["entity"]: one["prediction"] for one in loop.published("predictions")}
    assert found.keys() == outputs.keys()
    told = loop.public.prediction_noise(loop.models())
    noise = np.std([found[name] - 4.0 * output for name, output in outputs.items()])
    # Of 300 draws it is 4% off.
    assert noise == pytest.approx(told, rel=0.2)
    (notice,) = loop.members[SERVER_MEMBER].role.notices()
    assert notice.reason == "noisy_predictions"
    assert f"{told:.4g}" in notice.text
    assert told > 4.0


def test_a_part_is_remembered_and_charged_in_a_commit_before_the_one_that_tells_it(tmp_path: Path) -> None:
    """Protects work that is done again: a part that left before anything was remembered could be made of
    other content."""
    loop = with_model(tmp_path, serving={"mode": "private"})
    party = loop.members["party-0"]
    loop.write_columns("somebody", np.full(2 * COLUMNS, 0.5))
    before = len(loop.writes)
    assert loop.step("party-0")
    assert all(who != "party-0" for who, _, _, _ in loop.writes[before:])
    assert any(channel == "ledger" and key == b"spent/somebody" for channel, key in party.state)
    assert any(key.startswith(b"prediction/") for _, key in party.state)
    loop.restart("party-0")
    # Once the file was looked at.
    assert loop.step("party-0")
    assert [who for who, _, _, _ in loop.committed].count("party-0") > 0
    assert not any(key.startswith(b"prediction/") for _, key in party.state)


def test_noise_of_a_part_has_a_key_of_all_that_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from one draw on two contents, where differences are too small to be seen: the key names row,
    weights, entity and noise, and what promises nothing costs everything.
    """
    heard: list[Release] = []

    def bits(secret: bytes, release: Release, draws: int) -> bytes:
        heard.append(release)
        return release_bits(secret, release, draws)

    monkeypatch.setattr("streamfl.dp_frank_wolfe.serving.party.release_bits", bits)

    def key(weights: tuple[float, ...], row: float = 0.5, entity: str = "x", predictions: int = 1) -> Release:
        party = Driver(party_settings(serving={"mode": "private", "predictions": predictions})).begun()
        party.hear(party.model(weights))
        heard.clear()
        party.hear(party.sample(entity, [row, 0.0, 0.0, 0.0]))
        (release,) = heard
        noise = PartialPlan.of(np.array(weights), party.public.prediction_cost("a"))
        assert noise.noise is not None
        assert release.parameters == (noise.noise.variance, noise.noise.unit, noise.bits, entity)
        assert math.isinf(party.task.ledger.spend.spent(entity))
        return release

    half, quarter = (0.5, 0.0, 0.0, 0.0), (0.25, 0.0, 0.0, 0.0)
    once = key(half)
    assert key(half) == once
    # As whole numbers they are the same, with another bit after the point.
    assert key(quarter) == replace(once, parameters=(*once.parameters[:2], once.parameters[2] + 1, "x"))
    # Parts of the two other weights are the same, for the row is 0 where they differ.
    others = [
        key(half, row=0.25),
        key((0.25, 0.25, 0.0, 0.0)),
        key((0.25, 0.0, 0.25, 0.0)),
        key(half, entity="y"),
    ]
    assert len({once, *others, key(half, predictions=2)}) == 6
    assert len({one.digest for one in [once, *others]}) == 4


def test_noise_of_a_part_has_the_sensitivity_that_a_replaced_row_has() -> None:
    """Protects the noise's scale: over extreme rows the part moves by 2 |x|_1, never more, and the noise
    costs cost for that."""
    random = np.random.default_rng(0)
    own, cost = random.normal(size=COLUMNS), 0.01
    plan = PartialPlan.of(own, cost)
    assert plan.noise is not None
    high = (np.sign(own) * FEATURE_ONE).astype(np.int16)
    moved = math.ldexp(plan.exact(high) - plan.exact(-high), -plan.bits)
    assert moved == pytest.approx(2 * np.abs(own).sum(), rel=1e-9)
    for _ in range(200):
        one, other = random.integers(-FEATURE_ONE, FEATURE_ONE + 1, (2, COLUMNS)).astype(np.int16)
        assert abs(plan.exact(one) - plan.exact(other)) <= plan.exact(high) - plan.exact(-high)
    units = Fraction(plan.exact(high) - plan.exact(-high), plan.noise.unit)
    # Rounding may add a unit.
    assert cost * 0.99 <= cost_of_gaussian(float(units) + 1, math.sqrt(plan.noise.variance)) <= cost
    drawn = [plan.told(0, random.bytes(16)) for _ in range(4000)]
    assert np.std(drawn) == pytest.approx(moved / math.sqrt(2 * cost), rel=0.05)
    assert max(map(abs, drawn)) <= largest_partial(float(np.abs(own).sum()), cost)


@pytest.mark.parametrize("cost", [1e-8, 1e4, math.inf])
def test_no_part_is_beyond_what_a_server_takes(cost: float) -> None:
    """Protects law 7: what a party may tell is never refused, whatever the weights and the draw are."""
    for own in (np.array([0.5, 0.0, -0.5]), np.array([1e-9, 0.0, 0.0]), np.array([1.0, 0.0, 0.0])):
        plan = PartialPlan.of(own, cost)
        most = largest_partial(1.0, cost)
        for bits in (bytes(16), b"\xff" * 16):
            assert abs(plan.told(plan.exact(np.full(3, FEATURE_ONE, np.int16)), bits)) <= most
    assert PartialPlan.of(np.zeros(3), 0.01).told(0, b"\xff" * 16) == 0.0


def test_a_party_may_have_all_of_the_ball() -> None:
    """Protects predictions of estimators that choose once: a party's weights, and parts, may be beyond its
    radius, each entity is predicted all the same, and a party is taken up again with such a part in its
    state.
    """
    sections = {"serving": {"mode": "exact"}, "privacy": {"epsilon": math.inf}}
    loop = federation(2, learning={"estimator": "marginal"}, **sections)
    for name, row in zip(
        names_of(), np.random.default_rng(1).uniform(-1, 1, (ROWS, 2 * COLUMNS)), strict=True
    ):
        loop.write_columns(name, row)
        loop.write("labels", name, msgspec.json.encode({"y": 0.95 * float(row[1])}))
    loop.settle()
    models, radius = loop.models(), loop.public.radius("party-0")
    assert np.abs(models["party-0"]).sum() > 1.2 * radius
    rows = np.random.default_rng(2).choice([-1.0, 1.0], (20, 2 * COLUMNS))
    rows[0] = np.sign(np.concatenate(list(models.values())))
    outputs = loop.published("model")[-1]["intercept"] + rows @ np.concatenate(list(models.values()))
    wanted = dict(zip(names_of(20, 500), outputs.tolist(), strict=True))
    for name, row in zip(wanted, rows, strict=True):
        loop.write_columns(name, row)
    for party in loop.parties:
        loop.step(party)
        assert any(key.startswith(b"prediction/") for _, key in loop.members[party].state)
        loop.restart(party)
    loop.settle()
    found = {one["entity"]: one["prediction"] for one in loop.published("predictions")}
    assert max(map(abs, wanted.values())) > 1.2 * radius
    assert found == pytest.approx(wanted, abs=4 / FEATURE_ONE)
    assert loop.rejections() == []


@pytest.mark.parametrize("mode", ["exact", "private"])
def test_no_part_is_told_behind_a_state_that_was_rolled_back(tmp_path: Path, mode: str) -> None:
    """Protects predictions from numbers that the server has heard before: it takes them for the same again.
    The party says why it tells nothing.
    """
    loop = with_model(tmp_path, serving={"mode": mode})
    party = loop.members["party-0"]
    loop.settle()
    old = {place: value for place, value in party.state.items() if place[0] != "ledger"}
    shown(loop, names_of(4, 500))
    loop.write_rows(names_of(ROWS, 100), 1)
    loop.settle()
    assert loop.server.model == 2
    party.state = {**old, **{place: value for place, value in party.state.items() if place[0] == "ledger"}}
    loop.restart("party-0")
    before = len(loop.writes)
    shown(loop, names_of(4, 600))
    assert not any(who == "party-0" for who, _, _, _ in loop.writes[before:])
    assert "the state was rolled back" in str(party.role.trouble)
    assert any("the state was rolled back" in one.text for one in party.role.notices())
