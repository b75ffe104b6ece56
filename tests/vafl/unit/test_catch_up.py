"""How a party that is behind shows its entities in step with its model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from vafl.makers import Steps, make_party

from streamfl.contract.further_interfaces import CatchesUp
from streamfl.contract.role import Received, Record, Send, StateChange
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.records.samples import Sample
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import EMBEDDING, REPLY, Reply
from streamfl.vafl.party.role import VaflParty

HISTORY = [f"e{number}" for number in range(10)]


class Behind:
    """A party that takes a step on each gradient and shows two entities at a time while more are unread or in
    hand."""

    def __init__(self, expiry: float = 86_400.0) -> None:
        self.expiry = expiry
        self.role = self.begun()
        self.sequences: dict[str, int] = {}
        self.epoch = 0
        self.remembered: dict[tuple[int, bytes], bytes | None] = {}

    def begun(self) -> VaflParty:
        network = DenseNetwork([1, 1], bias=False, dtype=np.float64)
        role = make_party(
            name="bank",
            function=network,
            inputs=1,
            embedding_size=1,
            steps=Steps("sgd", 1.0, 1),
            seed=0,
            catch_up_samples=2,
            catch_up_patience=30.0,
            expiry=self.expiry,
        )
        role.open(0)
        return role

    def restart(self) -> None:
        """Another process goes on with what was remembered."""
        for change in self.role.changed_state():
            self.remembered[change.partition, change.key] = change.value
        self.role = self.begun()
        for (partition, key), value in self.remembered.items():
            self.role.restore(StateChange("state", partition, key, value))

    def sees(self, entities: Sequence[str], unread: int = 0, now: float = 0.0) -> list[str]:
        """The entities that it shows when these come in one batch."""
        return self._take(
            [received("samples", Sample(one, one, (1.0,), None), one) for one in entities], unread, now
        )

    def answered(self, entity: str, unread: int = 0, now: float = 0.0) -> list[str]:
        """The entities that it shows when this gradient comes."""
        reply = Reply(VERSION, 0, entity, self.epoch, self.sequences[entity], encode_array(np.array([-1.0])))
        return self._take([received("gradients", REPLY.decode(REPLY.encode(reply)), entity)], unread, now)

    def waits_until(self, now: float, unread: int = 0) -> list[str]:
        """The entities that it shows when nothing but time has come."""
        return self._take([], unread, now)

    def _take(self, batch: list[Received], unread: int, now: float) -> list[str]:
        self.role.unread({0: {"samples": unread}})
        shown = []
        for send in self.role.receive(batch, now):
            assert isinstance(send, Send)
            message = EMBEDDING.decode(send.value or b"")
            self.sequences[message.entity], self.epoch = message.sequence, message.epoch
            shown.append(message.entity)
        return shown


def received(channel: str, message: object, key: str) -> Received:
    return Received(channel, message, Record(channel, 0, 0, key.encode(), b""))


def test_a_history_is_shown_as_gradients_come() -> None:
    """Protects the first hour: a model that has learnt nothing would show a whole history before it learnt
    from any of it."""
    party = Behind()
    assert party.sees(HISTORY) == ["e0", "e1"]
    assert party.answered("e0") == ["e2"]
    assert party.answered("e1") == ["e3"]
    # What is left is no more than may be on its way, and is shown at once.
    rest = [one for entity in HISTORY[2:8] for one in party.answered(entity)]
    assert rest == HISTORY[4:]


def test_what_comes_live_is_shown_at_once() -> None:
    """Protects predictions from a wait: nobody is behind who has no more unread than it may show."""
    party = Behind()
    assert [party.sees([entity]) for entity in HISTORY] == [[entity] for entity in HISTORY]
    assert party.role.most_records is None


def test_what_lies_unread_counts_and_is_not_fetched() -> None:
    """Protects the memory and the changelog: of a long history no more is taken than is shown soon."""
    party = Behind()
    assert party.role.most_records == 4
    assert party.sees(HISTORY[:4], unread=100) == ["e0", "e1"]
    assert (party.role.most_records, list(party.role.full)) == (4, [0])


def test_a_worker_tells_it_what_lies_unread_and_says_what_waits() -> None:
    """Protects the rule itself, since no worker tells a role that does not ask; and whoever wonders why
    predictions stand still."""
    party = Behind()
    assert isinstance(party.role, CatchesUp)
    assert (
        party.role.backlog
        == "knows 0 of 1 entities with a gradient that the first step takes (learning.batch_size)"
    )
    party.sees(HISTORY[:4], unread=100)
    assert party.role.backlog == (
        "a backlog is sent in step with the model: 100 records are unread, and 2 samples wait for gradients"
    )
    party.waits_until(30.0, unread=100)
    assert party.role.backlog == (
        "a backlog is sent ahead of the model, because no gradients came: 100 records are unread, and 0 "
        "samples wait"
    )


def test_entities_without_a_label_are_not_waited_for_where_others_are_answered() -> None:
    """Protects a history that lacks some labels: it would wait for the whole patience for each."""
    party = Behind()
    party.sees(HISTORY)
    assert party.answered("e0", now=5.0) == ["e2"]
    assert party.waits_until(5.9) == []
    assert party.waits_until(6.0) == ["e3", "e4"]


def test_where_no_gradient_comes_it_shows_as_many_again_until_one_does() -> None:
    """Protects predictions where labels are late or no coordinator answers: what was shown in vain doubles,
    so that patience is spent a few times, also over a restart. And protects the history from being shown at
    once by a model that has learnt nothing, because the coordinator came later or the first entities lack a
    label."""
    party, history = Behind(), [f"e{number}" for number in range(40)]
    assert party.sees(history[:36], unread=4) == history[:2]
    party.restart()
    assert party.waits_until(29.0, unread=4) == []
    assert party.waits_until(30.0, unread=4) == history[2:4]
    assert party.waits_until(59.0, unread=4) == []
    party.restart()
    assert party.waits_until(60.0, unread=4) == history[4:8]
    assert party.role.most_records == 8
    assert party.waits_until(90.0, unread=4) == history[8:16]
    # Labels of long ago tell nothing of those that come now.
    assert party.answered("e0", unread=4, now=100.0) == []
    assert party.waits_until(119.0, unread=4) == []
    assert party.answered("e8", unread=4, now=119.5) == history[16:18]
    assert party.answered("e16", unread=4, now=119.6) == history[18:19]
    # Others that were shown in vain are not waited for.
    assert party.answered("e9", unread=4, now=119.7) == []
    assert party.waits_until(120.7, unread=4) == history[19:21]


def test_a_party_with_many_entities_under_way_shows_as_many() -> None:
    """Protects a party whose labels come late, and that was away: its backlog is shown, since more entities
    wait for their label than have come since."""
    party, late = Behind(), [f"late{number}" for number in range(20)]
    for entity in late:
        party.sees([entity])
    party.restart()
    assert party.sees(HISTORY[:9], unread=1, now=1000.0) == HISTORY[:9]


def test_a_clock_that_was_ahead_holds_nothing_up() -> None:
    """Protects the patience: counted from a time to come it would not end."""
    party = Behind()
    party.sees(HISTORY, now=1000.0)
    party.waits_until(10.0)
    assert party.waits_until(40.0) == HISTORY[2:4]


def test_what_is_forgotten_is_not_waited_for_whatever_comes_first() -> None:
    """Protects the patience: it was spent on entities that were forgotten by then, if a message came before
    the tick."""
    by_tick, by_message = Behind(expiry=25.0), Behind(expiry=25.0)
    for party in (by_tick, by_message):
        assert party.sees(HISTORY) == ["e0", "e1"]
    assert by_tick.waits_until(40.0) == ["e2", "e3"]
    assert by_message.answered("e0", now=40.0) == ["e2", "e3"]
    assert by_message.waits_until(40.0) == []
