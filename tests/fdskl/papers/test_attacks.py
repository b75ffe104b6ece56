"""What is found out about columns by trying: masks hide what they promise, and what they do not hide is said
and shown."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from sklearn.datasets import load_diabetes

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.attacks import Attack, attacked_systems
from benchmarks.fdskl.attacks import Federation, protected_columns
from benchmarks.fdskl.recovery import (
    distances_of_phases,
    explained,
    from_known_rows,
    solved_differences,
    solved_from_the_first,
    up_to_an_affine_map,
)
from streamfl.fdskl.sums.circle import from_circle

# The active party's columns, and those of two others.
SPLIT = ((0, 4), (4, 7), (7, 10))
HIDDEN = slice(4, 10)


@cache
def diabetes() -> NDArray[np.float64]:
    """442 patients, ten columns with mean 0 and deviation 1."""
    found = load_diabetes().data
    return np.asarray((found - found.mean(axis=0)) / found.std(axis=0))


@cache
def synthetic() -> NDArray[np.float64]:
    """300 instances in clusters, ten columns that go together."""
    draws = np.random.default_rng(5)
    found = (
        draws.normal(size=(300, 10)) @ draws.normal(size=(10, 10))
        + 3 * draws.normal(size=(4, 10))[draws.integers(0, 4, 300)]
    )
    return np.asarray((found - found.mean(axis=0)) / found.std(axis=0))


TABLES: list[Callable[[], NDArray[np.float64]]] = [diabetes, synthetic]


def federation(inputs: NDArray[np.float64], private: bool) -> Federation:
    return Federation(inputs, SPLIT, float(np.median(pdist(inputs))), private)


def relative_error(found: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


@pytest.mark.parametrize("table", TABLES)
def test_two_messages_show_a_difference_of_columns_under_the_papers_masks_alone(table: Any) -> None:
    """Protects columns from the peer that a leaf sends to, which knows the frequencies: b_p is the same for
    each instance, and what is left of two messages is omega (x_a - x_c). Under one-time masks the same attack
    finds nothing, and no column goes with what it finds.
    """
    inputs = table()
    one = federation(inputs, private=False)
    truth = inputs[1:, 7:10] - inputs[:-1, 7:10]
    known = one.known_frequencies(2, 64)
    found = {}
    for mask in ("paper", "one-time"):
        sent = one.sent(2, 64, mask)
        found[mask] = solved_differences(sent[1:], sent[:-1], known)
    # Phases of 32 bits: 2^-32 turns.
    assert relative_error(found["paper"], truth) < 1e-7
    assert relative_error(found["one-time"], truth) > 0.7
    for column in range(3):
        correlation = np.corrcoef(found["one-time"][:, column], truth[:, column])[0, 1]
        # Neighbours in the list of differences have an instance in common: twice the variance of a mean at
        # most.
        assert abs(correlation) < 4 * math.sqrt(2 / len(truth))


@pytest.mark.parametrize("table", TABLES)
def test_the_active_party_solves_for_columns_with_shared_frequencies_alone(table: Any) -> None:
    """Protects the reason for private frequencies: the answers and the seed are all columns of all others,
    but for one row, against Theorem 7 of the paper. Without the frequencies the same attack does not find
    them.
    """
    inputs = table()
    truth = inputs[:, HIDDEN] - inputs[0, HIDDEN]
    found = {}
    for private in (False, True):
        one = federation(inputs, private)
        known = np.hstack([one.known_frequencies(own, 256) for own in (1, 2)])
        found[private] = solved_from_the_first(from_circle(one.told(256)), known)
    assert relative_error(found[False], truth) < 1e-7
    assert relative_error(found[True], truth) > 0.7
    # By chance each column found is a little of the true ones: of wrong frequencies, it is a wrong affine
    # map.
    assert explained(found[True], truth).mean() < 0.1


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(("table", "features"), [(diabetes, 512), (synthetic, 128)])
def test_the_active_party_finds_columns_up_to_an_affine_map(table: Any, features: int, private: bool) -> None:
    """Protects users from a promise that is not kept: private frequencies hide no columns. The answers alone
    tell all columns of all others up to one affine map, and known rows, one more than columns, tell the map.
    """
    inputs = table()
    one = federation(inputs, private)
    places = up_to_an_affine_map(from_circle(one.told(features)), one.bandwidth, 6)
    hidden = inputs[:, HIDDEN]
    assert explained(from_known_rows(places, hidden, len(hidden)), hidden).min() > 0.9999
    assert explained(from_known_rows(places, hidden, 7)[7:], hidden[7:]).min() > 0.9999
    # The attack has to find it: with six coordinates of the active party's own columns and chance, it is far
    # from that.
    own = np.hstack([inputs[:, :4], np.random.default_rng(1).normal(size=(len(inputs), 2))])
    assert explained(from_known_rows(own, hidden, len(hidden)), hidden).min() < 0.7


@pytest.mark.parametrize("table", TABLES)
def test_phases_tell_the_distances_that_nobody_asked_for(table: Any) -> None:
    """Protects users from a promise that is not kept: a party whose bandwidth is set shows no distances, and
    phases tell them."""
    inputs = table()
    one = federation(inputs, private=True)
    truth = pdist(inputs[:, HIDDEN])
    told = distances_of_phases(from_circle(one.told(2048)), one.bandwidth)
    assert np.median(np.abs(told / truth - 1)) < 0.02
    assert np.median(np.abs(np.median(truth) / truth - 1)) > 0.15


def test_noise_on_request_hides_columns_by_its_size() -> None:
    """Protects who asks for noise: what the attack finds is no more than the noise leaves, 1 / (1 + noise^2)
    of a column alone, and a little more of columns that go together.
    """
    inputs = diabetes()
    hidden = inputs[:, HIDDEN]
    shares = []
    for noise in (0.75, 2.0, 6.0):
        seen = protected_columns(inputs, SPLIT, 3.0, noise)
        one = federation(seen, private=True)
        places = up_to_an_affine_map(from_circle(one.told(512)), one.bandwidth, 6)
        # It finds what was projected: what is missing is the noise's doing.
        assert (
            explained(from_known_rows(places, seen[:, HIDDEN], len(hidden)), seen[:, HIDDEN]).min() > 0.9999
        )
        shares.append(float(np.median(explained(from_known_rows(places, hidden, len(hidden)), hidden))))
        best = np.linalg.lstsq(np.hstack([seen, np.ones((len(seen), 1))]), hidden, rcond=None)[0]
        assert (
            shares[-1]
            <= np.median(explained(np.hstack([seen, np.ones((len(seen), 1))]) @ best, hidden)) + 0.01
        )
    assert 0.4 < shares[0] < 0.85
    assert 0.15 < shares[1] < 0.45
    assert shares[2] < 0.12


def test_noise_is_added_once() -> None:
    """Protects from an average: an instance that is asked for again has the same noise, a changed one has
    other noise."""
    inputs = diabetes()[:50]
    once = protected_columns(inputs, SPLIT, 3.0, 2.0)
    assert (protected_columns(inputs, SPLIT, 3.0, 2.0) == once).all()
    changed = inputs.copy()
    changed[:, 9] += 1e-3
    again = protected_columns(changed, SPLIT, 3.0, 2.0)
    assert (again[:, :7] == once[:, :7]).all()
    assert (np.abs(again[:, 7:] - once[:, 7:]) > 1e-2).mean() > 0.9


@pytest.mark.long
def test_the_table_of_attacks(tmp_path: Path) -> None:
    """Protects `make attack`, which shows them: it finds this system, protections that hide do, the one that
    does not is told of, and noise has its price.
    """
    found: list[Attack] = [one for attack in attacked_systems()["fdskl"].values() for one in attack(tmp_path)]
    for one in found:
        assert one.plain is not None, one
        assert one.protected is not None, one
        assert one.chance is not None, one
        if one.name == "the price of noise":
            assert one.plain < one.protected < one.chance, one
        elif one.name == "distances from phases":
            assert max(one.plain, one.protected) < 0.02 < 0.2 < one.chance, one
        elif one.protection == "frequencies = private" and one.name == "columns up to an affine map":
            assert min(one.plain, one.protected) > 0.999, one
        else:
            assert one.plain > 0.999, one
            assert one.protected < (0.05 if one.protection.startswith(("mask", "frequencies")) else 0.7), one
