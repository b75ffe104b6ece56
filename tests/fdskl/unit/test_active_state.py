"""What the active party remembers: forecasts, labelled entities, the model; and the cache that is not
remembered."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from streamfl.contract.role import BadRecord
from streamfl.fdskl.learning.doubly_stochastic import SMALLEST_SCALE
from streamfl.fdskl.learning.feature_cache import FeatureCache
from streamfl.fdskl.learning.labelled import CHUNK, LabelledEntities
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.messages import CARRIED_BYTES, NAMES_BYTES, FeatureRange
from streamfl.fdskl.predicting.forecasts import Forecasts
from streamfl.fdskl.sums.rounds import Question, Rounds, cut
from streamfl.fdskl.sums.secret import Secret
from streamfl.state.changelog import ChangedParts


def restored(again: ChangedParts, parts: ChangedParts) -> None:
    """Restore what another's owners have remembered."""
    for key, value in parts.changed_state():
        if value is not None:
            again.restore(key, value)


def forecasts(parts: ChangedParts, limit: int = 3) -> tuple[Forecasts, dict[str, int]]:
    forgotten = dict.fromkeys(("no_label", "no_columns", "displaced"), 0)
    return Forecasts(parts, 10.0, limit, forgotten), forgotten


def test_an_entity_heard_of_all_the_time_puts_nobody_off() -> None:
    """Protects predictions from one entity whose columns come faster than others are gathered."""
    own, _ = forecasts(ChangedParts())
    own.want("a", 0.0)
    own.want("b", 0.1)
    own.want("a", 5.0)
    assert own.gathered_since == 0.0
    assert own.gather(5) == ["a", "b"]
    assert (own.awaited, own.gathered, own.is_asked_for("a")) == (2, 0, True)


def test_forecasts_expire_by_what_did_not_come() -> None:
    """Protects memory, and the counts by which an operator sees which stream is late."""
    own, forgotten = forecasts(ChangedParts())
    own.want("a", 0.0)
    own.keep_label("b", 1.0, 1.0)
    own.want("c", 2.0)
    own.want("d", 3.0)
    assert forgotten["displaced"] == 1
    own.expire(12.5)
    assert (forgotten["no_columns"], forgotten["no_label"], len(own)) == (1, 1, 1)
    assert own.wake_at == 13.0
    assert own.predicted("a", 0.5, 1, 2, 13.0) is None


def labelled(parts: ChangedParts, limit: int = 4) -> LabelledEntities:
    return LabelledEntities(parts, limit)


def test_labelled_entities_are_restored() -> None:
    """Protects the window and f of each entity from a restart, over more than one chunk and entities that are
    gone."""
    parts, again = ChangedParts(), ChangedParts()
    one, other = labelled(parts, CHUNK), labelled(again, CHUNK)
    for number in range(2 * CHUNK + 3):
        one.add(f"e{number}", 1.0, float(number), 3)
    one.put_outputs(["e1030", "e0"], np.array([-7.0, 1.0]), np.array([1, 1], np.uint8))
    one.use(20)
    one.flush()
    restored(again, parts)
    assert list(other) == list(one)
    np.testing.assert_array_equal(other.outputs_and_known(list(one))[0], one.outputs_and_known(list(one))[0])
    np.testing.assert_array_equal(other.outputs_and_known(list(one))[1], one.outputs_and_known(list(one))[1])
    assert other.outputs_and_known(["e1026"])[0][0] == 1026.0
    assert (other.fresh, other.labels) == (one.fresh, one.labels)
    assert len(one._chunks) <= 2
    for wrong in (bytes(9), np.full(CHUNK, np.inf).tobytes() + bytes(CHUNK)):
        with pytest.raises(BadRecord):
            again.restore(b"outputs/0", wrong)
    with pytest.raises(BadRecord):
        again.restore(b"labelled/x", msgspec.msgpack.encode([np.nan, 3]))


def test_a_model_decays_by_one_factor_and_is_restored() -> None:
    """Protects alphas: the factor is multiplied out before it is too small, and a restart changes nothing."""
    parts, again = ChangedParts(), ChangedParts()
    one, other = KernelModel(parts, 2, 7), KernelModel(again, 2, 7)
    one.set_bandwidth(1.5)
    expected = np.zeros(0)
    for number in range(5):
        one.decay_to(one.scale * 1e-4)
        expected = np.append(expected * 1e-4, [number + 1.0, -2.0])[-6:]
        if one.is_full:
            one.drop_oldest()
        one.put(one.newest, np.array([number + 1.0, -2.0]))
        one.end_iteration()
    assert (one.limit, one.kept, one.dropped, one.version) == (6, 6, 4, 5)
    assert SMALLEST_SCALE < one.scale <= 1
    np.testing.assert_allclose(one.snapshot().alphas, expected, rtol=1e-12)
    assert one.snapshot().ranges == [FeatureRange(4, 6)]
    restored(again, parts)
    np.testing.assert_array_equal(other.snapshot().alphas, one.snapshot().alphas)
    assert (other.version, other.dropped, other.bandwidth, other.newest) == (5, 4, 1.5, one.newest)
    old = one.snapshot()
    one.put(one.nth(0), np.array([9.0, 9.0]))
    np.testing.assert_allclose(old.alphas, expected, rtol=1e-12)


@pytest.mark.parametrize("alphas", [[1e99, -1e120], [np.inf, np.nan], [1e-300, 3.0]])
@pytest.mark.parametrize("scale", [1.0, 1e-99])
def test_whatever_is_written_of_a_model_is_taken_back(alphas: list[float], scale: float) -> None:
    """Protects a restart after steps that were far too long: coefficients are divided by the common factor
    before they are written.

    They used to be cut at 1e100 before that, and refused above 1e150 at the restart.
    """
    parts, again = ChangedParts(), ChangedParts()
    one, other = KernelModel(parts, 2, 6), KernelModel(again, 2, 6)
    one.set_bandwidth(1.5)
    one.decay_to(scale)
    one.put(one.newest, np.array(alphas))
    one.end_iteration()
    restored(again, parts)
    np.testing.assert_array_equal(other.snapshot().alphas, one.snapshot().alphas)


@pytest.mark.parametrize(
    "content",
    [
        [1, 4, 2, 1.0, 0, 1.0, 0],
        [1, 1, 4, 1.0, 0, 1.0, 0],
        [1, 0, 2, 0.0, 0, 1.0, 0],
        [1, 0, 2, 1.0, 0, np.nan, 0],
    ],
)
def test_a_remembered_model_that_cannot_be_is_refused(content: object) -> None:
    """Protects a start from a damaged changelog."""
    parts = ChangedParts()
    KernelModel(parts, 2, 6)
    with pytest.raises((BadRecord, msgspec.ValidationError)):
        parts.restore(b"model", msgspec.msgpack.encode(content))
    with pytest.raises(BadRecord):
        parts.restore(b"alphas/0", np.array([1.0, np.nan]).tobytes())


def test_the_cache_is_a_ring_of_features_for_as_many_entities_as_fit() -> None:
    """Protects memory, and from features of another block, or of columns that are old."""
    cache = FeatureCache(2, 4, 2 * 16)
    blocks = [FeatureRange(first, 2) for first in range(0, 12, 2)]
    cache.put(["a", "b", "c"], [FeatureRange(0, 4)], np.arange(12, dtype=np.float32).reshape(3, 4))
    assert cache.has(cache.rows_of(["a", "b", "c"]), blocks[:2]).tolist() == [True, True, False]
    assert cache.get(cache.rows_of(["b"]), [blocks[1]])[0].tolist() == [[6, 7]]
    cache.put(["a"], [blocks[2]], np.array([[40, 41]], np.float32))
    assert cache.get(cache.rows_of(["a"]), [blocks[1]])[0].tolist() == [[2, 3]]
    assert cache.get(cache.rows_of(["a"]), [blocks[2]])[0].tolist() == [[40, 41]]
    assert cache.has(cache.rows_of(["a", "b"]), blocks[1:3]).tolist() == [True, False]
    assert cache.has(cache.rows_of(["a", "b"]), blocks[:1]).tolist() == [False, True]
    assert cache.has(cache.rows_of(["a", "x"]), []).tolist() == [True, True]
    # The new block stays, of two that have one place, in whichever order they come.
    cache.put(["b"], [blocks[3], blocks[1]], np.array([[60, 61, 2, 3]], np.float32))
    assert cache.get(cache.rows_of(["b"]), [blocks[3]])[0].tolist() == [[60, 61]]
    assert cache.has(cache.rows_of(["b"]), [blocks[0], blocks[3]]).tolist() == [True]
    cache.forget("a")
    cache.put(["c"], [blocks[0]], np.ones((1, 2), np.float32))
    assert cache.has(cache.rows_of(["a", "c"]), blocks[:1]).tolist() == [False, True]
    # Nothing of whoever had its row before.
    assert cache.has(cache.rows_of(["c"]), blocks[1:2]).tolist() == [False]
    cache.keep_only(["c"])
    assert len(cache) == 1


def test_rounds_are_cut_so_that_sums_and_names_fit_a_record() -> None:
    """Protects from sums that no record holds, whichever of the three limits comes first."""
    short = [f"e{number}" for number in range(1000)]
    assert [len(part) for part in cut(short, 1, 4, 300)] == [300, 300, 300, 100]
    parts = list(cut(short, 2048, 4, 4096))
    assert {len(part) for part in parts[:-1]} == {CARRIED_BYTES // 8192}
    assert [name for part in parts for name in part] == short
    long = ["\N{GRINNING FACE}" * 250 + name for name in short]
    parts = list(cut(long, 1, 4, 4096))
    assert [name for part in parts for name in part] == long
    assert all(len(msgspec.msgpack.encode(part)) <= NAMES_BYTES + 5 for part in parts)
    assert [len(part) for part in cut(["a", "b"], 10**9, 8, 10)] == [1, 1]
    assert list(cut([], 1, 4, 10)) == []


def test_a_round_that_came_to_nothing_is_asked_before_all_others() -> None:
    """Protects learning from a question that is lost, and from more rounds on their way than are allowed."""
    rounds, asking = Rounds(2), Question(None, 0, [], ["a"])  # type: ignore[arg-type]
    others = [Question(None, 0, [], [name]) for name in "bcd"]  # type: ignore[arg-type]
    for question in (asking, *others):
        rounds.want(question)
    assert [(key, question.entities) for key, question in rounds.ask(7)] == [((7, 0), ["a"]), ((7, 1), ["b"])]
    rounds.ask_again((7, 0))
    rounds.ask_again((7, 0))
    assert [(key, question.entities) for key, question in rounds.ask(7)] == [((7, 2), ["a"])]
    assert rounds.take((7, 2)) is asking
    assert rounds.take((7, 2)) is None
    assert (len(rounds), rounds.busy) == (1, True)


def restored_secret(value: bytes, own: bytes, is_given: bool) -> Secret:
    parts = ChangedParts()
    secret = Secret(parts, own, is_given)
    parts.restore(b"secret", value)
    return secret


def test_a_secret_is_remembered_once_and_another_is_refused() -> None:
    """Protects a model from features that are drawn from another secret, in silence."""
    parts = ChangedParts()
    made = Secret(parts, bytes(32), is_given=False)
    made.remember()
    made.remember()
    ((key, value),) = parts.changed_state()
    assert (key, parts.changed_state()) == (b"secret", [])
    assert value is not None
    assert restored_secret(value, b"o" * 32, is_given=False).value == bytes(32)
    with pytest.raises(BadRecord, match="another secret"):
        restored_secret(value, b"o" * 32, is_given=True)
    restored_secret(value, bytes(32), is_given=True)
    damaged = msgspec.msgpack.encode([b"x" * 32, msgspec.msgpack.decode(value)[1]])
    with pytest.raises(BadRecord, match="digest"):
        restored_secret(damaged, bytes(32), is_given=False)


def test_a_secret_of_a_file_is_remembered_by_its_digest_alone() -> None:
    """Protects the file's secret from whoever reads the changelog."""
    parts = ChangedParts()
    Secret(parts, b"f" * 32, is_given=True).remember()
    ((_, value),) = parts.changed_state()
    assert value is not None
    assert b"ffff" not in value
    with pytest.raises(BadRecord, match="none is given"):
        restored_secret(value, b"n" * 32, is_given=False)


def test_entities_without_a_label_have_what_room_the_others_leave() -> None:
    """Protects the window's features from those of a stream of which few are ever labelled, and memory from
    what nobody awaits."""
    cache = FeatureCache(2, 2, 3 * 8)
    block = [FeatureRange(0, 2)]

    def put(*entities: str, labelled: bool) -> None:
        cache.put(entities, block, np.full((len(entities), 2), float(len(cache)), np.float32), labelled)

    def here(*entities: str) -> list[bool]:
        return (cache.rows_of(entities) >= 0).tolist()

    put("a", "b", labelled=False)
    put("c", labelled=True)
    cache.label("b")
    put("d", labelled=False)
    assert here(*"abcd") == [False, True, True, True]
    put("e", labelled=True)
    assert here(*"bcde") == [True, True, False, True]
    # All have a label now, and give way to nobody.
    put("f", labelled=False)
    put("g", labelled=True)
    assert here(*"bcefg") == [True, True, True, False, False]
    cache.keep_only(["b"])
    put("h", labelled=False)
    cache.keep_only(["b"])
    assert here(*"bh") == [True, True]
    for entity in "bh":
        cache.forget_unlabelled(entity)
    assert here(*"bh") == [True, False]


def test_a_step_of_which_half_was_written_is_no_lost_coefficient() -> None:
    """Protects a restart after a crash under at_least_once: coefficients may have been written, or deleted,
    without the record of the model."""
    parts, again = ChangedParts(), ChangedParts()
    one, other = KernelModel(parts, 4, 12), KernelModel(again, 4, 12)
    one.set_bandwidth(1.0)
    for _ in range(3):
        one.put(one.newest, np.ones(4))
    before = dict(parts.changed_state())
    one.drop_oldest()
    one.put(one.newest, np.ones(4))
    written = {key: value for key, value in parts.changed_state() if key != b"model"}
    for key, value in {**before, **written}.items():
        if value is not None:
            again.restore(key, value)
    other.check_whole()
    again.restore(b"model", msgspec.msgpack.encode((1, 0, 24, 1.0, 0, 1.0, 0)))
    with pytest.raises(BadRecord, match="of 2 of 6 blocks"):
        other.check_whole()
