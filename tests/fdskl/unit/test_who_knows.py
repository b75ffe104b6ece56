"""Before anything is learnt: of how many parties' columns a prediction is, and how long that is waited for."""

from __future__ import annotations

from fdskl.laws.closed_loop import BEGIN, ClosedLoop
from fdskl.makers import settings_of

from streamfl.fdskl.messages import INCARNATION, Incarnation
from streamfl.records.samples import Sample
from streamfl.role import Received, Record, Send
from streamfl.wire import VERSION

REPLY, ROUND = 0.7, 2.0


def federation(parties: int = 3, first_entities: int = 1000) -> ClosedLoop:
    """No columns' scale is known for long, and no label comes."""
    scale = {"first_entities": first_entities, "transform": "none"}
    return ClosedLoop([settings_of(f"p{number}", parties, standardisation=scale) for number in range(parties)])


def tell(loop: ClosedLoop, party: int, entity: str) -> None:
    """Columns of an entity come to one party."""
    record = Record("samples", 0, 0, entity.encode(), b"", (), loop.now)
    loop.members[party].unread.append(("samples", Received("samples", Sample(entity, "s", (1.0, 2.0), None), record)))


def began(loop: ClosedLoop) -> ClosedLoop:
    """All have heard of one another."""
    for member in loop.members:
        for reply in member.role.receive([], loop.now):
            assert isinstance(reply, Send)
            loop._deliver(reply)
    for _ in range(4):
        for number in range(len(loop.members)):
            loop.step(number, 1000)
    assert all(member.role.partition(0).peers.complete for member in loop.members)
    return loop


def test_a_prediction_of_nothing_learnt_says_how_many_parties_know_the_entity() -> None:
    """Protects users from taking entities for unknown at other parties, when nobody has asked them: parties said 1 of all."""
    loop = began(federation())
    for party, entity in ((0, "all"), (1, "all"), (2, "all"), (0, "two"), (1, "two"), (0, "one")):
        tell(loop, party, entity)
    loop.settle()
    assert {one.entity: (one.parties, one.model, one.score) for one in loop.predictions} == {
        "all": (3, 0, 0.0), "two": (2, 0, 0.0), "one": (1, 0, 0.0)
    }  # fmt: skip
    # No column went into it, so none had to be standardised, and none was stood in for.
    assert not any(member.role.partition(0).standardisation.frozen for member in loop.members)
    assert not any(one.value for member in loop.members for one in member.role.measure() if one.name == "imputed")


def test_columns_that_come_later_are_counted_too() -> None:
    """Protects the count from being of the first moment for ever: the entity is predicted again, as it is by a model."""
    loop = began(federation())
    tell(loop, 0, "a")
    tell(loop, 1, "a")
    loop.settle()
    tell(loop, 2, "a")
    loop.settle()
    assert [(one.entity, one.parties, one.revision) for one in loop.predictions] == [("a", 2, 0), ("a", 3, 1)]


def test_a_party_that_is_away_is_not_waited_for_longer_than_a_round() -> None:
    """Protects predictions of the first hours from a party that comes next week: what it knows goes into none of them."""
    loop = began(federation())
    tell(loop, 0, "a")
    until = BEGIN + ROUND + 1.0
    while loop.now < until:
        for number in (0, 1):
            loop.step(number, 1000)
        loop.now += 0.05
    assert [(one.entity, one.parties) for one in loop.predictions] == [("a", 1)]
    away = federation()
    tell(away, 0, "a")
    for _ in range(10):
        away.step(0, 1000)
        away.now += 0.05
    # Whoever was never heard of cannot be asked.
    assert [(one.entity, one.parties) for one in away.predictions] == [("a", 1)]


def test_entities_wait_for_nobody_who_cannot_be_asked_any_more() -> None:
    """Protects what waits from depending on when it was asked: where two parties say the same of themselves nobody is asked, and a
    role that asked before goes on as one that was restored since.
    """
    loop = began(federation())
    tell(loop, 0, "a")
    loop.step(0, 1000)
    loop.now += 0.2
    loop.step(0, 1000)
    assert dict(loop.active.waiting) == {"predictions": 1}
    life, fingerprint = loop.members[1].role.partition(0).peers.incarnation, loop.active.settings.fingerprint
    message = Incarnation(VERSION, fingerprint, "p2", life.number, life.public, 1, 0)
    loop.members[0].unread.append(("incarnations", Record("incarnations", 0, 0, b"", INCARNATION.encode(message), (), loop.now)))
    loop.step(0, 1000)
    assert not loop.active.partition(0).peers.complete
    loop.active.receive([], loop.now)
    assert dict(loop.active.waiting) == {}
