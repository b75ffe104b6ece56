"""Standardised columns: against NumPy and SciPy, entity by entity and as a table; how many entities count;
restoring."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from fdskl.proof.direct import Party, learn, standardised
from scipy import stats

from streamfl.contract.role import BadRecord
from streamfl.fdskl.config import StandardisationSection
from streamfl.fdskl.learning.section import KernelLearningSection
from streamfl.fdskl.sums.standardisation import Standardisation, combined, moments_of, no_moments, scaling_of
from streamfl.state.changelog import ChangedParts

ROWS, FIRST = 2500, 1024
RANDOM = np.random.default_rng(8)
COLUMNS = {
    "normal": RANDOM.normal(size=ROWS),
    "evenly spread": RANDOM.uniform(0, 24, ROWS),
    "far from nought": 1e6 + RANDOM.normal(size=ROWS),
    "heavy tails": np.exp(3 * RANDOM.normal(size=ROWS)),
    "heavy tails of either sign": RANDOM.standard_cauchy(ROWS) * 100,
    "one far out": np.where(np.arange(ROWS) == 7, 1e12, RANDOM.normal(size=ROWS)),
    "huge": RANDOM.normal(size=ROWS) * 3e17,
    "huge with heavy tails": np.clip(RANDOM.standard_cauchy(ROWS) * 1e14, -9e17, 9e17),
    "tiny": RANDOM.normal(size=ROWS) * 1e-12,
    "common flag": (RANDOM.random(ROWS) < 0.4).astype(float),
    "rare flag": (np.arange(ROWS) % 1000 == 7).astype(float) * 4,
    "three values": RANDOM.integers(0, 3, ROWS).astype(float),
    "constant": np.full(ROWS, 0.1),
    "constant and huge": np.full(ROWS, 1e17 / 3),
    "nought": np.zeros(ROWS),
}
TABLE = np.stack(list(COLUMNS.values()), axis=1)


def seen(
    rows: np.ndarray, first: int = FIRST, parts: ChangedParts | None = None, auto: bool = True
) -> Standardisation:
    section = StandardisationSection(first_entities=first, transform="auto" if auto else "none")
    own = Standardisation(ChangedParts() if parts is None else parts, rows.shape[1], section, 10.0)
    for row in rows:
        own.see(row, 0.0)
    return own


def of(found: np.ndarray, name: str) -> np.ndarray:
    return found[:, list(COLUMNS).index(name)]


def by_scipy(column: np.ndarray) -> np.ndarray:
    """The rule as it is said, of one column."""
    first = column[:FIRST]
    if np.ptp(first) == 0:
        return np.clip(column - first[0], -1, 1)
    if stats.kurtosis(first, fisher=False) > 6:
        column, first = np.arcsinh(column), np.arcsinh(first)
    values = np.unique(first)
    deviation = max(first.std(), np.ptp(values) / 5) if len(values) == 2 else first.std()
    return np.clip((column - first.mean()) / deviation, -5, 5)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_standardised_as_scipy_has_their_moments(name: str) -> None:
    """Protects a deployed party's columns from another rule than the one that is described and measured,
    whatever is in them."""
    column = COLUMNS[name]
    with np.errstate(all="raise", under="ignore"):
        found = seen(column[:, np.newaxis]).apply(column[:, np.newaxis], np.ones(ROWS, np.bool_))[:, 0]
    np.testing.assert_allclose(found, by_scipy(column), rtol=1e-9, atol=2e-9)


def test_a_party_and_a_table_have_one_rule() -> None:
    """Protects figures that are computed from tables: a party that sees the entities one by one has the same
    columns."""
    found = seen(TABLE).apply(TABLE, np.ones(ROWS, np.bool_))
    np.testing.assert_allclose(found, standardised(TABLE, FIRST), rtol=1e-9, atol=1e-9)


def test_moments_do_not_depend_on_how_entities_came() -> None:
    """Protects the one-pass update: entities one by one, in parts of any size and as a whole give the same
    moments."""
    whole = moments_of(TABLE)
    for sizes in ([1] * 300 + [200, 2000], [700, 1, 1799], [0, 2500]):
        found, at = no_moments(TABLE.shape[1]), 0
        for size in sizes:
            found = combined(found, moments_of(TABLE[at : at + size]) if size else no_moments(TABLE.shape[1]))
            at = at + size
        deviation = np.sqrt(whole[2] / ROWS)
        assert found[0].tolist() == whole[0].tolist()
        for power, (one, other) in enumerate(zip(found[1:], whole[1:], strict=True), 1):
            size = np.where(deviation > 0, (1 if power == 1 else ROWS) * deviation**power, 1.0)
            np.testing.assert_allclose(one / size, other / size, rtol=1e-9, atol=1e-8)


def test_missing_numbers_are_left_out_and_become_the_mean() -> None:
    """Protects tables with gaps: a column is standardised by the numbers that it has, in one pass as at
    once."""
    gaps = np.where(np.random.default_rng(3).random(TABLE.shape) < 0.3, np.nan, TABLE)
    gaps[:, 0], gaps[5, 1] = np.nan, np.inf
    with np.errstate(all="raise", under="ignore"):
        found = standardised(gaps, FIRST)
        streamed = seen(gaps).apply(gaps, np.ones(ROWS, np.bool_))
    np.testing.assert_allclose(streamed, found, rtol=1e-9, atol=1e-9)
    assert not found[~np.isfinite(gaps)].any()
    assert not found[:, 0].any()
    heavy = gaps[:, list(COLUMNS).index("heavy tails")]
    logarithms = np.arcsinh(heavy[:FIRST])
    expected = (np.arcsinh(heavy) - np.nanmean(logarithms)) / np.nanstd(logarithms)
    np.testing.assert_allclose(of(found, "heavy tails"), np.nan_to_num(expected), rtol=1e-9, atol=1e-9)


def test_only_columns_with_heavy_tails_are_taken_the_logarithm_of() -> None:
    """Protects evenly spread columns, which lose by it, and heavy ones, whose few large numbers hide all
    others without it."""
    found = dict(zip(COLUMNS, scaling_of(moments_of(TABLE[:FIRST])).logarithms.tolist(), strict=True))
    heavy = {name for name, is_heavy in found.items() if is_heavy}
    tails = {"heavy tails", "heavy tails of either sign", "one far out", "huge with heavy tails"}
    # Of a flag it is another flag, and both become the same.
    assert heavy == tails | {"rare flag"}
    plain = seen(TABLE, auto=False).apply(TABLE, np.ones(ROWS, np.bool_))
    usual = ["normal", "evenly spread", "common flag", "three values"]
    for name in usual:
        np.testing.assert_allclose(of(standardised(TABLE, FIRST), name), of(plain, name), atol=1e-12)
    assert (of(plain, "heavy tails") == 5).any()
    assert of(standardised(TABLE, FIRST), "heavy tails").max() < 5
    column = COLUMNS["heavy tails"]
    scaled = (column - column[:FIRST].mean()) / column[:FIRST].std()
    np.testing.assert_allclose(of(plain, "heavy tails"), np.clip(scaled, -5, 5), rtol=1e-9)


def test_rare_flags_do_not_make_an_entity_unlike_all_others() -> None:
    """Protects bandwidths: a flag of one entity in a thousand would be 30 deviations away."""
    assert np.ptp(of(standardised(TABLE, FIRST), "rare flag")) == pytest.approx(5.0)
    flag = COLUMNS["common flag"]
    np.testing.assert_allclose(
        of(standardised(TABLE, FIRST), "common flag"),
        (flag - flag[:FIRST].mean()) / flag[:FIRST].std(),
        rtol=1e-9,
    )


def test_columns_stay_from_the_last_of_the_first_entities_on() -> None:
    """Protects features from meaning something else with every entity, and after samples were read again: the
    same ones count."""
    own = seen(TABLE, 100)
    assert (own.seen, own.frozen) == (100, True)
    np.testing.assert_allclose(
        own.apply(TABLE, np.ones(ROWS, np.bool_)), standardised(TABLE, 100), rtol=1e-9, atol=1e-9
    )
    early = seen(TABLE[:60], 100)
    assert not early.frozen
    early.freeze()
    early.see(TABLE[0], 0.0)
    assert early.seen == 60


def test_who_is_not_known_is_the_mean_and_no_number_is_too_far_out() -> None:
    """Protects phases from numbers whose size says nothing, and entities without columns from being unlike
    all others."""
    own = seen(TABLE)
    assert not own.apply(TABLE[:2], np.array([True, False]))[1].any()
    far = own.apply(np.full((1, TABLE.shape[1]), 9e17), np.ones(1, np.bool_))
    assert np.abs(far).max() == 5
    unwanted = Standardisation(ChangedParts(), 1, StandardisationSection(columns=False), 10.0)
    assert unwanted.frozen
    assert unwanted.apply(np.array([[30.0], [4.0]]), np.array([True, False])).tolist() == [[30.0], [0.0]]


@pytest.mark.parametrize("kind", ["grows", "begins late", "begins late, either sign"])
def test_a_column_that_is_not_as_it_began_leaves_the_others_their_worth(kind: str) -> None:
    """Protects a model from a number of a row, a time, or a field that was empty at first: later entities
    would be unlike all."""
    random, rows = np.random.default_rng(3), 6000
    table = random.normal(size=(rows, 3))
    late = np.where(np.arange(rows) < 1200, 0.0, random.lognormal(8, 1, rows))
    signs = random.choice([-1.0, 1.0], rows)
    table[:, 2] = {"grows": np.arange(rows), "begins late": late, "begins late, either sign": late * signs}[
        kind
    ]
    labels = np.sign(table[:, 0] * table[:, 1])
    found = standardised(table, 1024)
    parties = [Party(["a"], found[:5000, :1], b"a" * 32), Party(["b", "c"], found[:5000, 1:], b"b" * 32)]
    learnt = learn(parties, labels[:5000], KernelLearningSection(features_limit=512))
    outputs = learnt.evaluate([found[5000:, :1], found[5000:, 1:]])
    assert np.mean(np.sign(outputs) == labels[5000:]) > 0.9


def test_what_is_restored_goes_on_as_if_it_had_never_stopped() -> None:
    """Protects features from meaning something else after a restart, before enough entities were seen and
    after."""
    for cut in (1, 37, 100, 150):
        parts = ChangedParts()
        own = seen(TABLE[:cut], 100, parts)
        again = ChangedParts()
        other = Standardisation(again, TABLE.shape[1], StandardisationSection(first_entities=100), 10.0)
        ((key, value),) = parts.changed_state()
        assert value is not None
        again.restore(key, value)
        assert (other.seen, other.frozen) == (own.seen, own.frozen) == (min(cut, 100), cut >= 100)
        for row in TABLE[cut:150]:
            own.see(row, 0.0)
            other.see(row, 0.0)
        known = np.ones(ROWS, np.bool_)
        assert own.apply(TABLE, known).tolist() == other.apply(TABLE, known).tolist()


def test_remembered_moments_that_cannot_be_are_refused() -> None:
    """Protects a start from a damaged changelog."""
    right = moments_of(TABLE[:50, :2])
    parts = ChangedParts()
    Standardisation(parts, 2, StandardisationSection(first_entities=100), 10.0)
    parts.restore(b"columns", msgspec.msgpack.encode([50, right.astype("<f8").tobytes(), True]))

    def damaged(power: int, number: float) -> bytes:
        moments = right.copy()
        moments[power, 1, 0] = number
        return moments.astype("<f8").tobytes()

    wrong = [
        damaged(0, 51),
        damaged(0, -1),
        damaged(0, 1.5),
        damaged(1, 2e18),
        damaged(2, -1e-3),
        damaged(2, 1e301),
    ]
    wrong += [
        damaged(3, np.nan),
        damaged(3, -1e301),
        damaged(4, -1.0),
        damaged(4, np.inf),
        right.tobytes()[:-8],
        b"",
    ]
    for content in wrong:
        with pytest.raises(BadRecord):
            parts.restore(b"columns", msgspec.msgpack.encode([50, content, True]))
    for whole in (
        [-1, right.tobytes(), True],
        [2**60, right.tobytes(), True],
        [50, right.tobytes(), "yes"],
        [50],
    ):
        with pytest.raises(msgspec.ValidationError):
            parts.restore(b"columns", msgspec.msgpack.encode(whole))
