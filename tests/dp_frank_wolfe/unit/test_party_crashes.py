"""A release leaves once it is noted, a crash anywhere gives the same bytes, and a state that was rolled back
releases nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dp_frank_wolfe.party_driver import NAMES, ROWS, Driver, reason, settings

from streamfl.contract.role import Received, Work
from streamfl.dp_frank_wolfe.messages import Entities, Message, OtherRows, read_content
from streamfl.dp_frank_wolfe.privacy.ledger import digest
from streamfl.privacy.anchor import LINK_BYTES, Anchor

OTHERS = [f"other {number:02}" for number in range(ROWS)]
Script = list[Callable[[Driver], list[Received]]]
TWICE = {"window": {"fits": 2}}


def script(estimator: str) -> Script:
    """What a party hears in its life: rows, a fit, and a second fit on other rows."""
    tick: Script = [lambda _: []]

    def fit(window: int, names: list[str]) -> Script:
        rows: Script = [lambda party: party.rows(window, names)]
        begin: Script = [lambda party: [party.manifest(window, names)]]
        asks: Script = [
            lambda party: [party.ask(0, others=np.ones(8), window=window)],
            lambda party: [party.ask(1, window=window), party.ask(2, window=window)],
        ]
        if estimator == "two-round":
            told = OtherRows(np.random.default_rng(5).normal(size=(ROWS, 2)).tobytes())
            asks = [
                lambda party: [party.server("choose", window, 0, b"")],
                lambda party: [party.server("rows", window, 0, told)],
            ]
        return [*rows, *tick, *begin, *asks, lambda party: [party.model(window=window)]]

    return [*fit(1, NAMES), *fit(2, OTHERS)]


def undisturbed(folder: Path, steps: Script, **sections: object) -> Driver:
    folder.mkdir()
    party = Driver(settings(folder, **sections))
    for step in steps:
        party.feed(step(party))
    assert not party.rejections
    return party


def same_anchor(folder: Path, other: Path) -> None:
    """Two ledger files that began alike: noise and links depend on what was drawn at random when a file was
    made."""
    folder.mkdir()
    content = (other / "ledger").read_bytes()[:512]
    (folder / "ledger").touch(0o600)
    (folder / "ledger").write_bytes(content)


@pytest.mark.parametrize("estimator", ["frank-wolfe", "two-round"])
def test_a_release_leaves_once_its_link_is_on_the_disk(tmp_path: Path, estimator: str) -> None:
    """Protects the order of all: noted, then remembered, then sent. Before the work is done nothing is sent
    and nothing changed."""
    steps = script(estimator)
    # A window that is centred is not the one that its means were released of.
    party = Driver(settings(tmp_path, learning={"estimator": estimator, "intercept": False}, **TWICE))
    path, releases = tmp_path / "ledger", 0
    anchor = Anchor.open(path, "people", "a")
    for step in steps:
        for received in step(party) or [None]:
            replies = list(party.role.receive([] if received is None else [received], party.now))
            if not any(isinstance(reply, Work) for reply in replies):
                list(party.role.changed_state())
                continue
            (work,) = replies
            assert isinstance(work, Work)
            assert list(party.role.changed_state()) == []
            assert len(anchor.links()) == releases
            result = work.function(work.content)
            releases += 1
            assert len(anchor.links()) == releases
            (sent,) = party.role.receive([work.received(0, result)], party.now)
            message: Message = party.codec.decode(sent.value)  # type: ignore[union-attr]
            assert message.link == releases
            # Others see the head, and not the rows beneath.
            assert digest(message.head, party.task.frozen.window.digest)[:LINK_BYTES] == anchor.links()[-1]
            assert {change.channel for change in party.role.changed_state()} == {"state", "ledger"}
    assert releases == (8 if estimator == "frank-wolfe" else 6)


@pytest.mark.parametrize("estimator", ["frank-wolfe", "two-round"])
@pytest.mark.parametrize("kill", ["before", "after noting", "torn", "before committing"])
def test_a_kill_anywhere_gives_the_same_bytes(tmp_path: Path, estimator: str, kill: str) -> None:
    """Protects rows from two noises on one content: wherever a worker is killed, what it does again is what
    it did before."""
    steps, learning = script(estimator), {"estimator": estimator}
    wanted = undisturbed(tmp_path / "once", steps, learning=learning, **TWICE)
    same_anchor(tmp_path / "again", tmp_path / "once")
    party = Driver(settings(tmp_path / "again", learning=learning, **TWICE))
    path, aborted = tmp_path / "again" / "ledger", []
    for step in steps:
        batch = step(party)
        size = path.stat().st_size
        if kill == "before committing" or not batch or batch[0].channel != "asks":
            aborted += party.feed(batch, commit=False)
        elif kill != "before":
            party.killed_after_noting(batch[0])
        if kill == "torn" and path.stat().st_size > size:
            os.truncate(path, path.stat().st_size - 5)
        party = Driver(party.settings, party.state, party.sent)
        party.feed(batch)
        assert party.task.trouble is None
    committed = [message for number, message in enumerate(party.sent) if message not in party.sent[:number]]
    assert committed == wanted.sent
    assert all(message in wanted.sent for message in aborted)
    assert party.state == wanted.state
    assert path.read_bytes() == (tmp_path / "once" / "ledger").read_bytes()


def rolled_back(
    folder: Path, keep: Callable[[tuple[str, bytes]], bool] = lambda key: True
) -> tuple[Driver, Driver]:
    """A party after three answers, and one whose state is that of the moment when the window was frozen.

    keep: which keys were rolled back; others are as they are now.
    """
    party = Driver(settings(folder)).begun()
    old = dict(party.state)
    for iteration in range(3):
        party.feed([party.ask(iteration)])
    state = {key: value for key, value in party.state.items() if not keep(key)}
    state |= {key: value for key, value in old.items() if keep(key)}
    return party, Driver(party.settings, state)


def released_nothing(party: Driver, received: Received) -> None:
    before = dict(party.state)
    assert party.feed([received]) == []
    assert party.state == before
    assert party.role.counts.refused_releases >= 1
    assert party.role.trouble is not None
    assert [notice.reason for notice in party.role.notices()] == ["ledger"]


def test_other_content_in_the_place_of_a_release_is_refused(tmp_path: Path) -> None:
    """Protects rows from a state that was rolled back: a second answer at the same place would be one that
    nobody was charged."""
    party, old = rolled_back(tmp_path)
    noted = (tmp_path / "ledger").read_bytes()
    released_nothing(old, old.ask(0, others=np.ones(8)))
    # Once there is doubt nothing is released until somebody has looked, and a restart is no look.
    released_nothing(old, old.ask(0))
    again = Driver(party.settings, old.state)
    released_nothing(again, again.ask(0, others=np.full(8, 2.0)))
    assert (tmp_path / "ledger").read_bytes() == noted


def test_a_state_that_was_rolled_back_may_do_the_same_again(tmp_path: Path) -> None:
    """Protects a party whose last commits were lost: the same asks have the same answers, and then it goes
    on."""
    party, old = rolled_back(tmp_path)
    for iteration in range(4):
        sent = old.feed([old.ask(iteration)])
        assert len(sent) == 1
        assert iteration == 3 or sent[0] in party.sent
    assert old.task.trouble is None


def test_state_and_ledger_go_together(tmp_path: Path) -> None:
    """Protects a fit of which the state was rolled back, and the ledger's topic was not: choices would be
    made anew, uncharged."""
    _, old = rolled_back(tmp_path, lambda key: key[0] == "state")
    released_nothing(old, old.ask(0, others=np.ones(8)))


def test_a_window_that_the_ledger_knows_is_not_frozen_of_other_rows(tmp_path: Path) -> None:
    """Protects one fit a window, ever: if the state is lost and the ledger is not, entities that are new have
    no second fit there, although they have budget.
    """
    party = Driver(settings(tmp_path)).begun()
    ledger = {key: value for key, value in party.state.items() if key[0] == "ledger"}
    again = Driver(party.settings, ledger)
    again.feed(again.rows(1, OTHERS))
    assert len(again.feed([])) == 1
    assert again.task.trouble is None
    released_nothing(again, again.manifest(1, OTHERS))


def test_a_ledger_that_was_cut_off_releases_nothing(tmp_path: Path) -> None:
    """Protects entities whose spend was forgotten with the ledger's topic: other rows, names or federations
    get nothing."""
    rolled_back(tmp_path)
    for federation, names in (("f", NAMES), ("f", OTHERS), ("g", NAMES)):
        lost = Driver(settings(tmp_path, federation={"name": federation}))
        lost.feed(lost.rows(3, names))
        lost.feed([])
        manifest = lost.manifest(1, names)
        released_nothing(lost, manifest)


def test_a_file_that_cannot_be_written_is_told_with_what_helps(tmp_path: Path) -> None:
    """Protects an operator whose disk is full or read-only from putting old state back: that would not help,
    and the next release would be refused for it."""
    party = Driver(settings(tmp_path)).begun()
    ledger, away = tmp_path / "ledger", tmp_path / "away"
    ledger.rename(away)
    ledger.mkdir()
    released_nothing(party, party.ask(0))
    assert "make room for the file, or put it back, and restart" in (party.role.trouble or "")
    assert "restore" not in (party.role.trouble or "")
    ledger.rmdir()
    away.rename(ledger)
    again = Driver(party.settings, party.state)
    assert len(again.feed([again.ask(0)])) == 1


def test_a_ledger_file_that_was_taken_back_is_told_of_at_once(tmp_path: Path) -> None:
    """Protects against the file's copy of last week: it ends before the state does."""
    party = Driver(settings(tmp_path)).begun()
    os.truncate(tmp_path / "ledger", 512)
    assert "ends after 0" in (Driver(party.settings, party.state).role.trouble or "")
    (tmp_path / "ledger").unlink()
    another = Driver(settings(tmp_path), party.state)
    assert "another ledger file" in (another.role.trouble or "")
    released_nothing(another, another.ask(0))
    another.feed(another.rows(1, OTHERS))
    assert another.task.wake_at is None
    assert another.feed([]) == []


def test_two_workers_with_one_ledger_do_not_both_release(tmp_path: Path) -> None:
    """Protects the spend from two federations that learn from the same data at the same time."""
    one, other = (Driver(settings(tmp_path, federation={"name": name})) for name in "fg")
    for party in (one, other):
        party.feed(party.rows())
        party.feed([])
    assert len(one.feed([one.manifest()])) == 1
    released_nothing(other, other.manifest())


@pytest.mark.parametrize("estimator", ["frank-wolfe", "two-round"])
def test_what_was_computed_and_not_noted_leaves_no_trace(tmp_path: Path, estimator: str) -> None:
    """Protects the transcript: an answer that was held back is computed again as if it had never been."""
    party = Driver(settings(tmp_path, learning={"estimator": estimator})).begun()
    asks = [party.ask(0, others=np.ones(8)), party.ask(0)]
    if estimator == "two-round":
        asks = [party.server("choose", 1, 0, b"")] * 2
    once = Driver(party.settings, dict(party.state))
    wanted = once.task.answers.answer(asks[0].message)
    wanted.keep()
    for ask in asks:
        party.task.answers.answer(ask.message)
    found = party.task.answers.answer(asks[0].message)
    found.keep()
    assert found.content == wanted.content
    assert party.task.parts.changed_state() == once.task.parts.changed_state()


# ---- what is charged


def test_everybody_is_charged_before_anything_is_released(tmp_path: Path) -> None:
    """Protects an entity of which something would be released before it is charged, or whose fit ended early
    and cost less."""
    party = Driver(settings(tmp_path))
    party.feed(party.rows())
    party.feed([])
    party.feed([party.ask(0)])
    assert party.rejections[-1].error.reason == "implausible"
    (message,) = party.feed([party.manifest()])
    assert message.kind == "frozen"
    cost = party.public.fit_cost("a")
    again = Driver(party.settings, party.state)
    assert [again.task.ledger.spend.spent(name) for name in NAMES] == [cost] * ROWS
    assert cost >= party.public.fit_plan("a", 1).cost
    again.feed([again.ask(0)])
    again.feed([again.model()])
    assert [again.task.ledger.spend.spent(name) for name in NAMES] == [cost] * ROWS


def test_nobody_is_charged_for_a_window_with_somebody_without_budget(tmp_path: Path) -> None:
    """Protects everybody in a manifest that cannot be frozen: all are charged, or none."""
    party = Driver(settings(tmp_path)).begun()
    party.feed([party.model()])
    names = sorted([*OTHERS[1:], NAMES[0]])
    party.feed(party.rows(1, names))
    (message,) = party.feed([])
    assert NAMES[0].encode() not in message.content
    assert party.role.counts.spent_entities == 2
    before = dict(party.state)
    party.feed([party.manifest(2, names)])
    assert party.rejections[-1].error.reason == "implausible"
    assert party.state == before


def test_an_entity_takes_part_in_as_many_fits_as_its_budget_has(tmp_path: Path) -> None:
    """Protects the promise over an entity's life: its budget is divided by `window.fits`, and that is the
    end."""
    party = Driver(settings(tmp_path, **TWICE))
    for window in (1, 2):
        party.feed(party.rows(window))
        party.feed([])
        party.feed([party.manifest(window)])
        party.feed([party.model(window=window)])
    assert party.task.ledger.spend.largest == pytest.approx(party.public.party_cost("a"))
    party.feed(party.rows(3))
    assert party.feed([]) == []
    assert party.role.counts.spent_entities == 2 * ROWS
    epsilon = {one.name: one.value for one in party.role.measure()}["epsilon"]
    assert epsilon == pytest.approx(2.0)


def test_no_share_of_a_fit_is_given_beyond_the_budget(tmp_path: Path) -> None:
    """Protects epsilon to the last digits: an entity of which a millionth of a fit more was told takes part
    in one fit less."""
    party = Driver(settings(tmp_path, **TWICE))
    party.task.ledger.spend.spend(NAMES[0], 1e-6 * party.task.ledger.fit_cost)
    party.begun()
    party.feed([party.model()])
    party.feed(party.rows(1))
    (message,) = party.feed([])
    assert read_content(message.content, Entities).names == NAMES[1:]


def test_another_federation_on_the_same_data_has_the_same_spend(tmp_path: Path) -> None:
    """Protects people from a second federation that would begin with their whole budget."""
    party = Driver(settings(tmp_path)).begun()
    ledger = {key: value for key, value in party.state.items() if key[0] == "ledger"}
    other = Driver(settings(tmp_path, federation={"name": "g"}), ledger)
    other.feed(other.rows(1))
    assert other.feed([]) == []
    other.feed(other.rows(1, OTHERS))
    other.feed([])
    (message,) = other.feed([other.manifest(1, OTHERS)])
    assert message.link == 2
    assert other.task.trouble is None


def test_a_manifest_is_refused_where_budget_was_spent_meanwhile(tmp_path: Path) -> None:
    """Protects entities that one federation has announced, and another has learnt from before the window
    began."""
    party = Driver(settings(tmp_path))
    party.feed(party.rows())
    party.feed([])
    own = {key: value for key, value in party.state.items() if key[0] == "state"}
    other = Driver(settings(tmp_path, federation={"name": "g"})).begun()
    spent = {key: value for key, value in other.state.items() if key[0] == "ledger"}
    again = Driver(party.settings, own | spent)
    assert reason(again, again.manifest()) == "budget"
    assert again.task.ledger.trouble is None


@pytest.mark.parametrize(
    "nothing", [{"insecure_test_noise": True}, {"epsilon": math.inf, "insecure_test_noise": False}]
)
def test_what_promises_nothing_is_charged_without_end(tmp_path: Path, nothing: dict[str, object]) -> None:
    """Protects a promise that is made later, of however many fits: what was told without secret noise counts
    as told."""
    test = {**nothing, "ledger": "people"}
    Anchor.create(tmp_path / "test-ledger", "people", "a")
    party = Driver(settings(privacy={**test, "ledger_file": str(tmp_path / "test-ledger")})).begun()
    ledger = {key: value for key, value in party.state.items() if key[0] == "ledger"}
    (tmp_path / "ledger").touch(0o600)
    (tmp_path / "ledger").write_bytes((tmp_path / "test-ledger").read_bytes())
    private = Driver(settings(tmp_path, federation={"name": "g"}, window={"fits": 1000}), ledger)
    assert {private.task.ledger.spend.spent(name) for name in NAMES} == {math.inf}
    private.feed(private.rows())
    assert private.feed([]) == []
    assert private.role.counts.spent_entities == 2 * ROWS


def test_a_ledger_that_is_full_announces_nobody_without_room(tmp_path: Path) -> None:
    """Protects a window from names that all parties know and this one can never charge."""
    party = Driver(settings(tmp_path, privacy={"ledger_limit": ROWS}))
    party.feed(party.rows(0, NAMES))
    party.feed(party.rows(1, OTHERS))
    (message,) = party.feed([])
    assert OTHERS[0].encode() not in message.content
    assert len(party.feed([party.manifest()])) == 1
    party.feed([party.model()])
    party.feed(party.rows(1, OTHERS))
    assert party.feed([]) == []
    assert party.rejections == []
