"""What waits without a time limit is to be seen: names that a party never announces, and records that never
come."""

from __future__ import annotations

from pathlib import Path

from dp_frank_wolfe.hand_made import ROWS, Server, converse, hands, names_of, settings_of
from dp_frank_wolfe.party_driver import NAMES, Driver, settings
from dp_frank_wolfe.unit.test_party_lanes import OTHERS, predicting, show

from streamfl.contract.role import OperatorNotice, Role
from streamfl.dp_frank_wolfe.messages import Entities, Partial
from streamfl.runtime.progress import Fact, ProgressLine


def notices(server: Server) -> list[OperatorNotice]:
    return [one for one in server.role.notices() if one.reason == "names"]


def missing(server: Server) -> list[float]:
    return [one.value for one in server.task.measure() if one.name == "missing_entities"]


def test_names_that_a_party_never_announces_are_told_once_patience_is_over() -> None:
    """Protects a federation from a window that waits for ever in silence: the notice says whose names lack,
    and how many.

    It is said once, again after things got on, and not while a fit is under way or where nothing lacks.
    """
    server = Server(settings_of())
    server.tick()
    assert server.role.wake_at is None
    names = names_of(ROWS + 5)
    server.tell("party-0", "entities", Entities(names), iteration=1)
    server.tell("party-1", "entities", Entities(names[: ROWS - 10]), iteration=1)
    assert missing(server) == [15]
    assert server.role.wake_at == server.now + 60
    server.tick(60)
    (said,) = notices(server)
    assert f"window 1 has {ROWS - 10} of {ROWS}" in said.text
    assert "'party-1' 15." in said.text
    assert "party-0" not in said.text
    assert server.role.wake_at is None
    server.tick(600)
    assert notices(server) == []
    # Another process begins to wait anew, and says it again.
    server.restart()
    server.tick()
    assert missing(server) == [15]
    server.tick(61)
    assert len(notices(server)) == 1
    server.tell("party-1", "entities", Entities(names[ROWS - 10 : ROWS - 5]), iteration=2)
    server.tick(61)
    (said,) = notices(server)
    assert f"has {ROWS - 5} of {ROWS}" in said.text
    # In a fit whoever owes an answer has the patience.
    parties = hands(server)
    server.tell("party-1", "entities", Entities(names[ROWS - 5 : ROWS]), iteration=3)
    assert server.task.window == 1
    assert server.task.names._progress_timer.wake_at is None
    converse(server, parties)
    server.tell("party-1", "entities", Entities(names[ROWS:]), iteration=4)
    server.tick(61)
    assert notices(server) == [], "what all have announced waits for more entities, and for no party"


def test_announcements_that_are_lost_are_told_after_a_minute() -> None:
    """Protects a federation from waiting for names that a party has sent and the server never got: retention
    had deleted the announcement, and for `window.patience_seconds` nobody said which party lacks what."""
    server = Server(settings_of(window={"patience_seconds": 600}))
    names = names_of(ROWS)
    assert server.task.awaited == f"knows 0 of {ROWS} entities that every party has announced (window.rows)"
    server.tell("party-0", "entities", Entities(names), iteration=1)
    server.tell("party-1", "entities", Entities(names[:5]), iteration=1)
    server.tell("party-1", "entities", Entities(names[9:]), iteration=4)
    assert str(server.task.awaited).endswith("(window.rows); party-1 lacks 4 that others have")

    def lost() -> list[str]:
        return [one.text for one in server.role.notices() if one.reason == "lost_names"]

    server.tick(59)
    assert lost() == []
    server.tick(2)
    assert ["later ones have: 'party-1' 2-3. They were" in text for text in lost()] == [True]
    server.tick(60)
    assert lost() == []
    server.restart()
    server.tick()
    server.tick(61)
    assert len(lost()) == 1
    # They were dead letters, and are replayed.
    server.tell("party-1", "entities", Entities(names[5:7]), iteration=2)
    server.hear("party-1", "entities", Entities(names[7:9]), iteration=3)
    server.tick(61)
    assert lost() == []
    assert server.task.window == 1


def test_predictions_that_wait_for_a_party_are_told_once_patience_is_over() -> None:
    """Protects users of predictions from a party that is away: none is made, and for a day nothing but a
    metric said so."""
    server = Server(settings_of(serving={"mode": "exact"}))
    parties = hands(server)
    for party in parties:
        server.tell(party, "entities", Entities(names_of()), iteration=1)
    converse(server, parties)
    assert server.task.model == 1
    numbers = dict.fromkeys(parties, 0)

    def part(party: str, entity: str) -> None:
        numbers[party] += 1
        server.tell(party, "partial", Partial(entity, 1, 0.1), 0, numbers[party])

    def told() -> list[str]:
        return [one.text for one in server.role.notices() if one.reason == "lacking_parts"]

    first, second, third = names_of(3, first=100)
    for party in parties:
        part(party, first)
    server.tick(600)
    assert (told(), server.role.backlog) == ([], None), "nothing waits"
    part("party-0", second)
    server.tick(30)
    part("party-0", third)
    assert server.role.wake_at == server.now + 30
    server.tick(30)
    waits = "2 predictions wait for parts of parties, the oldest for party-1"
    assert told() == [f"no prediction was made for 60 s, and {waits}"]
    server.tick(600)
    assert (told(), server.role.backlog) == ([], waits)
    part("party-1", second)
    assert (told(), server.role.backlog) == ([], None)
    # What waits is given up for a later model: then nothing does.
    server.tick(600)
    assert server.role.backlog is not None
    server.task.partials.model_is(9, 0.0, server.task.estimator.weights)
    assert server.role.backlog is None


def test_a_clock_that_was_ahead_does_not_put_the_notice_off() -> None:
    """Protects the notice from a clock that is set back: it comes a patience after that, not when the clock
    has caught up."""
    server = Server(settings_of())
    server.now += 1e6
    server.tell("party-0", "entities", Entities(names_of(3)), iteration=1)
    server.now -= 1e6
    server.tick()
    assert server.role.wake_at == server.now + 60
    server.tick(60)
    assert len(notices(server)) == 1


def lacking(party: Driver) -> dict[str, float]:
    return {
        one.labels[0][1]: one.value for one in party.task.table.measure() if one.name == "lacking_entities"
    }


def test_a_party_says_what_its_entities_lack() -> None:
    """Protects an operator who has to find out why nobody is announced: whether labels do not come, or
    columns, and of how many."""
    party = Driver(settings(window={"rows": 20, "limit": 20}))
    first, second, *others = NAMES
    party.feed([party.sample(name, [0.0] * 4) for name in (first, second)])
    party.hear(party.label("somebody", 0.5))
    for _ in range(2):
        assert lacking(party) == {"columns": 1, "label": 2}
        party.start()
    party.hear(party.label(first, 0.5), party.sample("somebody", [0.0] * 4))
    assert lacking(party) == {"columns": 0, "label": 1}
    # The oldest that lacks something gives way.
    party.feed([party.label(name, 0.5) for name in others])
    assert lacking(party) == {"columns": 18, "label": 0}
    party.start()
    assert lacking(party) == {"columns": 18, "label": 0}


def test_after_a_fit_the_line_of_progress_says_what_the_next_window_waits_for(tmp_path: Path) -> None:
    """Protects an operator whose second fit never begins: labels have stopped, or the same entities come
    again, which have no budget left. Only a metric said so."""

    def line(role: Role) -> dict[str, Fact]:
        return ProgressLine(60, lambda: 0.0).line(role.measure())

    party = Driver(settings(tmp_path)).begun()
    party.feed([*party.rows(), party.sample("unlabelled", [0.0] * 4)])
    assert line(party.role) | {"spent_entities": 2 * len(NAMES), "lacking_entities": 1} == line(party.role)
    server = Server(settings_of())
    parties = hands(server)
    for name in parties:
        server.tell(name, "entities", Entities(names_of(ROWS + 3 + (name == "party-0"))), iteration=1)
    converse(server, parties)
    assert line(server.role) | {"complete_entities": 3, "missing_entities": 1} == line(server.role)


def test_predictions_that_wait_for_fits_of_the_ledger_file_are_told_of(tmp_path: Path) -> None:
    """Protects the operator of a party whose file is ahead for good: parts of predictions wait, and the log
    says for what."""
    party = predicting(tmp_path)
    old = dict(party.state)
    party.hear(party.manifest(2, OTHERS))
    back = Driver(party.settings, old)
    assert show(back, NAMES) == []
    said = [one.text for one in back.role.notices() if one.reason == "fits_ahead"]
    assert [text.startswith("the ledger file has 1 releases for fits") for text in said] == [True]
    assert [message.kind for message in back.hear(back.manifest(2, OTHERS))] == ["frozen"]
    assert [message.kind for message in back.tick()] == ["partial"] * len(NAMES)
    assert [one for one in back.role.notices() if one.reason == "fits_ahead"] == []
