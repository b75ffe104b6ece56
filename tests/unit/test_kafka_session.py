"""The session of both Kafka connectors: what it keeps after an error, and the order of its calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from streamfl_connectors.outgoing import check_records, most_bytes
from streamfl_connectors.positions import Positions
from streamfl_connectors.session import KafkaSession, transactional_id

from streamfl.contract.role import ConfigurationError, Record
from streamfl.runtime.bus import (
    BusUnavailable,
    CommitRefused,
    Moved,
    Outgoing,
    Polled,
    Step,
    Subscription,
    TopicPartition,
)

SAMPLES, MODEL = ("samples", 0), "model"


class Member:
    """A membership with partition 0 that fails on request."""

    def __init__(self, calls: list[str]) -> None:
        self.positions = Positions()
        self.reported: set[int] = set()
        self.fails = False
        self.may = True
        self.leader = -1
        self._calls = calls
        self._offset = 0

    def begin(self) -> None:
        self._calls.append("begin")

    def poll(self, polled: Polled, timeout: float, most: int) -> None:
        if not self.reported:
            self.reported, polled.assigned = {0}, [0]
            self.positions.begin(SAMPLES, 0)
            return
        if self.fails:
            raise BusUnavailable("away")
        polled.records.append(record("samples", self._offset))
        self.positions.came(SAMPLES, self._offset + 1, self.leader, polled)
        self._offset += 1

    def check(self) -> None:
        self._calls.append("check")

    def give_back(self, polled: Polled) -> None:
        self._calls.append("give back")
        polled.revoked = sorted(self.reported)
        self.reported.clear()

    def went_on(self) -> None:
        """The worker goes on."""

    def may_commit(self, places: Iterable[TopicPartition]) -> bool:
        return self.may

    def committed(self, place: TopicPartition, timeout: float) -> int | None:
        return None

    def seek(self, place: TopicPartition, offset: int, epoch: int) -> None:
        self.positions.move(place, offset, epoch)

    def pause(self, places: Iterable[TopicPartition]) -> None:
        pass

    def close(self) -> None:
        self._calls.append("leave")


class Commits:
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        self.fails = False

    def settle(self) -> None:
        self._calls.append("settle")

    def commit(self, step: Step, member: Member | None) -> None:
        if self.fails:
            raise BusUnavailable("no answer")
        self._calls.append("commit")

    def close(self) -> None:
        self._calls.append("close producer")


class Tables:
    """Tables that return one record for each call."""

    def __init__(self) -> None:
        self._offset = 0

    def _next(self) -> list[Record]:
        self._offset += 1
        return [record(MODEL, self._offset - 1)]

    def read_whole(self) -> list[Record]:
        return [] if self._offset else self._next()

    def take(self, timeout: float, most: int) -> list[Record]:
        return self._next()

    def read_to_end(self) -> list[Record]:
        return self._next()

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


class NoLogs:
    def reader(self) -> Any:
        raise AssertionError

    def count(self, topic: str) -> int:
        return 1

    def ends_of(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Each leader wrote ten records."""
        return {place: 10 * (epoch + 1) for place, epoch in epochs.items()}

    def ends_soon(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 10)


def record(topic: str, offset: int) -> Record:
    return Record(topic, 0, offset, b"k", b"v", (), 0.0)


@contextmanager
def told(doing: str) -> Iterator[None]:
    yield


def made(tables: Tables | None = None) -> tuple[KafkaSession[Any], Member, Commits, list[str]]:
    calls: list[str] = []
    member, commits = Member(calls), Commits(calls)
    logs: Any = NoLogs()
    session = KafkaSession[Any](logs, tables, 0.5, member, commits, 1.0, told, lambda: "")  # type: ignore[arg-type]
    return session, member, commits, calls


def test_table_records_outlive_the_error_of_a_poll() -> None:
    """Protects the model: a table record read before the inputs failed comes with the next poll, and only
    once."""
    session, member, _, _ = made(Tables())
    assert [one.offset for one in session.poll(0.0, 10).tables] == [0, 1, 2]
    member.fails = True
    with pytest.raises(BusUnavailable):
        session.poll(0.0, 10)
    member.fails = False
    assert [one.offset for one in session.poll(0.0, 10).tables][:2] == [3, 4]


def test_after_an_error_everything_is_given_back_and_begun_anew() -> None:
    """Protects exactly-once: the cluster first decides the open transaction, then the caller learns that it
    has no partitions."""
    session, _, commits, calls = made()
    assert session.poll(0.0, 10).assigned == [0]
    commits.fails = True
    with pytest.raises(BusUnavailable):
        session.commit(Step({SAMPLES: 1}))
    assert session.member.positions.base == {SAMPLES: 0}
    commits.fails = False
    calls.clear()
    polled = session.poll(0.0, 10)
    assert (polled.revoked, polled.assigned) == ([0], [0])
    assert calls[:2] == ["settle", "give back"]
    calls.clear()
    session.commit(Step({SAMPLES: 1}))
    assert session.poll(0.0, 10).revoked == []
    assert calls[:2] == ["commit", "begin"]
    assert session.member.positions.base == {SAMPLES: 1}


def test_where_a_log_was_cut_back_is_said_before_anything_is_read_there() -> None:
    """Protects records written in place of lost ones, also with an epoch from earlier, because another member
    may have read on."""
    session, member, _, _ = made()
    session.poll(0.0, 10)
    session.seek("samples", 0, 12, epoch=0)
    polled = session.poll(0.0, 10)
    assert (polled.moved, polled.records) == ([Moved("samples", 0, 12, 10)], [])
    assert member.positions.now == {SAMPLES: 10}
    session.seek("samples", 0, 12, epoch=1)
    polled = session.poll(0.0, 10)
    assert (polled.moved, len(polled.records)) == ([], 1)
    member.positions.came(SAMPLES, 13, 1, polled)
    member.positions.came(SAMPLES, 14, 2, polled)
    assert (polled.epochs, member.positions.epoch(SAMPLES)) == ({SAMPLES: 2}, 2)
    session.seek("samples", 0, 12)
    assert member.positions.epoch(SAMPLES) == -1


def test_records_of_another_leader_are_not_taken_where_the_log_was_cut_before_them() -> None:
    """Protects records written in place of lost ones, at a member that read through the change of leaders or
    had just begun again: none is skipped, and none is read twice after a change that lost nothing."""
    session, member, _, _ = made()
    session.poll(0.0, 10)
    for position, epoch, moved in ((12, 0, [Moved("samples", 0, 12, 10)]), (8, 0, []), (30, 2, [])):
        member.positions.move(SAMPLES, position, epoch)
        member.leader, member._offset = epoch + 1, position
        polled = session.poll(0.0, 10)
        assert polled.moved == moved
        assert [one.offset for one in polled.records] == ([] if moved else [position])
        assert polled.epochs == ({} if moved else {SAMPLES: epoch + 1})
        assert member.positions.now[SAMPLES] == (10 if moved else position)
        assert member.positions.epoch(SAMPLES) == (epoch if moved else epoch + 1)


def test_the_epoch_is_told_with_all_records_and_forgotten_behind_a_gap() -> None:
    """Protects positions that are remembered: with an older epoch than that of the record before, a healthy
    log looks as if it were cut."""
    positions = Positions()
    for offset, epoch, told in ((5, 1, {SAMPLES: 1}), (5, 1, {}), (6, 1, {SAMPLES: 1}), (7, -1, {})):
        polled = Polled()
        positions.came(SAMPLES, offset, epoch, polled)
        assert polled.epochs == told
    assert Polled(epochs={SAMPLES: 1}).then(Polled(revoked=[0])).epochs == {}
    for following, epoch in ((4, 1), (4, -1)):
        positions.skip(Moved(*SAMPLES, 6 if epoch > 0 else 4, following))
        assert positions.epoch(SAMPLES) == epoch
    positions.came(SAMPLES, 4, 1, Polled())
    positions.skip(Moved(*SAMPLES, 4, 9))
    assert (positions.epoch(SAMPLES), positions.now[SAMPLES]) == (-1, 9)


def test_a_step_of_partitions_that_moved_is_refused_before_anything_is_sent() -> None:
    """Protects against two owners: the producer gets nothing of such a step."""
    session, member, _, calls = made()
    session.poll(0.0, 10)
    member.may = False
    with pytest.raises(CommitRefused):
        session.commit(Step({SAMPLES: 1}))
    assert "commit" not in calls


def test_the_group_hears_of_the_leave_before_the_producer_is_gone() -> None:
    """Protects a quick hand-over: others get the partitions at once, not after the session timeout."""
    session, _, _, calls = made()
    session.close()
    assert calls == ["leave", "close producer"]


def test_only_transactions_have_a_name() -> None:
    """Protects the rights of an at-least-once worker: without a transaction it needs none on transactional
    ids."""
    assert transactional_id(Subscription("plant", ("samples",), guarantee="at_least_once")) is None
    assert transactional_id(Subscription("plant", ("samples",), transactional_id="plant:7")) == "plant:7"
    names = {transactional_id(Subscription("plant", ("samples",))) for _ in range(2)}
    assert len(names) == 2
    assert all(name is not None and name.startswith("plant:") for name in names)


def test_lag_is_the_last_known_while_the_cluster_is_away() -> None:
    """Protects the operator's main alarm: lag keeps its last value, without partitions that left."""
    positions = Positions()
    positions.begin(SAMPLES, 3)
    positions.begin(("samples", 1), 9)
    assert positions.lag(lambda places: dict.fromkeys(places, 10)) == {SAMPLES: 7, ("samples", 1): 1}

    def away(places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        raise BusUnavailable("away")

    positions.keep([0])
    assert positions.lag(away) == {SAMPLES: 7}
    assert positions.now == positions.base == {SAMPLES: 3}
    # Once known, the position of 'latest' is not requested again when the partition comes back.
    assert positions.origins == {SAMPLES: 3, ("samples", 1): 9}


@pytest.mark.parametrize(
    ("positions", "written", "held", "expected"),
    [
        ({SAMPLES: 5}, [0], {0, 1}, {}),
        ({SAMPLES: 5}, [1], {0, 1}, {("samples", 1): 4}),
        ({}, [0, 1], {0, 1}, {SAMPLES: 2, ("samples", 1): 4}),
        ({}, [], {0, 1}, {SAMPLES: 2}),
        ({}, [1], {0}, {SAMPLES: 2}),
        ({}, [1], set(), {}),
    ],
)
def test_a_commit_names_the_partitions_whose_state_it_writes(
    positions: dict[TopicPartition, int],
    written: list[int],
    held: set[int],
    expected: dict[TopicPartition, int],
) -> None:
    """Protects restored state: a new owner waits for every transaction that writes the partition's
    changelog."""
    found = Positions()
    found.begin(SAMPLES, 2)
    found.begin(("samples", 1), 4)
    step = Step(positions, [], [Outgoing("state", b"k", b"v", partition) for partition in written])
    assert found.fence(step, held) == expected


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (Outgoing("outputs", None, None), "a record for topic 'outputs' has neither a key nor a value"),
        (Outgoing("outputs", b"k", None, 2), "topic 'outputs' has 2 partitions, there is no partition 2"),
        (Outgoing("outputs", b"k", None, -1), "topic 'outputs' has 2 partitions, there is no partition -1"),
        (
            Outgoing("outputs", None, bytes(901)),
            r"'outputs' is too large: .* its option \(it takes up to 1001 bytes, 1000 are",
        ),
    ],
)
def test_a_record_that_cannot_be_sent_is_refused_in_the_same_words(record: Outgoing, text: str) -> None:
    """Protects the operator, with either library: an invalid record is reported before anything of its step
    is sent."""
    fine = [
        Outgoing("outputs", None, b""),
        Outgoing("outputs", b"k", None, 1),
        Outgoing("outputs", None, bytes(900)),
    ]
    check_records(fine, {"outputs": 1000}, {"outputs": 2}, "its option")
    with pytest.raises(ConfigurationError, match=text):
        check_records([*fine, record], {"outputs": 1000}, {"outputs": 2}, "its option")


def test_a_record_above_the_bound_is_measured_where_its_size_can_be_had() -> None:
    """Protects records that just fit: the estimate is up to 100 bytes too large, so the exact size
    decides."""
    near = Outgoing("outputs", None, bytes(950))
    assert most_bytes(near) > 1000
    check_records([near], {"outputs": 1000}, {"outputs": 1}, "its option", exact_bytes=lambda record: 1000)
    with pytest.raises(ConfigurationError, match="it takes 1001 bytes, 1000 are allowed"):
        check_records(
            [near], {"outputs": 1000}, {"outputs": 1}, "its option", exact_bytes=lambda record: 1001
        )
