"""How the active party predicts a backlog in step with its model."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from fdskl.makers import make_worker, settings_of

from benchmarks.fdskl.history import KernelHistory, losses, of_history, simulated
from streamfl.contract.further_interfaces import CatchesUp
from streamfl.contract.role import Received, Record, Send, StateChange
from streamfl.fdskl.learning.schedule import ends_of_iterations
from streamfl.fdskl.messages import Prediction
from streamfl.fdskl.party.active import ActivePartition
from streamfl.fdskl.party.role import FdsklParty
from streamfl.records.labels import Label
from streamfl.records.samples import Sample

HISTORY = [f"e{number}" for number in range(12)]


class Alone:
    """A party that learns from each three labels, and is behind while more than two records lie unread.

    parties: how many there are. Nothing is heard of others.
    """

    def __init__(self, parties: int = 1, limit: int = 40) -> None:
        learning = {"catch_up_samples": 2, "catch_up_patience_seconds": 30.0, "block_instances": 3}
        alignment = {"linger_ms": 0.0, "expiry_seconds": 86_400.0, "limit": limit}
        self.settings = settings_of("p0", parties, learning=learning, alignment=alignment)
        self.role = self.begun()
        self.remembered: dict[bytes, bytes | None] = {}
        self.offset = 0
        self.has_ticked = False

    def begun(self) -> FdsklParty:
        role = make_worker(self.settings)
        role.open(0)
        return role

    def restart(self) -> None:
        """Another process goes on with what was remembered, in the order in which it was written."""
        for change in self.role.changed_state():
            self.remembered.pop(change.key, None)
            self.remembered[change.key] = change.value
        self.role = self.begun()
        for key, value in self.remembered.items():
            self.role.restore(StateChange("state", 0, key, value))

    def sees(self, entities: Sequence[str], unread: int = 0, now: float = 1000.0) -> list[tuple[str, int]]:
        """The predictions that it makes when these entities come in one batch: which, and by which
        version."""
        batch = []
        for entity in entities:
            self.offset += 1
            record = Record("samples", 0, self.offset, entity.encode(), b"", (), now)
            batch.append(Received("samples", Sample(entity, entity, (float(self.offset), 1.0), None), record))
        return self.take(batch, unread, now)

    def hears(self, entities: Sequence[str], unread: int = 0, now: float = 1000.0) -> list[tuple[str, int]]:
        """The predictions that it makes when labels of these entities come in one batch."""
        records = [(entity, Record("labels", 0, 0, entity.encode(), b"", (), now)) for entity in entities]
        labels = [
            Received("labels", Label(entity, entity, float(int(entity[1:]) % 2)), record)
            for entity, record in records
        ]
        return self.take(labels, unread, now)

    def ticks(self, unread: int = 0, now: float = 1000.0) -> list[tuple[str, int]]:
        """The predictions that it makes when nothing but time has come; before, all is read that lay there
        when it began."""
        self.has_ticked = True
        return self.take([], unread, now)

    def take(self, batch: list[Received], unread: int | None, now: float) -> list[tuple[str, int]]:
        self.role.unread({} if unread is None else {0: {"samples": unread}})
        sends = list(self.role.receive(batch, now))
        if self.has_ticked and batch and (at := self.role.wake_at) is not None and at <= now:
            sends += self.role.receive([], now)
        said = [send for send in sends if isinstance(send, Send) and send.channel == "predictions"]
        found = [msgspec.json.decode(send.value or b"", type=Prediction) for send in said]
        return [(one.entity, one.model) for one in found]


def by(version: int, entities: Sequence[str]) -> list[tuple[str, int]]:
    return [(entity, version) for entity in entities]


def test_a_history_is_predicted_as_its_labels_are_learnt() -> None:
    """Protects the first hour: a model that has learnt nothing predicted a whole history before it learnt
    from any of it."""
    party = Alone()
    assert party.sees(HISTORY, unread=12) == []
    predicted = party.hears(HISTORY)
    assert predicted == [*by(0, HISTORY[:3]), *by(1, HISTORY[3:6]), *by(2, HISTORY[6:9]), *by(3, HISTORY[9:])]


def test_nothing_is_taken_for_read_before_it_is_known_how_much_there_is() -> None:
    """Protects a history from a worker that starts: a partition without state gets its first tick before a
    cluster has reported how many records lie there, and a whole history was predicted by no model."""
    party = Alone(parties=2)
    for _ in range(2):
        assert party.take([], None, 1000.0) == []
    assert party.sees(HISTORY, unread=12) == []
    assert party.ticks(unread=12) == []
    assert party.hears(HISTORY) == by(0, HISTORY[:3])
    assert party.ticks() == []
    # Once it is known, it asks for the tick that says that all is read: what comes then is live.
    party = Alone(parties=2)
    party.take([], None, 1000.0)
    party.has_ticked = True
    assert party.sees(HISTORY[:1], unread=0) == by(0, HISTORY[:1])
    assert party.sees(HISTORY[1:2], unread=0) == by(0, HISTORY[1:2])


def test_what_comes_live_is_predicted_at_once() -> None:
    """Protects live predictions from a wait: also while a backlog waits, and whatever lies unread
    meanwhile."""
    party = Alone()
    party.ticks()
    assert [party.sees([entity], unread=100) for entity in HISTORY[:6]] == [
        by(0, [entity]) for entity in HISTORY[:6]
    ]
    party = Alone()
    assert party.sees(HISTORY[:6], unread=3) == []
    assert party.sees(HISTORY[6:7], unread=2) == []
    # Labels of what waits do not come, as where they are late, and the end of the topics is in sight.
    assert party.ticks(unread=2) == by(0, HISTORY[:7])
    assert party.sees(HISTORY[7:], unread=100) == by(0, HISTORY[7:])


def test_live_entities_go_before_a_backlog() -> None:
    """Protects live predictions from a history whose labels are learnt for hours."""
    party = Alone(parties=2)
    party.sees(HISTORY[:8], unread=8)
    assert party.hears(HISTORY[:8]) == by(0, HISTORY[:3])
    assert party.ticks() == []
    assert party.sees(["e20"]) == by(0, ["e20"])


def test_entities_without_a_label_are_not_waited_with_once_all_is_read() -> None:
    """Protects a history that lacks some labels: it would wait for the patience, or for ever."""
    party = Alone()
    party.sees(HISTORY[:8], unread=3)
    assert party.hears(["e7", "e1", "e4"], unread=0) == []
    assert party.ticks() == [*by(0, HISTORY[:8])]
    party = Alone()
    assert party.sees(HISTORY[:6], unread=0) == []
    assert party.ticks() == by(0, HISTORY[:6])


def test_where_learning_stands_still_it_is_waited_for_once() -> None:
    """Protects predictions from a party that is away: it costs at most the patience, and then nothing until
    learning goes on."""
    party = Alone(parties=2)
    party.sees(HISTORY[:8], unread=8)
    assert party.hears(HISTORY[:8], unread=100) == by(0, HISTORY[:3])
    assert party.ticks(unread=100, now=1029.9) == []
    assert party.ticks(unread=100, now=1030.0) == by(0, HISTORY[3:8])
    assert party.sees(HISTORY[8:], unread=100, now=1031.0) == by(0, HISTORY[8:])


def test_live_predictions_are_no_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the patience: where learning alone stands still, live predictions would put off the end of it
    for ever."""
    party = Alone()
    party.sees(HISTORY[:8], unread=8)
    assert party.hears(HISTORY[:3], unread=5) == by(0, HISTORY[:3])
    monkeypatch.setattr(ActivePartition, "_begin_iteration", lambda self: False)
    assert party.hears(HISTORY[3:8]) == by(1, HISTORY[3:6])
    assert party.ticks() == []
    for now in (1015.0, 1029.0):
        assert party.sees([f"e{now:.0f}"], now=now) == by(1, [f"e{now:.0f}"])
    assert party.ticks(now=1030.0) == by(1, HISTORY[6:8])


def test_a_restart_goes_on_in_the_order_of_the_topic() -> None:
    """Protects a backlog from a restart: what waits is remembered by its last writing, and labels are written
    later."""
    party, other = Alone(), Alone()
    for one in (party, other):
        assert one.sees(HISTORY, unread=12) == []
        one.hears(["e0"], unread=11)
        one.hears(["e7", "e5", "e1"], unread=8)
    other.restart()
    rest = [one for one in HISTORY if one not in ("e0", "e1", "e5", "e7")]
    assert party.hears(rest, unread=0) == other.hears(rest, unread=0)


def test_a_worker_tells_it_what_lies_unread_and_says_what_waits() -> None:
    """Protects the rule itself, since no worker tells a role that does not ask; and whoever wonders why
    predictions stand still."""
    party = Alone()
    assert isinstance(party.role, CatchesUp)
    assert "backlog" not in (party.role.backlog or "")
    party.sees(HISTORY[:6], unread=100)
    assert party.role.backlog == (
        "a backlog is predicted in step with the model, which has version 0: 100 records are unread, and 6 "
        "entities wait until the labels before them are learnt"
    )
    assert party.role.waiting == {"predictions": 6}
    assert party.ticks(unread=100) == []
    assert party.role.wake_at == 1030.0
    assert len(party.take([], 100, 1030.0)) == 6
    assert party.role.backlog == (
        "a backlog is predicted without waiting for the model, which stays at version 0: 100 records are "
        "unread, and 0 entities wait"
    )


def test_labels_behind_many_samples_are_read() -> None:
    """Protects a history whose samples are read long before their labels: paused, it would never hear of what
    it waits for."""
    party = Alone(limit=40_000)
    entities = [f"e{number}" for number in range(10_001)]
    party.sees(entities, unread=10_001)
    assert list(party.role.full) == []
    assert party.hears(entities[:1], unread=10_000) == by(0, entities[:1])
    # Where the first ones have none, others' labels are enough to hear that they are read.
    assert party.hears(entities[5:6], unread=9_999) == by(0, entities[1:2])
    assert list(party.role.full) == []
    # What has nothing but late labels is not waited with beyond memory.
    party = Alone(limit=40_000)
    assert len(party.sees([f"x{number}" for number in range(20_100)], unread=20_000)) == 101
    assert list(party.role.full) == []


@pytest.fixture(scope="module")
def history() -> KernelHistory:
    random = np.random.default_rng(1)
    inputs = random.normal(size=(1600, 6))
    labels = (inputs[:, 0] * inputs[:, 2] + inputs[:, 4] + 0.3 * random.normal(size=1600) > 0).astype(float)
    return KernelHistory(inputs, labels, features_limit=256, block_features=64)


def test_a_history_is_predicted_as_well_as_simulate_says(history: KernelHistory) -> None:
    """Protects the promise of `streamfl simulate`: the mean loss after the first tenth, also with a party
    that comes later."""
    promised, found = simulated(history), of_history(history, 20.0)
    try:
        expected, _ = losses(promised)
        each, versions = losses(found)
        rest = slice(len(each) // 10, None)
        assert each[rest].mean() <= 1.05 * expected[rest].mean()
        assert expected[rest].mean() < 0.5
        # An iteration's rows are predicted by the model before it, but for those that came when hardly any
        # lay unread.
        ends = [end for end, _ in zip(ends_of_iterations(32, 256), range(10), strict=False)]
        assert (versions == np.searchsorted(ends, np.arange(len(each)), side="right")).mean() > 0.9
        assert len(found.predictions()) == len(each)
    finally:
        promised.close()
        found.close()
