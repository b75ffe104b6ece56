"""Batches for life, the rows that are learnt from, and when a party is ready again."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from quasi_newton.federations import settings_of

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.encryption.fixed_point import kinds
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.rows import learnt_batches
from streamfl.quasi_newton.rows.learnt_batches import LearntBatches
from streamfl.quasi_newton.rows.table import EntityTable
from streamfl.quasi_newton.rows.training_rows import TrainingRows
from streamfl.quasi_newton.training.readiness import HeldOut, Readiness
from streamfl.quasi_newton.training.training_progress import FAILED, TrainingProgress
from streamfl.state.changelog import ChangedParts

SECRET = b"s" * 32
KIND = kinds(2, 10, 10).inputs
SESSION = b"session"


def names(first: int, count: int) -> list[str]:
    return [f"e{number}" for number in range(first, first + count)]


def made(parts: ChangedParts | None = None, most: int = 3) -> LearntBatches:
    return LearntBatches(ChangedParts() if parts is None else parts, 10, 2, most, SECRET, MemberCounts())


def fill(batches: LearntBatches, first: int, count: int) -> None:
    rows = np.arange(first, first + count)
    batches.add(
        names(first, count),
        np.column_stack([rows, -rows]).astype(float),
        np.where(rows % 2, 1, -1).astype(np.int8),
    )


def state_of(parts: ChangedParts) -> dict[bytes, bytes | None]:
    return dict(parts.changed_state())


def test_batches_come_behind_one_another_and_go_as_a_whole() -> None:
    """Protects labels: rows keep their places, and who was in a batch that is gone stays known, after a
    restart too."""
    parts = ChangedParts()
    batches = made(parts)
    fill(batches, 0, 20)
    fill(batches, 20, 20)
    state = state_of(parts)
    again = made()
    for key, value in state.items():
        if value is not None:
            again._parts.restore(key, value)
    for one in (batches, again):
        assert (one.count, len(one), list(one)) == (3, 30, names(10, 30))
        assert np.array_equal(one.raw[:, 0], np.arange(10, 40))
        assert np.array_equal(one.signs, np.where(np.arange(10, 40) % 2, 1.0, -1.0))
        assert all(name in one for name in names(0, 40))
        assert not any(name in one for name in names(40, 500))
        assert one.digest(names(50, 10), SESSION) == batches.digest(names(50, 10), SESSION)
    # A batch that stays is not written again.
    fill(batches, 40, 10)
    written = {key.rsplit(b"/", 1)[0] for key, value in state_of(parts).items() if value is not None}
    assert written == {b"batch/4/names", b"batch/4/inputs", b"batch/4/signs", b"gone"}


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects memory: so many entities are ever learnt from, and state beyond the bounds is refused."""
    monkeypatch.setattr(learnt_batches, "MOST_EVER", 60)
    batches = made()
    assert batches.room == 6
    fill(batches, 0, 40)
    assert batches.room == 2
    fill(batches, 40, 20)
    assert batches.room == 0
    again = made()
    for key, value in (
        (b"batch/0", b""), (b"batch/x/names/0", b""), (b"batch/1/other/0", b""),
        (b"batch/1/inputs/0", bytes(161)),
        (b"batch/1000000000/names/0", b""), (b"gone/1", bytes(79)), (b"gone/-1", bytes(80)),
        (b"batch/1/signs/7", b"1"),
    ):  # fmt: skip
        with pytest.raises(BadRecord):
            again._parts.restore(key, value)
    for number in range(3):
        again._parts.restore(b"batch/%d/signs/0" % number, bytes(10))
    with pytest.raises(BadRecord):
        again._parts.restore(b"batch/3/signs/0", bytes(10))
    with pytest.raises(BadRecord):
        _ = again.raw


def rows_of(*batches: NDArray[np.float64], least: int = 3) -> TrainingRows:
    """Each in a training of its own."""
    rows = TrainingRows(ChangedParts(), 1000, 10, batches[0].shape[1], KIND, least, SECRET, MemberCounts())
    for number, batch in enumerate(batches):
        own = names(100 * number, len(batch))
        rows.freeze(own, batch, np.zeros(len(batch), np.int8))
        rows.choose(own)
        rows.fix(rows.prepare("none"))
    return rows


def test_a_column_without_support_in_a_later_batch_is_constant_there() -> None:
    """Protects a label: the gradient of a column that one row has is the label of this row."""
    random = np.random.default_rng(0)
    first = np.column_stack([random.normal(size=20), np.tile([0.0, 1.0], 10), np.zeros(20)])
    first[5, 2] = 1.0
    later = np.column_stack([random.normal(size=10), np.ones(10), np.zeros(10)])
    later[3, 1] = 0.0
    rows = rows_of(first, later)
    preparation = rows.preparation
    assert preparation is not None
    assert preparation.kept == [0, 1]
    inputs = rows.inputs()
    assert np.array_equal(inputs[:20], first[:, :2])
    assert np.array_equal(inputs[20:], np.column_stack([later[:, 0], np.ones(10)]))
    assert np.array_equal(rows_of(first, later, least=1).inputs()[20:, :2], later[:, :2])


def test_support_is_counted_in_rounded_numbers() -> None:
    """Protects a label: columns are rounded for the gradient, and values that differ before may be one value
    there."""
    random = np.random.default_rng(0)
    tail = random.normal(0, 1e-4, 10)
    tail[4] = 7.0
    rows = rows_of(np.column_stack([random.normal(size=10), tail]))
    preparation = rows.preparation
    assert preparation is not None
    assert len(np.unique(tail)) == 10
    assert preparation.kept == [0]


def test_held_out_is_a_share_that_only_the_secret_tells() -> None:
    """Protects calibration, and the parties' freedom to be no part of it: others cannot tell who is held
    out."""
    several = names(0, 2000)
    for share in (0.0, 0.1, 0.5):
        own = [name for name in several if HeldOut(SECRET, share)(name)]
        assert abs(len(own) / 2000 - share) < 0.03
        assert own == [name for name in several if HeldOut(SECRET, share)(name)]
    one, other = ({name for name in several if HeldOut(secret, 0.5)(name)} for secret in (SECRET, b"t" * 32))
    assert abs(len(one & other) / 2000 - 0.25) < 0.04


def readiness(
    parts: ChangedParts | None = None, **sections: Any
) -> tuple[Readiness, EntityTable, TrainingProgress, set[str]]:
    settings = settings_of("g", 1, **sections)
    parts, taken = ChangedParts() if parts is None else parts, set[str]()
    table = EntityTable(parts, 1, True, 1e6, 1000, MemberCounts(), taken.__contains__)
    progress = TrainingProgress()
    return Readiness(parts, settings, progress, table, made()), table, progress, taken


def test_entities_that_are_taken_do_not_count() -> None:
    """Protects the schedule: learnt and held-out entities are no reason for a training, whatever comes of
    them."""
    _, table, _, taken = readiness()
    taken |= {"a"}
    column = np.ones(1).tobytes()
    assert [table.put(name, 1.0, column, 1) for name in "abc"] == [False, True, True]
    assert (table.complete, table.candidates(), len(table.with_columns())) == (2, ["b", "c"], 3)
    taken |= {"c"}
    table.recount()
    assert (table.complete, table.candidates()) == (1, ["b"])
    table.expire(2e6)
    assert (table.complete, len(table)) == (0, 0)


def test_after_a_failure_there_has_to_be_something_new() -> None:
    """Protects the members' time, and gives a way out: new entities that have settled, or that came before
    the schedule's time."""
    column = np.ones(1).tobytes()
    for every, expected in ((None, 55.0), (100.0, 55.0), (4.0, 45.0)):
        ready, table, progress, _ = readiness(retraining={} if every is None else {"every_seconds": every})
        for number in range(100):
            table.put(f"e{number}", 1.0, column, 1)
        assert ready.due_at == 6.0
        ready.began()
        progress.phase = FAILED
        ready.ended(40.0, failed=True)
        assert ready.due_at is None
        assert table.put("new", 50.0, column, 1)
        ready.came(50.0, 50.0, fresh=True)
        assert ready.due_at == expected
        progress.again, progress.told = True, [ready._settings.encryption.agreed_key]
        assert ready.due_at is None


def test_a_history_is_read_to_its_end_and_a_live_stream_is_not_waited_for() -> None:
    """Protects live streams from waiting for a pause that never comes, and a history from a training that
    takes a part of it."""
    ready, table, _, _ = readiness()
    column = np.ones(1).tobytes()

    def come(number: int, now: float, written: float) -> float | None:
        more = table.put(f"e{number}", now, column, 1)
        ready.came(now, written, fresh=more)
        return ready.due_at

    for number in range(99):
        assert come(number, 100.0 + number, 100.0 + number) is None
    # Live: so long after enough are known, whatever comes then.
    assert [come(100 + number, 200.0 + number, 199.0 + number) for number in range(5)] == [205.0] * 5
    # A history: so long after its last record, but not for ever.
    assert come(200, 204.0, 20.0) == 209.0
    assert come(201, 208.0, 207.5) == 209.0
    assert [come(300 + number, 206.0 + 4 * number, 30.0) for number in range(40)][-1] == 300.0
    # What was remembered is all there is to it.
    content = msgspec.msgpack.encode(ready._since)
    parts = ChangedParts()
    again, _, _, _ = readiness(parts)
    parts.restore(b"since", content)
    assert again._since == ready._since
    # Enough is known no more.
    table.expire(1e6 + 250.0)
    ready.look(1e6 + 250.0)
    assert ready.due_at is None
    assert come(400, 1e6 + 260.0, 1e6 + 260.0) is None


def test_failures_in_a_row_are_tried_again_ever_later() -> None:
    """Protects the members' time: where each new entity had all of them compared again, the members would do
    nothing else."""
    ready, table, progress, _ = readiness()
    for number in range(100):
        table.put(f"e{number}", 1.0, np.ones(1).tobytes(), 1)
    waits = []
    for _ in range(20):
        ready.began()
        progress.phase = FAILED
        ready.ended(40.0, failed=True)
        ready.came(40.0, 40.0, fresh=True)
        assert ready.due_at is not None
        waits.append(ready.due_at - 40.0)
    assert waits[:5] == [5.0, 10.0, 20.0, 40.0, 80.0]
    assert waits[-1] == waits[-2] == 5.0 * 2**12
    ready.ended(40.0)
    ready.ended(40.0, failed=True)
    assert ready.due_at == 45.0


def test_preprocessing_is_fixed_for_life() -> None:
    """Protects the model: columns of later rows mean what they meant when the weights were learnt."""
    random = np.random.default_rng(0)
    rows = TrainingRows(ChangedParts(), 1000, 10, 2, KIND, 3, SECRET, MemberCounts())
    for number in range(3):
        own = names(100 * number, 10)
        rows.freeze(own, random.normal(50 * number, 1 + number, (10, 2)), np.zeros(10, np.int8))
        rows.choose(own)
        found = rows.prepare("standardise")
        if number == 0:
            # A training that did not get as far as its rounds fixes nothing.
            continue
        rows.fix(found)
        assert rows.preparation is not None
        assert rows.prepare("standardise").encode() == rows.preparation.encode()
        assert np.allclose(rows.preparation.preprocessing.mean, rows.batches.raw[:20].mean(axis=0))
