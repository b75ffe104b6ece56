"""Entities are scored with the model that guest and hosts have come to, once for each version of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from quasi_newton.federations import Secrets
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.laws.scoring import (
    COMMON,
    MISSING,
    PREDICTIONS,
    ROWS,
    expected_outputs,
    new_version,
    parties,
    predictions,
    said,
    scored,
    scoring_federation,
    scoring_party,
    table,
    write_entity,
)
from quasi_newton.makers import platt
from sklearn.metrics import log_loss, roc_auc_score

from streamfl.contract.role import Headers
from streamfl.quasi_newton.scoring.guest import GuestScoring
from streamfl.quasi_newton.training.training_progress import ALIGNING, OUTPUTS, TRAINED

QUANTUM = 1 / 64


@pytest.fixture(name="loop", scope="module")
def _loop(secrets: Secrets) -> ClosedLoop:
    """Two hosts, under encryption."""
    return scored(2, secrets=secrets)


def test_scores_are_those_of_the_plain_formula(loop: ClosedLoop) -> None:
    """Protects users from another model's scores: each is computed anew from the table, with hosts' parts in
    whole quanta."""
    expected = expected_outputs(loop, 2, QUANTUM)
    found = {one["entity"]: one for one in predictions(loop)}
    assert found.keys() == expected.keys()
    assert len(found) == len(predictions(loop)) == ROWS - 3 * MISSING
    outputs = [found[name]["output"] for name in expected]
    assert np.allclose(outputs, list(expected.values()), rtol=0, atol=1e-9)
    assert {(one["model"], one["revision"]) for one in found.values()} == {(1, 0)}
    assert loop.rejections() == []


def test_probabilities_are_platts(loop: ClosedLoop) -> None:
    """Protects probabilities and points: the calibration is the optimum that SciPy finds, on entities that
    were not learnt from."""
    _, labels = table(2)
    found = {one["entity"]: one for one in predictions(loop)}
    held_out = sorted(found.keys() - loop.party("g").learnt)
    assert len(held_out) >= 20
    outputs = np.array([found[name]["output"] for name in held_out])
    ones = np.array([labels[name] > 0 for name in held_out])
    everybody = np.array([one["output"] for one in found.values()])
    chances = platt(outputs, ones, everybody)
    assert np.allclose([one["probability"] for one in found.values()], chances, atol=1e-5)
    # 600 points at odds of 50 to one, and 20 points double them.
    odds = (1 - chances) / chances
    assert np.allclose([one["score"] for one in found.values()], 600 + 20 * np.log2(odds / 50), atol=1e-2)


def test_figures_are_those_of_held_out_entities(loop: ClosedLoop) -> None:
    """Protects whoever judges the model by a board: entities that it learnt from would flatter it."""
    _, labels = table(2)
    found = [one for one in predictions(loop) if one["entity"] not in loop.party("g").learnt]
    ones = np.array([labels[one["entity"]] > 0 for one in found])
    outputs, chances = (np.array([one[key] for one in found]) for key in ("output", "probability"))
    figures = loop.figures("g")
    assert figures["held_out_entities"] == len(found)
    assert figures["held_out_auc"] == pytest.approx(roc_auc_score(ones, outputs))
    below = [
        np.mean(outputs[ones == label][:, np.newaxis] <= np.sort(outputs), axis=0) for label in (False, True)
    ]
    assert figures["held_out_ks"] == pytest.approx(np.abs(below[0] - below[1]).max())
    assert figures["held_out_log_loss"] == pytest.approx(log_loss(ones, chances))
    assert 0 < figures["held_out_calibration_error"] < 0.5
    assert figures["model_version"] == 1


def test_figures_follow_what_they_are_of() -> None:
    """Protects the same board from figures that were right once: a label that is corrected, an entity that is
    forgotten and another version of the model change them at once, though as many entities may be there as
    before.
    """
    loop = scored(1)
    party = scoring_party(loop, "g")
    assert isinstance(party.scoring, GuestScoring)
    scores = party.scoring.scores

    def area() -> float:
        """Under the curve, as the board has it."""
        figures = loop.figures("g")
        names = sorted(scores.judged)
        expected = roc_auc_score(
            [scores.judged[name] for name in names], [scores.output(name) for name in names]
        )
        assert figures["held_out_auc"] == pytest.approx(expected)
        return figures["held_out_auc"]

    found = [area()]
    name, label = min(scores.judged.items())
    loop.write("labels", name, msgspec.json.encode({"y": int(label < 0)}))
    loop.settle()
    found.append(area())
    party.table._give_up(name, "expired")
    found.append(area())
    new_version(loop, 2)
    loop.settle()
    found.append(area())
    assert len(set(found)) == 4


def test_members_may_end_at_any_message() -> None:
    """Each step of guest and host is lost once and done again: the same predictions, each once, and a redo
    says the same bytes."""
    loop, usual = scoring_federation(1), scored(1)
    loop.until(lambda: loop.party("g").progress.phase == TRAINED)
    for _ in range(100):
        moved = False
        for name in ("g", "h1"):
            if loop.members[name].unread:
                moved |= loop.step_again(name)
            else:
                loop.lose_tick(name)
        loop.now += 0.001 if moved else 5.0
    assert sorted(map(repr, predictions(loop))) == sorted(map(repr, predictions(usual)))
    assert loop.rejections() == []
    # Uncommitted messages are among them.
    first, usually = (
        {content for _, message, content in said(one, one.writes) if message.round == 1}
        for one in (loop, usual)
    )
    assert first == usually


def test_a_host_answers_an_entity_once_a_version() -> None:
    """Protects a host's columns: an entity whose columns change is told of no second time, however often the
    guest asks."""
    loop = scored(1)
    host = loop.members["h1"].role.counts
    assert host.answered_entities == COMMON
    before = len(predictions(loop))
    for name in ("customer 100", "customer 101"):
        write_entity(loop, name, {"g": [1.0, 2.0, 3.0], "h1": [3.0, 2.0, 1.0]}, 1)
    loop.settle()
    assert len(predictions(loop)) == before
    assert host.answered_entities == COMMON
    # A guest that forgets what it was told asks again, and is told nothing.
    guest = scoring_party(loop, "g").scoring
    assert isinstance(guest, GuestScoring)
    guest.scores.forget("customer 100")
    guest.scores.came("customer 100")
    asked = loop.members["g"].role.counts.questions
    loop.now += 400.0
    loop.settle()
    assert loop.members["g"].role.counts.questions > asked
    assert host.answered_entities == COMMON
    new_version(loop, 2)
    loop.settle()
    assert host.answered_entities == 2 * COMMON
    latest = {one["entity"]: one for one in predictions(loop)}
    assert {
        (one["model"], one["revision"]) for one in latest.values() if one["entity"] != "customer 100"
    } == {(2, 1)}
    assert len(predictions(loop)) == 2 * before


def test_labels_that_come_later_calibrate() -> None:
    """Protects federations whose labels come late: outputs are published at once, and again with a
    probability."""
    loop = scored(1, scoring={"calibration_entities": 40})
    bare = predictions(loop)
    assert len(bare) == COMMON
    assert {(one["probability"], one["score"], one["revision"]) for one in bare} == {(None, None, 0)}
    for number in range(4):
        write_entity(loop, f"late {number}", {name: [float(number), -1.0, 0.5] for name in parties(loop)})
    loop.settle()
    assert len(predictions(loop)) == COMMON + 4
    for number in range(4):
        write_entity(loop, f"late {number}", {}, number % 2)
        loop.restart("g")
    loop.settle()
    again = predictions(loop)[COMMON + 4 :]
    assert len({one["entity"] for one in again}) == len(again) == COMMON + 4
    assert all(0 < one["probability"] < 1 and one["revision"] == 1 for one in again)


def test_the_budget_of_versions_is_kept_and_may_be_raised() -> None:
    """Protects a host's columns: as many versions as there are columns would tell them. Operators of both
    hear of it, over restarts, and raising scoring.versions, as the notice says, helps at once."""
    loop = scored(1, scoring={"versions": 1})
    guest, host = loop.members["g"], loop.members["h1"]
    assert (len(predictions(loop)), host.role.trouble) == (COMMON, None)
    list(host.role.notices())
    new_version(loop, 2)
    assert "scoring.versions" in str(host.role.trouble)
    loop.settle()
    assert [one.kind for _, one, _ in said(loop, loop.committed) if one.run == 2] == ["question", "closed"]
    assert [notice.reason for notice in guest.role.notices()] == ["closed"]
    assert loop.figures("h1")["model_versions_left"] == 0
    assert guest.role.waiting == {}
    for _ in range(2):
        assert "h1 answers no questions about model 2" in str(guest.role.trouble)
        loop.restart("g")
    assert len(predictions(loop)) == COMMON
    scoring = host.settings.scoring.model_copy(update={"versions": 2})
    host.settings = host.settings.model_copy(update={"scoring": scoring})
    loop.restart("h1")
    loop.now += guest.settings.alignment.patience_seconds
    loop.settle()
    assert (guest.role.trouble, host.role.trouble) == (None, None)
    assert len(predictions(loop)) == 2 * COMMON


def test_why_there_is_no_probability_is_told() -> None:
    """Protects whoever reads predictions with `"probability":null` without end: too few entities have an
    outcome outside the batches, or all of these have the same label. Nothing else would tell."""
    loop = scored(1, scoring={"calibration_entities": 40})
    guest = loop.members["g"].role
    told = "predictions have no probability and no score yet: "
    outside = len(scoring_party(loop, "g").scoring.scores.judged)
    assert 0 < outside < 40
    assert str(guest.backlog).startswith(f"{told}{outside} of 40 entities that have an outcome")
    for number in range(60):
        write_entity(loop, f"new {number}", {"g": [0.1 * number] * 3, "h1": [0.0] * 3}, label=1)
    loop.settle()
    assert all(one["probability"] is not None for one in predictions(loop)[-10:])
    assert guest.backlog is None
    alike = scored(1, scoring={"calibration_entities": 2})
    party = scoring_party(alike, "g").scoring
    party._calibration.fitted = None
    for name in party.scores.judged:
        party.scores.judged[name] = 1
    told += f"all {len(party.scores.judged)} entities that have an outcome"
    assert str(alike.members["g"].role.backlog).startswith(told)


def test_names_never_show(loop: ClosedLoop) -> None:
    """Protects who is a customer: no name is on the wire, sealed or not, and a predicted one is common to all
    parties."""
    columns, _ = table(2)
    everybody = set().union(*columns.values())
    common = set.intersection(*(set(own) for own in columns.values()))
    assert len(everybody - common) == 21
    contents = [content for _, _, content in said(loop, loop.writes)]
    contents += [value for _, topic, value in loop.writes if topic != "f.predictions"]
    assert len(contents) > 30
    assert not [content for content in contents if b"customer" in content]
    assert {one["entity"] for one in predictions(loop)} == common
    assert not [
        value for _, topic, value in loop.writes if topic == "f.predictions" and b'customer 3"' in value
    ]


def test_questions_become_rare_while_nothing_is_found() -> None:
    """Protects processors: entities that are never common are blinded anew with each question, so that
    questions must not go on at the same pace. One that comes is asked about at once."""
    loop = scored(1)
    role = loop.members["g"].role

    def questions_in(seconds: float) -> int:
        before, end = role.counts.questions, loop.now + seconds
        loop.until(lambda: loop.now >= end)
        return role.counts.questions - before

    assert 5 < questions_in(3200) < 15
    write_entity(loop, "new", {"g": [0.0, 0.0, 0.0]})
    assert questions_in(10) >= 1


def in_first_half(loop: ClosedLoop) -> None:
    """The guest has asked, and the host has not read it."""
    loop.until(lambda: loop.members["g"].role.counts.questions, ("h1", "c", "g"))


def test_a_lost_question_is_asked_anew_within_minutes() -> None:
    """Protects predictions: they were held for an hour, the default patience, when retention had deleted a
    question. A host that stays away is named, and asked ever more rarely; a late answer does no harm."""
    loop = scoring_federation(1)
    guest, host = loop.members["g"], loop.members["h1"]
    in_first_half(loop)
    lost, lost_at = list(host.unread), loop.now
    host.unread.clear()
    assert guest.role.waiting == {"rounds": 1}
    waiting = ROWS - MISSING
    assert guest.role.backlog == f"waits for h1 to answer a question: {waiting} entities have no points yet"
    loop.until(lambda: predictions(loop))
    assert loop.now - lost_at <= 120
    loop.settle()
    assert (guest.role.backlog, guest.role.counts.abandoned_questions) == (None, 1)
    assert loop.figures("g")["timed_out_rounds"] == 1
    host.unread.extend(lost)
    loop.settle()
    assert host.role.counts.repeated_messages >= 1
    assert len(predictions(loop)) == COMMON
    # A host that is away for a day and a half is not asked at the same pace.
    before = guest.role.counts.questions
    write_entity(loop, "new", {"g": [0.0, 0.0, 0.0], "h1": [0.0, 0.0, 0.0]})
    end = loop.now + 129_600
    loop.until(lambda: loop.now >= end, ("g", "c"), wait=60.0)
    assert 36 <= guest.role.counts.questions - before <= 36 * 4
    assert "an answer is due" in str(guest.role.trouble)
    loop.settle()
    assert guest.role.trouble is None
    assert any("new" in one.values() for one in predictions(loop))


def in_second_half(loop: ClosedLoop) -> None:
    """The guest has chosen entities, and waits for their points."""
    in_first_half(loop)
    loop.step("h1")
    loop.step("g")


def test_a_session_that_lost_its_second_half_ends() -> None:
    """Protects predictions from waiting for ever when the guest's choice was deleted unread."""
    loop = scoring_federation(1)
    in_second_half(loop)
    assert loop.members["h1"].unread
    loop.members["h1"].unread.clear()
    loop.now += 3_600
    loop.settle()
    assert loop.members["g"].role.counts.abandoned_questions == 1
    assert len(predictions(loop)) == COMMON


def test_late_points_are_read_before_a_session_is_given_up() -> None:
    """Protects scores: of a version a host sends points once. A guest that was away longer than its patience
    reads those that came meanwhile."""
    loop = scoring_federation(1)
    in_second_half(loop)
    loop.step("h1")
    loop.now += 10_000
    loop.restart("g")
    loop.lose_tick("g")
    loop.step("g", most=0)
    loop.settle()
    assert loop.members["g"].role.counts.abandoned_questions == 0
    assert len(predictions(loop)) == COMMON


def test_a_question_may_come_before_the_end_of_the_training() -> None:
    """The guest's first question may be read before the coordinator's last decision: it is kept, over a
    restart too."""
    loop = scoring_federation(1)
    host = loop.members["h1"]
    loop.until(lambda: loop.party("g").progress.phase == TRAINED, ("h1", "c", "g"))
    while loop.members["g"].role.counts.questions == 0:
        loop.step("g")
    assert [topic for topic, _ in host.unread] == ["f.h1.decisions", "f.h1.questions"]
    host.unread.reverse()
    loop.step("h1", 1)
    loop.restart("h1")
    assert loop.party("h1").trained is None
    loop.settle()
    assert len(predictions(loop)) == COMMON


def test_scores_expire_with_their_entities() -> None:
    """Protects memory: what is remembered of an entity's score goes when the entity goes, at both. Entities
    that are learnt go like all others, and their batches keep the rows.
    """
    loop = scored(1, alignment={"expiry_seconds": 5000.0})
    kinds = {"g": b"score/", "h1": b"answered/"}
    for name, prefix in kinds.items():
        assert sum(key.startswith(prefix) for key in loop.members[name].state) == COMMON
    rows = {name: [key for key in loop.members[name].state if key.startswith(b"batch")] for name in kinds}
    assert all(rows.values())
    loop.now += 5000.0
    loop.settle()
    assert all(
        loop.members[name].state.keys() >= set(keys) and loop.party(name).learnt
        for name, keys in rows.items()
    )
    for name, prefix in kinds.items():
        assert not [key for key in loop.members[name].state if key.startswith((prefix, b"entity/"))]
    for entity in range(3):
        write_entity(loop, f"new {entity}", {name: [0.0, 0.0, 0.0] for name in parties(loop)})
    loop.settle()
    assert len(predictions(loop)) == COMMON + 3


def test_the_oldest_gives_way() -> None:
    """Protects memory from users' streams: not more entities are remembered than alignment.limit, and no more
    scores."""
    loop = scored(1, alignment={"limit": ROWS})
    for entity in range(100):
        write_entity(loop, f"new {entity}", {name: [0.1, 0.2, 0.3] for name in parties(loop)})
    loop.settle()
    for name in ("g", "h1"):
        state = loop.members[name].state
        assert sum(key.startswith(b"entity/") for key in state) == ROWS
        assert sum(key.startswith((b"score/", b"answered/")) for key in state) <= ROWS
    assert {f"new {entity}" for entity in range(100)} <= {one["entity"] for one in predictions(loop)}


def test_a_part_beyond_the_bound_gives_no_score() -> None:
    """Protects from a clipped part, which would be another model's: the entity has no score, and that is
    counted."""
    # Without a bound of leverage columns are not cut, so that such a part can be.
    loop = scored(1, 350, learning={"epochs": 1, "output_bound": 8, "largest_leverage": 1})
    write_entity(loop, "far", {"g": [0.0, 0.0, 0.0], "h1": [1e6, -1e6, 1e6]})
    write_entity(loop, "far too", {"g": [1e6, -1e6, 1e6], "h1": [0.0, 0.0, 0.0]})
    loop.settle()
    assert {one["entity"] for one in predictions(loop)}.isdisjoint({"far", "far too"})
    assert loop.members["g"].role.counts.unscored_entities == 2


def test_a_lot_is_published_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects commits from one step with all predictions of a large table: what is left waits for the next
    tick. Names may be compared by keyed hashes, and do not show then either."""
    monkeypatch.setattr("streamfl.quasi_newton.scoring.guest.PUBLISHED_AT_ONCE", 50)
    loop = scoring_federation(1, alignment={"method": "keyed-hash"})
    steps = []
    for _ in range(10_000):
        before = len(loop.committed)
        moved = sum(loop.step(name) for name in loop.members)
        steps.append(sum(topic == "f.predictions" for _, topic, _ in loop.committed[before:]))
        if len(predictions(loop)) == COMMON:
            break
        loop.now += 0.001 if moved else 1.0
    assert not [content for _, _, content in said(loop, loop.writes) if b"customer" in content]
    assert [count for count in steps if count] == [50, 50, COMMON - 100]


def test_a_version_goes_on_scoring_while_the_next_is_learnt() -> None:
    """Protects a stream from gaps: who comes in the middle of a retraining is scored with the model there is,
    and then with the new one, as everybody. What the new one has learnt from no longer counts as held out."""
    sections: dict[str, Any] = {"retraining": {"every_seconds": 50.0, "entities": 100}}
    loop = scored(1, learning={"epochs": 6}, alignment={"held_out": 0.2}, **sections)
    assert {one["model"] for one in predictions(loop)} == {1}
    learnt = set(loop.party("g").learnt)
    random = np.random.default_rng(5)
    for number in range(150):
        columns = {name: random.normal(size=3).tolist() for name in parties(loop)}
        write_entity(loop, f"new {number}", columns, int(sum(columns["g"]) > 0))
    meanwhile = 0
    for turn in range(5_000):
        moved = sum(loop.step(name, 1000 if name == "c" or not meanwhile else 1) for name in loop.members)
        progress = loop.party("g").progress
        if (progress.run, progress.phase) == (2, OUTPUTS) and not meanwhile:
            meanwhile = turn
            write_entity(loop, "meanwhile", {name: [0.1, 0.2, 0.3] for name in parties(loop)})
        found = {one["model"] for one in predictions(loop) if one["entity"] == "meanwhile"}
        if found == {1}:
            break
        # As long as a training takes where numbers are encrypted.
        loop.now += 0.5 if moved else 5.0
    assert meanwhile
    assert loop.party("g").progress.run == 2
    trained = loop.party("g").trained
    assert trained is not None
    assert trained.version == 1
    loop.settle()
    latest = {one["entity"]: one for one in predictions(loop)}
    assert {one["model"] for one in latest.values()} == {2}
    assert latest["meanwhile"]["revision"] == 1
    assert len(latest) == COMMON + 151
    guest = scoring_party(loop, "g").scoring
    assert isinstance(guest, GuestScoring)
    assert learnt < set(loop.party("g").learnt)
    assert guest.scores.judged.keys().isdisjoint(loop.party("g").learnt)


def test_a_question_about_many_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects processors from customers who are many and never common: while others keep coming, the pace
    follows their number."""
    monkeypatch.setattr("streamfl.quasi_newton.scoring.session.SECONDS_AN_ENTITY", 10.0)
    loop = scored(1)
    role = loop.members["g"].role
    loop.now += 10_000.0
    loop.settle()
    before, asked_at = role.counts.questions, loop.now
    while role.counts.questions < before + 3:
        # Only the guest has them: with the seven of the table they are never common.
        write_entity(loop, f"new {int(loop.now) // 100}", {"g": [0.0, 0.0, 0.0]})
        if not sum(loop.step(name) for name in loop.members):
            loop.now += 1.0
        loop.now += 1.0
    assert 2 * 70 < loop.now - asked_at < 3 * 200


TRACE: Headers = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),)


def test_the_guests_headers_come_through_a_restart() -> None:
    """Protects a trace that would end where hosts are asked for their part, or where the guest is restarted
    meanwhile.

    A host's headers stay with the host. What is predicted again under a later model has none: no sample has
    led to it."""
    loop = scored(1, predictions={"format": "msgpack"})
    assert all(headers == () for _, headers in loop.predicted)
    known = len(loop.predicted)
    for party, headers in (("g", (*TRACE, ("secret", b"x"))), ("h1", (("x-request-id", b"host"),))):
        content = msgspec.json.encode({f"x{column}": 0.5 for column in range(3)})
        loop.write(f"{party}-samples", "newcomer", content, headers)
    loop.step("g")
    loop.restart("g")
    loop.settle()
    assert loop.predicted[known:] == [(b"newcomer", TRACE)]
    told = [msgspec.msgpack.decode(value) for _, topic, value in loop.committed if topic == PREDICTIONS]
    assert told[-1]["entity"] == "newcomer"
    assert 0 < told[-1]["probability"] < 1
    new_version(loop, 2)
    loop.settle()
    again = [headers for key, headers in loop.predicted[known + 1 :] if key == b"newcomer"]
    assert again
    assert not any(again)
    assert not any(key.startswith(b"headers/") for key in loop.members["g"].state)


def is_in_a_round(loop: ClosedLoop) -> bool:
    return loop.party("g").progress.phase == OUTPUTS and loop.party("g").progress.round > 2


@pytest.mark.parametrize("reached", [lambda loop: loop.party("g").progress.phase == ALIGNING, is_in_a_round])
def test_a_host_that_is_away_is_named(reached: Callable[[ClosedLoop], bool]) -> None:
    """Protects operators: for an hour, the default patience, a guest whose host was away in the middle of a
    training was "ok", and for ever while its own records came."""
    loop = scoring_federation(2, learning={"epochs": 4})
    loop.until(lambda: reached(loop), ("c", "g", "h2", "h1"), 1 if reached is is_in_a_round else 1000)
    there = ("c", "g", "h2")
    for number in range(40):
        write_entity(loop, f"live {number}", {"g": [0.1, 0.2, 0.3]})
        for name in there * 5:
            loop.step(name)
        loop.now += 5.0
    guest, coordinator = loop.members["g"].role, loop.members["c"].role
    assert str(guest.backlog).startswith("waits for h1 since ")
    assert "h1" in str(coordinator.backlog)
    assert "h2" not in str(guest.backlog)
    assert (guest.trouble, coordinator.trouble) == (None, None)
    loop.settle()
    assert [str(loop.members[name].role.backlog) for name in ("g", "c")] == ["None", "None"]


def test_users_records_are_no_answer() -> None:
    """Protects readiness: a guest that gets its own records is not ready, too, once its patience is over."""
    loop = scoring_federation(1, learning={"epochs": 4}, alignment={"patience_seconds": 100})
    loop.until(lambda: is_in_a_round(loop), ("c", "g", "h1"), 1)
    for number in range(40):
        write_entity(loop, f"live {number}", {"g": [0.1, 0.2, 0.3]})
        for name in ("c", "g", "c", "g"):
            loop.step(name)
        loop.now += 5.0
    assert "an answer is due" in str(loop.members["g"].role.trouble)
