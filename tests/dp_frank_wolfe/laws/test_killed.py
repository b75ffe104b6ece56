"""Members that end at any message, messages that come twice, members that are away."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.federations import ROWS, SERVER_MEMBER, parties_of, settings_of
from dp_frank_wolfe.laws.closed_loop import ClosedLoop, assert_is, federation, fitted, names_of
from dp_frank_wolfe.problems import real

from streamfl.dp_frank_wolfe.learning.refit import refit

MOST_TURNS = 3_000
# After 5 or 6 steps no signs add up to 0: the weights of the vertices are as 1, 2, ... 6.
SECTIONS: list[dict[str, Any]] = [
    {"learning": {"estimator": "two-round"}},
    {"learning": {"blocks": 2, "iterations": 5}, "serving": {"mode": "private"}},
    {"serving": {"mode": "exact"}, "learning": {"iterations": 5}},
]


def files(folder: Path) -> Path:
    """Ledger files and secrets of two parties."""
    folder.mkdir()
    for party in parties_of(2):
        settings_of(party, 2, folder)
    return folder


def served(loop: ClosedLoop) -> ClosedLoop:
    """Rows for a window, and once there is a model, rows of others and of some who were learnt from."""
    loop.write_rows(names_of())
    for _ in range(MOST_TURNS):
        if loop.server.model and not any(one.unread for one in loop.members.values()):
            break
        loop.turn()
    loop.write_rows([*names_of(5, ROWS), *names_of(3)], seed=1)
    loop.settle()
    return loop


@pytest.mark.parametrize("killed", ["party-0", SERVER_MEMBER])
@pytest.mark.parametrize(("sections", "period"), list(zip(SECTIONS, (1, 1, 3), strict=True)))
def test_a_member_may_end_at_any_message(
    tmp_path: Path, sections: dict[str, Any], killed: str, period: int
) -> None:
    """Protects privacy and result from a crash: killed before the commit of each or some messages, and taken
    up by another process, a member comes to the same, and what it had sent it sends again with the same
    bytes: no release is drawn twice.
    """
    first = files(tmp_path / "first")
    second = Path(shutil.copytree(first, tmp_path / "second"))
    usual = served(federation(2, first, **sections))
    loop = federation(2, second, **sections)
    loop.write_rows(names_of())
    written = False
    for turn in range(MOST_TURNS):
        moved = False
        for name, member in loop.members.items():
            own = [topic for topic, _ in member.unread]
            # Rows all at once, messages one by one.
            most = 1000 if own and not own[0].startswith("f.") else 1
            if name == killed and turn % period == 0:
                loop.step(name, most, lost=True)
            moved |= loop.step(name, most)
        loop.now += 0.001
        if not moved and loop.server.model:
            if written:
                break
            loop.write_rows([*names_of(5, ROWS), *names_of(3)], seed=1)
            written = True
    assert_is(loop, usual.models())
    assert np.any(loop.models()["party-0"])
    assert {one for one in loop.writes if one[0] == killed} == {
        one for one in usual.writes if one[0] == killed
    }
    for kind in ("predictions", "model"):
        assert loop.published(kind) == usual.published(kind)
    assert bool(loop.published("predictions")) == ("serving" in sections)
    for party in loop.parties:
        assert loop.party(party).ledger.trouble is None
        assert loop.party(party).ledger.spend.largest == usual.party(party).ledger.spend.largest


@pytest.mark.parametrize(("sections", "most"), [(SECTIONS[0], 1000), (SECTIONS[1], 1)])
def test_what_comes_twice_changes_nothing(sections: dict[str, Any], most: int) -> None:
    """Protects law 5: every record twice, one by one or in batches, and the result is the same, and nobody
    says anything twice."""
    usual, loop = served(federation(2, **sections)), federation(2, **sections)
    loop.copies = 2
    loop.write_rows(names_of())
    loop.settle(most)
    assert_is(loop, usual.models())
    assert len(loop.writes) == len(set(loop.writes))
    assert loop.server.outbox.counts.repeated_messages > 0


def test_a_party_that_is_away_is_left_behind_and_comes_back() -> None:
    """Protects a fit from a party that is gone for long: the other's blocks go on, and what it hears then
    costs it one answer."""
    loop = federation(2, learning={"iterations": 40, "columns": 8})
    loop.write_rows(names_of())
    while loop.server.estimator.iteration < 10:
        loop.turn()
    loop.away = ["party-1"]
    while loop.server.estimator.iteration < 20:
        if not loop.turn():
            assert loop.server.wake_at is not None
            loop.now = loop.server.wake_at
    before = loop.members["party-1"].role.counts.iterations
    loop.away = []
    loop.settle()
    assert loop.rejections() == []
    server, away = loop.members[SERVER_MEMBER].role.counts, loop.members["party-1"].role.counts
    assert server.missing_answers == server.late_answers == 1
    assert loop.server.model == 1
    assert 10 < away.iterations < 35
    assert away.iterations > before + 10
    # A step that it took no part in moved the others' blocks alone.
    x = np.concatenate(list(loop.models().values()))
    assert 0 < np.abs(x).sum() <= 1 + 1e-12


def test_a_fit_without_one_party_is_that_of_the_others() -> None:
    """Protects dropouts to the last bit: a party that freezes the window and answers nothing has no part in
    the model."""
    loop = federation(3)
    loop.write_rows(names_of())
    for _ in range(MOST_TURNS):
        if loop.party("party-2").progress.window:
            break
        loop.turn(1)
    loop.away = ["party-2"]
    loop.settle()
    expected = loop.direct(absent=lambda iteration, party: party == "party-2")
    assert loop.server.model == 1
    for party in ("party-0", "party-1"):
        np.testing.assert_array_equal(loop.models()[party], expected.x[party])
    # Back again it hears that it is over, announces names, and is of the next window from its beginning.
    loop.away = []
    loop.write_rows(names_of(ROWS, 100), seed=2)
    loop.settle()
    assert loop.server.model == 2
    assert_is(loop, loop.direct(2).x)


def test_a_party_that_misses_a_window_hears_of_all_of_it() -> None:
    """Protects a party's return: windows that began while it was away are frozen in their order, and it is in
    the present one."""
    loop = federation(2, learning={"iterations": 20})
    loop.write_rows(names_of(3 * ROWS))
    while loop.server.window == 0:
        loop.turn()
    loop.away = ["party-1"]
    while loop.server.window < 3:
        if not loop.turn():
            loop.now += 60
    assert loop.party("party-1").progress.window == 0
    loop.away = []
    loop.settle()
    assert loop.server.model == 3
    assert loop.party("party-1").model.version == 3
    assert np.any(loop.models()["party-1"])
    assert loop.rejections() == []


@pytest.mark.parametrize(
    ("estimator", "until"), [("marginal", "manifest"), ("two-round", "choose"), ("two-round", "rows")]
)
def test_a_selection_without_one_party_is_that_of_the_others(estimator: str, until: str) -> None:
    """Protects the estimators that choose once from a party that is gone before its choice, or before its
    products."""
    loop = federation(3, learning={"estimator": estimator, "columns": 6}, privacy={"epsilon": math.inf})
    loop.write_rows(names_of())
    codec = loop.server.codec
    for _ in range(MOST_TURNS):
        if any(
            codec.decode(record.value).kind == until
            for topic, record in loop.members["party-2"].unread
            if "asks" in topic
        ):
            break
        loop.turn()
    loop.away = ["party-2"]
    loop.settle()
    assert loop.server.model == 1
    columns, labels = real(loop.centred().windows)
    chosen = [
        party * 4 + column
        for party in range(2)
        for column in sorted(np.argsort(-np.abs(both(columns, labels, party)))[:2])
    ]
    gram = columns[:, chosen].T @ columns[:, chosen] / ROWS
    gram = np.diag(np.diag(gram)) if estimator == "marginal" else gram
    x = np.zeros(12)
    x[chosen] = refit(gram, columns[:, chosen].T @ labels / ROWS, 1.0, 0.01)
    np.testing.assert_allclose(
        np.concatenate([loop.models()[party] for party in ("party-0", "party-1")]), x[:8], atol=1e-6
    )
    published = {one["party"]: one["columns"] for one in loop.published("model")}
    assert published["party-2"] == []


def both(columns: Any, labels: Any, party: int) -> Any:
    return columns[:, 4 * party : 4 * party + 4].T @ labels


def test_each_window_is_the_fit_of_its_rows() -> None:
    """Protects windows from one another: signs, noise and state of an earlier one play no part in the next,
    nor do they stay."""
    loop = fitted(2)
    assert_is(loop, loop.direct(1).x)
    remembered = []
    for seed in (5, 6):
        for name in loop.members:
            loop.restart(name)
        loop.write_rows(names_of(ROWS, 200 * seed), seed)
        loop.settle()
        assert_is(loop, loop.direct(seed - 3).x)
        kept = [(name, place) for name, one in loop.members.items() for place in one.state]
        over = (b"window/", b"entity/", b"fit")
        assert not [key for name, (_, key) in kept if name in loop.parties and key.startswith(over)]
        remembered.append(
            {place for place in kept if not place[1][1].startswith((b"shown/", b"spent/", b"headers/"))}
        )
        shown = [key for _, key in loop.members[SERVER_MEMBER].state if key.startswith(b"shown/")]
        assert len(shown) == len(loop.direct(seed - 3).sums)
    assert loop.server.model == 3
    assert remembered[0] == remembered[1]


def test_memory_is_bounded_at_the_server() -> None:
    """Protects law 6: names of one party that no other knows are refused beyond the limit, and parts without
    others' expire."""
    loop = federation(2, window={"limit": ROWS}, serving={"mode": "exact"})
    loop.write_rows(names_of())
    loop.settle()
    loop.away = ["party-1"]
    for name in names_of(ROWS + 5, 500):
        loop.write_columns(name, np.full(8, 0.5))
        loop.turn()
    loop.settle()
    partials = loop.server.partials
    waiting = {one.name: one.value for one in partials.measure()}
    assert waiting == {"waiting_predictions": ROWS}
    assert loop.server.outbox.counts.expired_predictions == 5
    assert partials.wake_at is not None
    loop.now = partials.wake_at + 1
    loop.turn()
    assert {one.value for one in partials.measure()} == {0}
    assert loop.server.outbox.counts.expired_predictions == ROWS + 5
