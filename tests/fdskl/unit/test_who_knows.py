"""Before anything is learnt: of how many parties' columns a prediction is, and how long that is waited
for."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from fdskl.laws.closed_loop import BEGIN, ClosedLoop
from fdskl.makers import settings_of

from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.messages import INCARNATION, Incarnation
from streamfl.fdskl.party.peers import _Peer as Peer
from streamfl.records.samples import Sample

REPLY, ROUND = 0.7, 2.0


def federation(parties: int = 3, first_entities: int = 1000) -> ClosedLoop:
    """No columns' scale is known for long, and no label comes."""
    scale = {"first_entities": first_entities, "transform": "none"}
    return ClosedLoop(
        [settings_of(f"p{number}", parties, standardisation=scale) for number in range(parties)]
    )


def tell(loop: ClosedLoop, party: int, entity: str) -> None:
    """Columns of an entity come to one party."""
    record = Record("samples", 0, 0, entity.encode(), b"", (), loop.now)
    loop.members[party].unread.append(
        ("samples", Received("samples", Sample(entity, "s", (1.0, 2.0), None), record))
    )


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
    """Protects users from taking entities for unknown at other parties, when nobody has asked them: parties
    said 1 of all."""
    loop = began(federation())
    for party, entity in ((0, "all"), (1, "all"), (2, "all"), (0, "two"), (1, "two"), (0, "one")):
        tell(loop, party, entity)
    loop.settle()
    assert {one.entity: (one.parties, one.model, one.score) for one in loop.predictions} == {
        "all": (3, 0, 0.0), "two": (2, 0, 0.0), "one": (1, 0, 0.0)
    }  # fmt: skip
    # No column went into it, so none had to be standardised, and none was stood in for.
    assert not any(member.role.partition(0).standardisation.frozen for member in loop.members)
    assert not any(
        one.value for member in loop.members for one in member.role.measure() if one.name == "imputed"
    )


def test_columns_that_come_later_are_counted_too() -> None:
    """Protects the count from being of the first moment for ever: the entity is predicted again, as it is by
    a model."""
    loop = began(federation())
    tell(loop, 0, "a")
    tell(loop, 1, "a")
    loop.settle()
    tell(loop, 2, "a")
    loop.settle()
    assert [(one.entity, one.parties, one.revision) for one in loop.predictions] == [("a", 2, 0), ("a", 3, 1)]


def test_a_party_that_is_away_is_not_waited_for_longer_than_a_round() -> None:
    """Protects predictions of the first hours from a party that comes next week: what it knows goes into none
    of them."""
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


def test_no_entity_of_a_stream_waits_longer_for_a_party_that_is_away() -> None:
    """Protects a stream from its own length: only so many rounds are on their way, and each behind them
    waited for another round's time. So it is after the clock was ahead by an hour.
    """
    for ahead in (0.0, 3600.0):
        loop, written, waited = began(federation()), dict[str, float](), dict[str, float]()
        begin = loop.now
        loop.now += ahead
        while loop.now < begin + ahead + 1.0 or (loop.now < begin + 2 * ROUND and len(waited) < len(written)):
            if ahead and loop.now > begin + ahead + 0.9:
                loop.now, ahead = begin, 0.0
                written = dict.fromkeys(written, begin)
            if loop.now < begin + ahead + 1.0:
                entity = f"e{len(written)}"
                written[entity] = loop.now
                tell(loop, 0, entity)
            for number in (0, 1):
                loop.step(number, 1000)
            waited |= {
                one.entity: loop.now - written[one.entity]
                for one in loop.predictions
                if one.entity not in waited
            }
            loop.now += 0.05
        assert len(waited) == len(written) > 15
        assert 0.9 * ROUND < max(waited.values()) < 1.2 * ROUND


def test_entities_wait_for_nobody_who_cannot_be_asked_any_more() -> None:
    """Protects what waits from depending on when it was asked: where two parties say the same of themselves
    nobody is asked, and a role that asked before goes on as one that was restored since.
    """
    loop = began(federation())
    tell(loop, 0, "a")
    loop.step(0, 1000)
    loop.now += 0.2
    loop.step(0, 1000)
    assert dict(loop.active.waiting) == {"predictions": 1}
    life, fingerprint = loop.members[1].role.partition(0).peers.incarnation, loop.active.settings.fingerprint
    message = Incarnation(VERSION, fingerprint, "p2", life.number, life.public, 1, 0)
    loop.members[0].unread.append(
        ("incarnations", Record("incarnations", 0, 0, b"", INCARNATION.encode(message), (), loop.now))
    )
    loop.step(0, 1000)
    assert not loop.active.partition(0).peers.complete
    loop.active.receive([], loop.now)
    assert dict(loop.active.waiting) == {}


def learnt_while_asked() -> ClosedLoop:
    """An entity was asked about before anything was learnt. One party has not heard of that, and there is a
    model now."""
    loop = began(federation(first_entities=3))
    for number, entity in enumerate("bcd"):
        loop.write_sample(entity, 0.3 * number)
    loop.settle()
    loop.write_sample("a", 0.7)
    loop.step(0, 1000)
    loop.now += 0.2
    loop.step(0, 1000)
    late = loop.members[2]
    late.unread = deque((channel, one) for channel, one in late.unread if channel != "rounds")
    for number, entity in enumerate("bcd"):
        loop.write_label(entity, float(number % 2))
    until = loop.now + ROUND - 0.5
    while loop.now < until:
        for number in range(3):
            loop.step(number, 1000)
        loop.now += 0.05
    assert loop.active.active_partition(0).model.version >= 1
    assert dict(loop.active.waiting)["predictions"] == 1
    return loop


def check_it_is_of_the_model(loop: ClosedLoop) -> None:
    """The entity's prediction is what the model of its version gives for all parties' columns, each with its
    own secret."""
    (found,) = [one for one in loop.predictions if one.entity == "a"]
    expansion = loop.active.active_partition(0).model.snapshot()
    assert (found.model, found.parties) == (expansion.version, 3)
    phases = np.zeros(len(expansion.alphas))
    for member in loop.members:
        own = member.role.partition(0)
        rows, known = own.columns.rows(["a"])
        drawn = own.sums.own_part.contributions.frequencies(expansion.bandwidth)
        ranges = [(one.first, one.count) for one in expansion.ranges]
        phases += drawn.partial_phases(own.standardisation.apply(rows, known), ranges)[0]
    assert found.score == pytest.approx(np.sqrt(2) * np.cos(phases) @ expansion.alphas, abs=1e-6)
    assert abs(found.score) > 1e-3


def test_what_was_asked_before_the_first_model_is_predicted_by_it() -> None:
    """Protects predictions from being 0 in a model's name, and learning from taking that for the model's:
    nobody answered who knows an entity, and by the time that nobody waits for it any longer there is a model.
    """
    loop = learnt_while_asked()
    loop.settle()
    check_it_is_of_the_model(loop)


def test_what_was_asked_before_the_first_model_waits_for_parties_that_are_not_reached() -> None:
    """Protects the same where nobody can be asked any more for a while: with a model, their columns are
    waited for."""
    loop = learnt_while_asked()
    peers = loop.active.partition(0).peers
    known, peers._peers[2] = peers._peers[2], Peer(lives=peers._peers[1].lives)
    peers._is_complete = None
    assert not peers.complete
    loop.active.receive([], loop.now)
    assert dict(loop.active.waiting)["predictions"] == 1
    peers._peers[2], peers._is_complete = known, None
    loop.settle()
    check_it_is_of_the_model(loop)
